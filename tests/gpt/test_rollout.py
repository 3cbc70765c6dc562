import itertools
import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lessons.gpt.corpus import Corpus, encode_body, encode_prompt, train_tokenizer
from lessons.gpt.critic import VaderCritic
from lessons.gpt.models import reference_from
from lessons.gpt.rollout import Rollout, chosen_log_probs, inverse_cdf, log_probs, response_logits, sample
from lessons.rl import k1

EOS, VOCAB, LIMIT = 0, 5, 3
PROMPTS = [[3, 1], [2], [4, 1, 2, 2], [1, 3]]


def draw(policy, prompts, seed=0, limit=LIMIT, pad_id=EOS, temperature=1.0):
    uniforms = torch.rand(len(prompts), limit, generator=torch.Generator().manual_seed(seed))
    return sample(policy, prompts, uniforms, eos_id=EOS, pad_id=pad_id, temperature=temperature)


def responses_of(rollout):
    return [tuple(row[keep].tolist()) for row, keep in zip(rollout.response_tokens, rollout.mask)]


def complete_responses():
    """Every response there can be: EOS after 0 to 2 other tokens, or 3 tokens without EOS before the last."""
    words = range(1, VOCAB)
    ended = [(*w, EOS) for n in range(LIMIT) for w in itertools.product(words, repeat=n)]
    return ended + list(itertools.product(words, repeat=LIMIT))


def exact_probabilities(policy, make_rollout, prompt, temperature=1.0):
    responses = complete_responses()
    rollout = make_rollout([prompt] * len(responses), responses)
    return dict(zip(responses, log_probs(policy, rollout, temperature).sum(-1).double().exp().tolist()))


class TestLogProbs:
    @pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
    def test_of_all_responses_make_a_distribution(self, make_gpt2, make_rollout, temperature):
        responses = complete_responses()
        assert len(responses) == 85
        # Each response for a short prompt, and for a longer one, beside which the short one is padded.
        rollout = make_rollout([[2]] * 85 + [[3, 1, 4]] * 85, responses * 2)
        total = log_probs(make_gpt2(), rollout, temperature).double().sum(-1).exp().reshape(2, 85).sum(-1)
        assert_close(total, torch.ones(2, dtype=torch.float64), atol=1e-5, rtol=0)

    def test_of_all_sequences_of_three_tokens_make_a_distribution(self, make_gpt2, make_rollout):
        sequences = list(itertools.product(range(VOCAB), repeat=3))
        rollout = make_rollout([[3, 1]] * 125, sequences)
        total = log_probs(make_gpt2(), rollout).double().sum(-1).exp().sum().item()
        assert total == pytest.approx(1, abs=1e-5)

    def test_are_those_of_each_token_after_the_ones_before_it(self, make_gpt2, make_rollout):
        policy, responses = make_gpt2(), [[1, 4, 2], [3, EOS], [2, 2, EOS], [EOS]]
        rollout = make_rollout(PROMPTS, responses)
        expected = torch.zeros(4, 3)
        for i, (prompt, response) in enumerate(zip(PROMPTS, responses)):
            for t, token in enumerate(response):
                before = torch.tensor([prompt + response[:t]])
                expected[i, t] = policy(input_ids=before).logits[0, -1].log_softmax(-1)[token]
        assert_close(log_probs(policy, rollout), expected, atol=1e-5, rtol=1e-5)

    def test_of_chosen_tokens_by_hand(self):
        logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0], [math.nan, math.inf]]])
        tokens, mask = torch.tensor([[1, 0, 1]]), torch.tensor([[True, True, False]])
        by_hand = torch.tensor([[math.log(0.5), math.log(0.75), 0.0]])
        assert_close(chosen_log_probs(logits, tokens, mask), by_hand)

    def test_need_no_logits_but_those_of_the_response(self, make_gpt2, make_rollout):
        policy, seen = make_gpt2(), []
        policy.lm_head.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape[:2])))
        logits = response_logits(policy, make_rollout(PROMPTS, [[1, 2], [1], [1], [2, 3]]))
        assert logits.shape == (4, 2, VOCAB)
        assert seen == [(4, 2)]

    def test_do_not_change_with_more_padding(self, make_gpt2, make_rollout):
        policy = make_gpt2()
        rollout = make_rollout([[2]], [[1, 4, EOS]])
        padded = make_rollout([[2], [1] * 6], [[1, 4, EOS], [1] * 8])
        assert_close(log_probs(policy, padded)[:1, :3], log_probs(policy, rollout), atol=1e-5, rtol=1e-5)
        assert torch.equal(log_probs(policy, padded)[0, 3:], torch.zeros(5))


