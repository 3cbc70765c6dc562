"""Training in the exact world, all learners and seeds in one tensor.

A run is one learner with one seed. It has its own learning rate, and its own stream of random numbers, which
depends on its seed alone: learners with the same seed share it, and no run notices which others are beside
it. One update samples a batch for every run and moves them all.

Losses see the logits only through the log-probs of the sampled tokens. So autograd, where it is needed, goes
from the loss to these; from there to the logits there is a closed form, one-hot minus probabilities a token.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons import rl
from lessons.tabular import exact
from lessons.tabular.learners import Learner
from lessons.tabular.policy import Policy, log_prob_gradient, pick, scatter_rows, softmax, uniform_policy
from lessons.tabular.world import World


@dataclass(frozen=True)
class Trained:
    """What training leaves behind. The runs of `policy` are (learner, seed).

    scores: mean return of each batch, without the learners' offsets, so that learners can be compared.
    clip_fraction, zero_gradient_fraction: as in `rl.clipped_surrogate`, mean over the passes after the first,
        in which every ratio is 1; NaN for a learner without a clip, or with a single pass.
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
    """Trains every learner with every seed on `updates` batches, from `start` or else the uniform policy.

    Raises ValueError for less than one update, and whatever `Runs` raises.
    """
    if updates < 1:
        raise ValueError(f"updates must be at least 1, not {updates}")
    runs = Runs(world, learners, seeds, batch, start)
    history = [runs.update() for _ in range(updates)]
    numbers = {name: torch.stack([update[name] for update in history], dim=-1) for name in history[0]}
    return Trained(tuple(learners), tuple(seeds), runs.policy, **numbers)


