"""The estimator card: one table with a row for every estimator of ∇J met so far, against the exact gradient.

    def weights(y):
        return gae(world.rewards(y), V[world.states(y)], world.mask(y), lam=0.95)

    one = Estimator("GAE, λ = 0.95", weights, cost="a value for every state")
    compute_card(world, policy, [*baseline_estimators(world, policy), one])

and one with a row for every estimator of KL(π‖π_ref), as a value and as a loss:

    compute_kl_card(policy, ref)

As the last line of a cell a card shows itself, as an HTML table and as plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons import rl
from lessons.live.style import number
from lessons.tabular import exact
from lessons.tabular.policy import Policy
from lessons.tabular.table import normal
from lessons.tabular.world import World


@dataclass(frozen=True)
class Estimator:
    """ĝ = (1/N) Σ_i Σ_t w_it ∇ log π(a_it|s_it), an estimate of ∇J from a batch of N responses.

    name: what the card calls it.
    weights: w_it of responses `*batches batch time`, of that shape, or with time = 1 where all tokens of a
        response weigh the same.
    cost: what it needs beside the batch and its returns, in words.
    moments: the exact mean and variance of ĝ, from world, policy and N. None says that the weights of a
        response depend on that response alone: then they are found from all responses.
    sampler: the policy that wrote the batch, where it is an older one; None for the policy itself.
    """

    name: str
    weights: Callable[[Tensor], Tensor]
    cost: str
    moments: Callable[[World, Policy, int], exact.Moments] | None = None
    sampler: Policy | None = None

    def exact_moments(self, world: World, policy: Policy, batch: int) -> exact.Moments:
        """Mean and variance of ĝ over all batches of N = `batch` responses."""
        if self.moments is not None:
            return self.moments(world, policy, batch)
        weights = self.weights(world.sequences)
        if self.sampler is not None:
            return _moments_on_old_samples(policy, self.sampler, weights, batch)
        return exact.moments(policy, weights, batch)

    def estimates(
        self, policy: Policy, y: Int[Tensor, "*batches batch time"]
    ) -> Float[Tensor, "*batches params"]:
        """ĝ of each batch of sampled responses."""
        return policy.score_sum(y, self.weights(y).expand(y.shape)) / y.shape[-2]


def baseline_estimators(world: World, policy: Policy, offset: float = 10.0) -> tuple[Estimator, ...]:
    """The rows of lesson 2: returns with an offset and without, then less one baseline after the other.

    The last one, Q(s_t, a_t), looks at the token: E[ĝ] = 0, for E[R | s_t, a_t] − Q(s_t, a_t) = 0.
    """
    J, V, Q = exact.J(world, policy), exact.values(world, policy), exact.q_values(world, policy)

    def returns(y: Tensor) -> Tensor:
        return world.returns(y)[..., None]

    def less_mean(y: Tensor) -> Tensor:
        return returns(y) - returns(y).mean(dim=-2, keepdim=True)

    def less_mean_of_others(y: Tensor) -> Tensor:
        batch = y.shape[-2]
        return batch / (batch - 1) * less_mean(y)

    return (
        Estimator(f"R + {offset:g}", lambda y: returns(y) + offset, "nothing"),
        Estimator("R", returns, "the offset, known beforehand"),
        Estimator("R − J", lambda y: returns(y) - J, "J, known beforehand"),
        Estimator("R − batch mean", less_mean, "one subtraction", exact.batch_mean_moments),
        Estimator("R − mean of others", less_mean_of_others, "one subtraction", exact.leave_one_out_moments),
        Estimator("R − V(s_t)", lambda y: returns(y) - V[world.states(y)], "a value for every state"),
        Estimator("R − Q(s_t, a_t)", lambda y: returns(y) - Q[world.states(y), y], "a value for every token"),
    )


def _moments_on_old_samples(policy: Policy, old: Policy, weights: Tensor, batch: int) -> exact.Moments:
    """`exact.moments` where y comes from π_old and the scores are those of π."""
    y = policy.world.sequences
    terms, probs = policy.score(y, weights.expand(y.shape)), exact.sequence_probs(old)
    mean = probs @ terms
    return exact.Moments(mean, (probs @ (terms**2).sum(dim=-1) - (mean**2).sum()) / batch)


def old_sample_estimators(
    world: World, policy: Policy, old: Policy, epsilon: float = 0.2
) -> tuple[Estimator, ...]:
    """The rows of lesson 4: ∇J at π from a batch that π_old wrote, by what multiplies R − V_old(s_t).

    Nothing; the ratio of the whole response, ρ(y) = π(y) / π_old(y), which is unbiased; the ratio of the
    token, ρ_t; and ρ_t where PPO's clip lets the gradient through, 0 elsewhere.
    """
    V = exact.values(world, old)

    def advantage(y: Tensor) -> Tensor:
        return world.returns(y)[..., None] - V[world.states(y)]

    def token_ratio(y: Tensor) -> Tensor:
        return (policy.log_probs(y) - old.log_probs(y)).exp()

    def sequence_ratio(y: Tensor) -> Tensor:
        return token_ratio(y).prod(dim=-1, keepdim=True)

    def clipped_ratio(y: Tensor) -> Tensor:
        ratio = token_ratio(y)
        return torch.where((ratio - ratio.clamp(1 - epsilon, 1 + epsilon)) * advantage(y) > 0, 0, ratio)

    def row(name: str, factor: Callable[[Tensor], Tensor], cost: str) -> Estimator:
        return Estimator(f"old, {name}", lambda y: factor(y) * advantage(y), cost, sampler=old)

    return (
        Estimator("new samples", advantage, "V_old(s_t), a new batch"),
        row("no ratio", torch.ones_like, "V_old(s_t)"),
        row("ρ(y)", sequence_ratio, "V_old(s_t), log π_old(y)"),
        row("ρ_t", token_ratio, "V_old(s_t), log π_old(a_t|s_t)"),
        row("ρ_t, clipped", clipped_ratio, "V_old(s_t), log π_old(a_t|s_t)"),
    )


class _Table:
    """A card as text and as HTML, from its `rows`, head first, and its `note`."""

    are_words: tuple[bool, ...]  # of each column; the others hold numbers

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows)]
        lines = ["  ".join(map(_padded, row, widths, self.are_words)).rstrip() for row in self.rows]
        return "\n".join([*lines, "", self.note])

    def _repr_html_(self) -> str:
        head, *body = ("".join(map(_cell, row, self.are_words)) for row in self.rows)
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        return (
            f"<table><thead><tr>{head.replace('td', 'th')}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{escape(self.note)}</p>"
        )


@dataclass(frozen=True, repr=False)
class Card(_Table):
    """What estimators are worth at one policy, a number an estimator. Lengths are in units of |∇J|."""

    are_words: ClassVar = (True, False, False, False, False, True)

    names: tuple[str, ...]
    costs: tuple[str, ...]
    batch: int  # N, responses of which one estimate is made
    batches: int  # of which the sampled numbers are made
    bias: Float[np.ndarray, " estimators"]  # |E[ĝ] − ∇J| / |∇J|, exact
    along: Float[np.ndarray, " estimators"]  # E[ĝ]·∇J / |∇J|², exact: 1 without bias
    sampled: Float[np.ndarray, " estimators"]  # its mean over the batches
    half_width: Float[np.ndarray, " estimators"]  # of the 95 % interval of that mean
    variance: Float[np.ndarray, " estimators"]  # E|ĝ − E[ĝ]|² / |∇J|², exact

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table as text, its head first."""
        head = ("estimator", "bias", "along ∇J", f"in {self.batches:,} batches", "variance", "needs beside R")
        cells = zip(
            self.names,
            (f"{number(100 * x)} %" if x > 1e-9 else "0" for x in self.bias),
            (number(x, 3) for x in self.along),
            (f"{number(x, 3)} ± {number(half, 3)}" for x, half in zip(self.sampled, self.half_width)),
            (number(x) for x in self.variance),
            self.costs,
        )
        return [head, *cells]

    @property
    def note(self) -> str:
        """What the columns are."""
        return (
            f"Estimates ĝ of {self.batch} responses. Bias: |E[ĝ] − ∇J| / |∇J|, exact. Along ∇J: "
            f"E[ĝ]·∇J / |∇J|², 1 without bias, exact and then sampled, with a 95 % interval. "
            f"Variance: E|ĝ − E[ĝ]|² / |∇J|², exact."
        )


