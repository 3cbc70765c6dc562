"""The estimator card: one table with a row for every estimator of ∇J met so far, against the exact gradient.

    def weights(y):
        return gae(world.rewards(y), V[world.states(y)], world.mask(y), lam=0.95)

    one = Estimator("GAE, λ = 0.95", weights, cost="a value for every state")
    compute_card(world, policy, [*baseline_estimators(world, policy), one])

As the last line of a cell the card shows itself, as an HTML table and as plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

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
        response depend on that response alone: then `exact.moments` finds them.
    """

    name: str
    weights: Callable[[Tensor], Tensor]
    cost: str
    moments: Callable[[World, Policy, int], exact.Moments] | None = None

    def exact_moments(self, world: World, policy: Policy, batch: int) -> exact.Moments:
        """Mean and variance of ĝ over all batches of N = `batch` responses."""
        if self.moments is not None:
            return self.moments(world, policy, batch)
        return exact.moments(policy, self.weights(world.sequences), batch)

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


@dataclass(frozen=True, repr=False)
class Card:
    """What estimators are worth at one policy, a number an estimator. Lengths are in units of |∇J|."""

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

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows)]
        lines = ["  ".join(map(_padded, row, widths, _IS_WORDS)).rstrip() for row in self.rows]
        return "\n".join([*lines, "", self.note])

    def _repr_html_(self) -> str:
        head, *body = ("".join(map(_cell, row, _IS_WORDS)) for row in self.rows)
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        return (
            f"<table><thead><tr>{head.replace('td', 'th')}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{escape(self.note)}</p>"
        )


_IS_WORDS = (True, False, False, False, False, True)  # of each column; the others hold numbers


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
    """The card of these estimators at this policy. All of them see the same sampled batches.

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
    y = policy.sample((batches, batch), seed=seed)
    sampled = torch.stack([one.estimates(policy, y) @ g / square for one in estimators])
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
