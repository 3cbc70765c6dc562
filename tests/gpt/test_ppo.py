import hashlib
import json
import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from accelerate.state import AcceleratorState
from pytest import approx
from torch.testing import assert_close
from transformers import (
    AutoTokenizer,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
)

from lessons.gpt import ppo
from lessons.gpt.corpus import encode_prompt
from lessons.gpt.materials import prepare
from lessons.gpt.models import logits_at, scores, token_values
from lessons.gpt.ppo import PPOConfig, Trainer, response_kl, run, sample_lines
from lessons.gpt.rollout import log_probs
from lessons.rl import AdaptiveKL, FixedKL, entropy, gae, k1, k2, k3, masked_mean, whiten

INF, NAN = math.inf, math.nan
PHASES = ["prompts", "rollout", "score", "kl_reward", "advantages", "update_policy", "update_value"]
FIELDS = (
    "update score gold kl beta entropy response_length eos_rate distinct clip_fraction approx_kl "
    "first_ratio_error value_loss explained_variance passes_done seconds response_tokens"
).split()


def hashes(model):
    """The hash of every tensor."""
    return {n: hashlib.sha256(x.numpy().tobytes()).hexdigest() for n, x in model.state_dict().items()}


def steps_taken(optimizer):
    """Steps of every parameter that an Adam keeps."""
    return {int(state["step"]) for state in optimizer.state.values()}


def real_rows(rollout):
    """The real ids of every row."""
    return [tuple(row[keep].tolist()) for row, keep in zip(rollout.tokens, rollout.attention_mask.bool())]


def judged(trainer):
    """A rollout after phase 5."""
    return trainer.advantages(trainer.kl_reward(trainer.score(trainer.rollout(trainer.prompts()))))


