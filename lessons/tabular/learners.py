"""Learners in the exact world, all their runs in one tensor.

A run is one learner with one seed. Every run has its own row in `logits` (run, row, token), its own learning rate and
its own stream of random numbers, which depends on its seed alone: learners with the same seed share it, and no run
notices which others are beside it. One update samples a batch for every run and moves them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons import rl
from lessons.tabular import exact
from lessons.tabular.policy import Policy, log_prob_gradient, pick, scatter_rows, softmax, uniform_policy
from lessons.tabular.steps import Adam, trust_region_step
from lessons.tabular.world import World


@dataclass(frozen=True)
class Learner:
    """How a policy learns from a batch. As it stands: REINFORCE, one Adam step a batch, no baseline.

    name: what a table calls it.
    lr: learning rate of the logits.
    optimiser: "adam" or "sgd".
    offset: added to every score before the learner sees it.
    beta: β of −β (log π − log π_ref) in the reward of each token; the reference is the policy at the start.
    to_go: weigh each token by the return from it on, not by that of the whole response.
    baseline: None; "mean" of the batch; "leave-one-out", the mean of the others; "state", the exact V(s); "learned", a
        table of values that learns by regression beside the policy, an actor and its critic.
    lam: λ of the GAE that the baselines "state" and "learned" go through.
    value_lr: learning rate of the learned values, by Adam.
    passes: optimiser steps on each batch.
    epsilon: PPO's clip.
    penalty: PPO's β for −β KL(π_old‖π) in place of the clip.
    penalty_target: nats a token that the penalty steers to, doubling and halving its β; None leaves it fixed.
    delta: TRPO's bound on KL(π_old‖π) in nats a response; its step takes the place of the optimiser's.
    ratio: one probability ratio for each "token" or for the whole "sequence", in the clip and the penalty.
    entropy: bonus for each nat of mean entropy a token.

    Without epsilon, penalty or delta the loss is REINFORCE's, also in the passes after the first.

    Raises ValueError for a number out of range and for knobs that exclude each other.
    """

    name: str = "REINFORCE"
    lr: float = 0.1
    optimiser: Literal["adam", "sgd"] = "adam"
    offset: float = 0.0
    beta: float = 0.0
    to_go: bool = False
    baseline: Literal["mean", "leave-one-out", "state", "learned"] | None = None
    lam: float = 1.0
    value_lr: float = 0.1
    passes: int = 1
    epsilon: float | None = None
    penalty: float | None = None
    penalty_target: float | None = None
    delta: float | None = None
    ratio: Literal["token", "sequence"] = "token"
    entropy: float = 0.0

    def __post_init__(self):
        def need(condition, message):
            if not condition:
                raise ValueError(f"learner {self.name!r}: {message}")

        need(self.lr > 0 and self.value_lr > 0, "lr and value_lr must be positive")
        need(self.optimiser in ("adam", "sgd"), f'optimiser must be "adam" or "sgd", not {self.optimiser!r}')
        need(
            self.baseline in (None, "mean", "leave-one-out", "state", "learned"),
            f'baseline must be None, "mean", "leave-one-out", "state" or "learned", not {self.baseline!r}',
        )
        need(self.ratio in ("token", "sequence"), f'ratio must be "token" or "sequence", not {self.ratio!r}')
        need(self.passes >= 1, f"passes must be at least 1, not {self.passes}")
        need(0 <= self.lam <= 1, f"lam must be between 0 and 1, not {self.lam}")
        need(self.beta >= 0 and self.entropy >= 0, "beta and entropy must be at least 0")
        need(self.epsilon is None or self.epsilon > 0, f"epsilon must be positive, not {self.epsilon}")
        need(self.penalty is None or self.penalty >= 0, f"penalty must be at least 0, not {self.penalty}")
        need(self.delta is None or self.delta > 0, f"delta must be positive, not {self.delta}")
        need(
            (self.epsilon, self.penalty, self.delta).count(None) >= 2,
            "epsilon, penalty and delta are three ways to stay near the old policy: give one of them",
        )
        need(self.penalty_target is None or self.penalty, "penalty_target needs a penalty above 0 to start from")
        need(self.delta is None or (self.passes == 1 and not self.entropy), "TRPO takes one step, without entropy bonus")
        need(
            self.ratio == "token" or not (self.to_go or self.baseline in ("state", "learned")),
            "a ratio for the whole sequence needs one weight for the whole sequence, not one a token",
        )


def five_learners(lr: float = 0.1) -> tuple[Learner, ...]:
    """The learners of the article's table: scores of 10 to 13, but for one; PPO with one ratio a sequence."""
    reinforce = Learner("REINFORCE", lr=lr, offset=10.0)
    baseline = replace(reinforce, name="REINFORCE + baseline", baseline="mean")
    four_passes = replace(baseline, name="baseline, 4 passes", passes=4)
    return (
        reinforce,
        replace(reinforce, name="REINFORCE, no offset", offset=0.0),
        baseline,
        four_passes,
        replace(four_passes, name="PPO", epsilon=0.2, ratio="sequence"),
    )


