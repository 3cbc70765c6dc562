import json
import math
from dataclasses import replace
from random import Random

import pytest
import torch
from pytest import approx
from torch.testing import assert_close

from lessons.gpt import preferences
from lessons.gpt.corpus import Corpus, encode_prompt
from lessons.gpt.critic import ReviewCritic
from lessons.gpt.models import PRESETS, raw_scores
from lessons.gpt.preferences import (
    Pair,
    RewardReport,
    accuracy,
    bradley_terry_loss,
    make_pairs,
    normalise,
    prefer,
    row_scores,
    row_tokens,
    sample_texts,
    train_reward_model,
)


class LengthCritic:
    """Longer is better, and every reader agrees."""

    def gold(self, text: str) -> float:
        return float(len(text))

    def reading(self, text: str, rng: Random) -> float:
        return self.gold(text)


class EvenCritic(LengthCritic):
    """All texts are the same to it."""

    def gold(self, text: str) -> float:
        return 1.0


class Listed(torch.nn.Module):
    """A reward model that knows the score of each row by its first token."""

    device = "cpu"

    def __init__(self, by_first_token):
        super().__init__()
        self.by_first_token = by_first_token


@pytest.fixture
def listed(monkeypatch):
    def listed_scores(model, tokens, mask):
        return torch.tensor([model.by_first_token[i] for i in tokens[:, 0].tolist()])

    monkeypatch.setattr(preferences, "raw_scores", listed_scores)
    return Listed


@pytest.fixture
def world(tiny_materials):
    """The supervised model, its tokenizer, and a corpus judged by length."""
    corpus = Corpus(tiny_materials.corpus.documents, LengthCritic())
    return tiny_materials.base, tiny_materials.tokenizer, corpus


def pair(chosen, rejected):
    return Pair("prompt", str(chosen), str(rejected), chosen, rejected)


class TestBradleyTerry:
    def test_loss_by_hand(self):
        chosen, rejected = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([1.0, 0.0, 1.0])
        by_hand = (math.log(2) + math.log(1 + math.exp(-2)) + math.log(1 + math.exp(4))) / 3
        assert bradley_terry_loss(chosen, rejected).item() == approx(by_hand)

    def test_gradient_raises_the_chosen_and_lowers_the_rejected(self):
        chosen, rejected = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0], requires_grad=True)
        bradley_terry_loss(chosen, rejected).backward()
        surprise = 1 / (1 + math.exp(-0.5))  # σ(r(rejected) − r(chosen))
        assert chosen.grad.item() == approx(-surprise)
        assert rejected.grad.item() == approx(surprise)

    def test_stays_finite_for_scores_far_apart(self):
        assert bradley_terry_loss(torch.tensor([0.0]), torch.tensor([1e4])).item() == 1e4


class TestPrefer:
    def test_follows_the_readings(self):
        assert prefer(LengthCritic(), "longer", "short", Random(0))
        assert not prefer(LengthCritic(), "short", "longer", Random(0))

    def test_decides_a_tie_by_a_coin(self):
        rng = Random(0)
        wins = sum(prefer(EvenCritic(), "a", "b", rng) for _ in range(1000))
        assert abs(wins - 500) < 4 * math.sqrt(250)

    def test_agrees_with_the_exact_win_probability(self):
        critic, rng, draws = ReviewCritic(), Random(0), 2000
        first, second = "the acting is not silly .", "i hardly liked the plot ."
        wins = sum(prefer(critic, first, second, rng) for _ in range(draws))
        p = critic.win_probability(first, second)
        assert 0.05 < p < 0.95
        assert abs(wins / draws - p) < 4 * math.sqrt(p * (1 - p) / draws)