class TestSample:
    @pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
    def test_log_probs_stored_while_sampling_equal_those_scored_again(self, make_gpt2, temperature):
        policy = make_gpt2()
        rollout = draw(policy, PROMPTS * 25, limit=8, temperature=temperature)
        again = log_probs(policy, rollout, temperature)
        assert_close(rollout.old_log_probs, again, atol=1e-5, rtol=1e-5)
        assert rollout.lengths.unique().numel() > 3

    def test_temperature_stands_on_both_sides(self, make_gpt2):
        policy = make_gpt2()
        rollout = draw(policy, PROMPTS * 25, temperature=0.5)
        ref_log_probs = log_probs(reference_from(policy), rollout, temperature=0.5)
        assert k1(rollout.old_log_probs, ref_log_probs).abs().max() < 1e-5
        assert ((log_probs(policy, rollout, 0.5) - rollout.old_log_probs).exp() - 1).abs().max() < 1e-5
        assert k1(rollout.old_log_probs, log_probs(policy, rollout)).abs().max() > 0.1  # on one side only

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_frequencies_follow_the_enumerated_probabilities(self, make_gpt2, make_rollout, temperature):
        policy, prompt, count = make_gpt2(), [3, 1], 10_000
        exact = exact_probabilities(policy, make_rollout, prompt, temperature)
        found = dict.fromkeys(exact, 0)
        for response in responses_of(draw(policy, [prompt] * count, temperature=temperature)):
            found[response] += 1
        # χ² over the responses expected five times or more, the others together
        common = [r for r, p in exact.items() if p * count >= 5]
        rare = count - sum(found[r] for r in common), count * (1 - sum(exact[r] for r in common))
        cells = [(found[r], exact[r] * count) for r in common] + [rare]
        chi_squared = sum((observed - expected) ** 2 / expected for observed, expected in cells)
        assert len(common) > 15
        assert chi_squared < len(common) + 4 * math.sqrt(2 * len(common))

    def test_mean_k1_is_the_kl_and_not_negative(self, make_gpt2, make_rollout):
        policy, other, prompt, count = make_gpt2(seed=1), make_gpt2(seed=3), [3, 1], 10_000
        for reference in (other, policy):
            rollout = draw(policy, [prompt] * count, seed=1)
            kl = k1(rollout.old_log_probs, log_probs(reference, rollout)).sum(-1).double()
            standard_error = (kl.std() / math.sqrt(count)).item()
            p, q = (exact_probabilities(m, make_rollout, prompt) for m in (policy, reference))
            exact = sum(p[r] * math.log(p[r] / q[r]) for r in p)
            assert kl.mean() >= -3 * standard_error - 1e-6
            assert abs(kl.mean() - exact) <= 4 * standard_error + 1e-5
        assert sum(p.values()) == pytest.approx(1, abs=1e-5)

    def test_tokens_of_a_row_do_not_depend_on_the_other_rows(self, make_gpt2):
        policy = make_gpt2()
        uniforms = torch.rand(4, 8, generator=torch.Generator().manual_seed(3))
        together = responses_of(sample(policy, PROMPTS, uniforms, eos_id=EOS, pad_id=EOS))
        assert len(set(map(len, together))) > 1
        for i, prompt in enumerate(PROMPTS):
            alone = sample(policy, [prompt], uniforms[i : i + 1], eos_id=EOS, pad_id=EOS)
            assert responses_of(alone) == [together[i]]

    def test_depends_on_its_uniform_numbers_only(self, make_gpt2):
        policy = make_gpt2().train()
        torch.manual_seed(1)
        one = draw(policy, PROMPTS)
        torch.manual_seed(2)
        assert torch.equal(one.tokens, draw(policy, PROMPTS).tokens)
        assert not torch.equal(one.tokens, draw(policy, PROMPTS, seed=5).tokens)

    def test_stops_when_every_row_has_ended_and_is_as_wide_as_the_longest_response(self, make_gpt2):
        policy, calls = make_gpt2(), []
        policy.register_forward_hook(lambda *_: calls.append(1))
        # EOS is the first id and 4 the last one: 0 ends a response, and a number near 1 goes on with 4.
        high = 1 - 2**-24
        uniforms = torch.tensor([[high, high, 0, 0.5, 0.5], [0, 0.5, 0.5, 0.5, 0.5]])
        rollout = sample(policy, [[3, 1], [2]], uniforms, eos_id=EOS, pad_id=1)
        assert rollout.tokens.tolist() == [[3, 1, 4, 4, EOS], [1, 2, EOS, 1, 1]]
        assert rollout.attention_mask.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]
        assert rollout.mask.tolist() == [[True, True, True], [True, False, False]]
        assert rollout.old_log_probs[1, 1:].tolist() == [0, 0]
        assert (rollout.old_log_probs[rollout.mask] < 0).all()
        assert len(calls) == 3
        assert rollout.prompt_width == 2
        assert rollout.lengths.tolist() == [3, 1]
        assert rollout.ended(EOS).tolist() == [True, True]

    def test_a_response_is_cut_off_at_the_limit(self, make_gpt2):
        high = 1 - 2**-24
        uniforms = torch.tensor([[high] * 3, [high, high, 0]])
        rollout = sample(make_gpt2(), [[3], [2]], uniforms, eos_id=EOS, pad_id=EOS)
        assert rollout.response_tokens.tolist() == [[4, 4, 4], [4, 4, EOS]]
        assert rollout.ended(EOS).tolist() == [False, True]

    @pytest.mark.parametrize(
        "prompts, limit, message",
        [
            ([[1], []], 3, "an empty prompt"),
            ([[1], [1] * 30], 3, "30 tokens and a response of up to 3 do not fit into a context of 32"),
        ],
    )
    def test_refuses_what_cannot_be_continued(self, make_gpt2, prompts, limit, message):
        with pytest.raises(ValueError, match=message):
            draw(make_gpt2(), prompts, limit=limit)

    def test_fills_the_context_to_its_last_place(self, make_gpt2):
        uniforms = torch.full((1, 2), 1 - 2**-24)
        rollout = sample(make_gpt2(), [[1] * 30], uniforms, eos_id=EOS, pad_id=EOS)
        assert rollout.tokens.shape == (1, 32)


