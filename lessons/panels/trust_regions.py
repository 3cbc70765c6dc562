"""The pictures of the lesson on trust regions: how far a policy may move on one batch, and what holds it.

    show(*directions())
    show(*too_far(compute_too_far(world, policy)))
    show(*leashes(compute_leashes(world, policy, learners), bound=0.1))
    show(*penalties(compute_leashes(world, policy, learners), target=0.06))
    show(*beyond_the_clip(compute_beyond(world, policy)))
    show(*staleness(compute_staleness(world, policy)))

All batches have the batch mean for a baseline. KL is exact and in nats a response, unless something else is
said: to the policy before an update, or before the first pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lessons import rl
from lessons.live.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SERIES,
    VERMILLION,
    EndLabels,
    applied,
    band,
    fit,
    heading,
    number,
    panels,
)
from lessons.tabular import exact
from lessons.tabular.learners import Learner
from lessons.tabular.policy import Policy
from lessons.tabular.runs import Runs, clip_slopes
from lessons.tabular.world import World

COLOURS_OF = {
    "no leash": COLOURS["baseline, 4 passes"],
    "PPO-clip": COLOURS["PPO"],
    "PPO, fixed β": ORANGE,
    "PPO, adaptive β": VERMILLION,
    "TRPO": PURPLE,
}
ARMS = ("table, SGD", "table, Adam", "shared, SGD")
SOLVED = 2.5  # mean matches of 3 below which a run that has had its updates counts as stuck


def right_with(world: World, probability: float) -> Policy:
    """The policy that gives the target's token this probability in every state, and all others the same.

    Raises ValueError if the probability is not between 0 and 1.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, both excluded, not {probability}")
    logits = torch.zeros(world.rows, world.vocab, dtype=torch.float64)
    for level, token in zip(world.levels, world.target, strict=True):
        logits[level, token] = math.log((world.vocab - 1) * probability / (1 - probability))
    return Policy(world, logits)


def copies(policy: Policy, runs: int) -> Policy:
    """The same policy, `runs` times."""
    return Policy(policy.world, policy.logits.repeat(runs, 1, 1))


def sampled(world: World, policy: Policy, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """A batch of responses for each run, and R − batch mean on each of their tokens."""
    y = policy.sample((batch,), seed=seed)
    R = world.returns(y)
    return y, (R - R.mean(dim=-1, keepdim=True))[..., None].expand(y.shape)


def _interval(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the last axis, and its 95 % interval."""
    mean, half = x.mean(axis=-1), 1.96 * x.std(axis=-1, ddof=1) / x.shape[-1] ** 0.5
    return mean, mean - half, mean + half


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


# Lines: one look for all pictures below


@dataclass(frozen=True)
class Line:
    """A line of a picture, with an interval if it is a mean."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What stands around the lines of one panel."""

    title: str
    unit: str
    below: str
    ticks: tuple[float, ...] | None = None  # of a logarithmic horizontal axis; None for a linear one
    include: tuple[float, ...] = (0,)
    floor: float | None = None  # the least height of a logarithmic vertical axis; None for a linear one
    rule: float | None = None  # a grey line across


class LinesArtists:
    """A panel for each axis with its lines, labelled at their ends."""

    @applied()
    def __init__(self, axes: Sequence[Axis], lines: Sequence[Sequence[Line]], height: int = 330) -> None:
        self.figure, grid = panels(1, len(axes), height=height, left=52, right=126 if len(axes) > 1 else 170)
        self.axes, self.given = list(grid.flat), axes
        self.lines, self.bands, self.labels = [], [], []
        for one, axis, group in zip(self.axes, axes, lines, strict=True):
            heading(one, axis.title, axis.unit)
            one.set_xlabel(axis.below)
            if axis.rule is not None:
                one.axhline(axis.rule, color=GREY, lw=1, ls=(0, (4, 3)))
            if axis.floor is not None:
                one.set_yscale("log")
            if axis.ticks is not None:
                one.set_xscale("log")
                one.xaxis.set_major_locator(FixedLocator(axis.ticks))
                one.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in axis.ticks]))
                one.xaxis.set_minor_locator(NullLocator())
            self.bands.append([band(one, line.colour) for line in group])
            self.lines.append([one.plot([], [], color=line.colour)[0] for line in group])
            self.labels.append(EndLabels(one, self.lines[-1]))

    def draw(self, lines: Sequence[Sequence[Line]]) -> None:
        """Show these lines."""
        for one, axis, group, drawn, bands, labels in zip(
            self.axes, self.given, lines, self.lines, self.bands, self.labels, strict=True
        ):
            for line, artist, interval in zip(group, drawn, bands, strict=True):
                artist.set_data(line.x, line.y)
                artist.set_label(line.name)
                artist.set_linestyle((0, (4, 2)) if line.dashed else "-")
                if line.low is not None:
                    interval.set_data(line.x, line.low, line.high)
            every = np.concatenate([line.x for line in group])
            one.set_xlim(every.min(), every.max())
            heights = np.concatenate([line.y for line in group])
            if axis.floor is not None:
                one.set_ylim(axis.floor, 1.5 * max(heights.max(), axis.rule or 0, axis.floor))
            else:
                fit(one, heights, include=axis.include)
            labels.place()