def disturb(trainer, size=1.0):
    """Move the policy away from the reference."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for p in trainer.policy.parameters():
            p.add_(size * p.std() * torch.randn(p.shape, generator=generator))


class Recorder(Trainer):
    """Keeps every loss and takes no step."""

    def optimise(self, model, optimizer, loss):
        self.losses = [*getattr(self, "losses", []), loss.item()]


def each(names, values, wanted):
    return [(name, value, wanted) for name in names.split() for value in values]


class TestConfig:
    @pytest.mark.parametrize(
        "name, value, wanted",
        [
            ("preset", "huge", "one of pocket, gpt2-small"),
            *each("updates batch responses_per_prompt", (0, -1, 1.5), "a whole number of 1 or more"),
            *each("max_tokens passes minibatches", (0, -1, 1.5), "a whole number of 1 or more"),
            *each("seed base_seed reward_seed samples", (-1, 0.5), "a whole number of 0 or more"),
            *each("temperature lr value_lr max_grad_norm kl_horizon", (0, -1.0, INF, NAN), "positive"),
            *each("value_clip kl_target kl_stop", (0, -1.0, INF, NAN), "positive, or None"),
            *each("beta entropy_bonus", (-0.1, INF, NAN), "0 or more"),
            *each("gamma lam", (-0.1, 1.1, NAN), "between 0 and 1"),
            *each("epsilon", (0, 1, -0.2, NAN), "between 0 and 1, both excluded"),
            *each("missing_eos_score", (NAN, -INF), "a finite number"),
            ("kl_loss", "k1", r"k2, k3 or None \(k1 has no gradient on average\)"),
            ("precision", "fp16", "no or bf16"),
            ("minibatches", 5, "a divisor of the batch of 16"),
            ("responses_per_prompt", 5, "a divisor of the batch of 16"),
            ("kl_horizon", 3, "more than a fifth of the batch of 16"),
        ],
    )
    def test_a_wrong_value_is_one_clear_line(self, make_config, name, value, wanted):
        config = make_config(kl_target=5.0)
        object.__setattr__(config, name, value)  # past the type checks that only the tests have
        with pytest.raises(ValueError, match=f"^{name} must be {wanted}.*, not {value!r}$") as refusal:
            config.__post_init__()
        assert "\n" not in str(refusal.value)

    @pytest.mark.parametrize(
        "values",
        [
            {"batch": 1, "minibatches": 1, "samples": 0, "beta": 0.0, "gamma": 0.0, "lam": 1.0},
            {"value_clip": 0.2, "kl_target": 5.0, "kl_stop": None, "kl_loss": "k2", "entropy_bonus": 0.01},
            {"batch": 12, "minibatches": 3, "responses_per_prompt": 4, "missing_eos_score": 0.0},
        ],
    )
    def test_takes_what_is_right(self, values):
        config = PPOConfig(**values)
        assert {name: getattr(config, name) for name in values} == values

    def test_a_missing_corpus_is_one_clear_line(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no corpus file at .*none.txt: give a text file"):
            PPOConfig(corpus=tmp_path / "none.txt")

    def test_does_not_change_afterwards_and_knows_no_other_name(self):
        with pytest.raises(FrozenInstanceError):
            PPOConfig().beta = 1.0
        with pytest.raises(TypeError):
            PPOConfig(leraning_rate=1.0)


class TestPrompts:
    def test_come_from_the_corpus_each_with_its_responses_side_by_side(self, make_trainer):
        prompts = make_trainer(responses_per_prompt=4).prompts()
        assert len(prompts) == 16
        assert all(prompts[i] == prompts[i // 4 * 4] for i in range(16))
        assert len({*prompts}) > 1

    def test_responses_to_one_prompt_differ(self, make_trainer):
        trainer = make_trainer(responses_per_prompt=16)
        rollout = trainer.rollout(trainer.prompts())
        assert len({*rollout.texts(trainer.tokenizer)}) > 8

    def test_each_prompt_of_the_corpus_is_drawn(self, make_trainer):
        trainer = make_trainer()
        assert {p for _ in range(40) for p in trainer.prompts()} == {*trainer.corpus.prompts}


class TestScore:
    def test_is_the_normalised_score_of_the_reward_model_and_gold_the_critics(self, make_trainer):
        trainer = make_trainer()
        rollout = trainer.score(trainer.rollout(trainer.prompts()))
        texts = rollout.texts(trainer.tokenizer)
        assert rollout.gold.tolist() == approx([trainer.corpus.critic.gold(text) for _, text in texts])
        config = trainer.reward.config
        for i, row in enumerate(real_rows(rollout)):
            hidden = trainer.reward.transformer(input_ids=torch.tensor([row])).last_hidden_state[0, -1]
            by_hand = (trainer.reward.score.weight[0] @ hidden - config.score_mean) / config.score_std
            assert rollout.scores[i].item() == approx(by_hand.item(), abs=1e-4)

    def test_any_callable_can_be_the_scorer(self, make_trainer):
        trainer = make_trainer(scorer=lambda rollout: -rollout.lengths)
        rollout = trainer.score(trainer.rollout(trainer.prompts()))
        assert rollout.scores.tolist() == (-rollout.lengths).tolist()

    def test_first_value_at_the_last_token_is_the_score(self, make_trainer):
        trainer = make_trainer()
        rollout = trainer.score(trainer.rollout(trainer.prompts()))
        after_each = token_values(trainer.value, rollout.tokens, rollout.attention_mask)
        last = rollout.prompt_width + rollout.lengths - 1
        assert_close(after_each[torch.arange(16), last], rollout.scores, atol=1e-4, rtol=1e-4)


class TestKlReward:
    @pytest.mark.parametrize("padding", ["eos", "pad"])
    def test_by_hand_for_ended_and_cut_off_responses(self, make_trainer, make_rollout, padding):
        trainer = make_trainer(beta=0.5, missing_eos_score=-7.0)
        disturb(trainer)
        eos, a = trainer.tokenizer.eos_token_id, 5
        pad_id = {"eos": eos, "pad": trainer.tokenizer.pad_token_id}[padding]
        # [a, EOS, pad], a full-length response that ends, one that does not, and one that is cut off early
        responses = [[a, eos], [a, 6, eos], [a, 6, 7], [a, 6]]
        rollout = make_rollout([[3], [3, 4], [4], [4]], responses, pad_id=pad_id)
        rollout = replace(rollout, scores=torch.tensor([1.0, 2.0, 3.0, 4.0]))
        rollout = replace(rollout, old_log_probs=log_probs(trainer.policy, rollout).detach())
        judged = trainer.kl_reward(rollout)
        assert_close(judged.ref_log_probs, log_probs(trainer.reference, rollout), atol=1e-6, rtol=1e-6)
        penalty = 0.5 * (rollout.old_log_probs - judged.ref_log_probs)
        ends = torch.tensor([[0, 1.0, 0], [0, 0, 2.0], [0, 0, -7.0], [0, -7.0, 0]])
        assert penalty[rollout.mask].abs().min() > 1e-4
        assert_close(judged.rewards, ends - penalty)
        assert judged.rewards[~rollout.mask].tolist() == [0, 0]

    def test_score_is_logged_before_it_is_replaced(self, make_trainer):
        trainer = make_trainer(missing_eos_score=-100.0)
        metrics, rollout = trainer.step()
        assert not rollout.ended(trainer.tokenizer.eos_token_id).all()
        assert metrics["score"] == approx(rollout.scores.mean().item())
        assert rollout.scores.min() > -50
        assert rollout.rewards.min() < -99

    def test_kl_is_0_and_the_ratio_1_at_any_temperature_while_the_policy_is_the_reference(self, make_trainer):
        for temperature in (0.5, 1.0, 2.0):
            metrics, rollout = make_trainer(temperature=temperature).step()
            assert response_kl(rollout).abs().max() < 1e-4
            assert abs(metrics["kl"]) < 1e-4
            assert metrics["first_ratio_error"] < 1e-4

    def test_mean_k1_is_positive_once_the_policy_has_moved(self, make_trainer):
        trainer = make_trainer(batch=512)
        disturb(trainer)
        rollout = trainer.kl_reward(trainer.score(trainer.rollout(trainer.prompts())))
        kl = response_kl(rollout)
        assert kl.mean() > 3 * kl.std() / math.sqrt(512)
        per_token = k1(rollout.old_log_probs, rollout.ref_log_probs)
        assert_close(kl, torch.stack([row[keep].sum() for row, keep in zip(per_token, rollout.mask)]))


class TestAdvantages:
    def test_returns_by_hand(self, make_trainer, make_rollout):
        """Rows of lengths 1, 3 and 5, ended and cut off: V is 0 after the last token of each."""
        eos = make_trainer().tokenizer.eos_token_id
        rollout = make_rollout([[3], [4, 3], [3]], [[eos], [5, 6, eos], [5, 6, 7, 8, 9]])
        rewards = torch.tensor([[2.0, 9, 9, 9, 9], [0.5, 0, 4, 9, 9], [0, 0, 0, 0, 8.0]])
        values = torch.tensor([[1.0, 9, 9, 9, 9], [1, 2, 3, 9, 9], [1, 2, 4, 4, 6.0]])

        class Known(Trainer):
            def values(self, rollout):
                return values.masked_fill(~rollout.mask, 0)

        rollout = replace(rollout, rewards=rewards.masked_fill(~rollout.mask, 0))
        by_hand = {
            # λ = 0: r_t + V(s_{t+1}); λ = 1: the rewards to go
            0.0: [[2, 0, 0, 0, 0], [2.5, 3, 4, 0, 0], [2, 4, 4, 6, 8]],
            1.0: [[2, 0, 0, 0, 0], [4.5, 4, 4, 0, 0], [8, 8, 8, 8, 8]],
        }
        for lam, expected in by_hand.items():
            done = make_trainer(Known, lam=lam, gamma=1.0).advantages(rollout)
            assert_close(done.returns, torch.tensor(expected, dtype=torch.float32))
            assert_close(done.advantages, whiten(done.returns - done.values, rollout.mask))
        done = make_trainer(Known, lam=0.0, gamma=0.5).advantages(rollout)
        assert done.returns[1].tolist() == [0.5 + 0.5 * 2, 0.5 * 3, 4, 0, 0]

    def test_are_nonzero_on_response_tokens_and_nowhere_else(self, make_trainer):
        rollout = judged(make_trainer())
        assert rollout.lengths.unique().numel() > 2
        assert torch.equal(rollout.advantages != 0, rollout.mask)
        assert int((rollout.advantages != 0).sum()) == int(rollout.lengths.sum())
        for name in ("values", "returns", "rewards", "old_log_probs", "ref_log_probs"):
            assert (getattr(rollout, name)[~rollout.mask] == 0).all()

    def test_have_mean_0_and_variance_1_over_tokens(self, make_trainer):
        rollout = judged(make_trainer(gamma=0.99, lam=0.9))
        advantages = rollout.advantages[rollout.mask]
        assert advantages.mean().item() == approx(0, abs=1e-6)
        assert advantages.var(correction=0).item() == approx(1, abs=1e-3)
        raw = gae(rollout.rewards, rollout.values, rollout.mask, 0.99, 0.9)
        assert_close(rollout.returns, (raw + rollout.values).masked_fill(~rollout.mask, 0))

    def test_a_value_is_that_of_the_state_before_its_token(self, make_trainer):
        trainer = make_trainer()
        rollout = trainer.rollout(trainer.prompts())
        values = trainer.values(rollout)
        prompts = rollout.attention_mask[:, : rollout.prompt_width].sum(-1).tolist()
        for i, row in enumerate(real_rows(rollout)):
            for t in range(int(rollout.lengths[i])):
                before = torch.tensor([row[: prompts[i] + t]])
                alone = token_values(trainer.value, before, torch.ones_like(before))[0, -1]
                assert values[i, t].item() == approx(alone.item(), abs=1e-4)

    def test_a_later_token_changes_no_earlier_value(self, make_trainer):
        trainer = make_trainer()
        rollout = trainer.rollout(trainer.prompts())
        tokens, t = rollout.tokens.clone(), 2
        changed = tokens[:, rollout.prompt_width + t]
        changed += 1
        changed %= len(trainer.tokenizer)
        before, after = trainer.values(rollout), trainer.values(replace(rollout, tokens=tokens))
        assert torch.equal(before[:, : t + 1], after[:, : t + 1])
        later = rollout.mask[:, t + 1]
        assert (before[later, t + 1] != after[later, t + 1]).all()


class TestUpdatePolicy:
    @pytest.mark.parametrize("minibatches", [1, 4, 16])
    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_ratio_is_1_on_the_first_minibatch(self, make_trainer, minibatches, temperature):
        trainer = make_trainer(minibatches=minibatches, temperature=temperature)
        disturb(trainer)
        for _ in range(2):  # a policy that has moved, too
            assert trainer.step()[0]["first_ratio_error"] < 1e-4

    def test_takes_passes_times_minibatches_steps(self, make_trainer):
        trainer = make_trainer(passes=3, minibatches=4, updates=2)
        for update in (1, 2):
            metrics, _ = trainer.step()
            assert metrics["passes_done"] == approx(3)
            assert steps_taken(trainer.policy_optimizer) == {update * 12}
            assert steps_taken(trainer.value_optimizer) == {update * 12}

    @pytest.mark.parametrize("lr", [10.0, 0.02])
    def test_stops_within_the_pass_that_crosses_the_bound(self, make_trainer, monkeypatch, lr):
        drifts = []

        def noted(*args):
            loss, stats = original(*args)
            drifts.append(stats["approx_kl"].item())
            return loss, stats

        original = ppo.clipped_surrogate
        monkeypatch.setattr(ppo, "clipped_surrogate", noted)
        trainer = make_trainer(lr=lr, kl_stop=0.1, passes=4, minibatches=4)
        metrics, _ = trainer.step()
        # The bound is looked at before each step, so the minibatch that shows the crossing takes none.
        assert drifts[-1] > 0.1
        assert all(drift <= 0.1 for drift in drifts[:-1])
        assert steps_taken(trainer.policy_optimizer) == {len(drifts) - 1}
        assert metrics["passes_done"] == approx((len(drifts) - 1) / 4)
        assert metrics["passes_done"] < (1 if lr == 10.0 else 4)
        assert steps_taken(trainer.value_optimizer) == {16}

    def test_drift_is_that_from_the_policy_that_sampled_in_nats_a_token(self, make_trainer):
        trainer = make_trainer(Recorder, passes=1, minibatches=1)
        rollout = judged(trainer)
        disturb(trainer)
        stats = trainer.update_policy(rollout)
        now = log_probs(trainer.policy, rollout)
        by_hand = masked_mean(k3(rollout.old_log_probs, now), rollout.mask).item()
        assert stats["approx_kl"] == approx(by_hand, rel=1e-4)
        assert by_hand > 1e-3

    def test_old_log_probs_do_not_change_within_a_batch(self, make_trainer, monkeypatch):
        seen = []

        def noted(log_probs, old_log_probs, advantages, mask, epsilon):
            seen.append(old_log_probs[mask])
            return original(log_probs, old_log_probs, advantages, mask, epsilon)

        original = ppo.clipped_surrogate
        monkeypatch.setattr(ppo, "clipped_surrogate", noted)
        trainer = make_trainer(passes=3, minibatches=4, lr=0.01)
        rollout = judged(trainer)
        stored = rollout.old_log_probs.clone()
        trainer.update_policy(rollout)
        assert torch.equal(rollout.old_log_probs, stored)
        for number in range(3):
            of_this_pass = torch.cat(seen[4 * number : 4 * number + 4]).sort().values
            assert torch.equal(of_this_pass, stored[rollout.mask].sort().values)
        assert (log_probs(trainer.policy, rollout) - stored).abs().max() > 0.01

    def test_each_pass_sees_every_response_once_in_a_new_order(self, make_trainer):
        trainer = make_trainer(passes=3, minibatches=4)
        rollout = judged(trainer)
        seen = [[], [], []]
        for step, part in enumerate(trainer.minibatches(rollout)):
            assert len(part.mask) == 4
            assert part.mask.any(0).all()  # trimmed to its longest response
            seen[step // 4] += part.scores.tolist()
        assert all(sorted(one) == sorted(rollout.scores.tolist()) for one in seen)
        assert seen[0] != seen[1] != seen[2]

    @pytest.mark.parametrize("longest", [1e9, 0.5])
    def test_a_step_follows_the_gradient_of_its_own_loss_scaled_down_if_too_long(self, make_trainer, longest):
        trainer = make_trainer(max_grad_norm=longest)
        parameters = [*trainer.policy.parameters()]
        length = math.sqrt(sum(p.numel() for p in parameters))
        for _ in range(2):  # nothing is left over from the first step
            trainer.optimise(trainer.policy, trainer.policy_optimizer, sum(p.sum() for p in parameters))
            for p in parameters:
                assert_close(p.grad, torch.full_like(p, min(1, longest / length)))

    def test_loss_is_the_mean_over_tokens_not_rows(self, make_trainer, make_rollout):
        trainer = make_trainer(Recorder, batch=2, passes=1, minibatches=1)
        eos = trainer.tokenizer.eos_token_id
        rollout = make_rollout([[3], [4]], [[eos], [5, 6, eos]])
        with torch.no_grad():
            old_log_probs, values = log_probs(trainer.policy, rollout), trainer.values(rollout)
        advantages = torch.tensor([[4.0, 0, 0], [0, 0, 0]])
        rollout = replace(rollout, old_log_probs=old_log_probs, values=values, advantages=advantages)
        trainer.update_policy(rollout)
        assert trainer.losses == approx([-1], abs=1e-5)  # −(4 + 0 + 0 + 0) / 4; the mean of row means is −2
        trainer.update_value(replace(rollout, returns=values + advantages))  # off by 4 in one token
        assert trainer.losses[1:] == approx([2], abs=1e-5)  # ½ (16 + 0 + 0 + 0) / 4; of row means it is 4

    def test_entropy_bonus_and_kl_loss_by_hand(self, make_trainer):
        plain = make_trainer(Recorder, passes=1, minibatches=1)
        disturb(plain)
        rollout = judged(plain)
        plain.update_policy(rollout)
        logits = ppo.response_logits(plain.policy, rollout)
        mean_entropy = masked_mean(entropy(logits), rollout.mask).item()
        kl_losses = {
            name: masked_mean(k(rollout.old_log_probs, rollout.ref_log_probs), rollout.mask).item()
            for name, k in (("k2", k2), ("k3", k3))
        }
        for changes, more in [
            ({"entropy_bonus": 0.3}, -0.3 * mean_entropy),
            ({"kl_loss": "k2", "beta": 0.7}, 0.7 * kl_losses["k2"]),
            ({"kl_loss": "k3", "beta": 0.7}, 0.7 * kl_losses["k3"]),
        ]:
            trainer = make_trainer(Recorder, passes=1, minibatches=1, **changes)
            disturb(trainer)
            trainer.update_policy(rollout)
            assert trainer.losses[0] - plain.losses[0] == approx(more, rel=1e-3)
            assert abs(more) > 1e-3

    @pytest.mark.parametrize(
        "changes",
        [{}, {"kl_loss": "k2"}, {"kl_loss": "k3"}, {"entropy_bonus": 0.1}, {"value_clip": 0.1}],
        ids=str,
    )
    def test_nan_at_padding_reaches_no_loss(self, make_trainer, changes):
        after = []
        for garbage in (0.0, math.nan):
            trainer = make_trainer(**changes)
            rollout = judged(trainer)
            assert not rollout.mask.all()
            names = ("old_log_probs", "ref_log_probs", "values", "rewards", "advantages", "returns")
            dirty = {name: getattr(rollout, name).masked_fill(~rollout.mask, garbage) for name in names}
            rollout = replace(rollout, **dirty)
            stats = trainer.update_policy(rollout) | trainer.update_value(rollout)
            assert all(math.isfinite(x) for x in stats.values())
            after.append([*trainer.policy.parameters(), *trainer.value.parameters()])
        for clean, dirty in zip(*after):
            assert torch.equal(clean, dirty)

    def test_ids_trained_on_are_the_ids_sampled(self, make_trainer, checkpoint, text_file):
        things = prepare(base=str(checkpoint), corpus=text_file, limit=6, progress=False)
        trainer = make_trainer(materials=things, passes=2, minibatches=2)
        seen = {"policy": [], "value": []}
        for name, rows in seen.items():

            def note(module, args, kwargs, rows=rows):
                if torch.is_grad_enabled():
                    ids, mask = kwargs["input_ids"], kwargs["attention_mask"].bool()
                    rows += [tuple(row[keep].tolist()) for row, keep in zip(ids, mask)]

            getattr(trainer, name).register_forward_pre_hook(note, with_kwargs=True)
        _, rollout = trainer.step()
        sampled = real_rows(rollout)
        assert sorted(seen["policy"]) == sorted(seen["value"]) == sorted(sampled * 2)
        # Decoded and encoded again, some rows would have been others.
        texts = map(" ".join, rollout.texts(trainer.tokenizer))
        again = [tuple(encode_prompt(trainer.tokenizer, text)) for text in texts]
        assert any(row[: len(other)] != other for row, other in zip(sampled, again))

    def test_a_loss_that_is_not_finite_ends_the_run_in_one_line(self, make_trainer):
        trainer = make_trainer(scorer=lambda rollout: torch.full((16,), math.nan))
        with pytest.raises(FloatingPointError, match="^update 1: the loss is nan; a smaller learning rate"):
            trainer.step()


class TestBeta:
    def test_is_fixed_without_a_target(self, make_trainer):
        trainer = make_trainer(beta=0.3)
        assert trainer.kl == FixedKL(0.3)
        assert [trainer.step()[0]["beta"] for _ in range(2)] == [0.3, 0.3]

    def test_adapts_to_nats_a_response_by_hand(self, make_trainer):
        target, horizon, n = 0.2, 100, 16
        adaptive = {"kl_target": target, "kl_horizon": horizon}
        trainer = make_trainer(beta=0.5, lr=3e-3, missing_eos_score=-3.0, **adaptive)
        disturb(trainer, 0.3)
        assert isinstance(trainer.kl, AdaptiveKL)
        by_hand = 0.5
        for _ in range(3):
            metrics, rollout = trainer.step()
            log_ratios = (rollout.old_log_probs - rollout.ref_log_probs)[rollout.mask]
            assert metrics["kl"] == approx(log_ratios.sum().item() / n, abs=1e-5)
            assert metrics["beta"] == approx(by_hand)  # the one that the rewards were made with
            final = torch.where(rollout.ended(trainer.tokenizer.eos_token_id), rollout.scores, -3.0).sum()
            total = (final - by_hand * log_ratios.sum()).item()
            assert rollout.rewards.sum().item() == approx(total, abs=1e-3)
            by_hand *= 1 + min(max(log_ratios.sum().item() / n / target - 1, -0.2), 0.2) * n / horizon
            assert trainer.kl.beta == approx(by_hand)
        assert by_hand != 0.5


class TestFourModels:
    def test_share_no_storage(self, make_trainer):
        models = make_trainer().models
        assert [*models] == ["policy", "reference", "reward", "value"]
        places = [{p.untyped_storage().data_ptr() for p in model.parameters()} for model in models.values()]
        assert len(set.union(*places)) == sum(map(len, places))

    def test_reference_and_reward_model_do_not_move_while_the_others_do(self, make_trainer, tiny_materials):
        trainer = make_trainer()
        before = {name: hashes(model) for name, model in trainer.models.items()}
        of_materials = hashes(tiny_materials.base), hashes(tiny_materials.reward)
        for _ in range(3):
            trainer.step()
        after = {name: hashes(model) for name, model in trainer.models.items()}
        assert before["reference"] == after["reference"]
        assert before["reward"] == after["reward"]
        for name in ("policy", "value"):
            assert all(before[name][tensor] != after[name][tensor] for tensor in before[name])
        assert of_materials == (hashes(tiny_materials.base), hashes(tiny_materials.reward))

    def test_only_policy_and_value_model_have_gradients(self, make_trainer):
        models = make_trainer().models
        learns = {name: {p.requires_grad for p in model.parameters()} for name, model in models.items()}
        assert learns == {"policy": {True}, "reference": {False}, "reward": {False}, "value": {True}}

    def test_two_passes_in_training_mode_are_equal_to_the_bit(self, make_trainer, checkpoint, text_file):
        # The checkpoint was saved with dropout 0.1.
        things = prepare(base=str(checkpoint), corpus=text_file, limit=6, progress=False)
        trainer = make_trainer(materials=things)
        rollout = trainer.rollout(trainer.prompts())
        inputs = rollout.tokens, rollout.attention_mask
        for name, model in trainer.models.items():
            model.train()
            output = {"reward": scores, "value": token_values}.get(name, lambda *args: logits_at(*args, 3))
            assert torch.equal(output(model, *inputs), output(model, *inputs))


@pytest.fixture
def fresh_accelerator():
    """accelerate keeps one precision for a whole process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


