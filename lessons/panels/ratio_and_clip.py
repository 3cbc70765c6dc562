"""The pictures of the lesson on the ratio and the clip: what old samples are worth, and when the clip pays.

    show(*old_samples(world))
    show(*worth_by_length())
    show(*clip_curves())
    show(*pushes())
    show(*table_curves(table(TableConfig(seeds=200))))
    show(*sweep_lines(compute_sweep(world, seeds=range(40))))
    show(*locked_shares(compute_locking(world, seeds=range(100))))

The old policy of the first two is right half of the time, `skilled(world, 0.5)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lessons import rl
from lessons.live.style import (
    BLACK,
    BLUE,
    COLOURS,
    END_DOT,
    GREY,
    MUTED,
    ORANGE,
    SMALL,
    VERMILLION,
    EndLabels,
    applied,
    band,
    fit,
    heading,
    ink,
    number,
    panels,
)
from lessons.panels.estimator_card import old_sample_estimators
from lessons.tabular import exact
from lessons.tabular.learners import Learner
from lessons.tabular.policy import Policy
from lessons.tabular.runs import train
from lessons.tabular.table import SOLVED, UPDATES, WINDOW, wilson
from lessons.tabular.world import World

CLIP, NO_CLIP = COLOURS["PPO"], COLOURS["baseline, 4 passes"]


def skilled(world: World, p: float) -> Policy:
    """In every state the token of the target has probability p, and all others share the rest.

    Raises ValueError if p is not between 0 and 1.
    """
    if not 0 < p < 1:
        raise ValueError(f"p must be between 0 and 1, not {p}")
    logits = torch.zeros(world.rows, world.vocab, dtype=torch.float64)
    for level, token in zip(world.levels, world.target, strict=True):
        logits[level, token] = math.log((world.vocab - 1) * p / (1 - p))
    return Policy(world, logits)


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


def _log_ticks(axis, ticks: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


# Old samples


@dataclass(frozen=True)
class OldSamples:
    """Bias and noise of ĝ at policies ever further from the one that wrote the batch, in lengths of ∇J."""

    names: tuple[str, ...]
    p: Float[np.ndarray, " policies"]  # probability of the right token now; of the writer, ½
    bias: Float[np.ndarray, "estimators policies"]
    noise: Float[np.ndarray, "estimators policies"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name}: bias {number(bias)}, noise {number(noise)}"
            for name, bias, noise in zip(self.names, self.bias[:, -1], self.noise[:, -1])
        )
        return (
            "Bias and noise of the gradient of one batch, in lengths of the exact gradient, against the "
            "probability of the right token under the policy now; the batch was written with one half. "
            f"At {number(self.p[-1])}: {rows}."
        )


def compute_old_samples(world: World, batch: int = 16, highest: float = 0.85) -> OldSamples:
    """Exact, at 15 policies from the one that wrote the batch to `skilled(world, highest)`."""
    old, p = skilled(world, 0.5), np.linspace(0.5, highest, 15)
    bias, noise = [], []
    for each in p:
        now = skilled(world, float(each))
        g, rows = exact.gradient(world, now), old_sample_estimators(world, now, old)[:4]
        moments = [one.exact_moments(world, now, batch) for one in rows]
        bias.append([((mean - g).norm() / g.norm()).item() for mean, _ in moments])
        noise.append([(variance.sqrt() / g.norm()).item() for _, variance in moments])
    return OldSamples(tuple(one.name for one in rows), p, np.array(bias).T, np.array(noise).T)


class OldSamplesArtists:
    """Bias on the left, noise on the right, a line for each estimator."""

    COLOURS = (BLACK, VERMILLION, ORANGE, BLUE)

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 2, height=320, right=104)
        self.axes, self.lines, self.labels = list(axes.flat), [], []
        for one, title in zip(self.axes, ("Is it right on average?", "How far off is one batch?")):
            heading(one, title, ("bias" if one is self.axes[0] else "noise") + " of ĝ, in lengths of ∇J")
            one.set_xlabel("probability of the right token now")
            self.lines.append([one.plot([], [], color=colour, **END_DOT)[0] for colour in self.COLOURS])
            self.labels.append(EndLabels(one, self.lines[-1]))

    def draw(self, numbers: OldSamples) -> None:
        """Show these numbers."""
        for one, lines, labels, rows in zip(self.axes, self.lines, self.labels, (numbers.bias, numbers.noise)):
            for line, name, row in zip(lines, numbers.names, rows):
                line.set_data(numbers.p, row)
                line.set_label(name)
            one.set_xlim(numbers.p[0], numbers.p[-1])
            fit(one, rows, include=[0])
            labels.place()


# Length


@dataclass(frozen=True)
class Worth:
    """1 / E[ρ(y)²]: the share of a batch that is left when its responses are weighed by ρ(y)."""

    length: Float[np.ndarray, " lengths"]  # tokens
    p: tuple[float, ...]  # probability of the right token now; of the writer, ½
    share: Float[np.ndarray, "policies lengths"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(f"{number(p)}: {share:.2g}" for p, share in zip(self.p, self.share[:, -1]))
        return (
            "The share of a batch that is left after weighing by the ratio of whole responses, on a "
            f"logarithmic axis, falls as a straight line with the length. At {self.length[-1]:g} tokens, by the "
            f"probability of the right token now: {rows}."
        )


def mean_square_ratio(p: float) -> float:
    """E[ρ_t²] of one token, if its right word had probability ½ and has p now: p²/½ + (1 − p)²/½."""
    return 2 * p**2 + 2 * (1 - p) ** 2


def compute_worth(p: Sequence[float] = (0.55, 0.65, 0.75), longest: int = 60) -> Worth:
    """Tokens are independent here, so that E[ρ(y)²] is E[ρ_t²] to the power of the length."""
    length = np.arange(longest + 1.0)
    return Worth(length, tuple(p), np.stack([mean_square_ratio(each) ** -length for each in p]))


class WorthArtists:
    """A line for each distance between the two policies."""

    @applied()
    def __init__(self, lines: int) -> None:
        self.figure, axes = panels(1, 1, height=300, left=58, right=150)
        self.axes = axes[0, 0]
        heading(self.axes, "What is an old batch worth?", "1 / E[ρ(y)²]: share of the batch that is left")
        self.axes.set_yscale("log")
        self.axes.set_xlabel("tokens in a response")
        colours = (GREY, BLUE, VERMILLION, ORANGE)
        self.lines = [self.axes.plot([], [], color=colours[i % 4], **END_DOT)[0] for i in range(lines)]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: Worth) -> None:
        """Show these numbers."""
        for line, p, share in zip(self.lines, numbers.p, numbers.share):
            line.set_data(numbers.length, share)
            line.set_label(f"½ has become {number(p)}")
        self.axes.set_xlim(0, numbers.length[-1])
        self.axes.set_ylim(min(0.5, numbers.share.min()) / 2, 1.5)
        self.labels.place()


# The clip


@dataclass(frozen=True)
class ClipCurves:
    """min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â) for Â = +1 and −1, and the four worked cases on it."""

    epsilon: float
    ratio: Float[np.ndarray, " ratios"]
    value: Float[np.ndarray, "2 ratios"]
    case_ratio: Float[np.ndarray, " 2"]
    case_value: Float[np.ndarray, "2 2"]  # sign of Â, ratio
    case_gradient: Float[np.ndarray, "2 2"]  # with respect to log π

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        cases = "; ".join(
            f"ratio {number(rho, 1)} and advantage {sign}1: value {number(value, 2)}, gradient {number(slope, 2)}"
            for sign, values, slopes in zip("+−", self.case_value, self.case_gradient)
            for rho, value, slope in zip(self.case_ratio, values, slopes)
        )
        return (
            f"The clipped objective of one token against its ratio, with ε = {self.epsilon:g}. For a good token "
            f"it rises and is flat above {number(1 + self.epsilon)}; for a bad one it is flat below "
            f"{number(1 - self.epsilon)} and then falls. Four points: {cases}."
        )


def clipped(
    ratio: Float[torch.Tensor, " tokens"], advantage: float, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Value and ∂/∂log π of `rl.clipped_surrogate` for single tokens."""
    log_probs = ratio.log()[:, None, None].requires_grad_()
    one = torch.ones_like(log_probs).detach()
    loss, _ = rl.clipped_surrogate(log_probs, 0 * one, advantage * one, one > 0, epsilon)
    (gradient,) = torch.autograd.grad(-loss.sum(), log_probs)
    return -loss.detach().numpy(), gradient[:, 0, 0].numpy()


