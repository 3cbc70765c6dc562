import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from torch import nn
from torch.testing import assert_close
from transformers import (
    AutoTokenizer,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
)

from lessons.gpt.corpus import Corpus, encode_body, encode_prompt, review_corpus, train_tokenizer
from lessons.gpt.critic import VaderCritic
from lessons.gpt.models import (
    PRESETS,
    fine_tune,
    fit,
    freeze,
    last_token,
    load_base,
    logits_at,
    minibatches_by_length,
    new_base,
    next_token_loss,
    pad_left,
    pad_right,
    positions,
    raw_scores,
    reference_from,
    reward_from,
    save,
    scores,
    token_values,
    value_from,
    warmup_cosine,
)

ROW = [3, 1, 4, 1, 2]


def tensors(model):
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def same_tensors(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def padded(row, left=0, right=0, pad_id=0):
    """A row of ids between pads, and its attention mask."""
    tokens = torch.tensor([[pad_id] * left + row + [pad_id] * right])
    mask = torch.tensor([[0] * left + [1] * len(row) + [0] * right])
    return tokens, mask


@pytest.fixture(scope="module")
def tokenizer():
    texts = tuple(("the film", f"is {word}") for word in ("good", "bad", "great", "dull"))
    return train_tokenizer(Corpus(texts, VaderCritic()))


class TestNewBase:
    def test_has_the_size_of_the_preset_and_the_tokens_of_the_tokenizer(self, tokenizer):
        config = new_base(PRESETS["pocket"], tokenizer, 0).config
        tiny = PRESETS["pocket"]
        assert (config.n_layer, config.n_embd, config.n_head) == (tiny.layers, tiny.width, tiny.heads)
        assert (config.n_positions, config.vocab_size) == (tiny.context, len(tokenizer))
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)

    def test_depends_on_its_seed_and_leaves_other_random_numbers_alone(self, tokenizer):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        one, same, other = (tensors(new_base(PRESETS["pocket"], tokenizer, seed)) for seed in (1, 1, 2))
        assert torch.equal(torch.rand(3), expected)
        assert same_tensors(one, same)
        assert not same_tensors(one, other)


class TestLoadBase:
    def test_reads_a_checkpoint_as_gpt2_is_published(self, checkpoint):
        model, tokenizer = load_base(str(checkpoint))
        assert same_tensors(tensors(model), tensors(GPT2LMHeadModel.from_pretrained(checkpoint)))
        assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
        assert tokenizer.eos_token_id == 0

    def test_its_tokenizer_gives_reviews_back_as_they_were(self, checkpoint):
        tokenizer = load_base(str(checkpoint))[1]
        for prompt, body in review_corpus(30, seed=2).documents:
            ids = encode_prompt(tokenizer, prompt) + encode_body(tokenizer, body)
            assert tokenizer.decode(ids, skip_special_tokens=True) == f"{prompt} {body}"

    def test_takes_the_dropout_out(self, checkpoint):
        tokens, mask = padded(ROW)
        alive = GPT2LMHeadModel.from_pretrained(checkpoint).train()
        assert not torch.equal(logits_at(alive, tokens, mask, 5), logits_at(alive, tokens, mask, 5))
        model = load_base(str(checkpoint))[0].train()
        assert torch.equal(logits_at(model, tokens, mask, 5), logits_at(model, tokens, mask, 5))

    def test_reads_a_tokenizer_json_with_a_pad_token_of_its_own(self, tmp_path, make_gpt2, tokenizer):
        make_gpt2(vocab=len(tokenizer)).save_pretrained(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        loaded = load_base(str(tmp_path / "other"))[1]
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.pad_token_id == tokenizer.pad_token_id != loaded.eos_token_id

    @staticmethod
    def of_another_kind(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))

    @staticmethod
    def without_eos(folder):
        words = train_tokenizer(Corpus((("a", "b"),), VaderCritic()))
        words.backend_tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    @staticmethod
    def without_tokenizer(folder):
        (folder / "vocab.json").unlink()
        (folder / "merges.txt").unlink()

    @staticmethod
    def with_more_tokens_than_embeddings(folder):
        vocabulary = json.loads((folder / "vocab.json").read_text())
        (folder / "vocab.json").write_text(json.dumps({**vocabulary, "extra": len(vocabulary)}))

    @pytest.mark.parametrize(
        "harm, message",
        [
            (lambda folder: None, None),
            (of_another_kind, "no GPT-2 checkpoint can be loaded from .* it is a bert model"),
            (without_eos, "no end-of-text token"),
            (without_tokenizer, "has 1 tokens where its model has 400"),
            (with_more_tokens_than_embeddings, "has 401 tokens where its model has 400"),
            (lambda folder: (folder / "config.json").unlink(), "no GPT-2 checkpoint can be"),
            (lambda folder: (folder / "config.json").write_text("{"), "no GPT-2 checkpoint can be"),
            (lambda folder: (folder / "model.safetensors").unlink(), "no GPT-2 checkpoint can be"),
            (lambda folder: (folder / "model.safetensors").write_bytes(b""), "no GPT-2 checkpoint can be"),
        ],
        ids="whole other no-eos no-tokens more-tokens no-config bad-config no-weights bad-weights".split(),
    )
    def test_refuses_in_one_line_what_it_cannot_use(self, checkpoint, harm, message):
        getattr(harm, "__func__", harm)(checkpoint)
        if message is None:
            load_base(str(checkpoint))
            return
        with pytest.raises(ValueError, match=message) as refusal:
            load_base(str(checkpoint))
        assert str(checkpoint) in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def test_refuses_a_missing_folder(self, tmp_path):
        with pytest.raises(ValueError, match="no GPT-2 checkpoint can be loaded from '.*nothing'") as refusal:
            load_base(str(tmp_path / "nothing"))
        assert "\n" not in str(refusal.value)


