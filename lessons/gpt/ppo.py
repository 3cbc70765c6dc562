"""PPO on text with four models: the configuration, the trainer with its seven phases, and the run.

One update, as lesson 9 numbers it:

    1 prompts         sample prompts
    2 rollout         the policy writes a response to each, its log-probs stored
    3 score           the reward model scores each whole response
    4 kl_reward       −β (log π − log π_ref) on each token, the score on the last one
    5 advantages      GAE with the value model
    6 update_policy   several passes with the clipped objective, ended early if the policy drifts
    7 update_value    several passes of regression on the returns

The algorithms are those of `lessons.rl`. Sources: Schulman et al. 2017 (PPO), Ziegler et al. 2019 and Ouyang et al. 2022 (the
KL reward and the four models).
"""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from lessons.gpt.corpus import encode_prompt
from lessons.gpt.materials import Materials, prepare
from lessons.gpt.models import PRESETS, device, freeze, reference_from, save, scores, token_values, value_from
from lessons.gpt.rollout import Rollout, chosen_log_probs, log_probs, response_logits, sample
from lessons.rl import (
    AdaptiveKL,
    FixedKL,
    clipped_surrogate,
    entropy,
    gae,
    k2,
    k3,
    masked_mean,
    per_token_rewards,
    value_loss,
    whiten,
)

Scorer = Callable[[Rollout], Tensor]  # one number a response


def default_preset() -> str:
    """`LESSONS_PRESET` where it is set, else `gpt2-small` on a machine with a GPU and `pocket` on one without."""
    return os.environ.get("LESSONS_PRESET") or ("gpt2-small" if torch.cuda.is_available() else "pocket")