def _padded(text: str, width: int, is_words: bool) -> str:
    return text.ljust(width) if is_words else text.rjust(width)


def _cell(text: str, is_words: bool) -> str:
    side = "left" if is_words else "right"  # said twice: GitHub drops the style, JupyterLab the attribute
    return f'<td align="{side}" style="text-align: {side}">{escape(text)}</td>'


def compute_card(
    world: World,
    policy: Policy,
    estimators: Sequence[Estimator],
    batch: int = 16,
    batches: int = 4000,
    seed: int = 0,
) -> Card:
    """The card of these estimators at this policy. Those with the same sampler see the same batches.

    Raises ValueError without an estimator, for a policy with runs, for less than 2 batches, or if ∇J is 0.
    """
    if not estimators:
        raise ValueError("no estimators: a card needs at least one")
    if policy.runs:
        raise ValueError(f"a card is of one policy, not of one with runs {policy.runs}")
    if batches < 2:
        raise ValueError(f"an interval needs at least 2 batches, not {batches}")
    g = exact.gradient(world, policy)
    square = (g @ g).item()
    if square == 0:
        raise ValueError("∇J is 0 at this policy: nothing can be measured against it")

    moments = [one.exact_moments(world, policy, batch) for one in estimators]
    samplers = [one.sampler or policy for one in estimators]
    batches_of = {id(each): each.sample((batches, batch), seed=seed) for each in samplers}
    sampled = torch.stack(
        [one.estimates(policy, batches_of[id(each)]) @ g / square for one, each in zip(estimators, samplers)]
    )
    intervals = np.array([normal(values) for values in sampled])  # low and high
    return Card(
        names=tuple(one.name for one in estimators),
        costs=tuple(one.cost for one in estimators),
        batch=batch,
        batches=batches,
        bias=np.array([(one.mean - g).norm().item() for one in moments]) / square**0.5,
        along=np.array([(one.mean @ g).item() for one in moments]) / square,
        sampled=intervals.mean(axis=1),
        half_width=(intervals[:, 1] - intervals[:, 0]) / 2,
        variance=np.array([one.variance.item() for one in moments]) / square,
    )