def compute_clip_curves(epsilon: float = 0.2, far: float = 0.3) -> ClipCurves:
    """The four cases stand at 1 + far and 1 − far."""
    ratio, cases = torch.linspace(0.4, 1.6, 241, dtype=torch.float64), torch.tensor([1 + far, 1 - far]).double()
    at = [clipped(cases, sign, epsilon) for sign in (1.0, -1.0)]
    return ClipCurves(
        epsilon=epsilon,
        ratio=ratio.numpy(),
        value=np.stack([clipped(ratio, sign, epsilon)[0] for sign in (1.0, -1.0)]),
        case_ratio=cases.numpy(),
        case_value=np.stack([value for value, _ in at]),
        case_gradient=np.stack([gradient for _, gradient in at]),
    )


class ClipCurvesArtists:
    """A panel for each sign: the curve, the unclipped line, and two cases with what gradient ascent does there."""

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 2, height=340, right=20)
        self.axes, self.lines, self.unclipped, self.points, self.texts, self.edges = list(axes.flat), [], [], [], [], []
        for one, title in zip(self.axes, ("A good token, Â = +1", "A bad token, Â = −1")):
            heading(one, title, "objective (thin: ρ Â without the clip)")
            one.set_xlabel("ratio ρ")
            self.unclipped.append(one.plot([], [], color=NO_CLIP, lw=1)[0])
            self.lines.append(one.plot([], [], color=CLIP)[0])
            self.edges.append([one.axvline(1, color=GREY, lw=0.8, ls=ls) for ls in ("--", "-", "--")])
            self.points.append([one.plot([], [], "o", color=CLIP, ms=8)[0] for _ in range(2)])
            self.texts.append(
                [
                    one.annotate(
                        "", (1, 0), xytext=(0, 0), textcoords="offset points", fontsize=SMALL, color=ink(CLIP),
                        path_effects=[withStroke(linewidth=3, foreground="white")],
                    )
                    for _ in range(2)
                ]
            )  # fmt: skip

    def draw(self, numbers: ClipCurves) -> None:
        """Show these numbers."""
        for i, one in enumerate(self.axes):
            self.lines[i].set_data(numbers.ratio, numbers.value[i])
            self.unclipped[i].set_data(numbers.ratio, (1, -1)[i] * numbers.ratio)
            for edge, at in zip(self.edges[i], (1 - numbers.epsilon, 1, 1 + numbers.epsilon)):
                edge.set_xdata([at, at])
            for j, (point, text) in enumerate(zip(self.points[i], self.texts[i])):
                rho, value, slope = numbers.case_ratio[j], numbers.case_value[i, j], numbers.case_gradient[i, j]
                point.set_data([rho], [value])
                point.set_markerfacecolor("white" if slope == 0 else CLIP)
                text.xy = rho, value
                text.set_position((-44, -22) if slope == 0 else ((10, -12), (-94, -14))[i])
                push = "no gradient" if slope == 0 else f"pushed {'up' if slope > 0 else 'down'}"
                text.set_text(f"{number(value, 1)}, {push}")
            one.set_xlim(numbers.ratio[0], numbers.ratio[-1])
            fit(one, numbers.value[i], (1, -1)[i] * numbers.ratio)