class TestFourModels:
    def test_share_no_storage(self, make_gpt2):
        policy = make_gpt2()
        reward = reward_from(policy, 0)
        four = [policy, reference_from(policy), reward, value_from(reward)]
        places = [{x.untyped_storage().data_ptr() for x in [*m.parameters(), *m.buffers()]} for m in four]
        assert len(set.union(*places)) == sum(map(len, places))
        assert policy.lm_head.weight is policy.transformer.wte.weight  # tied inside a model, as in GPT-2

    def test_reference_is_the_policy_and_frozen(self, make_gpt2):
        policy = make_gpt2().train()
        reference = reference_from(policy)
        assert same_tensors(tensors(reference), tensors(policy))
        assert not reference.training
        assert not any(p.requires_grad for p in reference.parameters())
        assert policy.training
        assert all(p.requires_grad for p in policy.parameters())

    def test_freezing_stops_gradients_and_training_mode(self, make_gpt2):
        model = make_gpt2().train()
        assert freeze(model) is model
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())

    def test_reward_model_is_the_base_with_a_new_output_that_depends_on_the_seed(self, make_gpt2):
        base = make_gpt2()
        one, same, other = reward_from(base, 0), reward_from(base, 0), reward_from(base, 1)
        assert same_tensors(tensors(one.transformer), tensors(base.transformer))
        assert torch.equal(one.score.weight, same.score.weight)
        assert not torch.equal(one.score.weight, other.score.weight)
        assert (one.config.score_mean, one.config.score_std, one.config.num_labels) == (0, 1, 1)
        assert not hasattr(base.config, "score_mean")

    @pytest.mark.parametrize("pads", [(0, 0), (3, 0), (0, 2), (4, 3)])
    def test_first_value_at_the_last_token_is_the_normalised_score(self, make_four, pads):
        _, _, reward, value = make_four()
        tokens, mask = padded(ROW, *pads)
        last = pads[0] + len(ROW) - 1
        by_hand = (raw_scores(reward, tokens, mask) - 0.7) / 2.5
        assert_close(scores(reward, tokens, mask), by_hand)
        assert_close(token_values(value, tokens, mask)[:, last], by_hand)

    def test_two_forward_passes_in_training_mode_are_equal_to_the_bit(self, make_four, checkpoint):
        tokens, mask = padded(ROW, 2, 2)
        base = load_base(str(checkpoint))[0]  # saved with dropout 0.1
        scorer = reward_from(base, 0)
        from_checkpoint = (base, reference_from(base), scorer, value_from(scorer))
        for policy, reference, reward, value in (make_four(), from_checkpoint):
            for model in (policy, reference, reward, value):
                model.train()
            for model in (policy, reference):
                assert torch.equal(logits_at(model, tokens, mask, 9), logits_at(model, tokens, mask, 9))
            assert torch.equal(raw_scores(reward, tokens, mask), raw_scores(reward, tokens, mask))
            assert torch.equal(token_values(value, tokens, mask), token_values(value, tokens, mask))

    def test_saved_folders_load_with_transformers_and_are_equal(self, make_four, tmp_path, tokenizer):
        policy, _, reward, value = make_four(vocab=len(tokenizer))
        for name, model in {"policy": policy, "reward": reward, "value": value}.items():
            save(model, tmp_path / name, tokenizer)
        assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".safetensors", ".json"}
        tokens, mask = padded(ROW, 2)
        for name, model, cls, output in [
            ("policy", policy, GPT2LMHeadModel, lambda m: logits_at(m, tokens, mask, 7)),
            ("reward", reward, GPT2ForSequenceClassification, lambda m: scores(m, tokens, mask)),
            ("value", value, GPT2ForTokenClassification, lambda m: token_values(m, tokens, mask)),
        ]:
            loaded = cls.from_pretrained(tmp_path / name)
            assert same_tensors(tensors(loaded), tensors(model))
            assert_close(output(loaded), output(model), atol=1e-6, rtol=1e-6)
        assert AutoTokenizer.from_pretrained(tmp_path / "policy").get_vocab() == tokenizer.get_vocab()