# Two directions


@dataclass(frozen=True)
class Directions:
    """KL between two policies with two words, in both directions, over the new probability of the first word."""

    old: float
    new: Float[np.ndarray, " probabilities"]
    old_new: Float[np.ndarray, " probabilities"]  # KL(old‖new)
    new_old: Float[np.ndarray, " probabilities"]

    axes = (
        Axis("Which surprise is averaged?", "KL in nats", "new probability of the first of two words"),
    )

    @property
    def lines(self) -> list[list[Line]]:
        return [
            [
                Line("KL(old‖new)", COLOURS["KL"], self.new, self.old_new),
                Line("KL(new‖old)", GREY, self.new, self.new_old),
            ]
        ]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        return (
            f"KL in both directions between an old policy with probability {number(self.old)} for the first of "
            f"two words and a new one. Both are 0 where the two agree. At a new probability of "
            f"{number(self.new[-1], 3)} KL(old‖new) is {number(self.old_new[-1])} nats, KL(new‖old) only "
            f"{number(self.new_old[-1])}."
        )


def compute_directions(old: float = 0.5, least: float = 0.002) -> Directions:
    """At 400 new probabilities from `least` to 1 − `least`."""
    new = np.linspace(least, 1 - least, 400)

    def kl(p, q):
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))

    return Directions(old, new, kl(old, new), kl(new, old))


# A step too far


@dataclass(frozen=True)
class TooFar:
    """One step along one batch's ĝ, of several sizes, and training with a good rate after it."""

    size: Float[np.ndarray, " sizes"]
    later: int  # updates after the step
    start: float  # J before it
    kl: Float[np.ndarray, "sizes seeds"]
    J_after: Float[np.ndarray, "sizes seeds"]
    J_later: Float[np.ndarray, "sizes seeds"]
    silent: Float[np.ndarray, "sizes seeds"]  # share of batches after the step in which all returns are equal
    same: Float[np.ndarray, "sizes seeds"]  # share of batches in which all responses are equal

    @property
    def stuck(self) -> Float[np.ndarray, " sizes"]:
        """Share of seeds below 2.5 after the later updates."""
        return (self.J_later < SOLVED).mean(axis=1)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        low, high = np.log10(self.kl.mean(axis=1)[[0, -1]])
        apart = max(1, math.ceil((high - low) / 5))  # decades between ticks
        ticks = tuple(10.0**k for k in range(math.ceil(low), math.floor(high) + 1, apart))
        below = "KL(old‖new) of the step, nats"
        return (
            Axis("What did the step bring?", "matches of 3", below, ticks, include=(0, 3)),
            Axis("What do samples then teach?", "% of seeds, and of batches", below, ticks, include=(0, 100)),
        )

    @property
    def lines(self) -> list[list[Line]]:
        x = self.kl.mean(axis=1)
        return [
            [
                Line("at once", ORANGE, x, *_interval(self.J_after)),
                Line(f"{self.later} updates later", BLUE, x, *_interval(self.J_later)),
            ],
            [
                Line("all returns equal", VERMILLION, x, *_interval(100 * self.silent)),
                Line("stuck later", BLUE, x, 100 * self.stuck),
            ],
        ]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{number(kl, 3 if kl < 0.1 else 1)} nats: {number(after)} at once, {number(later)} later, "
            f"{_percent(silent)} of batches with equal returns, {_percent(stuck)} of seeds stuck"
            for kl, after, later, silent, stuck in zip(
                self.kl.mean(1), self.J_after.mean(1), self.J_later.mean(1), self.silent.mean(1), self.stuck
            )
        )
        return (
            f"Mean matches after one step along one batch's gradient from {number(self.start)}, by the KL of the "
            f"step, and after {self.later} ordinary updates more, mean of {self.kl.shape[1]} seeds. {rows}."
        )


