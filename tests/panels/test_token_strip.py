"""The token strip: its numbers are the rollout's, its words the sampled tokens, and all of it can be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons.gpt.rollout import Rollout
from lessons.live.figure import png
from lessons.live.style import DIVERGING, SEQUENTIAL
from lessons.panels.token_strip import Row, StripArtists, compute_strip, token_strip, wrap

WORDS = "<eos> <pad> the film was great , though $5 too disappointing for all of us".split()
EOS, PAD = 0, 1
PROMPTS = [[2, 3], [2]]
RESPONSES = [[4, 5, EOS], [2, 3, 4, 6, 10]]


@pytest.fixture(scope="module")
def tokenizer():
    """One token a word."""
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>", pad_token="<pad>")


def make_rollout(responses, seed=0) -> Rollout:
    """Left-padded prompts, right-padded responses, random numbers; those on padding must not be shown."""
    time, generator = max(map(len, responses)), torch.Generator().manual_seed(seed)
    tokens = torch.full((len(responses), 2 + time), PAD)
    attention = torch.zeros_like(tokens)
    for i, (prompt, response) in enumerate(zip(PROMPTS, responses)):
        real = slice(2 - len(prompt), 2 + len(response))
        tokens[i, real], attention[i, real] = torch.tensor([*prompt, *response]), 1
    mask = attention[:, 2:].bool()

    def draw():
        return torch.randn(mask.shape, generator=generator).masked_fill(~mask, 99.0)

    log_probs, ref_log_probs = -draw().abs(), -draw().abs()
    values, advantages = draw(), draw()
    return Rollout(
        tokens, attention, mask, log_probs, ref_log_probs=ref_log_probs, values=values,
        scores=torch.tensor([1.25, -0.5]), gold=torch.tensor([3.0, -2.0]), rewards=draw(),
        advantages=advantages / 2, returns=values + advantages,
    )  # fmt: skip


@pytest.fixture
def rollout():
    return make_rollout(RESPONSES)


class TestStrip:
    def test_has_the_words_that_were_sampled(self, rollout, tokenizer):
        strip = compute_strip(rollout, 0, tokenizer)
        assert strip.prompt == "the film"
        assert strip.words == ("was", "great", "EOS")
        cut_off = compute_strip(rollout, 1, tokenizer)
        assert cut_off.prompt == "the"
        assert cut_off.words == ("the", "film", "was", ",", "disappointing")

    def test_has_the_numbers_of_the_rollout(self, rollout, tokenizer):
        strip = compute_strip(rollout, 0, tokenizer)
        expected = {
            "log π": rollout.old_log_probs[0, :3],
            "log π_ref": rollout.ref_log_probs[0, :3],
            "KL": rollout.old_log_probs[0, :3] - rollout.ref_log_probs[0, :3],
            "reward": rollout.rewards[0, :3],
            "V(s_t)": rollout.values[0, :3],
            "advantage": 2 * rollout.advantages[0, :3],  # before whitening: returns − values
            "whitened": rollout.advantages[0, :3],
        }
        assert [row.name for row in strip.rows] == list(expected)
        for name, values in expected.items():
            assert strip[name] == pytest.approx(values.numpy(), abs=1e-6)
        assert (strip.score, strip.gold) == (1.25, 3.0)

    def test_shares_a_scale_of_colours_within_a_unit(self, rollout, tokenizer):
        rows = {row.name: row for row in compute_strip(rollout, 1, tokenizer).rows}
        assert rows["log π"].scale == rows["log π_ref"].scale
        assert rows["log π"].scale == max(np.abs(rows[name].values).max() for name in ("log π", "log π_ref"))
        stds = ("reward", "V(s_t)", "advantage")
        assert {rows[name].scale for name in stds} == {max(np.abs(rows[name].values).max() for name in stds)}

    def test_is_told_with_its_words_and_key_numbers(self, rollout, tokenizer):
        alt = compute_strip(rollout, 0, tokenizer).alt
        kl = (rollout.old_log_probs - rollout.ref_log_probs)[0, :3]
        advantages = (rollout.returns - rollout.values)[0, :3]
        words = ("was", "great", "EOS")
        for part in (
            "Prompt: “the film” Response: “was great EOS”",
            "score 1.25 std, gold 3.00 points",
            f"KL {kl.sum():.2f} nats over 3 tokens".replace("-", "−"),
            f"rewards sum to {rollout.rewards[0, :3].sum():.2f}".replace("-", "−"),
            f"highest on “{words[advantages.argmax()]}” with {advantages.max():.2f}".replace("-", "−"),
            f"lowest on “{words[advantages.argmin()]}” with {advantages.min():.2f}".replace("-", "−"),
        ):
            assert part in alt

    def test_reads_byte_level_tokens_without_their_space(self, rollout):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = ["<eos>", "<pad>", *alphabet, "Ġf", "Ġfi"]
        model = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [("Ġ", "f"), ("Ġf", "i")]))
        model.pre_tokenizer, model.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        byte_level = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>", pad_token="<pad>")
        ids = byte_level.encode(" fin ")
        assert len(ids) == 3
        rollout = make_rollout([[*ids, EOS], ids])
        assert compute_strip(rollout, 0, byte_level).words == ("fi", "n", "␣", "EOS")

    @pytest.mark.parametrize("row", [-1, 2])
    def test_refuses_a_row_that_is_not_there(self, row, rollout, tokenizer):
        with pytest.raises(ValueError, match=f"row must be between 0 and 1, not {row}"):
            compute_strip(rollout, row, tokenizer)

    def test_refuses_a_rollout_that_was_not_judged(self, rollout, tokenizer):
        early = replace(rollout, rewards=None, advantages=None)
        with pytest.raises(ValueError, match="no rewards, advantages yet: phases 3 to 5"):
            compute_strip(early, 0, tokenizer)

    def test_of_a_rollout_that_was_stored_is_the_same(self, rollout, tokenizer, tmp_path):
        rollout.save(tmp_path / "rollout.safetensors")
        stored, _ = Rollout.load(tmp_path / "rollout.safetensors")
        before, after = (compute_strip(one, 1, tokenizer) for one in (rollout, stored))
        assert after.alt == before.alt
        assert all((a.values == b.values).all() for a, b in zip(after.rows, before.rows))


class TestRow:
    def test_colours_both_signs_around_white(self):
        colours = Row("KL", "nats", np.array([-2.0, 0.0, 1.0]), scale=2.0).colours()
        assert colours.tolist() == [list(DIVERGING(x)[:3]) for x in (0.0, 0.5, 0.75)]
        assert colours[1].tolist() == [1, 1, 1]

    def test_darkens_downwards_from_white_where_there_is_one_sign(self):
        colours = Row("log π", "nats", np.array([-2.0, 0.0]), scale=2.0, diverging=False).colours()
        assert colours.tolist() == [list(SEQUENTIAL(1.0)[:3]), [1, 1, 1]]


class TestWrap:
    @pytest.mark.parametrize(
        ("widths", "lines"),
        [([4, 4, 4], [[0, 1], [2]]), ([10], [[0]]), ([12, 1], [[0], [1]]), ([1, 12, 1], [[0], [1], [2]])],
    )
    def test_by_hand(self, widths, lines):
        assert wrap(widths, 10) == lines

    @given(st.lists(st.floats(1, 30), min_size=1, max_size=30))
    def test_keeps_the_order_and_the_room(self, widths):
        lines = wrap(widths, 25.0)
        assert [i for line in lines for i in line] == list(range(len(widths)))
        assert all(len(line) == 1 or sum(widths[i] for i in line) <= 25 for line in lines)


class TestPicture:
    def test_prints_every_number_in_its_cell(self, rollout, tokenizer):
        strip = compute_strip(rollout, 0, tokenizer)
        artists = StripArtists(strip)
        artists.draw(strip)
        printed = [[text.get_text() for text in texts] for texts in artists.numbers]
        assert printed == [[f"{x:.2f}".replace("-", "−") for x in row.values] for row in strip.rows]
        cells = artists.cells.get_facecolor()[:, :3]
        assert cells == pytest.approx(np.concatenate([row.colours() for row in strip.rows]))

    @pytest.mark.parametrize(
        ("x", "text"),
        [(-9.994, "−9.99"), (9.996, "10.0"), (-12.34, "−12.3"), (99.96, "100"), (-123.4, "−123")],
    )
    def test_prints_large_numbers_with_fewer_decimals(self, x, text, rollout, tokenizer):
        strip = compute_strip(rollout, 0, tokenizer)
        strip = replace(strip, rows=(replace(strip.rows[0], values=np.array([x, 0.0, 0.0])), *strip.rows[1:]))
        artists = StripArtists(strip)
        artists.draw(strip)
        assert artists.numbers[0][0].get_text() == text

    def test_takes_new_numbers(self, rollout, tokenizer):
        strip = compute_strip(rollout, 0, tokenizer)
        artists = StripArtists(strip)
        artists.draw(strip)
        first = png(artists.figure)
        changed = compute_strip(replace(rollout, values=rollout.values + 1), 0, tokenizer)
        artists.draw(changed)
        assert artists.numbers[4][0].get_text() == f"{changed['V(s_t)'][0]:.2f}".replace("-", "−")
        assert png(artists.figure) != first

    @pytest.mark.parametrize("row", [0, 1])
    def test_can_be_read(self, row, rollout, tokenizer, check_picture):
        check_picture(token_strip(rollout, row, tokenizer)[0])

    def test_of_a_long_response_with_dollars_and_large_numbers_can_be_read(self, tokenizer, check_picture):
        responses = [[8, 10, 8, 6, *[9, 10, 11] * 12], [2]]
        rollout = make_rollout(responses)
        rollout = replace(
            rollout, old_log_probs=37 * rollout.old_log_probs, advantages=200 * rollout.advantages
        )
        figure, alt = token_strip(rollout, 0, tokenizer)
        assert "“$5 disappointing $5 ," in alt
        check_picture(figure)