class TestPadding:
    def test_positions_count_real_tokens_only(self):
        mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]])
        assert positions(mask).tolist() == [[0, 1, 2, 3], [0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]]

    @pytest.mark.parametrize("left, right", [(5, 0), (0, 5), (5, 5), (100, 0), (0, 100)])
    @pytest.mark.parametrize("pad_id", [0, 2])
    def test_changes_no_log_prob_value_or_score(self, make_four, left, right, pad_id):
        policy, _, reward, value = make_four()
        tokens, mask = padded(ROW, left, right, pad_id)
        real = torch.arange(left, left + len(ROW))
        alone = padded(ROW)
        assert_close(
            logits_at(policy, tokens, mask, real).log_softmax(-1),
            logits_at(policy, *alone, len(ROW)).log_softmax(-1), atol=1e-5, rtol=1e-5,
        )  # fmt: skip
        values, values_alone = token_values(value, tokens, mask)[:, real], token_values(value, *alone)
        assert_close(values, values_alone, atol=1e-5, rtol=1e-5)
        assert_close(raw_scores(reward, tokens, mask), raw_scores(reward, *alone), atol=1e-5, rtol=1e-5)

    def test_value_sees_no_later_token(self, make_four):
        value = make_four()[3]
        tokens, mask = padded(ROW, 2)
        before = token_values(value, tokens, mask)
        tokens[0, 5] = 0  # the fourth real token
        after = token_values(value, tokens, mask)
        assert torch.equal(after[:, 2:5], before[:, 2:5])
        assert (after[:, 5:] - before[:, 5:]).abs().min() > 1e-4

    def test_pads_by_hand(self):
        tokens, mask = pad_right([[1], [2, 3, 4]], 9)
        assert tokens.tolist() == [[1, 9, 9], [2, 3, 4]]
        assert mask.tolist() == [[1, 0, 0], [1, 1, 1]]
        tokens, mask = pad_left([[1], [2, 3, 4]], 9)
        assert tokens.tolist() == [[9, 9, 1], [2, 3, 4]]
        assert mask.tolist() == [[0, 0, 1], [1, 1, 1]]

    def test_last_token_is_the_last_true(self):
        mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 0]]).bool()
        assert last_token(mask).tolist() == [0, 3, 3, 2]

    def test_a_row_without_a_token_has_no_last_one(self):
        with pytest.raises(ValueError, match="without a real token"):
            last_token(torch.tensor([[True, False], [False, False]]))


class TestScores:
    EOS = 0

    @pytest.mark.parametrize("config_pad", [None, 0, 3], ids=["no pad id", "pad = eos", "pad is a word"])
    @pytest.mark.parametrize("pad_id", [0, 3])
    def test_are_read_at_the_last_real_token(self, make_four, config_pad, pad_id):
        """[a, EOS, pad] and a response of full length, padded on either side."""
        reward = make_four()[2]
        reward.config.pad_token_id = config_pad
        rows = [[4, 1, self.EOS], [4, 1, 2, 3], [2, self.EOS]]
        by_hand = []
        for row in rows:
            hidden = reward.transformer(input_ids=torch.tensor([row])).last_hidden_state[0, -1]
            by_hand.append((reward.score.weight[0] @ hidden).item())
        for pad in (pad_left, pad_right):
            tokens, mask = pad(rows, pad_id)
            assert raw_scores(reward, tokens, mask).tolist() == approx(by_hand, abs=1e-5)
        assert len({round(score, 3) for score in by_hand}) == 3

    def test_are_normalised_by_what_stands_in_the_config(self, make_four):
        reward = make_four()[2]
        tokens, mask = padded(ROW)
        assert_close(scores(reward, tokens, mask), (raw_scores(reward, tokens, mask) - 0.7) / 2.5)