def compute_too_far(
    world: World,
    policy: Policy,
    sizes: Sequence[float] = (0.3, 1, 3, 10, 30, 100, 300),
    seeds: int = 40,
    later: int = 150,
    batch: int = 16,
    rate: float = 1.0,
) -> TooFar:
    """Plain steps θ + size · ĝ, every size on the same batches; then `later` steps of `rate` on fresh ones."""
    old = copies(policy, seeds)
    y, advantages = sampled(world, old, batch, seed=0)
    g_hat = old.score_sum(y, advantages) / batch
    moved = Policy(world, torch.stack([old.moved(size * g_hat).logits for size in sizes]))
    y = moved.sample((20, batch), seed=1)
    R = world.returns(y)
    after = moved
    for update in range(later):
        fresh, advantages = sampled(world, after, batch, seed=2 + update)
        after = after.moved(rate * after.score_sum(fresh, advantages) / batch)
    return TooFar(
        size=np.array(sizes, dtype=float),
        later=later,
        start=exact.J(world, policy).item(),
        kl=exact.kl(old, moved).numpy(),
        J_after=exact.J(world, moved).numpy(),
        J_later=exact.J(world, after).numpy(),
        silent=(R == R[..., :1]).all(dim=-1).double().mean(dim=-1).numpy(),
        same=(y == y[..., :1, :]).flatten(-2).all(dim=-1).double().mean(dim=-1).numpy(),
    )


# Learners with and without a leash


@dataclass(frozen=True)
class Leashes:
    """J and the KL of each update of learners that share their seeds; at update 1 they share the batch too."""

    names: tuple[str, ...]
    J: Float[np.ndarray, "learners updates_and_start seeds"]
    kl: Float[np.ndarray, "learners updates seeds"]

    def of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """J and KL of one learner."""
        i = self.names.index(name)
        return self.J[i], self.kl[i]

    def lines(self, first: int | None = None) -> list[list[Line]]:
        """J, and of the KL the mean over seeds; the KL of the first updates only, if `first` is given."""
        updates = np.arange(self.J.shape[1])
        J, kl = [], []
        for i, name in enumerate(self.names):
            colour = COLOURS_OF.get(name, SERIES[i % 3])  # fixed and adaptive β come three and three
            J.append(Line(name, colour, updates, *_interval(self.J[i])))
            mean = self.kl[i].mean(axis=-1)[:first]
            kl.append(Line(name, colour, 1 + np.arange(len(mean)), mean, dashed=name.startswith("fixed")))
        return [J, kl]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name}: {number(J[-1].mean())} matches, mean KL {number(kl.mean(), 3)}, largest {number(kl.max())}"
            for name, J, kl in zip(self.names, self.J, self.kl)
        )
        return (
            f"Matches over {self.kl.shape[1]} updates and the KL of each update in nats, mean of "
            f"{self.kl.shape[2]} seeds. At the end, and over all updates: {rows}."
        )