# Many steps on one batch


@dataclass(frozen=True)
class Pushes:
    """The ratio of a good and a bad word over gradient steps on the same batch.

    Starts: where the batch was written, and on the wrong side, the good word at 0.7 and the bad one at 1.3.
    """

    epsilon: float
    ratio: Float[np.ndarray, "2 2 2 steps"]  # start, with the clip or without, good or bad word

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        ends = self.ratio[..., -1]
        return (
            f"The ratios of a good and a bad word over {self.ratio.shape[-1] - 1} steps on one batch. From 1, with the "
            f"clip, they end at {number(ends[0, 0, 0])} and {number(ends[0, 0, 1])}; without it at "
            f"{number(ends[0, 1, 0])} and {number(ends[0, 1, 1])}. From the wrong side, with the clip, 0.7 goes to "
            f"{number(ends[1, 0, 0])} and 1.3 to {number(ends[1, 0, 1])}."
        )


def compute_pushes(epsilon: float = 0.2, lr: float = 0.1, steps: int = 20, vocab: int = 8) -> Pushes:
    """One state, uniform π_old, a batch of two words: word 0 with Â = +1 and word 1 with Â = −1. Plain steps."""
    old = torch.full((2, 1), 1 / vocab, dtype=torch.float64).log()
    A, mask = torch.tensor([[1.0], [-1.0]], dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    ratios = np.empty((2, 2, 2, steps + 1))
    for i, start in enumerate(((1.0, 1.0), (0.7, 1.3))):
        for j, limit in enumerate((epsilon, math.inf)):
            logits = torch.zeros(vocab, dtype=torch.float64)
            logits[:2] = torch.tensor(start).log()
            for k in range(steps + 1):
                logits.requires_grad_()
                log_probs = logits.log_softmax(dim=-1)[:2, None]
                ratios[i, j, :, k] = (log_probs - old).detach().exp()[:, 0]
                loss, _ = rl.clipped_surrogate(log_probs, old, A, mask, limit)
                (gradient,) = torch.autograd.grad(loss, logits)
                logits = logits.detach() - lr * gradient
    return Pushes(epsilon, ratios)


class PushesArtists:
    """A panel for each start, two lines for each word."""

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 2, height=320, right=104)
        self.axes, self.lines, self.labels, self.edges = list(axes.flat), [], [], []
        for one, title in zip(self.axes, ("From the old policy", "From the wrong side")):
            heading(one, title, "ratio ρ to the old policy")
            one.set_xlabel("steps on the same batch")
            self.edges.append([one.axhline(1, color=GREY, lw=0.8, ls=ls) for ls in ("--", "-", "--")])
            self.lines.append(
                [
                    one.plot([], [], color=colour, label=f"{word}, {name}", **END_DOT)[0]
                    for colour, name in ((CLIP, "clip"), (NO_CLIP, "no clip"))
                    for word in ("good", "bad")
                ]
            )
            self.labels.append(EndLabels(one, self.lines[-1]))

    def draw(self, numbers: Pushes) -> None:
        """Show these numbers."""
        steps = np.arange(numbers.ratio.shape[-1])
        for i, one in enumerate(self.axes):
            for line, ratio in zip(self.lines[i], numbers.ratio[i].reshape(4, -1)):
                line.set_data(steps, ratio)
            for edge, at in zip(self.edges[i], (1 - numbers.epsilon, 1, 1 + numbers.epsilon)):
                edge.set_ydata([at, at])
            one.set_xlim(0, steps[-1])
            fit(one, numbers.ratio, include=[0])
            self.labels[i].place()


