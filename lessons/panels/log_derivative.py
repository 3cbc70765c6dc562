"""The pictures of the log-derivative trick: a response, all responses, and the noise of a sampled gradient.

    show(*response_steps(world, policy, y, words))
    show(*all_responses(world, policy, words))
    show(*convergence(compute_convergence(world, policy, entry=(row, token), name="superb after a")))
    show(*learning(compute_learning(J, share, habit, best)))
    show(*variance_left(compute_variance_left()))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor

from lessons.live.style import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    MUTED,
    PURPLE,
    SEQUENTIAL,
    SMALL,
    WIDTH,
    EndLabels,
    applied,
    band,
    canvas,
    fit,
    heading,
    number,
    over_updates,
    panels,
)
from lessons.tabular import Policy, World, exact, random_policy
from lessons.tabular.exact import Moments

LOW, HIGH = 0.05, 0.95  # a band holds this range of the repetitions, runs or policies


def _range(
    samples: Float[np.ndarray, "*shape samples"],
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    low, high = np.quantile(samples, [LOW, HIGH], axis=-1)
    return low, high


# One response, word by word


@dataclass(frozen=True)
class Steps:
    """What the policy offered in each state of a response, before and after a step it caused."""

    words: tuple[str, ...]  # the vocabulary
    response: tuple[str, ...]
    reward: Float[np.ndarray, " time"]
    chosen: Int[np.ndarray, " time"]
    pi: Float[np.ndarray, "time vocab"]
    moved: Float[np.ndarray, "time vocab"]
    step: float

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        sentences = [f"The probabilities of the next word in the {len(self.response)} states of a response."]
        for t, (word, a) in enumerate(zip(self.response, self.chosen)):
            after = f", {number(self.moved[t, a])} after the step" if self.step else ""
            sentences.append(
                f"{_state(self.response[:t])}: {word} is chosen, with probability "
                f"{number(self.pi[t, a])}{after}; reward {self.reward[t]:g}."
            )
        return " ".join(sentences)


def compute_steps(
    world: World, policy: Policy, y: Int[Tensor, " time"], words: Sequence[str], step: float = 0.0
) -> Steps:
    """π(·|s_t) in each state of response `y`, and what it is at θ + step · R(y) ∇ log π(y).

    Raises ValueError if there is not one word for each token of the vocabulary.
    """
    _check_words(world, words)
    states = world.states(y)
    moved = policy.moved(step * world.returns(y) * policy.score(y))
    return Steps(
        words=tuple(words),
        response=tuple(words[a] for a in y),
        reward=world.rewards(y).numpy(),
        chosen=y.numpy(),
        pi=policy.table[states].numpy(),
        moved=moved.table[states].numpy(),
        step=step,
    )


def _state(words: Sequence[str]) -> str:
    return f"After “{' '.join(words)}”" if words else "At the start"


def _check_words(world: World, words: Sequence[str]) -> None:
    if len(words) != world.vocab:
        raise ValueError(f"a world of {world.vocab} tokens needs as many words, not {len(words)}")


class StepsArtists:
    """A bar chart for each state, the chosen word in full colour; where a step leads, a line and a dot."""

    @applied()
    def __init__(self, words: Sequence[str], length: int) -> None:
        self.figure, axes = panels(1, length, height=296, left=60, right=16, top=54, bottom=44)
        self.axes = list(axes[0])
        places = np.arange(len(words))
        self.bars, self.paths, self.dots = [], [], []
        for one in self.axes:
            one.grid(visible=False, axis="y")
            one.set(xlim=(0, 1), ylim=(len(words) - 0.4, -0.6), xlabel="probability")
            one.set_yticks(places, words)
            self.bars.append(one.barh(places, 0 * places, height=0.7, color=COLOURS["policy"]))
            self.paths.append(one.hlines(places, 0, 0, color=BLACK, lw=1.5))
            self.dots.append(one.plot([], [], "o", color=BLACK, ms=4)[0])
            heading(one, "", "")
        self.titles = [one.texts[-2:] for one in self.axes]

    def draw(self, steps: Steps) -> None:
        """Show these numbers; the vocabulary must be the one the artists were built with."""
        for t in range(len(self.axes)):
            title, offer = self.titles[t]
            title.set_text(_state(steps.response[:t]))
            offer.set_text(f"chosen: {steps.response[t]}, reward {steps.reward[t]:g}")
            places = np.arange(len(steps.words))
            for token, (bar, share) in enumerate(zip(self.bars[t], steps.pi[t])):
                bar.set_width(share)
                bar.set_alpha(1 if token == steps.chosen[t] else 0.35)
            ways = zip(places, steps.pi[t], steps.moved[t])
            self.paths[t].set_segments([[(before, place), (after, place)] for place, before, after in ways])
            self.dots[t].set_data(steps.moved[t], places)
            for artist in (self.paths[t], self.dots[t]):
                artist.set_visible(bool(steps.step))


# All responses


@dataclass(frozen=True)
class Map:
    """Every response of three words as a cell: row its first word, column its second and third."""

    words: tuple[str, ...]
    pi: Float[np.ndarray, "vocab columns"]
    returns: Float[np.ndarray, "vocab columns"]

    @property
    def product(self) -> Float[np.ndarray, "vocab columns"]:
        """π(y) R(y), the part of J that a response gives."""
        return self.pi * self.returns

    @property
    def J(self) -> float:
        """The sum of the products."""
        return float(self.product.sum())

    def name(self, cell: int) -> str:
        """The words of the response in a cell."""
        first, second, third = np.unravel_index(cell, (len(self.words),) * 3)
        return f"{self.words[first]} {self.words[second]} {self.words[third]}"

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        likely, best, most = (int(x.argmax()) for x in (self.pi, self.returns, self.product))
        return (
            f"Three maps of all {self.pi.size} responses. Most probable is “{self.name(likely)}”, with "
            f"{number(self.pi.flat[likely], 3)}. The highest return, {self.returns.flat[best]:g}, is that of "
            f"“{self.name(best)}”, with probability {number(self.pi.flat[best], 3)}. Their products sum to "
            f"J = {number(self.J, 3)}; “{self.name(most)}” gives the largest part, "
            f"{number(self.product.flat[most], 3)}."
        )


def compute_map(world: World, policy: Policy, words: Sequence[str]) -> Map:
    """Probability and return of every response.

    Raises ValueError if the responses are not three words without an end token, or a token has no word.
    """
    _check_words(world, words)
    if world.length != 3 or world.end is not None:
        raise ValueError(f"the map shows responses of exactly three words, not those of {world}")
    shape = (world.vocab, -1)
    pi, returns = exact.sequence_probs(policy), world.returns(world.sequences)
    return Map(tuple(words), pi.view(shape).numpy(), returns.view(shape).numpy())


class MapArtists:
    """Three strips: probability, return, and their product."""

    LEFT, RIGHT, TOP, BLOCK, STRIP, FOOT = 60, WIDTH - 16, 62, 166, 104, 30  # pixels
    STRIPS = ("π(y), probability", "R(y), return in points", "π(y) R(y), what a response adds to J")

    @applied()
    def __init__(self, words: Sequence[str]) -> None:
        V, count = len(words), len(self.STRIPS)
        height = self.TOP + self.BLOCK * (count - 1) + self.STRIP + self.FOOT
        self.figure = canvas(height)
        self.images, self.titles = [], []
        for i in range(count):
            bottom = height - self.TOP - i * self.BLOCK - self.STRIP
            one = self.figure.add_axes(
                [self.LEFT / WIDTH, bottom / height, (self.RIGHT - self.LEFT) / WIDTH, self.STRIP / height]
            )
            blank = np.zeros((V, V * V))
            self.images.append(one.imshow(blank, cmap=SEQUENTIAL, aspect="auto", interpolation="nearest"))
            one.grid(visible=False)
            one.set_yticks(range(V), words, fontsize=7.5)
            one.set_xticks(V * np.arange(V) + (V - 1) / 2, [f"{word} …" for word in words])
            one.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
            one.tick_params(axis="y", length=0)
            for edge in V * np.arange(1, V) - 0.5:
                one.axvline(edge, color=GREY, lw=0.8)
            for spine in one.spines.values():
                spine.set_visible(True)
            self.titles.append(
                one.annotate(
                    "", (0, 1), xytext=(0, 22), xycoords="axes fraction", textcoords="offset points",
                    fontsize=11, fontweight="bold",
                )
            )  # fmt: skip
        foot = "Row: first word. Group of columns: second word. In a group: third word, in the rows' order."
        self.figure.text(self.LEFT / WIDTH, 8 / height, foot, fontsize=SMALL, color=MUTED)

    def draw(self, map: Map) -> None:
        """Show these numbers."""
        for image, title, what, values in zip(
            self.images, self.titles, self.STRIPS, (map.pi, map.returns, map.product)
        ):
            image.set_data(values)
            image.set_clim(0, max(float(values.max()), 1e-12))
            title.set_text(f"{what}; white is 0, darkest {values.max():.2g}")
        self.titles[-1].set_text(f"{self.titles[-1].get_text()}; all together {number(map.J, 3)}")


# The estimate and its error


@dataclass(frozen=True)
class Convergence:
    """Gradient estimates from N samples, over and over, beside the exact gradient."""

    name: str  # of the entry that is shown
    N: Int[np.ndarray, " sizes"]
    entry: Float[np.ndarray, "sizes repetitions"]  # one entry of ĝ
    exact_entry: float
    error: Float[np.ndarray, "sizes repetitions"]  # |ĝ − ∇J| / |∇J|
    exact_error: Float[np.ndarray, " sizes"]  # √(variance of one term / N) / |∇J|

    @property
    def rms(self) -> Float[np.ndarray, " sizes"]:
        """Root of the mean squared error."""
        return np.sqrt((self.error**2).mean(axis=1))

    @property
    def slope(self) -> float:
        """Of log error over log N, by least squares; −1/2 is the law of 1/√N."""
        return float(np.polyfit(np.log(self.N), np.log(self.rms), 1)[0])

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        low, high = _range(self.entry)
        return (
            f"Estimates of the gradient from {self.N[0]} to {self.N[-1]:,} samples, "
            f"{self.error.shape[1]} repetitions each. Left, one entry, {self.name}: exact "
            f"{number(self.exact_entry, 3)}; nine in ten estimates lie between {number(low[0], 3)} and "
            f"{number(high[0], 3)} at first, between {number(low[-1], 3)} and {number(high[-1], 3)} at the "
            f"end. Right, the error falls from {self.rms[0]:.2g} to {self.rms[-1]:.2g} times the gradient's "
            f"length, with slope {number(self.slope)} on logarithmic axes, along the line of √(variance / N)."
        )


def compute_convergence(
    world: World,
    policy: Policy,
    entry: tuple[int, int],
    name: str,
    sizes: int = 10,
    repetitions: int = 300,
    seed: int = 0,
) -> Convergence:
    """`repetitions` estimates ĝ = (1/N) Σ_i R(y_i) ∇ log π(y_i) for each N = 1, 4, 16, …

    All that counts of N samples is how often each response came, so that is what is drawn. `entry` is the row
    and token of the entry of ĝ that is kept.
    """
    y, probs, R = world.sequences, exact.sequence_probs(policy), world.returns(world.sequences)
    terms = (R[:, None] * policy.score(y)).numpy()
    gradient = exact.gradient(world, policy).numpy()
    one_term = exact.moments(policy, R[:, None].expand(y.shape)).variance.item()
    index = entry[0] * world.vocab + entry[1]
    rng, shares = np.random.default_rng(seed), (probs / probs.sum()).numpy()
    N, kept, errors = 4 ** np.arange(sizes), [], []
    for size in N:
        estimates = rng.multinomial(size, shares, repetitions) @ terms / size
        kept.append(estimates[:, index])
        errors.append(np.linalg.norm(estimates - gradient, axis=1))
    length = np.linalg.norm(gradient)
    return Convergence(
        name=name,
        N=N,
        entry=np.stack(kept),
        exact_entry=float(gradient[index]),
        error=np.stack(errors) / length,
        exact_error=np.sqrt(one_term / N) / length,
    )


class ConvergenceArtists:
    """Left one entry of the estimate, closing in; right its error on logarithmic axes."""

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 2, height=340, left=52, right=106)
        self.entry, self.error = axes[0]
        for one in axes[0]:
            one.set_xscale("log")
            one.set_xlabel("N, samples in an estimate")
        self.error.set_yscale("log")
        for axis in (self.entry.xaxis, self.error.xaxis, self.error.yaxis):
            axis.set_minor_formatter(NullFormatter())
        heading(self.entry, "Does it close in on the exact value?", "")
        self.unit = self.entry.texts[-1]
        heading(self.error, "How fast does the error fall?", "|ĝ − ∇J| in lengths of ∇J; band: 9 in 10")
        estimate, truth = COLOURS["estimate"], COLOURS["exact"]
        self.bands = [band(one, estimate) for one in axes[0]]
        self.lines = [
            one.plot([], [], "o-", ms=4, color=estimate, label=label)[0]
            for one, label in zip(axes[0], ("mean", "rms error"))
        ]
        (self.exact_entry,) = self.entry.plot([], [], color=truth, lw=1.2, label="exact")
        (self.exact_error,) = self.error.plot([], [], color=truth, lw=1.2, ls="--", label="√(variance / N)")
        self.labels = [
            EndLabels(self.entry, [self.lines[0], self.exact_entry]),
            EndLabels(self.error, [self.lines[1], self.exact_error]),
        ]

    def draw(self, numbers: Convergence) -> None:
        """Show these numbers."""
        N, (low, high) = numbers.N, _range(numbers.entry)
        self.unit.set_text(f"∂J / ∂logit of {numbers.name}, in points; band: 9 in 10")
        self.bands[0].set_data(N, low, high)
        self.lines[0].set_data(N, numbers.entry.mean(axis=1))
        self.exact_entry.set_data(N, np.full(len(N), numbers.exact_entry))
        self.bands[1].set_data(N, *_range(numbers.error))
        self.lines[1].set_data(N, numbers.rms)
        self.exact_error.set_data(N, numbers.exact_error)
        for one in (self.entry, self.error):
            one.set_xlim(N[0], N[-1])
        fit(self.entry, low, high)
        self.error.set_ylim(numbers.error.min() / 1.5, numbers.error.max() * 1.5)
        for labels in self.labels:
            labels.place()


# A policy that learns


@dataclass(frozen=True)
class Learning:
    """Several runs of one learner: expected return, and the probability of a habit, after each update."""

    habit: str
    best: float  # the highest return of any response
    J: Float[np.ndarray, "updates runs"]
    share: Float[np.ndarray, "updates runs"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        low, high = (edge[-1] for edge in _range(self.J))
        return (
            f"Two curves over {len(self.J) - 1} updates, means of {self.J.shape[1]} runs. The expected score "
            f"goes from {number(self.J[0].mean())} to {number(self.J[-1].mean())}, nine in ten runs between "
            f"{number(low)} and {number(high)}; the best response scores {number(self.best)}. The "
            f"probability of {self.habit} goes from {number(self.share[0].mean())} to "
            f"{number(self.share[-1].mean())}."
        )


def compute_learning(
    J: Float[Tensor, "updates runs"], share: Float[Tensor, "updates runs"], habit: str, best: float
) -> Learning:
    """The record of a training loop: row 0 is before the first update."""
    return Learning(habit, best, J.numpy(), share.numpy())


class LearningArtists:
    """Left the expected score beside the best one, right the probability of the habit."""

    @applied()
    def __init__(self, updates: int) -> None:
        self.figure, axes = panels(1, 2, height=320, left=46, right=92)
        self.axes = list(axes[0])
        heading(self.axes[0], "Does it score better?", "J, expected score of the black box")
        heading(self.axes[1], "What does it write?", "")
        self.unit = self.axes[1].texts[-1]
        for one in self.axes:
            over_updates(one, updates)
            one.set_xlim(0, updates)
        colours = COLOURS["score"], COLOURS["policy"]
        self.bands = [band(one, colour) for one, colour in zip(self.axes, colours)]
        self.lines = [one.plot([], [], color=colour)[0] for one, colour in zip(self.axes, colours)]
        (self.best,) = self.axes[0].plot([], [], color=COLOURS["exact"], lw=1)
        self.labels = [
            EndLabels(self.axes[0], [self.lines[0], self.best]),
            EndLabels(self.axes[1], [self.lines[1]]),
        ]

    def draw(self, numbers: Learning) -> None:
        """Show these numbers."""
        update = np.arange(len(numbers.J))
        self.unit.set_text(f"probability of {numbers.habit}")
        for line, edge, values in zip(self.lines, self.bands, (numbers.J, numbers.share)):
            edge.set_data(update, *_range(values))
            line.set_data(update, values.mean(axis=1))
            line.set_label(f"mean {number(values[-1].mean())}")
        self.best.set_data(update, np.full(len(update), numbers.best))
        self.best.set_label(f"best {number(numbers.best)}")
        fit(self.axes[0], numbers.J, include=[0, numbers.best])
        self.axes[1].set_ylim(-0.03, 1.03)
        for labels in self.labels:
            labels.place()


# Which rewards a token is weighed by


@dataclass(frozen=True)
class VarianceLeft:
    """Exact variance of estimates with the same mean, over that with whole returns, for many policies."""

    WEIGHTS: ClassVar = ("whole return", "reward-to-go", "Q", "advantage")
    PAYS: ClassVar = ("token", "last")

    length: Int[np.ndarray, " lengths"]
    share: Float[np.ndarray, "pays weights lengths policies"]
    bias: float  # largest distance of any of the means from ∇J, over the length of ∇J

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        ends = self.share[..., -1, :].mean(axis=-1)
        lengths, policies = f"{self.length[0]} to {self.length[-1]} tokens", self.share.shape[-1]
        start = "Variance of four gradient estimates over that with whole returns"
        sentences = [f"{start}, mean of {policies} policies, for responses of {lengths}."]
        for pays, values in zip(("as they are earned", "at the end"), ends):
            named = ", ".join(f"{name} {number(x)}" for name, x in zip(self.WEIGHTS, values))
            sentences.append(f"Rewards paid {pays}, at {self.length[-1]} tokens: {named}.")
        return " ".join(sentences)


def token_weights(world: World, policy: Policy) -> dict[str, Float[Tensor, "*runs responses time"]]:
    """Four weights w_t(y) for ∇ log π(a_t|s_t) whose estimates all have the mean ∇J, for every response."""
    y, rewards = world.sequences, world.rewards(world.sequences)
    shape = (*policy.runs, *y.shape)
    states = world.states(y)
    return {
        "whole return": rewards.sum(dim=-1, keepdim=True).expand(shape),
        "reward-to-go": rewards.flip(-1).cumsum(dim=-1).flip(-1).expand(shape),
        "Q": exact.q_values(world, policy)[..., states, y],
        "advantage": exact.advantages(world, policy)[..., states, y],
    }


def compute_variance_left(
    lengths: Sequence[int] = (2, 3, 4, 5, 6), vocab: int = 4, policies: int = 20, seed: int = 0
) -> VarianceLeft:
    """Exact, for random policies, with rewards paid on each token and paid on the last one."""
    shares, bias = [], 0.0
    for pays in VarianceLeft.PAYS:
        for length in lengths:
            world = World(vocab=vocab, length=length, pays=pays)
            policy = random_policy(world, seed=seed, runs=(policies,))
            of = [exact.moments(policy, weights) for weights in token_weights(world, policy).values()]
            shares.append([(moments.variance / of[0].variance).numpy() for moments in of])
            bias = max(bias, *(_bias(moments, exact.gradient(world, policy)) for moments in of))
    grid = np.array(shares).reshape(len(VarianceLeft.PAYS), len(lengths), -1, policies)
    return VarianceLeft(np.array(lengths), grid.swapaxes(1, 2), bias)


def _bias(moments: Moments, gradient: Float[Tensor, "policies params"]) -> float:
    return ((moments.mean - gradient).norm(dim=-1) / gradient.norm(dim=-1)).max().item()


class VarianceLeftArtists:
    """Left rewards paid on each token, right all of them at the end; a line and a band for each weight."""

    LOOKS: ClassVar = {  # colour, width: a wide line can be seen under another one
        "whole return": (COLOURS["REINFORCE, no offset"], 4),
        "reward-to-go": (BLUE, 2),
        "Q": (PURPLE, 2),
        "advantage": (COLOURS["advantage"], 2),
    }

    @applied()
    def __init__(self) -> None:
        self.figure, axes = panels(1, 2, height=340, left=46, right=104)
        self.axes, self.lines, self.bands, self.labels = list(axes[0]), [], [], []
        titles = "Each point paid when it is earned", "All points paid at the end"
        for one, title in zip(self.axes, titles):
            heading(one, title, "variance, share of that with whole returns")
            one.set_xlabel("tokens in a response")
            one.set_ylim(0, 1.05)
            looks = self.LOOKS.items()
            self.bands.append([band(one, colour) for _, (colour, _) in looks])
            lines = [one.plot([], [], "o-", ms=4, color=c, lw=w, label=name)[0] for name, (c, w) in looks]
            self.lines.append(lines)
            self.labels.append(EndLabels(one, lines))

    def draw(self, numbers: VarianceLeft) -> None:
        """Show these numbers."""
        for one, lines, bands, labels, shares in zip(
            self.axes, self.lines, self.bands, self.labels, numbers.share
        ):
            for line, edge, values in zip(lines, bands, shares):
                line.set_data(numbers.length, values.mean(axis=-1))
                edge.set_data(numbers.length, *_range(values))
            one.set_xlim(numbers.length[0], numbers.length[-1])
            one.set_xticks(numbers.length)
            labels.place()


# For a notebook


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


def response_steps(
    world: World, policy: Policy, y: Int[Tensor, " time"], words: Sequence[str], step: float = 0.0
) -> tuple[Figure, str]:
    """One response word by word, with its alternative text, for `show`; errors as `compute_steps`."""
    return _drawn(StepsArtists(words, world.length), compute_steps(world, policy, y, words, step))


def all_responses(world: World, policy: Policy, words: Sequence[str]) -> tuple[Figure, str]:
    """The map of all responses, with its alternative text, for `show`; errors as `compute_map`."""
    return _drawn(MapArtists(words), compute_map(world, policy, words))


def convergence(numbers: Convergence) -> tuple[Figure, str]:
    """Estimates closing in on the exact gradient, with their alternative text, for `show`."""
    return _drawn(ConvergenceArtists(), numbers)


def learning(numbers: Learning) -> tuple[Figure, str]:
    """A policy that learns, with its alternative text, for `show`."""
    return _drawn(LearningArtists(len(numbers.J) - 1), numbers)


def variance_left(numbers: VarianceLeft) -> tuple[Figure, str]:
    """Which weights leave how much variance, with its alternative text, for `show`."""
    return _drawn(VarianceLeftArtists(), numbers)