def compute_leashes(
    world: World, start: Policy, learners: Sequence[Learner], seeds: int = 30, updates: int = 80, batch: int = 16
) -> Leashes:
    """Trains all of them side by side, with exact J and KL(π_old‖π) around each update."""
    runs = Runs(world, learners, range(seeds), batch, start)
    policy, J, kl = runs.policy, [], []
    J.append(exact.J(world, policy))
    for _ in range(updates):
        runs.update()
        old, policy = policy, runs.policy
        J.append(exact.J(world, policy))
        kl.append(exact.kl(old, policy))
    names = tuple(learner.name for learner in learners)
    return Leashes(names, torch.stack(J, dim=1).numpy(), torch.stack(kl, dim=1).numpy())


# Beyond the clip


class SharedWeights:
    """A policy whose states share weights: logits = (p_t + e_1(a_1) + … + e_{t−1}(a_{t−1})) U.

    p_t is a vector for each position, e_k(a) one for each token at each earlier position, U turns them into
    logits. At the start every e is 0 and the policy is the given one, which may depend on the position alone.

    Raises ValueError if it depends on more.
    """

    def __init__(self, policy: Policy, runs: int, seed: int = 0):
        world, stream = policy.world, torch.Generator().manual_seed(seed)
        V = world.vocab
        rows = torch.stack([policy.logits[level.start] for level in world.levels])
        spread = torch.cat([policy.logits[level] - row for level, row in zip(world.levels, rows)])
        if spread.abs().max() > 1e-12:
            raise ValueError("the start must have the same logits in all states of a position")
        U = torch.eye(V, dtype=torch.float64) + 0.1 * torch.randn(V, V, generator=stream, dtype=torch.float64)
        start = (rows @ U.inverse(), torch.zeros(world.length - 1, V, V, dtype=torch.float64), U)
        self.world = world
        self.parameters = [x.repeat(runs, *[1] * x.ndim).requires_grad_() for x in start]

    def policy(self) -> Policy:
        """The table of logits that the weights make, differentiable."""
        positions, tokens, U = self.parameters
        hidden = [positions[:, :1]]
        for t in range(1, self.world.length):
            before = hidden[-1] - positions[:, t - 1, None]  # the sum of e so far, a row a prefix
            longer = before[:, :, None] + tokens[:, t - 1, None]
            hidden.append(longer.flatten(1, 2) + positions[:, t, None])
        return Policy(self.world, torch.cat(hidden, dim=1) @ U)


class Table:
    """A policy with a logit of its own for each state and token, in the form of `SharedWeights`."""

    def __init__(self, policy: Policy, runs: int):
        self.world, self.parameters = policy.world, [copies(policy, runs).logits.requires_grad_()]

    def policy(self) -> Policy:
        return Policy(self.world, self.parameters[0])


@dataclass(frozen=True)
class Beyond:
    """Ratios over the passes of PPO-clip on the same batches, in three arms.

    outside: share of tokens whose ratio is outside 1 ± ε.
    moved: of the tokens that the clip held in the pass before, and that were alone in their state, the mean
        |Δ log ρ| of the step; NaN before there is one.
    kl: KL(π_old‖π), exact.
    """

    epsilon: float
    names: tuple[str, ...]
    lr: tuple[float, ...]
    outside: Float[np.ndarray, "arms passes batches"]
    moved: Float[np.ndarray, "arms passes"]
    kl: Float[np.ndarray, "arms passes batches"]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return (
            Axis(f"Do ratios leave 1 ± {self.epsilon:g}?", "% of tokens outside", "passes made", include=(0, 100)),
            Axis("Do held tokens stand still?", "mean |Δ log ρ| of held tokens, a pass", "passes made"),
        )

    @property
    def lines(self) -> list[list[Line]]:
        passes = np.arange(1, self.outside.shape[1] + 1)
        names = list(zip(self.names, SERIES))
        return [
            [Line(*name, passes, *_interval(100 * x)) for name, x in zip(names, self.outside)],
            [Line(*name, passes, x) for name, x in zip(names, self.moved)],
        ]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        moves = [steps[np.isfinite(steps)] for steps in self.moved]
        held = [f"held tokens move by {number(steps.mean(), 3)}" if steps.size else "none held" for steps in moves]
        rows = "; ".join(
            f"{name}: {_percent(outside[-1].mean())} outside, {words}, KL {number(kl[-1].mean(), 3)}"
            for name, outside, words, kl in zip(self.names, self.outside, held, self.kl)
        )
        return (
            f"Share of tokens outside 1 ± {self.epsilon:g} over {self.outside.shape[1]} passes of PPO-clip on the "
            f"same {self.outside.shape[2]} batches, and how far tokens that the clip holds still move. At the "
            f"last pass: {rows}."
        )