class Runs:
    """The runs that `train` trains, to be moved one update at a time.

    Inside, learners with more passes come first: those that still have a pass to make are then a slice. The
    others are left out of it, since Adam would move them on a gradient of 0 too. Learners that differ in
    nothing but name, learning rates and offset form a group, whose losses are computed together.

    Raises ValueError without a learner or a seed, for a batch too small, and if the start is not one policy
    of this world.
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
        world.check_same_tree(start.world)
        if start.runs:
            raise ValueError(f"the start must be one policy, not one with runs {start.runs}")

        self.world, self.reference, self._batch_size = world, start, batch
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

        settings = [replace(learner, name="", lr=1.0, value_lr=1.0, offset=0.0) for learner in learners]
        order = sorted(range(len(learners)), key=lambda i: (-settings[i].passes, settings.index(settings[i])))
        self._places = torch.tensor(order).argsort()
        self._offsets = torch.tensor([[learners[i].offset] for i in order], dtype=torch.float64)
        offset_worlds = [replace(world, offset=world.offset + learners[i].offset) for i in order]
        self._reward_tables = torch.stack([world.reward_table for world in offset_worlds])
        self._groups: list[_Group] = []
        for learner, members in groupby(settings[i] for i in order):
            first = self._groups[-1].place.stop if self._groups else 0
            place = slice(first, first + len(list(members)))
            self._groups.append(_Group(learner, place, seeds=len(seeds)))

        self._logits = start.logits.detach().repeat(len(learners), len(seeds), 1, 1)
        self._values = self._logits.new_zeros(len(learners), len(seeds), world.rows)
        # To the optimisers a learner's slice is a parameter of its own: it can have its own learning rate,
        # and is skipped, momentum included, while it has no gradient.
        self._policies, self._critics = self._logits.unbind(), self._values.unbind()
        parameters = defaultdict(lambda: defaultdict(list))
        for i, logits, values in zip(order, self._policies, self._critics, strict=True):
            if learners[i].delta is None:
                parameters[learners[i].optimiser][learners[i].lr].append(logits)
            if learners[i].baseline == "learned":
                parameters["adam"][learners[i].value_lr].append(values)
        make = {"adam": partial(torch.optim.Adam, fused=True), "sgd": torch.optim.SGD}
        self._optimisers = [
            make[name]([{"params": tensors, "lr": lr} for lr, tensors in rates.items()]) for name, rates in parameters.items()
        ]

    @property
    def policy(self) -> Policy:
        """The policies as they are now, with runs (learner, seed)."""
        return Policy(self.world, self._logits[self._places])

    @property
    def values(self) -> Float[Tensor, "learner seed rows"]:
        """The learned values as they are now; 0 for learners that learn none."""
        return self._values[self._places]

    def update(self) -> dict[str, Float[Tensor, "learner seed"]]:
        """Samples a batch for every run and makes its passes over it. Returns what `Trained` collects."""
        with torch.inference_mode():  # spares torch the bookkeeping for autograd, a sixth of the time
            numbers = self._update()
        return {name: number.clone() for name, number in numbers.items()}

    def _update(self) -> dict[str, Tensor]:
        batch = self._sample()
        for k in range(self._groups[0].learner.passes):
            groups = [group for group in self._groups if group.learner.passes > k]
            gradient = self._gradient(groups, batch, first=k == 0)
            self._move(groups, gradient)
        for group in self._groups:
            group.steer_penalty(self._policy(group.place))
        scores = batch.rewards.sum(dim=-1).mean(dim=-1) - self._offsets
        clipping = torch.full((2, *scores.shape), torch.nan, dtype=torch.float64)
        for group in self._groups:
            if len(group.fractions) > 1:  # all ratios of the first pass are 1
                clipping[:, group.place] = torch.stack(group.fractions[1:]).mean(dim=0)
        numbers = {"scores": scores, "clip_fraction": clipping[0], "zero_gradient_fraction": clipping[1]}
        return {name: number[self._places] for name, number in numbers.items()}

    def _sample(self) -> "_Batch":
        """A batch for every run, with all that stays fixed while passes are made over it."""
        size = (self._batch_size, self.world.length)
        uniforms = [torch.rand(size, generator=stream, dtype=torch.float64) for stream in self._streams]
        uniforms = torch.stack(uniforms).expand(len(self._logits), -1, -1, -1)
        y, log_probs, pi = self._policy(slice(None)).sample_from(uniforms)
        states, mask = self.world.states(y), self.world.mask(y)
        learner = torch.arange(len(y))[:, None, None, None]
        rewards = self._reward_tables[learner, states, y]
        values, weights, slopes = torch.zeros(3, *y.shape, dtype=torch.float64)
        batch = _Batch(y, states, mask, log_probs, pi, rewards, values, weights, slopes)
        for group in self._groups:
            group.start(batch, self.reference, self._state_values(group))
        # REINFORCE's slopes are the same wherever the policy has got to; those of a ratio change by the pass.
        slopes.copy_(_gradient(rl.reinforce, log_probs, weights, mask))
        return batch

    def _state_values(self, group: "_Group") -> Tensor | None:
        """V(s) for the learners that have a baseline of the state, the exact ones or those learned."""
        if group.learner.baseline == "state":
            # The offset is still to come in every state.
            return exact.values(self.world, self._policy(group.place)) + self._offsets[group.place, None]
        if group.learner.baseline == "learned":
            return self._values[group.place]
        return None

    def _gradient(self, groups: "list[_Group]", batch: "_Batch", first: bool) -> Tensor:
        """∂loss/∂logits of the runs of these groups, which are the first ones."""
        active = slice(0, groups[-1].place.stop)
        states, y = batch.states[active], batch.y[active]
        if first:
            pi, log_probs = batch.pi, batch.log_probs
        else:
            pi, log_pi = softmax(self._policy(active).logits_at(states))
            log_probs = pick(log_pi, y)
        slopes = batch.slopes[active]
        for group in groups:
            if group.uses_ratio:
                slopes[group.place] = group.slopes(log_probs[group.place])
        rows = log_prob_gradient(pi, y).mul_(slopes[..., None])
        for group in groups:
            if group.learner.entropy:
                rows[group.place] -= group.entropy_gradient(self._policy(group.place))
        return scatter_rows(self.world, states.flatten(-2), rows.flatten(-3, -2))

    def _move(self, groups: "list[_Group]", gradient: Tensor) -> None:
        """One step of the runs of these groups, down the gradient."""
        for group in groups:
            logits, values, own = self._logits[group.place], self._values[group.place], gradient[group.place]
            if group.learner.delta is not None:
                logits.copy_(group.trust_region_step(self._policy(group.place), own).logits)
            else:
                for parameter, part in zip(self._policies[group.place], own, strict=True):
                    parameter.grad = part
            if group.learner.baseline == "learned":
                own = group.value_gradient(values)
                for parameter, part in zip(self._critics[group.place], own, strict=True):
                    parameter.grad = part
        for optimiser in self._optimisers:
            optimiser.step()
        for parameter in (*self._policies, *self._critics):
            parameter.grad = None

    def _policy(self, place: slice) -> Policy:
        """Some of the policies: a view, to be used before the next step."""
        return Policy(self.world, self._logits[place])


class _Batch(NamedTuple):
    """One batch a run. Every tensor is learner × seed × batch × time, and pi × vocab."""

    y: Tensor
    states: Tensor
    mask: Tensor
    log_probs: Tensor  # stored while sampling
    pi: Tensor  # π(·|s_t), stored too
    rewards: Tensor  # with the learner's offset, without its KL penalty
    values: Tensor
    weights: Tensor
    slopes: Tensor  # ∂loss/∂log_probs


class _Group:
    """Learners that share everything but name, learning rates and offset, and stand side by side."""

    def __init__(self, learner: Learner, place: slice, seeds: int):
        self.learner, self.place = learner, place
        if learner.penalty is not None:
            self._beta = torch.full((place.stop - place.start, seeds), learner.penalty, dtype=torch.float64)

    def start(self, batch: _Batch, reference: Policy, values: Tensor | None) -> None:
        """Takes its part of a batch, and fills in values and weights."""
        learner, batch = self.learner, _Batch(*[x[self.place] for x in batch])
        rewards = batch.rewards
        if learner.beta:
            scores, ref_log_probs = rewards.new_zeros(rewards.shape[:-1]), reference.log_probs(batch.y)
            penalty = rl.per_token_rewards(scores, batch.log_probs, ref_log_probs, batch.mask, learner.beta)
            rewards = rewards + penalty
        if values is not None:
            batch.values.copy_(_at(batch.states, values))
        batch.weights.copy_(_weights(learner, rewards, batch.values, batch.mask))

        self._batch, self.fractions = batch, []
        self._old = batch.log_probs, batch.weights, batch.mask
        if learner.ratio == "sequence":  # a response is one long token
            old_log_probs = _sum_over_time(batch.log_probs, batch.mask)
            self._old = old_log_probs, batch.weights[..., :1], batch.mask[..., :1]

    @property
    def uses_ratio(self) -> bool:
        """Whether the loss is PPO's; else it is REINFORCE's."""
        return self.learner.epsilon is not None or self.learner.penalty is not None

    def slopes(self, log_probs: Tensor) -> Tensor:
        """∂loss/∂log_probs of the loss with the clip or the penalty."""
        if self.learner.ratio == "sequence":
            log_probs = _sum_over_time(log_probs, self._batch.mask)
        old_log_probs, weights, mask = self._old
        if self.learner.epsilon is not None:
            slopes, *fractions = clip_slopes(log_probs, old_log_probs, weights, mask, self.learner.epsilon)
            self.fractions.append(torch.stack(fractions))
        else:
            slopes = _gradient(_penalised, log_probs, old_log_probs, weights, mask, self._beta)
        return torch.where(self._batch.mask, slopes, 0)

    def entropy_gradient(self, policy: Policy) -> Tensor:
        """∂/∂logits of the entropy bonus, a row a token."""
        logits, mask = policy.logits_at(self._batch.states), self._batch.mask
        return self.learner.entropy * _gradient(_mean_entropy, logits, mask)

    def value_gradient(self, values: Tensor) -> Tensor:
        """∂loss/∂V of the regression on the λ-returns Â + V_old."""
        batch = self._batch
        targets = batch.weights + batch.values
        own = _at(batch.states, values)
        slopes = _gradient(rl.value_loss, own, batch.values, targets, batch.mask)
        return torch.zeros_like(values).scatter_add_(-1, batch.states.flatten(-2), slopes.flatten(-2))

    def trust_region_step(self, policy: Policy, gradient: Tensor) -> Policy:
        """TRPO's step, with the mean of ρ Â over the batch's tokens for a surrogate."""
        batch = self._batch

        def surrogate(policy):
            log_probs = policy.log_probs(batch.y)
            return -rl.kl_penalised(log_probs, batch.log_probs, batch.weights, batch.mask, beta=0.0)[0]

        return trust_region_step(policy, -gradient.flatten(-2), self.learner.delta, surrogate)

    def steer_penalty(self, policy: Policy) -> None:
        """PPO's rule for the penalty's β, by the KL to the old policy after all passes."""
        if self.learner.penalty_target is not None:
            batch = self._batch
            kl = rl.masked_mean(rl.k3(batch.log_probs, policy.log_probs(batch.y)), batch.mask)
            controller = rl.PenaltyKL(self._beta, self.learner.penalty_target)
            controller.update(kl)
            self._beta = controller.beta


def clip_slopes(
    log_probs: Float[Tensor, "*runs batch time"],
    old_log_probs: Float[Tensor, "*runs batch time"],
    advantages: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    epsilon: float,
) -> tuple[Float[Tensor, "*runs batch time"], Float[Tensor, "*runs"], Float[Tensor, "*runs"]]:
    """∂loss/∂log_probs of `rl.clipped_surrogate`, its clip fraction and its zero-gradient fraction.

    −ρ Â / number of tokens, and 0 where the clip holds; a third of the time that autograd takes.
    """
    ratio = (log_probs - old_log_probs).exp()
    beyond = ratio - ratio.clamp(1 - epsilon, 1 + epsilon)
    outside, held = mask & (beyond != 0), mask & (beyond * advantages > 0)
    tokens = mask.sum(dim=(-2, -1)).to(ratio.dtype)
    slopes = torch.where(held | ~mask, 0, ratio * advantages) / -tokens[..., None, None]
    return slopes, outside.sum(dim=(-2, -1)) / tokens, held.sum(dim=(-2, -1)) / tokens


def trust_region_step(
    policy: Policy,
    gradient: Float[Tensor, "*runs params"],
    delta: float,
    surrogate: Callable[[Policy], Float[Tensor, "*runs"]],
    halvings: int = 20,
) -> Policy:
    """TRPO's step: along x = F⁺ g as far as the bound KL(π_old‖π) ≤ δ allows, and not if the surrogate falls.

    After a step of s x, KL(π_old‖π) is nearly ½ s² xᵀFx = ½ s² xᵀg, so that the bound allows s = √(2δ / xᵀg).
    That step is halved until the exact KL is at most δ and the surrogate no lower than before. A policy for
    which no halving does both stays where it is.

    gradient: of J, from samples or exact. delta: in nats a response. surrogate: E[ρ Â] of any policy.

    Source: Schulman et al., Trust Region Policy Optimization (2015), eq. 14 and appendix C.
    """
    x = exact.natural_gradient(policy, gradient)
    slope = (x * gradient).sum(dim=-1, keepdim=True)
    step = torch.where(slope > 0, (2 * delta / slope).sqrt(), 0) * x
    before = surrogate(policy)
    for _ in range(halvings):
        moved = policy.moved(step)
        fits = (exact.kl(policy, moved) <= delta) & (surrogate(moved) >= before)
        if fits.all():
            return moved
        step = torch.where(fits[..., None], step, step / 2)
    return policy.moved(torch.where(fits[..., None], step, 0))


def _weights(learner: Learner, rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """What multiplies ∇ log π of each token, or, with time = 1, of all tokens of a response."""
    if learner.baseline in ("state", "learned"):
        return rl.gae(rewards, values, mask, lam=learner.lam)
    credit = rl.returns(rewards, mask) if learner.to_go else rewards.sum(dim=-1, keepdim=True)
    if learner.baseline is None:
        return credit
    centred = credit - credit.mean(dim=-2, keepdim=True)
    batch = credit.shape[-2]
    # The return less the mean of the others is N/(N − 1) times the return less the mean of all.
    return centred * batch / (batch - 1) if learner.baseline == "leave-one-out" else centred


def _gradient(loss: Callable[..., Tensor], at: Tensor, *constants: Tensor) -> Tensor:
    """The gradient with respect to `at` of a loss that is one number a run, for each run."""
    with torch.inference_mode(False):  # autograd takes no tensors made in inference mode, hence the clones
        at = at.clone().requires_grad_()
        return torch.autograd.grad(loss(at, *[x.clone() for x in constants]).sum(), at)[0]


def _penalised(log_probs: Tensor, *constants: Tensor) -> Tensor:
    return rl.kl_penalised(log_probs, *constants)[0]


def _mean_entropy(logits: Tensor, mask: Tensor) -> Tensor:
    return rl.masked_mean(rl.entropy(logits), mask)


def _at(states: Tensor, table: Tensor) -> Tensor:
    """The entries of a table of one number a state."""
    return table.gather(-1, states.flatten(-2)).view(states.shape)


def _sum_over_time(log_probs: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, log_probs, 0).sum(dim=-1, keepdim=True)