class TestInverseCdf:
    LOG_PROBS = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]).log()

    @pytest.mark.parametrize(
        "uniform, token", [(0, 1), (0.2499, 1), (0.2501, 3), (0.7499, 3), (0.7501, 4), (1 - 2**-24, 4)]
    )
    def test_by_hand(self, uniform, token):
        assert inverse_cdf(self.LOG_PROBS[None], torch.tensor([float(uniform)])).tolist() == [token]

    @given(
        st.lists(st.sampled_from([-math.inf, -80.0, -3.0, 0.0, 2.0]), min_size=2, max_size=6).filter(
            lambda logits: max(logits) > -math.inf
        ),
        st.floats(0, 1, exclude_max=True, width=32),
    )
    def test_never_chooses_a_token_of_probability_0(self, logits, uniform):
        log_probs = torch.tensor([logits]).log_softmax(-1)
        token = inverse_cdf(log_probs, torch.tensor([uniform]))
        assert log_probs[0, token] > -math.inf
        cumulative = log_probs[0].double().exp().cumsum(-1)
        assert cumulative[token] >= uniform - 1e-6
        assert token == 0 or cumulative[token - 1] <= uniform + 1e-6


RECORD = [[3], [1, 2], [4]], [[1, EOS], [EOS], [2, 3, 4, 1]]  # prompts, and responses of lengths 2, 1 and 4
PER_TOKEN = ("old_log_probs", "ref_log_probs", "values", "rewards", "advantages", "returns")


@pytest.fixture
def full(make_rollout):
    """A rollout with every field set."""
    numbers = {name: torch.arange(12.0).reshape(3, 4) for name in PER_TOKEN}
    scores, gold = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([-1.0, 0.0, 1.0])
    return make_rollout(*RECORD, scores=scores, gold=gold, **numbers)


@pytest.fixture
def sampled(make_rollout):
    """The same rollout before anything was computed about it."""
    return make_rollout(*RECORD)