# The table


@dataclass(frozen=True, repr=False)
class Wide:
    """Text whose lines a page must not break: as the last line of a cell it shows itself, and scrolls."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="white-space: pre; overflow-x: auto; font-size: 11.5px">{escape(self.text)}</pre>'


@dataclass(frozen=True)
class TableCurves:
    """The table of `lessons.tabular.table`, as means with 95 % intervals, and the article's figures."""

    seeds: int
    names: tuple[str, ...]
    lr: tuple[float, ...]
    mean: Float[np.ndarray, "learners updates"]
    low: Float[np.ndarray, "learners updates"]
    high: Float[np.ndarray, "learners updates"]
    article: Float[np.ndarray, "learners updates"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name} at {lr:g}: {number(mean[1])} and {number(mean[-1])}, the article {number(theirs[1])} and "
            f"{number(theirs[-1])}"
            for name, lr, mean, theirs in zip(self.names, self.lr, self.mean, self.article)
        )
        return (
            f"Mean matches of {self.seeds} seeds with 95 % intervals, and the article's figures as circles, by "
            f"learning rate. At updates 50 and 300: {rows}."
        )


def compute_table_curves(measured: dict) -> TableCurves:
    """From what `lessons.tabular.table.table` returns.

    Raises ValueError if it has no intervals.
    """
    if measured["outside"] is None:
        raise ValueError("the table has no intervals: measure it with more than 10 seeds")
    entries = measured["learners"]

    def figures(key: str) -> np.ndarray:
        return np.array([[cell[key] for cell in entry["matches"].values()] for entry in entries])

    return TableCurves(
        measured["seeds"],
        tuple(entry["learner"] for entry in entries),
        tuple(entry["lr"] for entry in entries),
        *map(figures, ("mean", "low", "high", "article")),
    )