@dataclass(frozen=True)
class Trained:
    """What runs of some learners left behind; `*runs` is (learner, seed).

    scores: mean return of each batch, without the learners' offset, so that they can be compared.
    clip_fraction, zero_gradient_fraction: of `rl.clipped_surrogate`, mean over the passes after the first, whose ratios
        are all 1; NaN for a learner without a clip or with a single pass.
    """

    learners: tuple[Learner, ...]
    seeds: tuple[int, ...]
    policy: Policy
    scores: Float[Tensor, "learner seed update"]
    clip_fraction: Float[Tensor, "learner seed update"]
    zero_gradient_fraction: Float[Tensor, "learner seed update"]


def train(
    world: World,
    learners: Sequence[Learner],
    seeds: Sequence[int],
    updates: int = 300,
    batch: int = 16,
    start: Policy | None = None,
) -> Trained:
    """Every learner with every seed, `updates` batches of `batch` responses each, from `start` or the uniform policy."""
    runs = Runs(world, learners, seeds, batch, start)
    history = [runs.update() for _ in range(updates)]
    stats = {name: torch.stack([numbers[name] for numbers in history], dim=-1) for name in history[0]}
    return Trained(tuple(learners), tuple(seeds), runs.policy, **stats)


class Runs:
    """The runs that `train` trains, to be moved one update at a time.

    Inside, runs stand learner by learner, those with more passes first: the runs that still have a pass to make are then
    a slice. The others are left out of it, since Adam would move them on a gradient of 0 too. Learners that differ in
    nothing but name and learning rates form a group, and share each call of a loss.

    Raises ValueError without a learner or a seed, for a batch that is too small, and for a start that is not one policy.
    """

    def __init__(
        self,
        world: World,
        learners: Sequence[Learner],
        seeds: Sequence[int],
        batch: int = 16,
        start: Policy | None = None,
    ):
        if not learners or not seeds:
            raise ValueError("there is nothing to train: give at least one learner and one seed")
        least = 2 if any(learner.baseline == "leave-one-out" for learner in learners) else 1
        if batch < least:
            raise ValueError(f"these learners need batches of at least {least}, not {batch}")
        start = uniform_policy(world) if start is None else start
        if start.runs:
            raise ValueError(f"the start must be one policy, not several: its runs are {start.runs}")

        settings = [replace(learner, name="", lr=1.0, value_lr=1.0) for learner in learners]
        order = sorted(range(len(learners)), key=lambda i: (-settings[i].passes, settings.index(settings[i])))
        self._places = torch.tensor(order).argsort()
        self._shape = (len(learners), len(seeds))
        self._groups: list[_Group] = []
        for learner, members in groupby(settings[i] for i in order):
            first = self._groups[-1].runs.stop if self._groups else 0
            self._groups.append(_Group(learner, slice(first, first + len(list(members)) * len(seeds)), world))

        def per_run(numbers):
            return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(len(seeds))

        self.world, self.reference, self._batch = world, start, batch
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._lr = per_run([learners[i].lr for i in order])
        self._offset = per_run([learners[i].offset for i in order])
        self._logits = start.logits.detach().repeat(len(self._lr), 1, 1)
        self._values = torch.zeros(len(self._lr), world.rows, dtype=torch.float64)
        self._adam = Adam(self._logits, self._lr)
        self._value_adam = Adam(self._values, per_run([learners[i].value_lr for i in order]))

    @property
    def policy(self) -> Policy:
        """The policies as they are now, with runs (learner, seed)."""
        return Policy(self.world, self._by_learner(self._logits))

    @property
    def values(self) -> Float[Tensor, "learner seed rows"]:
        """The learned values as they are now; 0 for learners that learn none."""
        return self._by_learner(self._values)

    def update(self) -> dict[str, Float[Tensor, "learner seed"]]:
        """Samples a batch for every run and makes its passes over it. Returns the numbers that `Trained` keeps."""
        batch = self._sample()
        for k in range(self._groups[0].learner.passes):
            groups = [group for group in self._groups if group.learner.passes > k]
            active = slice(0, groups[-1].runs.stop)
            pi, log_probs = batch.pi, batch.log_probs
            if k > 0:
                pi, log_pi = softmax(self._policy(active).logits_at(batch.states[active]))
                log_probs = pick(log_pi, batch.y[active])
            slopes = batch.slopes[active].clone()
            for group in groups:
                if group.uses_ratio:
                    slopes[group.runs] = group.slopes(log_probs[group.runs])
            # The loss sees the logits only through the log-probs of the tokens: chain rule, a row for each token.
            gradients = log_prob_gradient(pi, batch.y[active]).mul_(slopes[..., None])
            for group in groups:
                if group.learner.entropy:
                    gradients[group.runs] -= group.learner.entropy * self._entropy_gradient(group)
            self._move(groups, scatter_rows(self.world, batch.states[active].flatten(1), gradients.flatten(1, 2)))
        for group in self._groups:
            if group.learner.penalty_target is not None:
                log_probs = self._policy(group.runs).log_probs(group.batch.y)
                group.penalty.update(rl.masked_mean(rl.k3(group.batch.log_probs, log_probs), group.batch.mask))
        clip_fraction, zero_gradient_fraction = torch.cat([group.fractions() for group in self._groups], dim=-1)
        numbers = {
            "scores": batch.rewards.sum(dim=-1).mean(dim=-1) - self._offset,
            "clip_fraction": clip_fraction,
            "zero_gradient_fraction": zero_gradient_fraction,
        }
        return {name: self._by_learner(number) for name, number in numbers.items()}

    def _sample(self) -> "_Batch":
        """A batch for every run, with all that stays fixed while passes are made over it."""
        shape = (self._batch, self.world.length)
        uniforms = [torch.rand(shape, generator=stream, dtype=torch.float64) for stream in self._streams]
        y, log_probs, pi = self._policy(slice(None)).sample_from(torch.stack(uniforms).repeat(self._shape[0], 1, 1))
        rewards, values, weights, slopes = torch.zeros(4, *y.shape, dtype=torch.float64)
        states, mask = self.world.states(y), self.world.mask(y)
        batch = _Batch(y, states, mask, log_probs, pi, rewards, values, weights, slopes)
        for group in self._groups:
            group.start(batch)
            self._weigh(group)
        # REINFORCE's slopes are the same whatever the policy is by now: these serve all passes.
        batch.slopes[:] = _gradient(lambda log_probs: rl.reinforce(log_probs, weights, mask), log_probs)
        return batch

    def _weigh(self, group: "_Group") -> None:
        """Fills in the rewards, the values, and what weighs each token."""
        learner, batch = group.learner, group.batch
        batch.rewards[:] = group.world.reward_table[batch.states, batch.y]
        rewards = batch.rewards
        if learner.beta:
            nothing = torch.zeros_like(rewards[..., 0])
            ref_log_probs = self.reference.log_probs(batch.y)
            rewards = rewards + rl.per_token_rewards(
                nothing, batch.log_probs, ref_log_probs, batch.mask, learner.beta
            )
        if learner.baseline == "state":
            batch.values[:] = _at(batch.states, exact.values(group.world, self._policy(group.runs)))
        if learner.baseline == "learned":
            batch.values[:] = _at(batch.states, self._values[group.runs])
        batch.weights[:] = _weights(learner, rewards, batch.values, batch.mask)

    def _move(self, groups: "list[_Group]", gradient: Tensor) -> None:
        """One step of each of these runs."""
        for optimiser, members in groupby(groups, key=lambda group: group.optimiser):
            members = list(members)
            runs = slice(members[0].runs.start, members[-1].runs.stop)
            if optimiser == "adam":
                self._adam.step(gradient[runs], runs)
            elif optimiser == "sgd":
                self._logits[runs] -= self._lr[runs, None, None] * gradient[runs]
            else:
                for group in members:
                    ascent, delta = -gradient[group.runs].flatten(-2), group.learner.delta
                    moved = trust_region_step(self._policy(group.runs), ascent, delta, group.surrogate)
                    self._logits[group.runs] = moved.logits
        for group in groups:
            if group.learner.baseline == "learned":
                self._value_adam.step(group.value_gradient(self._values[group.runs]), group.runs)

    def _entropy_gradient(self, group: "_Group") -> Tensor:
        """∂/∂logits of the mean entropy a token, a row for each token."""
        logits = self._policy(group.runs).logits_at(group.batch.states)
        return _gradient(lambda logits: rl.masked_mean(rl.entropy(logits), group.batch.mask), logits)

    def _policy(self, runs: slice) -> Policy:
        """These runs as they are now: a view, to be used before the next step."""
        return Policy(self.world, self._logits[runs])

    def _by_learner(self, x: Float[Tensor, "run *shape"]) -> Float[Tensor, "learner seed *shape"]:
        """In the order in which the learners were given; a copy."""
        return x.view(*self._shape, *x.shape[1:])[self._places]