class TestRecord:
    def test_rows_are_trimmed_to_the_longest_among_them(self, full):
        part = full.rows(torch.tensor([1, 0]))
        assert part.tokens.tolist() == [[1, 2, EOS, 0], [0, 3, 1, EOS]]
        assert part.attention_mask.tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
        assert part.mask.tolist() == [[True, False], [True, True]]
        for name in PER_TOKEN:
            assert getattr(part, name).tolist() == [[4, 5], [0, 1]]
        assert part.scores.tolist() == [1.5, 0.5]
        assert part.gold.tolist() == [0, -1]
        assert part.prompt_width == full.prompt_width

    def test_rows_without_a_shorter_longest_stay_whole(self, full):
        part = full.rows(torch.tensor([2, 0, 1]))
        assert part.mask.shape == (3, 4)
        assert part.rows(torch.tensor([1, 2, 0])).tokens.tolist() == full.tokens.tolist()

    def test_what_is_not_computed_yet_stays_none(self, sampled):
        part = sampled.rows(torch.tensor([0]))
        assert part.values is part.scores is None

    def test_log_probs_of_some_rows_are_those_they_had_among_all(self, make_gpt2):
        policy = make_gpt2()
        rollout = draw(policy, PROMPTS * 4, limit=8)
        everywhere = log_probs(policy, rollout)
        index = torch.tensor([i for i in range(16) if rollout.lengths[i] < 4])
        part = rollout.rows(index)
        assert part.mask.shape[1] < rollout.mask.shape[1]
        assert_close(log_probs(policy, part), everywhere[index, : part.mask.shape[1]], atol=1e-5, rtol=1e-5)

    def test_a_row_has_ended_if_its_last_real_token_is_eos(self, make_rollout):
        responses = [[1, EOS], [1, 2], [1, 2, 3], [EOS]]
        for pad_id in (EOS, 4):
            rollout = make_rollout([[1]] * 4, responses, pad_id=pad_id)
            assert rollout.ended(EOS).tolist() == [True, False, False, True]
            assert rollout.lengths.tolist() == [2, 2, 3, 1]

    def test_texts_are_those_of_the_real_tokens_without_special_ones(self, make_rollout):
        tokenizer = train_tokenizer(Corpus((("the film", "is very good"),), VaderCritic()))
        prompts = [encode_prompt(tokenizer, text) for text in ("the film", "film")]
        responses = [encode_body(tokenizer, "is good"), encode_prompt(tokenizer, "very very good")]
        for pad_id in (tokenizer.eos_token_id, tokenizer.pad_token_id, prompts[0][0]):
            texts = make_rollout(prompts, responses, pad_id=pad_id).texts(tokenizer)
            assert texts == [("the film", "is good"), ("film", "very very good")]

    def test_is_read_back_as_it_was_saved(self, full, sampled, tmp_path):
        for rollout, notes in ((full, {"beta": 0.05, "texts": ["é", "b"], "update": 3}), (sampled, {})):
            path = tmp_path / "rollout.safetensors"
            rollout.save(path, **notes)
            loaded, loaded_notes = Rollout.load(path)
            assert loaded_notes == notes
            for f in fields(Rollout):
                one, other = getattr(rollout, f.name), getattr(loaded, f.name)
                assert one is other is None or (torch.equal(one, other) and one.dtype == other.dtype)
        assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["rollout.safetensors"]

    def test_trimmed_rows_can_be_saved(self, full, tmp_path):
        part = full.rows(torch.tensor([0, 1]))
        part.save(tmp_path / "part")
        assert torch.equal(Rollout.load(tmp_path / "part")[0].values, part.values)

    def test_a_save_that_fails_leaves_the_old_file(self, full, sampled, tmp_path):
        full.save(tmp_path / "rollout")
        with pytest.raises(TypeError):
            sampled.save(tmp_path / "rollout", notes_that_are_no_json=object())
        assert Rollout.load(tmp_path / "rollout")[0].values is not None
        assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == ["rollout"]

    def test_what_is_no_rollout_is_refused_in_one_line(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no stored rollout at"):
            Rollout.load(tmp_path / "missing")
        (tmp_path / "text").write_text("no rollout")
        with pytest.raises(ValueError, match="text is not a stored rollout") as refusal:
            Rollout.load(tmp_path / "text")
        assert "\n" not in str(refusal.value)