class TableCurvesArtists:
    """A panel for each learning rate; lines are measured, circles are the article's."""

    @applied()
    def __init__(self, names: Sequence[str], lr: Sequence[float]) -> None:
        rates = list(dict.fromkeys(lr))
        self.figure, axes = panels(1, len(rates), height=360, right=140)
        self.axes = dict(zip(rates, axes.flat))
        self.lines, self.bands, self.circles = [], [], []
        for rate, one in self.axes.items():
            heading(one, f"learning rate {rate:g}", "matches of 3 (circles: the article)")
            one.set_xlabel("update")
        for name, rate in zip(names, lr):
            one, colour = self.axes[rate], COLOURS[name]
            self.bands.append(band(one, colour))
            self.lines.append(one.plot([], [], color=colour, label=name.replace("REINFORCE", "R."))[0])
            self.circles.append(one.plot([], [], "o", mfc="white", mec=colour, ms=6, clip_on=False)[0])
        self.labels = [EndLabels(one, [line for line in self.lines if line.axes is one]) for one in axes.flat]

    def draw(self, numbers: TableCurves) -> None:
        """Show these numbers."""
        for i, (line, interval, circles) in enumerate(zip(self.lines, self.bands, self.circles)):
            line.set_data(UPDATES, numbers.mean[i])
            interval.set_data(UPDATES, numbers.low[i], numbers.high[i])
            circles.set_data(UPDATES, numbers.article[i])
        for one, labels in zip(self.axes.values(), self.labels):
            one.set_xlim(0, UPDATES[-1])
            fit(one, numbers.mean, numbers.article, include=[0, 3])
            labels.place()


# Passes and learning rates


@dataclass(frozen=True)
class Sweep:
    """Share of seeds that solve the task, with the clip and without, and what the clip gains in matches."""

    passes: tuple[int, ...]
    lr: tuple[float, ...]
    seeds: int
    solved: Float[np.ndarray, "2 passes lr"]  # with the clip, without
    low: Float[np.ndarray, "2 passes lr"]
    high: Float[np.ndarray, "2 passes lr"]
    gain: Float[np.ndarray, "passes lr"]  # matches at the end with the clip, less those of the same seed without
    half_width: Float[np.ndarray, "passes lr"]  # of its 95 % interval

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{passes} passes at {lr:g}: {_percent(self.solved[0, i, j])} with and {_percent(self.solved[1, i, j])} without"
            for i, passes in enumerate(self.passes)
            for j, lr in enumerate(self.lr)
        )
        return (
            f"Share of {self.seeds} seeds that solve the task against the learning rate, with the clip and without, "
            f"a panel for each number of passes. {rows}."
        )