class TestStep:
    def test_measures_what_it_did(self, make_trainer):
        trainer = make_trainer(passes=2, minibatches=2, beta=0.07, batch=64)
        trainer.step()
        metrics, rollout = trainer.step()
        assert {*FIELDS} <= metrics.keys()
        assert metrics["update"] == 2
        lengths, texts = rollout.mask.sum(-1), [text for _, text in rollout.texts(trainer.tokenizer)]
        ends = [row[-1] == trainer.tokenizer.eos_token_id for row in real_rows(rollout)]
        assert 0 < sum(ends) < 64
        by_hand = {
            "score": rollout.scores.mean(), "gold": rollout.gold.mean(), "eos_rate": sum(ends) / 64,
            "response_length": lengths.sum() / 64, "response_tokens": lengths.sum(),
            "distinct": len({*texts}) / 64,
            "kl": response_kl(rollout).mean(), "beta": 0.07, "passes_done": 2,
        }  # fmt: skip
        for name, value in by_hand.items():
            assert metrics[name] == approx(float(value), abs=1e-5), name
        returns, values = rollout.returns[rollout.mask], rollout.values[rollout.mask]
        assert metrics["explained_variance"] == approx(1 - ((returns - values).var() / returns.var()).item())
        assert [*metrics["seconds"]] == PHASES
        assert all(seconds >= 0 for seconds in metrics["seconds"].values())
        assert 0 < metrics["entropy"] < math.log(len(trainer.tokenizer))
        assert 0 <= metrics["clip_fraction"] <= 1
        assert json.loads(json.dumps(metrics)) == metrics

    def test_entropy_is_that_of_the_policy_that_sampled(self, make_trainer):
        trainer = make_trainer(minibatches=4, passes=2, lr=0.05)
        rollout = judged(trainer)
        by_hand = masked_mean(entropy(ppo.response_logits(trainer.policy, rollout)), rollout.mask).item()
        stats = trainer.update_policy(rollout) | trainer.update_value(rollout)  # moves the policy far
        assert trainer.record(rollout, stats)["entropy"] == approx(by_hand, abs=1e-5)

    def test_depends_on_its_seed_only(self, make_trainer):
        def metrics(seed):
            torch.manual_seed(len(made))
            trainer = make_trainer(seed=seed)
            made.append([{**trainer.step()[0], "seconds": None} for _ in range(2)])

        made = []
        for seed in (0, 0, 1):
            metrics(seed)
        assert made[0] == made[1]
        assert made[0] != made[2]

    def test_in_bf16_the_ratio_is_1_and_what_is_kept_is_float32(self, make_trainer, fresh_accelerator):
        trainer = make_trainer(precision="bf16")
        metrics, rollout = trainer.step()
        assert metrics["first_ratio_error"] < 2**-6
        assert abs(metrics["kl"]) < 0.05
        assert {p.dtype for model in trainer.models.values() for p in model.parameters()} == {torch.float32}
        assert rollout.old_log_probs.dtype == rollout.values.dtype == torch.float32

    def test_each_phase_can_be_replaced(self, make_trainer):
        class LeaveOneOut(Trainer):
            """Advantages of responses beside the others to the same prompt."""

            def advantages(self, rollout):
                groups = rollout.scores.reshape(-1, 4)
                others = (groups.sum(-1, keepdim=True) - groups) / 3
                advantages = (groups - others).reshape(-1, 1) * rollout.mask
                return replace(super().advantages(rollout), advantages=advantages)

        _, rollout = make_trainer(LeaveOneOut, responses_per_prompt=4).step()
        assert_close((rollout.advantages[:, 0]).reshape(4, 4).sum(-1), torch.zeros(4), atol=1e-5, rtol=0)

    def test_raises_what_the_scorer_asks_for(self, make_trainer):
        token = encode_prompt(make_trainer().tokenizer, "good")[0]
        trainer = make_trainer(
            scorer=lambda rollout: ((rollout.response_tokens == token) & rollout.mask).sum(-1),
            batch=64, passes=4, lr=1e-2, value_lr=1e-2, beta=0.0, missing_eos_score=0.0,
        )  # fmt: skip
        found = [trainer.step()[0]["score"] for _ in range(15)]
        assert sum(found[-3:]) > sum(found[:3]) + 1.0

    def test_kl_reward_pulls_back_to_the_reference(self, make_trainer):
        trainer = make_trainer(
            scorer=lambda rollout: torch.zeros(len(rollout.mask)),
            batch=64, passes=4, lr=3e-3, value_lr=1e-2, beta=1.0, missing_eos_score=0.0,
        )  # fmt: skip
        disturb(trainer, 2.0)
        kl = [trainer.step()[0]["kl"] for _ in range(25)]
        assert sum(kl[-3:]) < 0.5 * sum(kl[:3])