def compute_beyond(
    world: World,
    policy: Policy,
    epsilon: float = 0.2,
    passes: int = 16,
    batches: int = 40,
    batch: int = 16,
    first: float = 0.05,
    seed: int = 0,
) -> Beyond:
    """Learning rates are such that in every arm the first step has the same size: a root mean square log ρ of `first`."""
    start = copies(policy, batches)
    y, advantages = sampled(world, start, batch, seed)
    old, mask = start.log_probs(y), world.mask(y)
    states = world.states(y)
    visits = torch.zeros(batches, world.rows, dtype=torch.long)
    visits.scatter_add_(1, states.flatten(1), torch.ones_like(states).flatten(1))
    alone = visits.gather(1, states.flatten(1)).view(states.shape) == 1

    def run(arm: str, lr: float, passes: int) -> tuple[list[Tensor], list[Tensor]]:
        weights = SharedWeights(policy, batches) if arm.startswith("shared") else Table(policy, batches)
        optimiser = (torch.optim.Adam if arm.endswith("Adam") else torch.optim.SGD)(weights.parameters, lr=lr)
        log_ratios, kls = [torch.zeros_like(old)], []
        for _ in range(passes):
            loss, _ = rl.clipped_surrogate(weights.policy().log_probs(y), old, advantages, mask, epsilon)
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
            with torch.no_grad():
                now = weights.policy()
                log_ratios.append(now.log_probs(y) - old)
                kls.append(exact.kl(start, now))
        return log_ratios, kls

    outside, moved, kl, rates = [], [], [], []
    for arm in ARMS:
        small = 1e-4
        rates.append(first * small / run(arm, small, 1)[0][1].square().mean().sqrt().item())
        log_ratios, kls = run(arm, rates[-1], passes)
        ratios = torch.stack(log_ratios).exp()
        held = ((ratios > 1 + epsilon) & (advantages > 0)) | ((ratios < 1 - epsilon) & (advantages < 0))
        held = held[:-1] & alone
        steps = torch.stack(log_ratios).diff(dim=0).abs()
        moved.append([step[which].mean().item() if which.any() else math.nan for step, which in zip(steps, held)])
        outside.append(((ratios[1:] - 1).abs() > epsilon).double().mean(dim=(-2, -1)).numpy())
        kl.append(torch.stack(kls).numpy())
    return Beyond(epsilon, ARMS, tuple(rates), np.stack(outside), np.array(moved), np.stack(kl))


# Stopping early


@dataclass(frozen=True)
class Stopping:
    """PPO-clip with many passes of Adam, each batch's passes ended when the KL is too large, or never."""

    stop: tuple[float | None, ...]  # nats a token
    passes: Float[np.ndarray, "stops updates seeds"]  # made on each batch
    kl: Float[np.ndarray, "stops updates seeds"]
    J: Float[np.ndarray, "stops seeds"]  # at the end