def compute_sweep(
    world: World,
    seeds: Sequence[int],
    passes: Sequence[int] = (1, 4, 16),
    lr: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
    updates: int = 150,
    epsilon: float = 0.2,
) -> Sweep:
    """Trains the table's PPO and its unclipped twin with all these passes and learning rates.

    Solved is 2.9 or more as the mean of the last 10 updates.

    Raises ValueError for a single seed, which has no interval.
    """
    if len(seeds) < 2:
        raise ValueError(f"an interval needs at least 2 seeds, not {len(seeds)}")
    learners = [
        Learner("", lr=rate, baseline="mean", passes=n, epsilon=limit, ratio="sequence")
        for limit in (epsilon, None)
        for n in passes
        for rate in lr
    ]
    ends = train(world, learners, seeds, updates).scores[..., -WINDOW:].mean(dim=-1)
    shape, solved = (2, len(passes), len(lr)), (ends >= SOLVED).double()
    intervals = np.array([wilson(each) for each in solved]).reshape(*shape, 2)
    with_clip, without = ends.view(*shape, len(seeds))
    gain = with_clip - without
    return Sweep(
        passes=tuple(passes),
        lr=tuple(lr),
        seeds=len(seeds),
        solved=solved.mean(dim=-1).view(shape).numpy(),
        low=intervals[..., 0],
        high=intervals[..., 1],
        gain=gain.mean(dim=-1).numpy(),
        half_width=(1.96 * gain.std(dim=-1) / len(seeds) ** 0.5).numpy(),
    )


class SweepArtists:
    """A panel for each number of passes, two lines over the learning rate."""

    @applied()
    def __init__(self, passes: Sequence[int]) -> None:
        self.figure, axes = panels(1, len(passes), height=310, right=62)
        self.axes, self.lines, self.bands, self.labels = list(axes.flat), [], [], []
        for one, n in zip(self.axes, passes):
            heading(one, f"{n} pass{'es' if n > 1 else ''} a batch", "% of seeds solved")
            one.set_xscale("log")
            one.set_xlabel("learning rate")
            self.bands.append([band(one, colour) for colour in (CLIP, NO_CLIP)])
            self.lines.append(
                [
                    one.plot([], [], color=colour, label=name, marker="o", ms=4, clip_on=False)[0]
                    for colour, name in ((CLIP, "clip"), (NO_CLIP, "no clip"))
                ]
            )
            self.labels.append(EndLabels(one, self.lines[-1]))

    def draw(self, numbers: Sweep) -> None:
        """Show these numbers."""
        for i, one in enumerate(self.axes):
            for j, (line, interval) in enumerate(zip(self.lines[i], self.bands[i])):
                line.set_data(numbers.lr, 100 * numbers.solved[j, i])
                interval.set_data(numbers.lr, 100 * numbers.low[j, i], 100 * numbers.high[j, i])
            one.set_xlim(numbers.lr[0], numbers.lr[-1])
            _log_ticks(one.xaxis, numbers.lr)
            fit(one, include=[0, 100])
            self.labels[i].place()


# Locking


@dataclass(frozen=True)
class Locking:
    """Share of seeds whose policy at the end writes one wrong response nine times in ten or more."""

    names: tuple[str, ...]
    seeds: int
    locked: Float[np.ndarray, "learners 3"]  # share; low, high
    J: Float[np.ndarray, " learners"]  # exact, at the end, mean over seeds
    policy: Policy  # at the end, of learner and seed

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name}: {_percent(share)} ({_percent(low)} to {_percent(high)})"
            for name, (share, low, high) in zip(self.names, self.locked)
        )
        return f"Share of {self.seeds} seeds that have locked onto a wrong response, with 95 % intervals. {rows}."


def is_locked(world: World, policy: Policy, share: float = 0.9) -> Float[torch.Tensor, "*runs"]:
    """1 where the most probable response is not among the best and has at least that probability, else 0."""
    top, which = exact.sequence_probs(policy).max(dim=-1)
    R = world.returns(world.sequences)
    return ((R[which] < R.max()) & (top >= share)).double()