class TestMakePairs:
    def test_are_different_responses_to_one_prompt_with_the_preferred_one_first(self, world):
        base, tokenizer, corpus = world
        pairs = make_pairs(base, tokenizer, corpus, 40, 6, seed=0, progress=False)
        assert len(pairs) == 40
        for p in pairs:
            assert p.prompt in corpus.prompts
            assert p.chosen != p.rejected
            assert len(p.chosen) >= len(p.rejected)
        assert len({p.prompt for p in pairs}) > 5

    def test_hold_the_sampled_ids_of_prompt_and_response(self, world):
        base, tokenizer, corpus = world
        for p in make_pairs(base, tokenizer, corpus, 20, 6, seed=1, progress=False):
            prompt = encode_prompt(tokenizer, p.prompt)
            for text, row in ((p.chosen, p.chosen_tokens), (p.rejected, p.rejected_tokens)):
                response = row[len(prompt) :]
                assert row[: len(prompt)] == prompt
                assert 1 <= len(response) <= 6
                assert response[-1] == tokenizer.eos_token_id or len(response) == 6
                written = [token for token in response if token != tokenizer.eos_token_id]
                assert tokenizer.decode(written) == text

    def test_depend_on_their_seed_only(self, world):
        base, tokenizer, corpus = world
        one, same, other = (make_pairs(base, tokenizer, corpus, 10, 6, s, progress=False) for s in (0, 0, 1))
        assert one == same
        assert one != other

    def test_a_model_that_always_says_the_same_is_refused_in_one_line(self, world, monkeypatch):
        base, tokenizer, corpus = world

        def parrot(policy, tokenizer, prompts, *args, **kwargs):
            return ["the same"] * len(prompts), [[1]] * len(prompts)

        monkeypatch.setattr(preferences, "sample_texts", parrot)
        with pytest.raises(ValueError, match="too often gives one answer to a prompt: 0 of 8 pairs in 20 tries"):
            make_pairs(base, tokenizer, corpus, 8, 6, seed=0, progress=False)

    def test_samples_come_in_batches_that_change_nothing(self, world):
        base, tokenizer, corpus = world
        prompts = [*corpus.prompts[:5], *corpus.prompts[:5]]
        whole = sample_texts(base, tokenizer, prompts, 6, seed=3)
        assert sample_texts(base, tokenizer, prompts, 6, seed=3, batch=3) == whole
        assert len(whole[0]) == len(whole[1]) == 10

    def test_rows_are_the_real_tokens(self, make_rollout):
        rollout = make_rollout([[3], [1, 2]], [[1, 0], [4]])
        assert row_tokens(rollout) == [[3, 1, 0], [1, 2, 4]]


class TestRewardModel:
    def test_accuracy_by_hand(self, listed):
        model = listed({1: 2.0, 2: 1.0, 3: 2.0, 4: 5.0})
        pairs = [pair([1, 0], [2, 0]), pair([3], [4, 4]), pair([1, 0], [3])]  # right, wrong, equal
        assert accuracy(model, pairs, pad_id=0) == accuracy(model, pairs, pad_id=0, batch=2) == 1.5 / 3

    def test_row_scores_do_not_depend_on_the_batch_and_its_padding(self, make_four):
        reward = make_four()[2]
        rows = [[1, 0], [2, 3, 4, 1, 0], [3], [4, 4, 0]]
        alone = [raw_scores(reward, torch.tensor([row]), torch.ones(1, len(row), dtype=int)) for row in rows]
        for batch in (1, 3, 500):
            assert_close(row_scores(reward, rows, 0, batch), torch.cat(alone), atol=1e-5, rtol=1e-5)

    def test_learns_what_is_preferred(self, world):
        base, tokenizer, corpus = world
        preset = replace(PRESETS["pocket"], reward_epochs=8)
        pairs = make_pairs(base, tokenizer, corpus, 200, 6, seed=0, progress=False)
        held_out = make_pairs(base, tokenizer, corpus, 100, 6, seed=1, progress=False)
        before = {name: x.clone() for name, x in base.state_dict().items()}
        model = train_reward_model(base, tokenizer, pairs, preset, seed=0, progress=False)
        assert accuracy(model, held_out, tokenizer.pad_token_id) > 0.8
        assert all(torch.equal(x, before[name]) for name, x in base.state_dict().items())
        again = train_reward_model(base, tokenizer, pairs, preset, seed=0, progress=False)
        assert torch.equal(model.score.weight, again.score.weight)


