"""The pictures of the lesson on baselines: what an offset does to one batch, and what a baseline undoes.

    show(*one_batch(world, policy))
    show(*noise_by_offset(world, policy))
    show(*cosine_distributions(compute_cosines(world, policy)))
    show(*wrong_tokens(world))
    show(*learning_curves(compute_learning(trained)))
    show(*learning_rates(compute_rates(world, seeds=range(20))))

`world` is the one without an offset: returns of 0 to 3. Whatever has a colour has it from the learner that
weighs responses so: REINFORCE by R plus the offset, without offset by R, with baseline by R − batch mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lessons.live.style import (
    COLOURS,
    END_DOT,
    GREY,
    MUTED,
    RULE,
    SMALL,
    EndLabels,
    applied,
    band,
    fit,
    heading,
    ink,
    number,
    over_updates,
    panels,
)
from lessons.tabular import exact
from lessons.tabular.learners import five_learners
from lessons.tabular.policy import Policy, uniform_policy
from lessons.tabular.runs import Trained, train
from lessons.tabular.table import SOLVED, WINDOW, wilson
from lessons.tabular.world import World

LEARNERS = five_learners()[:3]
COLOURS_OF = tuple(COLOURS[learner.name] for learner in LEARNERS)


def _plus(offset: float) -> str:
    return "R" if offset == 0 else f"R {'+' if offset > 0 else '−'} {abs(offset):g}"


def _names(offset: float) -> tuple[str, str, str]:
    return _plus(offset), "R", "R − batch mean"


def _three_weights(R: Tensor, offset: float) -> Tensor:
    """R + offset, R and R − batch mean of batches `*runs batch`, stacked in front."""
    return torch.stack([R + offset, R, R - R.mean(dim=-1, keepdim=True)])


def _estimates(policy: Policy, y: Tensor, weights: Tensor) -> Tensor:
    """ĝ of each batch, from one weight a response."""
    return policy.score_sum(y, weights[..., None].expand(y.shape)) / y.shape[-2]


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


# One batch


@dataclass(frozen=True)
class OneBatch:
    """What ĝ of one batch says about the logits of the first token, for three weights of its responses."""

    names: tuple[str, ...]
    pushes: Float[np.ndarray, "weights vocab"]
    exact: Float[np.ndarray, " vocab"]
    counts: Int[np.ndarray, " vocab"]  # how often the batch begins with each token
    target: int  # the right first token

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        most = self.counts.argmax()
        largest = np.abs(self.pushes).max(axis=1)
        sizes = ", ".join(f"{number(x)} with {name}" for name, x in zip(self.names, largest))
        return (
            f"Bars: the push of one batch of {self.counts.sum()} on the logit of each first token. The "
            f"largest push, up or down, is {sizes}. With {self.names[0]} it follows how often a token was "
            f"sampled: token {most} came {self.counts[most]} times and gets "
            f"{number(self.pushes[0, most])}. Dots: the exact gradient, "
            f"{number(self.exact[self.target])} for the right token {self.target} and "
            f"{number(np.delete(self.exact, self.target).max())} for the others."
        )


def compute_one_batch(
    world: World, policy: Policy, offset: float = 10.0, batch: int = 16, seed: int = 0
) -> OneBatch:
    """∂/∂logits of the first state, from one sampled batch and exact."""
    y = policy.sample((batch,), seed=seed)
    weights = _three_weights(world.returns(y), offset)
    return OneBatch(
        names=_names(offset),
        pushes=np.stack([_estimates(policy, y, w)[: world.vocab].numpy() for w in weights]),
        exact=exact.gradient(world, policy)[: world.vocab].numpy(),
        counts=torch.bincount(y[:, 0], minlength=world.vocab).numpy(),
        target=world.target[0],
    )


class OneBatchArtists:
    """A panel for each weight: a bar a token, and the exact gradient as dots."""

    @applied()
    def __init__(self, vocab: int) -> None:
        self.figure, axes = panels(1, len(LEARNERS), height=300, left=52, right=12, bottom=62)
        self.axes, tokens = list(axes.flat), np.arange(vocab)
        self.bars, self.dots, self.names = [], [], []
        for i, (one, colour) in enumerate(zip(self.axes, COLOURS_OF)):
            heading(one, "", "push on each logit" + (" (dots: exact)" if i == 0 else ""))
            self.names.append(one.texts[0])
            one.axhline(0, color=GREY, lw=0.8)
            one.grid(axis="x", visible=False)
            self.bars.append(one.bar(tokens, np.zeros(vocab), color=colour, width=0.7))
            self.dots.append(one.plot(tokens, np.zeros(vocab), "o", color=COLOURS["exact"], ms=4)[0])
            one.set_xlim(-0.6, vocab - 0.4)
            one.set_xlabel("first token, times sampled")

    def draw(self, numbers: OneBatch) -> None:
        """Show these numbers."""
        ticks = [f"{token}\n{count}×" for token, count in enumerate(numbers.counts)]
        for one, title, name, bars, dots, push in zip(
            self.axes, self.names, numbers.names, self.bars, self.dots, numbers.pushes
        ):
            title.set_text(f"weight {name}")
            for bar, height in zip(bars, push):
                bar.set_height(height)
            dots.set_ydata(numbers.exact)
            one.set_xticks(range(len(ticks)), ticks)
            one.get_xticklabels()[numbers.target].set(fontweight="bold", color="black")
            fit(one, push, numbers.exact, include=[0])


# Noise


@dataclass(frozen=True)
class Noise:
    """√(E|ĝ − ∇J|²) / |∇J|, exact, where ĝ weighs every response by its return plus an offset."""

    batch: int
    offset: Float[np.ndarray, " offsets"]
    noise: Float[np.ndarray, " offsets"]
    marks: tuple[str, ...]  # names of offsets to point at
    at: Float[np.ndarray, " marks"]
    of: Float[np.ndarray, " marks"]  # the noise there

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        marks = ", ".join(f"{number(x, 1)} with {name}" for name, x in zip(self.marks, self.of))
        least = self.noise.argmin()
        return (
            f"The noise of an estimate from {self.batch} responses against the offset, in lengths of the "
            f"exact gradient: {marks}. The curve is lowest near an offset of "
            f"{number(self.offset[least], 1)} and rises to both sides, soon in proportion to the distance."
        )


def compute_noise(
    world: World, policy: Policy, batch: int = 16, low: float = -5.0, high: float = 12.0, offset: float = 10.0
) -> Noise:
    """The noise at 200 offsets from `low` to `high`, and at `offset`, 0 and −J."""
    R, J = world.returns(world.sequences)[:, None], exact.J(world, policy).item()
    length = exact.gradient(world, policy).norm().item()

    def noise(offsets: np.ndarray) -> np.ndarray:
        variances = [exact.moments(policy, R + c, batch).variance.item() for c in offsets]
        return np.sqrt(variances) / length

    offsets, at = np.linspace(low, high, 200), np.array([offset, 0.0, -J])
    return Noise(batch, offsets, noise(offsets), (_plus(offset), "R", "R − J"), at, noise(at))


class NoiseArtists:
    """The noise over the offset, on a logarithmic axis, and three points on it."""

    BESIDE = (((0, -18), "center"), ((10, 0), "left"), ((-10, 0), "right"))  # of each mark: points, alignment

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 1, height=330, left=52, right=30)
        self.axes = axes[0, 0]
        heading(self.axes, "How far off is one batch?", "standard deviation of ĝ, in lengths of ∇J")
        self.axes.set_yscale("log")
        ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
        self.axes.yaxis.set_major_locator(FixedLocator(ticks))
        self.axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
        self.axes.yaxis.set_minor_locator(NullLocator())
        self.axes.set_xlabel("offset added to every return")
        self.axes.axhline(1, color=GREY, lw=1)
        (self.line,) = self.axes.plot([], [], color=COLOURS["exact"], lw=1.5)
        self.points, self.labels = [], []
        for colour, (away, side) in zip(COLOURS_OF, self.BESIDE):
            self.points.append(self.axes.plot([], [], "o", color=colour, ms=8)[0])
            self.labels.append(
                self.axes.annotate(
                    "", (0, 1), xytext=away, textcoords="offset points", ha=side, va="center_baseline",
                    fontsize=SMALL, color=ink(colour),
                )
            )  # fmt: skip

    def draw(self, numbers: Noise) -> None:
        """Show these numbers."""
        self.line.set_data(numbers.offset, numbers.noise)
        marks = zip(self.points, self.labels, numbers.marks, numbers.at, numbers.of)
        for point, label, name, at, noise in marks:
            point.set_data([at], [noise])
            label.xy = at, noise
            label.set_text(f"{name}: {number(noise, 1)}")
        self.axes.set_xlim(numbers.offset[0], numbers.offset[-1])
        self.axes.set_ylim(min(0.8, 0.8 * numbers.of.min()), 1.3 * max(numbers.noise.max(), *numbers.of, 1))


# Directions


@dataclass(frozen=True)
class Cosines:
    """cos(ĝ, ∇J) of many batches, a row for each weight of their responses."""

    names: tuple[str, ...]
    batch: int
    cosines: Float[np.ndarray, "weights batches"]

    @property
    def mean(self) -> Float[np.ndarray, " weights"]:
        return self.cosines.mean(axis=1)

    @property
    def backwards(self) -> Float[np.ndarray, " weights"]:
        """Share of batches that point away from the exact gradient."""
        return (self.cosines < 0).mean(axis=1)

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name}: mean {number(mean)}, {_percent(share)} of the batches below 0"
            for name, mean, share in zip(self.names, self.mean, self.backwards)
        )
        return (
            f"Distributions of the cosine between the gradient of one batch of {self.batch} and the exact "
            f"one, over {self.cosines.shape[1]:,} batches, by the weight of a response. {rows}."
        )


def compute_cosines(
    world: World,
    policy: Policy,
    offsets: Sequence[float] = (10, 3, 0),
    batch: int = 16,
    batches: int = 10_000,
    seed: int = 0,
) -> Cosines:
    """Of R plus each offset, and of R − batch mean, all on the same sampled batches."""
    y, g = policy.sample((batches, batch), seed=seed), exact.gradient(world, policy)
    R = world.returns(y)
    weights = [*(R + c for c in offsets), R - R.mean(dim=-1, keepdim=True)]
    cosines = [cosine_similarity(_estimates(policy, y, w), g, dim=-1).numpy() for w in weights]
    return Cosines((*map(_plus, offsets), "R − batch mean"), batch, np.stack(cosines))


class CosinesArtists:
    """A row for each weight with the density of its cosines, darker where they are negative."""

    EDGES = np.linspace(-1, 1, 81)

    @applied()
    def __init__(self, names: Sequence[str]) -> None:
        rows = len(names)
        self.figure, axes = panels(1, 1, height=96 + 74 * rows, left=124, right=210)
        self.axes = axes[0, 0]
        heading(self.axes, "Does one batch know the direction?", "share of batches, by their cosine with ∇J")
        self.axes.set(xlim=(-1, 1), ylim=(-0.15, rows), yticks=[])
        self.axes.set_xlabel("cosine: 1 is the direction of ∇J, below 0 is backwards")
        self.axes.axvline(0, color=GREY, lw=1)
        beside = {"textcoords": "offset points", "annotation_clip": False, "fontsize": SMALL}
        self.bands, self.means, self.names, self.texts = [], [], [], []
        colours = dict(zip(_names(LEARNERS[0].offset), COLOURS_OF))
        for i, colour in enumerate(colours.get(name, GREY) for name in names):
            base = rows - 1 - i
            self.axes.axhline(base, color=RULE, lw=0.8)
            self.bands.append([band(self.axes, colour) for _ in range(2)])
            self.bands[-1][0].set_alpha(0.4)
            self.bands[-1][1].set_alpha(1)
            self.means.append(self.axes.plot([], [], color=ink(colour))[0])
            at = {"xy": (-1, base), "xytext": (-8, 4), "ha": "right", "color": ink(colour)}
            self.names.append(self.axes.annotate("", **at, **beside))
            self.texts.append(self.axes.annotate("", (1, base), xytext=(8, 4), color=MUTED, **beside))

    def draw(self, numbers: Cosines) -> None:
        """Show these numbers."""
        middle = (self.EDGES[1:] + self.EDGES[:-1]) / 2
        shares = np.stack([np.histogram(row, self.EDGES)[0] / len(row) for row in numbers.cosines])
        heights, rows = 0.9 * shares / shares.max(), len(shares)
        for i, (height, mean) in enumerate(zip(heights, numbers.mean)):
            base = rows - 1 - i
            for one, part in zip(self.bands[i], (middle < 1, middle < 0)):
                one.set_data(middle[part], np.full(part.sum(), float(base)), base + height[part])
            self.means[i].set_data([mean, mean], [base, base + 0.9])
            self.names[i].set_text(numbers.names[i])
            share = _percent(numbers.backwards[i])
            self.texts[i].set_text(f"mean {number(mean)}, {share} backwards")


# Wrong tokens


@dataclass(frozen=True)
class WrongTokens:
    """The share of sampled wrong tokens that a batch pushes up, for policies of growing skill."""

    names: tuple[str, ...]
    skill: Float[np.ndarray, " skills"]  # probability of the right token, the same in every state
    share: Float[np.ndarray, "weights skills"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"with {name} {_percent(share[0])} and {_percent(share[-1])}"
            for name, share in zip(self.names, self.share)
        )
        return (
            "Share of the sampled wrong tokens that are pushed up, against the probability of the right "
            f"token. At {number(self.skill[0])} and at {number(self.skill[-1])} it is {rows}."
        )


def compute_wrong_tokens(
    world: World, offset: float = 10.0, batch: int = 16, batches: int = 1000, seed: int = 0
) -> WrongTokens:
    """From sampled batches of 15 policies, each with the same probability of the right token in every state.

    A token counts as wrong where the target has another one, and is pushed up if its response's weight is
    positive. Raises ValueError for a world with an end token, in which a token can be neither.
    """
    if world.end is not None:
        raise ValueError("a world without an end token is needed: every token is then right or wrong")
    skill = torch.linspace(1 / world.vocab, 0.9, 15, dtype=torch.float64)
    logits = uniform_policy(world, (len(skill),)).logits.clone()
    for level, right in zip(world.levels, world.target, strict=True):
        logits[:, level, right] = ((world.vocab - 1) * skill / (1 - skill)).log()[:, None]
    y = Policy(world, logits).sample((batches, batch), seed=seed)
    wrong = y != torch.tensor(world.target)
    up = _three_weights(world.returns(y), offset)[..., None] > 0
    share = (up & wrong).sum(dim=(-3, -2, -1)) / wrong.sum(dim=(-3, -2, -1))
    return WrongTokens(_names(offset), skill.numpy(), share.double().numpy())


class WrongTokensArtists:
    """A line for each weight."""

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 1, height=320, right=150)
        self.axes = axes[0, 0]
        heading(self.axes, "How many wrong tokens are pushed up?", "% of the wrong tokens in a batch")
        self.axes.set_xlabel("probability of the right token, in every state")
        self.lines = [self.axes.plot([], [], color=colour, **END_DOT)[0] for colour in COLOURS_OF]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: WrongTokens) -> None:
        """Show these numbers."""
        for line, name, share in zip(self.lines, numbers.names, numbers.share):
            line.set_data(numbers.skill, 100 * share)
            line.set_label(f"{name}: {_percent(share[-1])}")
        self.axes.set_xlim(numbers.skill[0], numbers.skill[-1])
        fit(self.axes, 100 * numbers.share, include=[0, 100])
        self.labels.place()


# Learners


@dataclass(frozen=True)
class Learning:
    """Mean matches of learners over their updates, with the 95 % interval of the mean over seeds."""

    names: tuple[str, ...]
    lr: tuple[float, ...]  # of each learner
    seeds: int
    mean: Float[np.ndarray, "learners updates"]
    low: Float[np.ndarray, "learners updates"]
    high: Float[np.ndarray, "learners updates"]
    solved: Float[np.ndarray, "learners 3"]  # share of seeds at 2.9 or more at the end; low, high

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = "; ".join(
            f"{name} at {lr:g}: {number(mean[-1])} matches, {_percent(solved)} of the seeds solved "
            f"({_percent(low)} to {_percent(high)})"
            for name, lr, mean, (solved, low, high) in zip(self.names, self.lr, self.mean, self.solved)
        )
        return (
            f"Learning curves over {self.mean.shape[1]} updates, mean of {self.seeds} seeds with its 95 % "
            f"interval, by learning rate. At the end: {rows}."
        )


def compute_learning(trained: Trained) -> Learning:
    """The curves of a training, and who has solved the task by the mean of the last updates.

    Raises ValueError for a single seed, which has no interval.
    """
    seeds = len(trained.seeds)
    if seeds < 2:
        raise ValueError("an interval needs at least 2 seeds, not 1")
    mean, half = trained.scores.mean(dim=1), 1.96 * trained.scores.std(dim=1) / seeds**0.5
    solved = (trained.scores[..., -WINDOW:].mean(dim=-1) >= SOLVED).double()
    return Learning(
        names=tuple(learner.name for learner in trained.learners),
        lr=tuple(learner.lr for learner in trained.learners),
        seeds=seeds,
        mean=mean.numpy(),
        low=(mean - half).numpy(),
        high=(mean + half).numpy(),
        solved=np.array([(each.mean().item(), *wilson(each)) for each in solved]),
    )


class LearningArtists:
    """A panel for each learning rate, a line with its interval for each learner."""

    @applied()
    def __init__(self, names: Sequence[str], lr: Sequence[float], updates: int) -> None:
        rates = list(dict.fromkeys(lr))
        self.figure, axes = panels(1, len(rates), height=330, right=116)
        self.axes = dict(zip(rates, axes.flat))
        self.lines, self.bands = [], []
        for rate, one in self.axes.items():
            heading(one, f"learning rate {rate:g}", "matches of 3")
            over_updates(one, updates)
        for name, rate in zip(names, lr):
            self.bands.append(band(self.axes[rate], COLOURS[name]))
            self.lines.append(self.axes[rate].plot([], [], color=COLOURS[name], **END_DOT)[0])
        self.labels = [EndLabels(one, [line for line in self.lines if line.axes is one]) for one in axes.flat]

    def draw(self, numbers: Learning) -> None:
        """Show these numbers."""
        updates = np.arange(1, numbers.mean.shape[1] + 1)
        for i, (line, interval) in enumerate(zip(self.lines, self.bands)):
            line.set_data(updates, numbers.mean[i])
            line.set_label(_short(numbers.names[i]))
            interval.set_data(updates, numbers.low[i], numbers.high[i])
        for one in self.axes.values():
            fit(one, include=[0, 3])
        for labels in self.labels:
            labels.place()


def _short(name: str) -> str:
    """The name of one of the three learners by what it does to the return."""
    return dict(zip((learner.name for learner in LEARNERS), _names(LEARNERS[0].offset))).get(name, name)


# Learning rates


@dataclass(frozen=True)
class Rates:
    """Mean matches of the three learners at the end, with its 95 % interval, over learning rates."""

    optimisers: tuple[str, ...]
    names: tuple[str, ...]
    lr: Float[np.ndarray, "optimisers rates"]
    mean: Float[np.ndarray, "optimisers learners rates"]
    half_width: Float[np.ndarray, "optimisers learners rates"]
    solved: Float[np.ndarray, "optimisers learners rates"]  # share of seeds
    seeds: int

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        rows = [
            f"{optimiser}, {name}: {number(mean.max())} matches at {lr[mean.argmax()]:g}"
            for optimiser, lr, means in zip(self.optimisers, self.lr, self.mean)
            for name, mean in zip(self.names, means)
        ]
        return (
            f"Matches at the end of training against the learning rate, mean of {self.seeds} seeds. "
            f"The best rate of each: {'; '.join(rows)}."
        )


SWEEP = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "adam": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}


def compute_rates(world: World, seeds: Sequence[int], updates: int = 300, batch: int = 16) -> Rates:
    """Trains the three learners at each learning rate of `SWEEP`, by SGD and by Adam.

    Raises ValueError for a single seed, which has no interval.
    """
    if len(seeds) < 2:
        raise ValueError(f"an interval needs at least 2 seeds, not {len(seeds)}")
    learners = [
        replace(learner, optimiser=optimiser, lr=lr)
        for optimiser, lrs in SWEEP.items()
        for learner in LEARNERS
        for lr in lrs
    ]
    scores = train(world, learners, seeds, updates, batch).scores
    ends = scores[..., -WINDOW:].mean(dim=-1).view(len(SWEEP), len(LEARNERS), -1, len(seeds)).numpy()
    return Rates(
        optimisers=tuple(SWEEP),
        names=_names(LEARNERS[0].offset),
        lr=np.array(list(SWEEP.values())),
        mean=ends.mean(axis=-1),
        half_width=1.96 * ends.std(axis=-1, ddof=1) / len(seeds) ** 0.5,
        solved=(ends >= SOLVED).mean(axis=-1),
        seeds=len(seeds),
    )


class RatesArtists:
    """A panel for each optimiser, a line with its interval for each learner."""

    TITLES = {"sgd": "Plain gradient steps", "adam": "Adam"}  # noqa: RUF012

    @applied()
    def __init__(self, optimisers: Sequence[str]) -> None:
        self.figure, axes = panels(1, len(optimisers), height=330, right=116)
        self.axes = list(axes.flat)
        self.lines, self.bands, self.labels = [], [], []
        for optimiser, one in zip(optimisers, self.axes):
            heading(one, self.TITLES[optimiser], "matches of 3 at the end of training")
            one.set_xscale("log")
            one.set_xlabel("learning rate")
            self.bands.append([band(one, colour) for colour in COLOURS_OF])
            self.lines.append([one.plot([], [], color=colour, marker="o", ms=4)[0] for colour in COLOURS_OF])
            self.labels.append(EndLabels(one, self.lines[-1]))

    def draw(self, numbers: Rates) -> None:
        """Show these numbers."""
        for i, one in enumerate(self.axes):
            for j, (line, interval) in enumerate(zip(self.lines[i], self.bands[i])):
                mean, half = numbers.mean[i, j], numbers.half_width[i, j]
                line.set_data(numbers.lr[i], mean)
                line.set_label(numbers.names[j])
                interval.set_data(numbers.lr[i], mean - half, mean + half)
            one.set_xlim(numbers.lr[i, 0], numbers.lr[i, -1])
            one.xaxis.set_major_locator(FixedLocator(numbers.lr[i]))
            one.xaxis.set_major_formatter(FixedFormatter([f"{lr:g}" for lr in numbers.lr[i]]))
            one.xaxis.set_minor_locator(NullLocator())
            fit(one, include=[0, 3])
            self.labels[i].place()


# For a notebook


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


def one_batch(world: World, policy: Policy, seed: int = 0) -> tuple[Figure, str]:
    """What one batch says about the first token, with its alternative text, for `show`."""
    return _drawn(OneBatchArtists(world.vocab), compute_one_batch(world, policy, seed=seed))


def noise_by_offset(world: World, policy: Policy) -> tuple[Figure, str]:
    """The noise of a batch of 16 against the offset, with its alternative text, for `show`."""
    return _drawn(NoiseArtists(), compute_noise(world, policy))


def cosine_distributions(cosines: Cosines) -> tuple[Figure, str]:
    """How well one batch knows the direction, with its alternative text, for `show`."""
    return _drawn(CosinesArtists(cosines.names), cosines)


def wrong_tokens(world: World) -> tuple[Figure, str]:
    """How many wrong tokens are pushed up, with its alternative text, for `show`."""
    return _drawn(WrongTokensArtists(), compute_wrong_tokens(world))


def learning_curves(learning: Learning) -> tuple[Figure, str]:
    """Learners over their updates, with their alternative text, for `show`."""
    return _drawn(LearningArtists(learning.names, learning.lr, learning.mean.shape[1]), learning)


def learning_rates(rates: Rates) -> tuple[Figure, str]:
    """Where learners end at each learning rate, with their alternative text, for `show`."""
    return _drawn(RatesArtists(rates.optimisers), rates)