# The KL to a reference


def _of_response(kind: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Policy, Policy, Tensor], Tensor]:
    return lambda policy, ref, y: kind(policy.log_probs(y).sum(dim=-1), ref.log_probs(y).sum(dim=-1))


def _of_tokens(kind: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Policy, Policy, Tensor], Tensor]:
    return lambda policy, ref, y: kind(policy.log_probs(y), ref.log_probs(y)).sum(dim=-1)


def _of_states(policy: Policy, ref: Policy, y: Tensor) -> Tensor:
    """Σ_t Σ_a π(a|s_t) log(π(a|s_t) / π_ref(a|s_t)): nothing is left to the sampled token but the next state."""
    per_state = (policy.table * (policy.log_table - ref.log_table)).sum(dim=-1)
    return torch.where(policy.world.mask(y), per_state[policy.world.states(y)], 0).sum(dim=-1)


KL_ESTIMATORS = {
    "k1": _of_response(rl.k1),
    "k2 of the response": _of_response(rl.k2),
    "k2, a token, summed": _of_tokens(rl.k2),
    "k3 of the response": _of_response(rl.k3),
    "k3, a token, summed": _of_tokens(rl.k3),
    "whole vocabulary, a token": _of_states,
}
"""Of policy, reference and responses: one estimate a response. k1 is the same of the response as of its tokens, summed."""


@dataclass(frozen=True, repr=False)
class KLCard(_Table):
    """What estimators of KL(π‖π_ref) are worth, from one response of π each, exact; a number an estimator."""

    are_words: ClassVar = (True, False, False, False, False, False)

    names: tuple[str, ...]
    kl: float  # KL(π‖π_ref), nats a response
    mean: Float[np.ndarray, " estimators"]
    deviation: Float[np.ndarray, " estimators"]  # standard deviation
    least: Float[np.ndarray, " estimators"]  # over all responses
    error: Float[np.ndarray, " estimators"]  # as a loss: |E[∇ estimate] − ∇KL| / |∇KL|
    along: Float[np.ndarray, " estimators"]  # E[∇ estimate]·∇KL / |∇KL|²

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table as text, its head first."""
        head = ("estimator", "bias", "deviation", "least", "as a loss: error", "along ∇KL")
        cells = zip(
            self.names,
            (number(x, 3) for x in self.mean - self.kl),
            (number(x, 3) for x in self.deviation),
            (number(x, 3) for x in self.least),
            (f"{number(100 * x, 1)} %" if x > 1e-9 else "0" for x in self.error),
            (number(x, 3) for x in self.along),
        )
        return [head, *cells]

    @property
    def note(self) -> str:
        """What the columns are."""
        return (
            f"Estimates of KL(π‖π_ref) = {number(self.kl, 3)} nats from one response of π, exact. Bias, standard deviation and "
            f"least value in nats. As a loss: |E[∇ estimate] − ∇KL| / |∇KL|, and E[∇ estimate]·∇KL / |∇KL|²."
        )


def compute_kl_card(policy: Policy, ref: Policy) -> KLCard:
    """The card of `KL_ESTIMATORS` at this policy, on its own samples.

    Raises ValueError if the policy is the reference, where the KL and its gradient are 0, or has runs.
    """
    if policy.runs:
        raise ValueError(f"a card is of one policy, not of one with runs {policy.runs}")
    kl = exact.kl(policy, ref).item()
    if kl < 1e-12:
        raise ValueError("the policy is the reference: the KL is 0 there, and so is its gradient")
    y, probs = policy.world.sequences, exact.sequence_probs(policy)
    values = torch.stack([estimate(policy, ref, y) for estimate in KL_ESTIMATORS.values()])
    mean = values @ probs

    def gradient(loss: Callable[[Policy], Tensor]) -> Tensor:
        moving = Policy(policy.world, policy.logits.detach().clone().requires_grad_())
        return torch.autograd.grad(loss(moving), moving.logits)[0].flatten()

    g = gradient(lambda moving: exact.kl(moving, ref))
    gradients = [
        gradient(lambda moving, estimate=estimate: probs @ estimate(moving, ref, y)) for estimate in KL_ESTIMATORS.values()
    ]
    return KLCard(
        names=tuple(KL_ESTIMATORS),
        kl=kl,
        mean=mean.numpy(),
        deviation=(((values - mean[:, None]) ** 2) @ probs).sqrt().numpy(),
        least=values.amin(dim=-1).numpy(),
        error=np.array([((one - g).norm() / g.norm()).item() for one in gradients]),
        along=np.array([(one @ g / (g @ g)).item() for one in gradients]),
    )