@dataclass(frozen=True)
class PPOConfig:
    """Train a policy with PPO against a reward model learned from preferences."""

    preset: Literal["pocket", "gpt2-small"] = "pocket"
    """Size of the four models: pocket trains on a CPU in minutes, gpt2-small wants a GPU."""
    base: str | None = None
    """A GPT-2 checkpoint to start from, a folder or a hub name; without it the preset's model is trained from scratch."""
    corpus: Path | None = None
    """A text file with one document a line in place of the generated film reviews."""
    out: Path = Path("runs/ppo")
    """Folder for metrics, samples and the four models; the command `lessons ppo` adds a picture of the curves."""
    seed: int = 0
    """Seed of the PPO run: prompts, sampling, minibatches."""
    base_seed: int = 0
    """Seed of the supervised model."""
    reward_seed: int = 0
    """Seed of the reward model and its preference pairs."""
    updates: int = 50
    """Rollouts to train on, each with its passes."""
    batch: int = 128
    """Responses an update."""
    responses_per_prompt: int = 1
    """Responses to each prompt; has to divide the batch."""
    max_tokens: int = 40
    """Longest response, in tokens."""
    temperature: float = 1.0
    """Of the policy's distribution, when it samples and when it is scored."""
    passes: int = 4
    """Passes over each batch, of the policy and of the value model."""
    minibatches: int = 4
    """Optimiser steps a pass; has to divide the batch."""
    lr: float = 1.5e-4
    """Adam's learning rate for the policy."""
    value_lr: float = 1e-3
    """Adam's learning rate for the value model."""
    max_grad_norm: float = 1.0
    """Longest gradient; longer ones are scaled down to it."""
    epsilon: float = 0.2
    """ε of the clip."""
    value_clip: float | None = None
    """Largest move of a value from its old one that the value loss rewards."""
    gamma: float = 1.0
    """γ, the discount."""
    lam: float = 0.95
    """λ of GAE."""
    beta: float = 0.05
    """β, the price of one nat of KL to the reference, in standard deviations of the score."""
    kl_target: float | None = None
    """Nats a response that an adaptive β steers to; without it β stays fixed."""
    kl_horizon: int = 10_000
    """Episodes over which the adaptive β answers."""
    kl_stop: float | None = 0.1
    """End an update's passes when the KL to the old policy exceeds this many nats a token (k3)."""
    missing_eos_score: float = -2.0
    """The score of a response that was cut off, in place of the reward model's."""
    entropy_bonus: float = 0.0
    """Weight of the entropy in the policy's loss."""
    kl_loss: Literal["k2", "k3"] | None = None
    """A KL term in the policy's loss, weighted by β, in addition to the reward's. k1 has no gradient there on average."""
    precision: Literal["no", "bf16"] = "no"
    """Mixed precision of the trained models."""
    samples: int = 4
    """Responses kept in samples.jsonl at every update."""

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, wanted: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {wanted}, not {getattr(self, name)!r}")

        check(self.preset in PRESETS, "preset", f"one of {', '.join(PRESETS)}")
        for name in ("updates", "batch", "responses_per_prompt", "max_tokens", "passes", "minibatches"):
            check(isinstance(getattr(self, name), int) and getattr(self, name) > 0, name, "a whole number of 1 or more")
        for name in ("seed", "base_seed", "reward_seed"):
            check(isinstance(getattr(self, name), int) and 0 <= getattr(self, name) < 2**63, name, "a whole number of 0 or more")
        check(isinstance(self.samples, int) and self.samples >= 0, "samples", "a whole number of 0 or more")
        for name in ("temperature", "lr", "value_lr", "max_grad_norm", "kl_horizon"):
            check(0 < getattr(self, name) < math.inf, name, "positive")
        for name in ("value_clip", "kl_target", "kl_stop"):
            check(getattr(self, name) is None or 0 < getattr(self, name) < math.inf, name, "positive, or None")
        for name in ("beta", "entropy_bonus"):
            check(0 <= getattr(self, name) < math.inf, name, "0 or more")
        for name in ("gamma", "lam"):
            check(0 <= getattr(self, name) <= 1, name, "between 0 and 1")
        check(0 < self.epsilon < 1, "epsilon", "between 0 and 1, both excluded")
        check(abs(self.missing_eos_score) < 1e30, "missing_eos_score", "a finite number")
        check(self.batch <= 1_000_000, "batch", "at most a million")
        check(self.kl_loss in (None, "k2", "k3"), "kl_loss", "k2, k3 or None (k1 has no gradient on average)")
        check(not self.kl_loss or self.beta > 0, "kl_loss", "None with beta = 0, which is its weight")
        check(self.precision in ("no", "bf16"), "precision", "no or bf16")
        context = PRESETS[self.preset].context
        check(self.base is not None or self.max_tokens < context, "max_tokens", f"less than the context of {context} tokens")
        check(self.batch % self.minibatches == 0, "minibatches", f"a divisor of the batch of {self.batch}")
        check(self.batch % self.responses_per_prompt == 0, "responses_per_prompt", f"a divisor of the batch of {self.batch}")
        answers = self.kl_target is None or self.batch < 5 * self.kl_horizon  # or one update could take β to 0
        check(answers, "kl_horizon", f"more than a fifth of the batch of {self.batch}")
        if self.corpus is not None and not Path(self.corpus).is_file():
            raise FileNotFoundError(f"no corpus file at {self.corpus}: give a text file with one document a line")

    def materials(self, progress: bool = True) -> Materials:
        """The corpus, supervised model and reward model of this run."""
        return prepare(
            self.preset, self.base, self.corpus, self.max_tokens, self.base_seed, self.reward_seed, progress
        )


def phase(method):
    """A numbered phase of the update: its seconds are added to `self.seconds` under its name."""

    @functools.wraps(method)
    def timed(self, *args, **kwargs):
        start = time.perf_counter()
        result = method(self, *args, **kwargs)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds[method.__name__] += time.perf_counter() - start
        return result

    return timed