def compute_stopping(
    world: World,
    policy: Policy,
    stops: Sequence[float | None] = (None, 0.05, 0.02),
    seeds: int = 30,
    updates: int = 60,
    passes: int = 16,
    lr: float = 0.1,
    epsilon: float = 0.2,
    batch: int = 16,
) -> Stopping:
    """Before each step but the first: stop if k3 of the batch, in nats a token, is above `stop`.

    Adam by hand, with moments that move only in runs that take the step.
    """
    limits = torch.tensor([math.inf if stop is None else stop for stop in stops], dtype=torch.float64)
    theta = policy.logits.repeat(len(stops), seeds, 1, 1)
    m, v, taken = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros(len(stops), seeds, 1, 1)
    kls, counts = [], []
    for update in range(updates):
        old_policy = Policy(world, theta)
        y, advantages = sampled(world, old_policy, batch, seed=update)
        old, mask = old_policy.log_probs(y), world.mask(y)
        active, count = torch.ones(len(stops), seeds, dtype=torch.bool), torch.zeros(len(stops), seeds)
        for _ in range(passes):
            now = Policy(world, theta)
            log_probs = now.log_probs(y)
            active = active & (rl.masked_mean(rl.k3(old, log_probs), mask) <= limits[:, None])
            slopes, *_ = clip_slopes(log_probs, old, advantages, mask, epsilon)
            gradient = now.score_sum(y, slopes).view(theta.shape)
            step = active[..., None, None]
            taken = taken + step
            m = torch.where(step, 0.9 * m + 0.1 * gradient, m)
            v = torch.where(step, 0.999 * v + 0.001 * gradient**2, v)
            k = taken.clamp(min=1)
            move = lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
            theta = torch.where(step, theta - move, theta)
            count = count + active
        kls.append(exact.kl(old_policy, Policy(world, theta)))
        counts.append(count)
    J = exact.J(world, Policy(world, theta)).numpy()
    return Stopping(tuple(stops), torch.stack(counts, 1).numpy(), torch.stack(kls, 1).numpy(), J)


# Passes until a batch is stale


@dataclass(frozen=True)
class Staleness:
    """What an old batch is worth after passes over it, without the clip and with it.

    promise: the start's J plus the surrogate, T times the mean of ρ Â over tokens: the J that the batch believes in.
    old, fresh: cosine with ∇J, at the policy of that pass, of the old batch's weighted estimate, and of a new batch's.
    effective: (Σ w)² / (N Σ w²) with w = π(y) / π_old(y), the share of the batch that still counts.
    """

    names: tuple[str, ...]
    passes: Int[np.ndarray, " points"]
    J: Float[np.ndarray, "arms points seeds"]
    promise: Float[np.ndarray, "arms points seeds"]
    kl: Float[np.ndarray, "arms points seeds"]
    old: Float[np.ndarray, "arms points seeds"]
    fresh: Float[np.ndarray, "arms points seeds"]
    effective: Float[np.ndarray, "arms points seeds"]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        ticks = tuple(float(k) for k in self.passes if k)
        return (
            Axis("Promise and truth", "matches of 3", "passes over one batch", ticks, include=(0, 3), rule=3),
            Axis("Does it still know the way?", "cosine with ∇J at that policy", "passes over one batch", ticks),
        )

    @property
    def lines(self) -> list[list[Line]]:
        later = self.passes > 0
        x = self.passes[later]

        def line(name, colour, values):
            return Line(name, colour, x, *_interval(values[later]))

        return [
            [
                line("promise", GREY, self.promise[0]),
                line("J, no clip", GREEN, self.J[0]),
                line("J, clip", BLUE, self.J[1]),
            ],
            [
                line("fresh, no clip", GREY, self.fresh[0]),
                line("old, no clip", GREEN, self.old[0]),
                line("old, clip", BLUE, self.old[1]),
            ],
        ]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name}: J {number(J[-1].mean())}, promised {number(promise[-1].mean())}, cosine of the old batch "
            f"{number(old[-1].mean())}, of a fresh one {number(fresh[-1].mean())}"
            for name, J, promise, old, fresh in zip(self.names, self.J, self.promise, self.old, self.fresh)
        )
        return (
            f"Passes over one batch, mean of {self.J.shape[2]} batches. Left what it promises and the true J, "
            f"right the cosine of its estimate with the exact gradient. After {self.passes[-1]} passes, {rows}."
        )