class TestFit:
    @given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 9))
    def test_minibatches_hold_every_row_once(self, lengths, batch, seed):
        batches = minibatches_by_length(lengths, batch, torch.Generator().manual_seed(seed))
        assert sorted(i for chosen in batches for i in chosen) == list(range(len(lengths)))
        assert all(1 <= len(chosen) <= batch for chosen in batches)

    def test_minibatches_hold_rows_of_similar_length(self):
        lengths = [i % 10 for i in range(200)]
        for chosen in minibatches_by_length(lengths, 20, torch.Generator().manual_seed(0)):
            assert len({lengths[i] for i in chosen}) == 1

    def test_learning_rate_warms_up_and_falls_along_a_cosine(self):
        factors = [warmup_cosine(step, 100, warmup=0.1) for step in range(101)]
        assert factors[:10] == approx([0.1 * k for k in range(1, 11)])
        assert factors[55] == approx(0.5)
        assert factors[32] == approx((1 + math.cos(math.pi * 22 / 90)) / 2)
        assert factors[100] == approx(0)
        assert warmup_cosine(0, 1) == 1

    @staticmethod
    def steps(rows, epochs, batch=4, seed=0, value=1.0):
        """The minibatches that a fit sees, and the parameter it ends with."""
        model = nn.Linear(1, 1)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        seen = []

        def loss_of(chosen):
            seen.append(chosen)
            return (model(torch.ones(1, 1)) * value).sum()

        settings = {"lengths": [1] * len(rows), "batch": batch, "learning_rate": 0.1, "progress": False}
        fit(model, rows, loss_of, epochs=epochs, seed=seed, title="test", **settings)
        return seen, model.weight.item()

    @pytest.mark.parametrize("epochs, steps", [(1, 5), (2, 10), (0.4, 2), (1.5, 8), (0.01, 1)])
    def test_an_epoch_is_every_row_once_and_may_be_a_fraction(self, epochs, steps):
        seen, _ = self.steps(list(range(20)), epochs)
        assert len(seen) == steps
        if epochs in (1, 2):
            assert sorted(i for chosen in seen for i in chosen) == sorted(list(range(20)) * epochs)

    def test_the_same_seed_gives_the_same_order_and_goes_downhill(self):
        one, same, other = (self.steps(list(range(20)), 1, seed=seed) for seed in (0, 0, 1))
        assert one == same
        assert one[0] != other[0]
        assert one[1] < -0.05

    def test_a_loss_that_is_not_finite_stops_it_in_one_line(self):
        with pytest.raises(FloatingPointError, match="test: the loss is nan; a smaller learning rate"):
            self.steps([0, 1], 1, value=math.nan)

    def test_next_token_loss_is_the_mean_over_tokens_not_rows(self, make_gpt2):
        model, rows = make_gpt2(), [[3, 1], [2, 4, 1, 0]]
        by_hand = []
        for row in rows:
            log_probs = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
            by_hand += [-log_probs[t, row[t + 1]].item() for t in range(len(row) - 1)]
        assert len(by_hand) == 4
        assert next_token_loss(model, rows, pad_id=0).item() == approx(sum(by_hand) / 4, abs=1e-5)
        assert next_token_loss(model, rows, pad_id=3).item() == approx(sum(by_hand) / 4, abs=1e-5)

    def test_fine_tuning_teaches_the_rows_and_cuts_them_at_the_context(self, tokenizer):
        preset = PRESETS["pocket"]
        row = encode_prompt(tokenizer, "the film is") + encode_body(tokenizer, "good")
        rows = [row] * 32 + [[3] * 80] * 2
        model = new_base(preset, tokenizer, 0)
        assert max(map(len, rows)) > model.config.n_positions
        before = next_token_loss(model, rows[:1], 1).item()
        trained = fine_tune(model, tokenizer, rows, preset, seed=0, progress=False)
        assert trained is model
        assert next_token_loss(model, rows[:1], 1).item() < before - 0.5
        assert not model.training