class TestNormalise:
    def report(self, world, tiny_materials, critic, held_out):
        base, tokenizer, corpus = world
        corpus = Corpus(corpus.documents, critic)
        return normalise(tiny_materials.reward, base, tokenizer, corpus, held_out, limit=6, seed=0, count=200)

    @pytest.fixture(autouse=True)
    def keep_config(self, tiny_materials):
        """`normalise` writes into the config of the shared reward model."""
        config = tiny_materials.reward.config
        kept = config.score_mean, config.score_std
        yield
        config.score_mean, config.score_std = kept

    def test_gives_the_samples_of_the_supervised_model_mean_0_and_deviation_1(self, world, tiny_materials):
        base, tokenizer, corpus = world
        model = tiny_materials.reward
        report = normalise(model, base, tokenizer, corpus, [pair([1], [2])], limit=6, seed=7, count=2000)
        prompts = Random(1).choices(corpus.prompts, k=2000)
        texts, rows = sample_texts(base, tokenizer, prompts, 6, seed=2)  # other samples than those it used
        raw = row_scores(model, rows, tokenizer.pad_token_id)
        scores = (raw - model.config.score_mean) / model.config.score_std
        # Four standard errors of a difference of two means, and of two deviations, which rare scores widen.
        kurtosis = ((scores - scores.mean()) ** 4).mean() / scores.var() ** 2
        assert abs(scores.mean()) < 4 * scores.std() * math.sqrt(2 / 2000)
        assert abs(scores.std() - 1) < 4 * scores.std() * math.sqrt(2 * (kurtosis - 1) / (4 * 2000))
        gold = torch.tensor([corpus.critic.gold(text) for text in texts])
        assert abs(gold.mean() - report.gold_mean) < 4 * gold.std() * math.sqrt(2 / 2000)
        assert report.gold_std == approx(gold.std().item(), rel=0.1)
        both = torch.corrcoef(torch.stack([raw, gold]))[0, 1].item()
        assert report.gold_correlation == approx(both, abs=0.1)

    def test_reports_agreement_with_the_labels_by_hand(self, world, tiny_materials):
        held_out = [Pair("p", *texts, [1], [2]) for texts in (("long", "s"), ("s", "long"), ("same", "size"))]
        report = self.report(world, tiny_materials, LengthCritic(), held_out)
        assert report.held_out_pairs == 3
        assert report.gold_accuracy == 0.5  # right, wrong, and a tie
        assert report.ceiling is None  # this critic cannot compute it
        assert report.accuracy == accuracy(tiny_materials.reward, held_out, 1)

    def test_ceiling_is_the_chance_of_the_likelier_text_if_the_critic_knows_it(self, world, tiny_materials):
        first, second = "the acting is not silly .", "i hardly liked the plot ."
        critic = ReviewCritic()
        p = critic.win_probability(first, second)
        texts = (first, second), (second, first), (first, first)
        held_out = [Pair("p", *both, [1], [2]) for both in texts]
        report = self.report(world, tiny_materials, critic, held_out)
        assert report.ceiling == approx((2 * max(p, 1 - p) + 0.5) / 3)
        assert report.gold_accuracy == 0.5

    def test_a_model_that_scores_all_the_same_is_refused(self, world, tiny_materials, monkeypatch):
        monkeypatch.setattr(preferences, "row_scores", lambda model, rows, pad_id: torch.ones(len(rows)))
        with pytest.raises(ValueError, match="gives every response the same score"):
            self.report(world, tiny_materials, LengthCritic(), [pair([1], [2])])

    def test_report_goes_through_json(self, world, tiny_materials):
        report = self.report(world, tiny_materials, LengthCritic(), [pair([1], [2])])
        assert RewardReport(**json.loads(json.dumps(report.as_dict()))) == report