class TestRun:
    def lines(self, path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def test_leaves_metrics_samples_settings_and_models(self, make_config):
        config, seen = make_config(samples=3), []
        trainer = run(config, lambda metrics, rollout: seen.append((metrics, rollout)), progress=False)
        metrics, samples = self.lines(config.out / "metrics.jsonl"), self.lines(config.out / "samples.jsonl")
        assert metrics == [m for m, _ in seen]
        assert [m["update"] for m in metrics] == [1, 2]
        assert all({*FIELDS} <= m.keys() for m in metrics)
        assert samples == [
            line for m, rollout in seen for line in sample_lines(rollout, trainer.tokenizer, m["update"], 3)
        ]
        settings = json.loads((config.out / "config.json").read_text(encoding="utf-8"))
        assert settings["updates"] == 2
        assert settings["corpus"] == str(config.corpus)
        report = json.loads((config.out / "reward_report.json").read_text(encoding="utf-8"))
        assert report == trainer.report.as_dict()

    def test_samples_keep_texts_with_score_gold_and_kl(self, make_trainer):
        trainer = make_trainer()
        _, rollout = trainer.step()
        lines = sample_lines(rollout, trainer.tokenizer, 7, 2)
        assert len(lines) == 2
        for i, line in enumerate(lines):
            prompt, response = rollout.texts(trainer.tokenizer)[i]
            assert (line["update"], line["prompt"], line["response"]) == (7, prompt, response)
            assert line["score"] == rollout.scores[i].item()
            assert line["gold"] == rollout.gold[i].item()
            assert line["kl"] == response_kl(rollout)[i].item()

    def test_models_load_with_transformers_and_give_equal_outputs(self, make_config):
        config = make_config(updates=1)
        trainer = run(config, progress=False)
        tokens = torch.tensor([[3, 4, 5, 6]])
        inputs = tokens, torch.ones_like(tokens)
        classes = {
            "policy": GPT2LMHeadModel, "reference": GPT2LMHeadModel,
            "reward": GPT2ForSequenceClassification, "value": GPT2ForTokenClassification,
        }  # fmt: skip
        for name, cls in classes.items():
            loaded, model = cls.from_pretrained(config.out / name), trainer.models[name]
            assert hashes(loaded) == hashes(model)
            output = {"reward": scores, "value": token_values}.get(name, lambda *args: logits_at(*args, 4))
            assert_close(output(loaded, *inputs), output(model, *inputs), atol=1e-6, rtol=1e-6)
            tokenizer = AutoTokenizer.from_pretrained(config.out / name)
            assert tokenizer.get_vocab() == trainer.tokenizer.get_vocab()
        started_from = config.materials(progress=False)
        assert hashes(trainer.models["reference"]) == hashes(started_from.base)
        assert hashes(trainer.models["reward"]) == hashes(started_from.reward)
        assert hashes(trainer.models["policy"]) != hashes(started_from.base)

    def test_ctrl_c_leaves_metrics_and_models_and_is_raised_again(self, make_config):
        config = make_config(updates=5)

        def interrupted(metrics, rollout):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(config, interrupted, progress=False)
        assert [line["update"] for line in self.lines(config.out / "metrics.jsonl")] == [1]
        assert len(self.lines(config.out / "samples.jsonl")) == config.samples
        for name in ("policy", "reference", "reward", "value"):
            assert (config.out / name / "model.safetensors").is_file()
        assert GPT2LMHeadModel.from_pretrained(config.out / "policy").config.n_layer == 1

    def test_does_not_write_over_another_run(self, make_config):
        config = make_config(updates=1, samples=0)
        run(config, progress=False)
        before = (config.out / "metrics.jsonl").read_text()
        with pytest.raises(ValueError, match="already holds a run; choose another folder with --out"):
            run(config, progress=False)
        assert (config.out / "metrics.jsonl").read_text() == before
        assert (config.out / "samples.jsonl").read_text() == ""

    def test_refuses_a_file_for_a_folder_before_it_trains(self, make_config, tmp_path):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(ValueError, match="file is not a folder"):
            run(make_config(out=tmp_path / "file"), progress=False)
        assert not (tmp_path / "cache").exists()

    def test_starts_from_a_checkpoint_as_gpt2_is_published(self, make_config, checkpoint):
        config = make_config(base=str(checkpoint), updates=1)
        trainer = run(config, progress=False)
        assert trainer.tokenizer.eos_token_id == trainer.tokenizer.pad_token_id == 0
        (metrics,) = self.lines(config.out / "metrics.jsonl")
        assert metrics["first_ratio_error"] < 1e-4
        assert abs(metrics["kl"]) < 1e-4
        assert metrics["passes_done"] == approx(2)
        assert GPT2LMHeadModel.from_pretrained(config.out / "policy").config.n_layer == 2