class Trainer:
    """The four models and the seven phases. `step()` is one update; each phase can be called, timed or replaced alone."""

    def __init__(self, config: PPOConfig, materials: Materials | None = None, scorer: Scorer | None = None) -> None:
        self.config = config
        self.materials = materials = materials or config.materials()
        self.corpus, self.tokenizer, self.report = materials.corpus, materials.tokenizer, materials.report
        self.accelerator = Accelerator(mixed_precision=config.precision, cpu=device().type == "cpu")
        if self.accelerator.num_processes > 1:
            raise ValueError("this version trains in one process: start it without a launcher")
        self.device = self.accelerator.device

        policy = copy.deepcopy(materials.base).requires_grad_(True)
        value = value_from(materials.reward)
        self.reference = reference_from(materials.base).to(self.device)
        self.reward = freeze(materials.reward).to(self.device)
        prepare, adam = self.accelerator.prepare, torch.optim.Adam
        self.policy, self.policy_optimizer = prepare(policy, adam(policy.parameters(), lr=config.lr))
        self.value, self.value_optimizer = prepare(value, adam(value.parameters(), lr=config.value_lr))

        self.scorer = scorer or (lambda rollout: scores(self.reward, rollout.tokens, rollout.attention_mask))
        self.kl = FixedKL(config.beta)
        if config.kl_target is not None:
            self.kl = AdaptiveKL(config.beta, config.kl_target, config.kl_horizon)
        self.generator = torch.Generator().manual_seed(config.seed)  # all that is random in the run
        self.updates_done = 0
        self.seconds: dict[str, float] = defaultdict(float)

    @property
    def models(self) -> dict[str, torch.nn.Module]:
        """The four models by the names of their folders."""
        unwrap = self.accelerator.unwrap_model
        return {
            "policy": unwrap(self.policy), "reference": self.reference,
            "reward": self.reward, "value": unwrap(self.value),
        }  # fmt: skip

    def step(self) -> tuple[dict, Rollout]:
        """One update: its metrics, and the rollout it learned from."""
        prompts = self.prompts()  # 1
        rollout = self.rollout(prompts)  # 2
        rollout = self.score(rollout)  # 3
        rollout = self.kl_reward(rollout)  # 4
        rollout = self.advantages(rollout)  # 5
        policy_stats = self.update_policy(rollout)  # 6
        value_stats = self.update_value(rollout)  # 7
        return self.record(rollout, policy_stats | value_stats), rollout

    @phase
    def prompts(self) -> list[str]:
        """1: draw the prompts of a batch; each is repeated `responses_per_prompt` times."""
        count = self.config.batch // self.config.responses_per_prompt
        drawn = torch.randint(len(self.corpus.prompts), (count,), generator=self.generator)
        return [self.corpus.prompts[i] for i in drawn for _ in range(self.config.responses_per_prompt)]

    @phase
    def rollout(self, prompts: list[str]) -> Rollout:
        """2: the policy writes one response to each prompt."""
        uniforms = torch.rand(len(prompts), self.config.max_tokens, generator=self.generator)
        return sample(
            self.policy, [encode_prompt(self.tokenizer, prompt) for prompt in prompts], uniforms,
            eos_id=self.tokenizer.eos_token_id, pad_id=self.tokenizer.pad_token_id, temperature=self.config.temperature,
        )  # fmt: skip

    @phase
    @torch.no_grad()
    def score(self, rollout: Rollout) -> Rollout:
        """3: the scorer's number for each whole response, and the critic's, which only the metrics see."""
        gold = [self.corpus.critic.gold(response) for _, response in rollout.texts(self.tokenizer)]
        return replace(rollout, scores=self.scorer(rollout).float().to(self.device), gold=torch.tensor(gold, device=self.device))

    @phase
    @torch.no_grad()
    def kl_reward(self, rollout: Rollout) -> Rollout:
        """4: −β (log π − log π_ref) on each token, and the score on the last one.

        A response that was cut off before EOS gets `missing_eos_score` in place of its score.
        """
        ref_log_probs = log_probs(self.reference, rollout, self.config.temperature)
        ended = rollout.ended(self.tokenizer.eos_token_id)
        final = torch.where(ended, rollout.scores, self.config.missing_eos_score)
        rewards = per_token_rewards(final, rollout.old_log_probs, ref_log_probs, rollout.mask, self.kl.beta)
        return replace(rollout, ref_log_probs=ref_log_probs, rewards=rewards)

    @phase
    @torch.no_grad()
    def advantages(self, rollout: Rollout) -> Rollout:
        """5: V(s_t) for every token, GAE, and the returns the value model will learn: advantage + value.

        What ends, ends: V = 0 after the last token, whether it is EOS or the response was cut off.
        """
        values = self.values(rollout)
        advantages = gae(rollout.rewards, values, rollout.mask, self.config.gamma, self.config.lam)
        return replace(
            rollout, values=values, returns=advantages + values, advantages=whiten(advantages, rollout.mask)
        )

    def values(self, rollout: Rollout) -> Tensor:
        """V(s_t), the value before token t is chosen; 0 on padding."""
        after_each = token_values(self.value, rollout.tokens, rollout.attention_mask)
        return after_each[:, rollout.prompt_width - 1 : -1].masked_fill(~rollout.mask, 0.0)

    @phase
    def update_policy(self, rollout: Rollout) -> dict[str, float]:
        """6: passes over the batch with the clipped objective; ended before a step once the KL to the old policy is too large."""
        config, stats = self.config, []
        self.policy.train()
        passes_done = 0.0
        for part in self.minibatches(rollout):
            logits = response_logits(self.policy, part, config.temperature)
            new_log_probs = chosen_log_probs(logits, part.response_tokens, part.mask)
            loss, clip = clipped_surrogate(new_log_probs, part.old_log_probs, part.advantages, part.mask, config.epsilon)
            stats.append({name: x.item() for name, x in clip.items()})
            if config.kl_stop is not None and stats[-1]["approx_kl"] > config.kl_stop:
                break
            if config.entropy_bonus:
                loss = loss - config.entropy_bonus * masked_mean(entropy(logits), part.mask)
            if config.kl_loss:
                estimator = {"k2": k2, "k3": k3}[config.kl_loss]
                loss = loss + self.kl.beta * masked_mean(estimator(new_log_probs, part.ref_log_probs), part.mask)
            self.optimise(self.policy, self.policy_optimizer, loss)
            passes_done += 1 / config.minibatches
        over_passes = ("clip_fraction", "zero_gradient_fraction", "approx_kl")
        mean = {name: sum(s[name] for s in stats) / len(stats) for name in over_passes}
        return mean | {
            "first_ratio_error": stats[0]["max_ratio_error"],
            "passes_done": passes_done,
        }

    @phase
    def update_value(self, rollout: Rollout) -> dict[str, float]:
        """7: passes of regression on the returns."""
        losses = []
        self.value.train()
        for part in self.minibatches(rollout):
            loss = value_loss(self.values(part), part.values, part.returns, part.mask, self.config.value_clip)
            self.optimise(self.value, self.value_optimizer, loss)
            losses.append(loss.item())
        return {"value_loss": sum(losses) / len(losses)}

    def minibatches(self, rollout: Rollout) -> Iterator[Rollout]:
        """The minibatches of every pass, in a new random order each pass."""
        size = self.config.batch // self.config.minibatches
        for _ in range(self.config.passes):
            order = torch.randperm(self.config.batch, generator=self.generator)
            for index in order.split(size):
                yield rollout.rows(index.to(self.device))

    def optimise(self, model, optimizer, loss: Tensor) -> None:
        """One optimiser step on a loss. Raises FloatingPointError, before the step, if it or its gradient is not finite."""
        self.check_finite("the loss", loss)
        optimizer.zero_grad(set_to_none=True)
        self.accelerator.backward(loss)
        length = self.accelerator.clip_grad_norm_(model.parameters(), self.config.max_grad_norm)
        self.check_finite("the gradient's length", length)
        optimizer.step()

    def check_finite(self, name: str, x: Tensor) -> None:
        """Raises FloatingPointError if a number is not finite."""
        if not torch.isfinite(x):
            raise FloatingPointError(
                f"update {self.updates_done + 1}: {name} is {x.item()}; a smaller learning rate, β or bonus may help"
            )

    def record(self, rollout: Rollout, stats: dict[str, float]) -> dict:
        """The update's line in metrics.jsonl; moves β afterwards, if it adapts.

        Score, gold, KL, entropy and texts are those of the policy that sampled; what stands between clip_fraction and
        value_loss is the mean over the passes that followed. explained_variance is null where the returns are all equal.
        """
        kl = response_kl(rollout).mean().item()
        returns, errors = rollout.returns[rollout.mask], (rollout.returns - rollout.values)[rollout.mask]
        responses = [response for _, response in rollout.texts(self.tokenizer)]
        self.updates_done += 1
        metrics = {
            "update": self.updates_done,
            "score": rollout.scores.mean().item(),
            "gold": rollout.gold.mean().item(),
            "kl": kl,
            "beta": self.kl.beta,
            "entropy": masked_mean(rollout.entropies, rollout.mask).item(),
            "response_length": rollout.lengths.float().mean().item(),
            "eos_rate": rollout.ended(self.tokenizer.eos_token_id).float().mean().item(),
            "distinct": len(set(responses)) / len(responses),
            "clip_fraction": stats["clip_fraction"],
            "zero_gradient_fraction": stats["zero_gradient_fraction"],
            "approx_kl": stats["approx_kl"],
            "first_ratio_error": stats["first_ratio_error"],
            "value_loss": stats["value_loss"],
            "explained_variance": 1 - (errors.var() / returns.var()).item() if len(returns) > 1 and returns.var() > 0 else None,
            "passes_done": stats["passes_done"],
            "seconds": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "response_tokens": int(rollout.mask.sum()),
        }
        self.seconds.clear()
        self.kl.update(kl, len(responses))
        return metrics

    def save_models(self, folder: Path) -> None:
        """The four models, each in a folder that `from_pretrained` loads."""
        for name, model in self.models.items():
            save(model, folder / name, self.tokenizer)