def locking_learners() -> tuple[Learner, ...]:
    """Four passes at 0.1, which lock most often, and one remedy at a time."""
    plain = Learner("4 passes, lr 0.1", lr=0.1, baseline="mean", passes=4)
    return (
        plain,
        replace(plain, name="with the clip", epsilon=0.2, ratio="sequence"),
        replace(plain, name="with an entropy bonus", entropy=0.2),
        replace(plain, name="with a KL penalty", beta=0.1),
        replace(plain, name="with lr 0.03", lr=0.03),
    )


def compute_locking(
    world: World, seeds: Sequence[int], learners: Sequence[Learner] | None = None, updates: int = 200
) -> Locking:
    """Trains the learners, `locking_learners` unless others are given, and looks at their last policies."""
    learners = locking_learners() if learners is None else learners
    policy = train(world, learners, seeds, updates).policy
    locked = is_locked(world, policy)
    return Locking(
        tuple(learner.name for learner in learners),
        len(seeds),
        np.array([(each.mean().item(), *wilson(each)) for each in locked]),
        exact.J(world, policy).mean(dim=-1).numpy(),
        policy,
    )


class LockingArtists:
    """A row for each learner: a dot and its interval."""

    @applied()
    def __init__(self, names: Sequence[str]) -> None:
        rows = len(names)
        self.figure, axes = panels(1, 1, height=106 + 34 * rows, left=170, right=90)
        self.axes = axes[0, 0]
        heading(self.axes, "How many lock onto a wrong answer?", "by learner")
        self.axes.set_xlabel("% of seeds locked, with 95 % interval")
        self.axes.set(ylim=(-0.6, rows - 0.4), yticks=range(rows), yticklabels=names[::-1])
        self.axes.tick_params(axis="y", pad=10)
        self.intervals = [self.axes.plot([], [], color=NO_CLIP, lw=3, alpha=0.35)[0] for _ in names]
        self.dots = [self.axes.plot([], [], "o", color=NO_CLIP, ms=8, clip_on=False)[0] for _ in names]
        self.texts = [
            self.axes.annotate(
                "", (0, 0), xytext=(10, 0), textcoords="offset points", va="center", fontsize=SMALL, color=MUTED
            )
            for _ in names
        ]

    def draw(self, numbers: Locking) -> None:
        """Show these numbers."""
        for i, (share, low, high) in enumerate(100 * numbers.locked):
            y = len(numbers.names) - 1 - i
            self.intervals[i].set_data([low, high], [y, y])
            self.dots[i].set_data([share], [y])
            self.texts[i].xy = max(high, share), y
            self.texts[i].set_text(f"{number(share, 0)} %")
        self.axes.set_xlim(0, max(10, 108 * numbers.locked.max()))


# For a notebook


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


def old_samples(world: World) -> tuple[Figure, str]:
    """Bias and noise on old samples, with their alternative text, for `show`."""
    return _drawn(OldSamplesArtists(), compute_old_samples(world))


def worth_by_length() -> tuple[Figure, str]:
    """What an old batch is worth, with its alternative text, for `show`."""
    numbers = compute_worth()
    return _drawn(WorthArtists(len(numbers.p)), numbers)


def clip_curves() -> tuple[Figure, str]:
    """The clipped objective and four cases on it, with its alternative text, for `show`."""
    return _drawn(ClipCurvesArtists(), compute_clip_curves())


def pushes() -> tuple[Figure, str]:
    """Many steps on one batch, with their alternative text, for `show`."""
    return _drawn(PushesArtists(), compute_pushes())


def table_curves(measured: dict) -> tuple[Figure, str]:
    """The article's table as a picture, with its alternative text, for `show`."""
    numbers = compute_table_curves(measured)
    return _drawn(TableCurvesArtists(numbers.names, numbers.lr), numbers)


def sweep_lines(numbers: Sweep) -> tuple[Figure, str]:
    """Where the clip pays, with its alternative text, for `show`."""
    return _drawn(SweepArtists(numbers.passes), numbers)


def locked_shares(numbers: Locking) -> tuple[Figure, str]:
    """Who locks onto a wrong answer, with its alternative text, for `show`."""
    return _drawn(LockingArtists(numbers.names), numbers)