def compute_staleness(
    world: World,
    policy: Policy,
    epsilon: float = 0.2,
    most: int = 64,
    lr: float = 10.0,
    batch: int = 16,
    seeds: int = 60,
) -> Staleness:
    """Plain steps of `lr` on the mean of ρ Â over tokens, clipped or not; measured at passes 0, 1, 2, 4, … `most`."""
    start = copies(policy, seeds)
    y, advantages = sampled(world, start, batch, seed=0)
    old, mask, J_0 = start.log_probs(y), world.mask(y), exact.J(world, policy)
    points = [0, *[2**k for k in range(most.bit_length())]]

    def measure(now: Policy, k: int) -> list[Tensor]:
        ratio, truth = (now.log_probs(y) - old).exp(), exact.gradient(world, now)
        fresh, fresh_advantages = sampled(world, now, batch, seed=1 + k)
        w = (now.log_probs(y) - old).sum(dim=-1).exp()
        return [
            exact.J(world, now),
            J_0 + world.length * (ratio * advantages).mean(dim=(-2, -1)),
            exact.kl(start, now),
            cosine_similarity(now.score_sum(y, ratio * advantages), truth, dim=-1),
            cosine_similarity(now.score_sum(fresh, fresh_advantages), truth, dim=-1),
            w.sum(dim=-1) ** 2 / (batch * (w**2).sum(dim=-1)),
        ]

    arms = []
    for bound in (1e12, epsilon):
        now, measured = start, []
        for k in range(most + 1):
            if k in points:
                measured.append(torch.stack(measure(now, k)))
            slopes, *_ = clip_slopes(now.log_probs(y), old, advantages, mask, bound)
            now = now.moved(-lr * now.score_sum(y, slopes))
        arms.append(torch.stack(measured, dim=1))
    numbers = torch.stack(arms, dim=1).numpy()
    return Staleness(("no clip", "clip"), np.array([k for k in points if k <= most]), *numbers)


# For a notebook


def _drawn(axes: Sequence[Axis], lines: Sequence[Sequence[Line]], alt: str) -> tuple[Figure, str]:
    artists = LinesArtists(axes, lines)
    artists.draw(lines)
    return artists.figure, alt


def directions(old: float = 0.5) -> tuple[Figure, str]:
    """KL in both directions, with its alternative text, for `show`."""
    numbers = compute_directions(old)
    return _drawn(numbers.axes, numbers.lines, numbers.alt)


def too_far(numbers: TooFar) -> tuple[Figure, str]:
    """Steps of several sizes, with their alternative text, for `show`."""
    return _drawn(numbers.axes, numbers.lines, numbers.alt)


def leashes(numbers: Leashes, bound: float) -> tuple[Figure, str]:
    """J and KL of learners over their updates, with their alternative text, for `show`."""
    return _drawn(
        (
            Axis("Who learns?", "matches of 3", "update", include=(0, 3)),
            Axis("How far does an update go?", "KL to the policy before it, nats", "update", floor=1e-3, rule=bound),
        ),
        numbers.lines(first=30),
        f"{numbers.alt} The dashed line is TRPO's bound, {bound:g} nats.",
    )


def penalties(numbers: Leashes, target: float) -> tuple[Figure, str]:
    """The KL of each update under several β, with its alternative text, for `show`."""
    unit = "KL to the policy before the update, nats"
    axis = Axis("Which β holds the distance?", unit, "update", floor=1e-4, rule=target)
    alt = f"{numbers.alt} The dashed line is the target, {target:g} nats."
    return _drawn((axis,), numbers.lines()[1:], alt)


def beyond_the_clip(numbers: Beyond) -> tuple[Figure, str]:
    """Ratios in three arms, with their alternative text, for `show`."""
    return _drawn(numbers.axes, numbers.lines, numbers.alt)


def staleness(numbers: Staleness) -> tuple[Figure, str]:
    """One batch over many passes, with its alternative text, for `show`."""
    return _drawn(numbers.axes, numbers.lines, numbers.alt)