class _Batch(NamedTuple):
    """One batch a run; every tensor is run × batch × time, and pi × vocab."""

    y: Tensor
    states: Tensor
    mask: Tensor
    log_probs: Tensor  # stored while sampling
    pi: Tensor  # of every token in these states, stored too
    rewards: Tensor  # with the learner's offset, without its KL penalty
    values: Tensor
    weights: Tensor
    slopes: Tensor  # ∂loss/∂log_probs of REINFORCE


class _Group:
    """Neighbouring runs whose learners share everything but name and learning rates."""

    def __init__(self, learner: Learner, runs: slice, world: World):
        self.learner, self.runs = learner, runs
        self.world = replace(world, offset=world.offset + learner.offset)
        if learner.penalty_target is not None:
            beta = torch.full((runs.stop - runs.start,), learner.penalty, dtype=torch.float64)
            self.penalty = rl.PenaltyKL(beta, learner.penalty_target)
        elif learner.penalty is not None:
            self.penalty = rl.FixedKL(learner.penalty)

    @property
    def optimiser(self) -> str:
        return "trust region" if self.learner.delta is not None else self.learner.optimiser

    @property
    def uses_ratio(self) -> bool:
        """Whether the loss is PPO's; else it is REINFORCE's."""
        return self.learner.epsilon is not None or self.learner.penalty is not None

    def start(self, batch: _Batch) -> None:
        self.batch = _Batch(*[x[self.runs] for x in batch])
        self._fractions = []

    def slopes(self, log_probs: Tensor) -> Tensor:
        """∂loss/∂log_probs of the loss with the clip or the penalty."""
        batch, learner = self.batch, self.learner
        old_log_probs, weights, mask = batch.log_probs, batch.weights, batch.mask
        if learner.ratio == "sequence":  # a response is one long token
            log_probs = torch.where(mask, log_probs, 0).sum(dim=-1, keepdim=True)
            old_log_probs = old_log_probs.sum(dim=-1, keepdim=True)
            weights, mask = weights[..., :1], mask[..., :1]
        if learner.epsilon is not None:
            slopes, fractions = clip_slopes(log_probs, old_log_probs, weights, mask, learner.epsilon)
            self._fractions.append(fractions)
        else:
            beta = self.penalty.beta
            slopes = _gradient(lambda x: rl.kl_penalised(x, old_log_probs, weights, mask, beta)[0], log_probs)
        return torch.where(batch.mask, slopes, 0)

    def fractions(self) -> Float[Tensor, "2 run"]:
        """What the clip reported, as the mean over the passes after the first, in which all ratios are 1."""
        if len(self._fractions) > 1:
            return torch.stack(self._fractions[1:]).mean(dim=0)
        return torch.full((2, self.runs.stop - self.runs.start), torch.nan, dtype=torch.float64)

    def surrogate(self, policy: Policy) -> Tensor:
        """Mean over tokens of ρ Â."""
        log_probs, batch = policy.log_probs(self.batch.y), self.batch
        return -rl.kl_penalised(log_probs, batch.log_probs, batch.weights, batch.mask, beta=0.0)[0]

    def value_gradient(self, table: Tensor) -> Tensor:
        """∂loss/∂V of the regression on the λ-returns Â + V_old."""
        batch = self.batch
        targets = batch.weights + batch.values
        slopes = _gradient(
            lambda values: rl.value_loss(values, batch.values, targets, batch.mask), _at(batch.states, table)
        )
        return torch.zeros_like(table).scatter_add_(-1, batch.states.flatten(1), slopes.flatten(1))