def response_kl(rollout: Rollout) -> Tensor:
    """log π(y) − log π_ref(y) of every response, in nats: k1 summed over its tokens."""
    return (rollout.old_log_probs - rollout.ref_log_probs).masked_fill(~rollout.mask, 0.0).sum(-1)


def sample_lines(rollout: Rollout, tokenizer, update: int, count: int) -> list[dict]:
    """The first `count` responses of a rollout with score, gold and KL."""
    kl = response_kl(rollout)
    return [
        {
            "update": update, "prompt": prompt, "response": response, "score": rollout.scores[i].item(),
            "gold": rollout.gold[i].item(), "kl": kl[i].item(),
        }
        for i, (prompt, response) in enumerate(rollout.texts(tokenizer)[:count])
    ]  # fmt: skip


def run(config: PPOConfig, on_update: Callable[[dict, Rollout], None] | None = None, progress: bool = True) -> Trainer:
    """A whole run: metrics.jsonl, samples.jsonl and the four models under `config.out`; `on_update` sees every update.

    Ctrl-C ends the run after saving what there is, and is raised again. Raises ValueError if the folder already holds a run.
    """
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder; choose another one with --out")
    lines_of = out / "metrics.jsonl"
    if lines_of.exists() and lines_of.stat().st_size:
        raise ValueError(f"{out} already holds a run; choose another folder with --out, or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be made a folder: {error.strerror}") from None
    trainer = Trainer(config, config.materials(progress))
    settings = {name: str(x) if isinstance(x, Path) else x for name, x in asdict(config).items()}
    (out / "config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    (out / "reward_report.json").write_text(json.dumps(trainer.report.as_dict(), indent=1), encoding="utf-8")
    with open(out / "metrics.jsonl", "w", encoding="utf-8") as lines, open(out / "samples.jsonl", "w", encoding="utf-8") as texts:
        bar = tqdm(total=config.updates, desc="ppo", unit="update", disable=not progress)
        try:
            for _ in range(config.updates):
                metrics, rollout = trainer.step()
                print(json.dumps(metrics), file=lines, flush=True)
                for line in sample_lines(rollout, trainer.tokenizer, metrics["update"], config.samples):
                    print(json.dumps(line), file=texts, flush=True)
                bar.update()
                bar.set_postfix({name: f"{metrics[name]:.2f}" for name in ("score", "gold", "kl")})
                if on_update is not None:
                    on_update(metrics, rollout)
        finally:
            bar.close()
            trainer.save_models(out)
    return trainer