def _weights(learner: Learner, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """What multiplies ∇ log π of each token."""
    if learner.baseline in ("state", "learned"):
        return rl.gae(rewards, values, mask, lam=learner.lam)
    if learner.to_go:
        credit = rl.returns(rewards, mask)
    else:
        credit = rewards.sum(dim=-1, keepdim=True).expand_as(rewards)
    if learner.baseline is None:
        return credit
    centred = credit - credit.mean(dim=-2, keepdim=True)
    batch = credit.shape[-2]
    return centred * batch / (batch - 1) if learner.baseline == "leave-one-out" else centred


def clip_slopes(
    log_probs: Float[Tensor, "*runs batch time"],
    old_log_probs: Float[Tensor, "*runs batch time"],
    advantages: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    epsilon: float,
) -> tuple[Float[Tensor, "*runs batch time"], Float[Tensor, "2 *runs"]]:
    """∂loss/∂log_probs of `rl.clipped_surrogate`, with its clip and zero-gradient fractions, five times as fast.

    −ρ Â over the number of tokens, and 0 where the clip holds.
    """
    ratio = (log_probs - old_log_probs).exp()
    above, below = ratio > 1 + epsilon, ratio < 1 - epsilon
    outside = mask & (above | below)
    held = mask & ((above & (advantages > 0)) | (below & (advantages < 0)))
    tokens = mask.sum(dim=(-2, -1))
    slopes = torch.where(mask & ~held, ratio * advantages / -tokens[..., None, None], 0)
    return slopes, torch.stack([outside.sum(dim=(-2, -1)), held.sum(dim=(-2, -1))]).double() / tokens


def _gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient of a loss that is one number a run, run by run."""
    at = at.detach().requires_grad_()
    return torch.autograd.grad(loss(at).sum(), at)[0]


def _at(states: Tensor, table: Tensor) -> Tensor:
    """The entries of run × row for the states of each run."""
    return table.gather(-1, states.flatten(1)).view(states.shape)
