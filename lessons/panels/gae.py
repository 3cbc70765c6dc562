"""The figures of lesson 3: what values are worth a token, how a table learns them, what λ trades for what.

world = World(vocab=8, length=3)
policy = half_right(world)
show(*value_path(world, policy, response=(2, 1, 0)))
history = learned_values(world, policy, updates=300, seeds=20)
show(*learning_curves(world, policy, history))
show(*tradeoff(world, policy, {"untrained V": history[0], "good V": history[300]}, batch=16))

Gradients are measured in units of |∇J|: a squared error of 1 is that of the estimate ĝ = 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from lessons import rl
from lessons.live.style import (
    BLACK,
    BLUE,
    COLOURS,
    END_DOT,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
    SMALL,
    VERMILLION,
    EndLabels,
    applied,
    band,
    fit,
    heading,
    ink,
    number,
    over_updates,
    panels,
    text_width,
)
from lessons.tabular import Learner, Policy, World, exact, train

LAMS = tuple(i / 20 for i in range(21))
LAM_COLOURS = {0.0: BLUE, 0.5: VERMILLION, 0.8: GREEN, 0.95: ORANGE, 1.0: PURPLE}
"""The one colour of each λ where runs differ in their λ."""


def _lam_colour(lam: float) -> str:
    if lam not in LAM_COLOURS:
        raise ValueError(f"λ must be one of {', '.join(map(str, LAM_COLOURS))}, which have colours, not {lam}")
    return LAM_COLOURS[lam]


def half_right(world: World) -> Policy:
    """In every state the token of the target has probability ½, and all others share the rest.

    So with R the number of matches, V(s) is the matches so far and ½ for each token still to come.
    """
    logits = torch.zeros(world.rows, world.vocab, dtype=torch.float64)
    for level, token in zip(world.levels, world.target, strict=True):
        logits[level, token] = math.log(world.vocab - 1)
    return Policy(world, logits)


def learned_values(
    world: World,
    policy: Policy,
    updates: int,
    seeds: int,
    batch: int = 16,
    lr: float = 0.05,
    seed: int = 0,
) -> Float[Tensor, "updates_and_start seeds rows"]:
    """Tables of values that learn by regression, after each update; entry 0 is the start, all zeros.

    An update is a step of Adam on `rl.value_loss` of `batch` fresh responses, with the returns for targets.
    The policy stays what it is. Seeds are tables that learn from responses of their own.
    """
    tables = torch.zeros(seeds, world.rows, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([tables], lr=lr)
    history = [tables.detach().clone()]
    for y in policy.sample((updates, seeds, batch), seed=seed):
        mask = world.mask(y)
        values, returns = _at(world, y, tables), rl.returns(world.rewards(y), mask)
        optimiser.zero_grad()
        rl.value_loss(values, values, returns, mask).sum().backward()
        optimiser.step()
        history.append(tables.detach().clone())
    return torch.stack(history)


def _at(world: World, y: Tensor, tables: Tensor) -> Tensor:
    """V(s_t) of responses `*tables batch time` from their tables `*tables rows`."""
    states = world.states(y)
    return tables.gather(-1, states.flatten(-2)).view(states.shape)


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


def _range(low: float, high: float, digits: int = 2) -> str:
    return f"{number(low, digits)} to {number(high, digits)}"


# One response: its values and TD errors


@dataclass(frozen=True)
class Path:
    """What a response is worth before its first token and after each: the rewards so far plus V, at γ = 1."""

    tokens: tuple[str, ...]
    worth: Float[np.ndarray, " states"]  # one more than tokens; the last is the return
    td_errors: Float[np.ndarray, " tokens"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        steps = [
            f"{token} brings it to {number(worth)} (δ = {_signed(delta)})"
            for token, worth, delta in zip(self.tokens, self.worth[1:], self.td_errors)
        ]
        return (
            f"A response as a staircase. Before its first token it is worth {number(self.worth[0])}; "
            f"{', '.join(steps)}. The steps add up to {_signed(self.td_errors.sum())}."
        )


def _signed(x: float) -> str:
    return ("+" if x > 0 else "") + number(x)


def compute_path(
    world: World,
    policy: Policy,
    response: Sequence[int],
    values: Float[Tensor, " rows"] | None = None,
    words: Sequence[str] | None = None,
) -> Path:
    """The staircase of one response, by the exact values or by those given; `words` names the tokens."""
    y = torch.tensor([response])
    values = exact.values(world, policy) if values is None else values
    mask, rewards = world.mask(y), world.rewards(y)
    v = torch.where(mask, values[world.states(y)], 0)
    length = int(mask.sum())
    paid = rewards.cumsum(dim=-1)
    after = paid + torch.nn.functional.pad(v[:, 1:], (0, 1))  # V = 0 after the last token
    return Path(
        tokens=tuple(f"“{words[a]}”" if words else f"token {a}" for a in response[:length]),
        worth=torch.cat([v[0, :1], after[0, :length]]).numpy(),
        td_errors=rl.td_errors(rewards, v, mask)[0, :length].numpy(),
    )


class PathArtists:
    """A step for each state, and between two of them an arrow: the TD error of the token."""

    @applied()
    def __init__(self, tokens: int) -> None:
        self.figure, ((self.axes,),) = panels(1, 1, height=284, right=130, bottom=30)
        heading(self.axes, "What is the response worth so far?", "rewards paid plus V, in points")
        self.axes.set_xlim(0, tokens + 1)
        self.axes.set_xticks(range(1, tokens + 1))
        self.axes.grid(axis="x", visible=False)
        (self.steps,) = self.axes.plot([], [], color=COLOURS["value"], lw=3)
        self.arrows = [self.axes.annotate("", (t, 0), (t, 0)) for t in range(1, tokens + 1)]
        self.labels = [self.axes.text(t + 0.04, 0, "", va="center_baseline") for t in range(1, tokens + 1)]
        self.end = self.axes.annotate(
            "", (tokens + 1, 0), xytext=(6, 0), textcoords="offset points", va="center_baseline",
            fontsize=SMALL, color=ink(COLOURS["value"]), annotation_clip=False,
        )  # fmt: skip

    @applied()
    def draw(self, path: Path) -> None:
        """Show these numbers; there must be as many tokens as the artists were built for."""
        edges = np.repeat(np.arange(len(path.worth) + 1), 2)[1:-1].astype(float)
        heights = np.repeat(path.worth, 2)
        gaps = np.arange(2, len(heights), 2)  # no line where an arrow stands
        self.steps.set_data(np.insert(edges, gaps, np.nan), np.insert(heights, gaps, np.nan))
        self.axes.set_xticklabels(path.tokens)
        fit(self.axes, path.worth)
        for t, (delta, before, after) in enumerate(zip(path.td_errors, path.worth, path.worth[1:]), start=1):
            colour = BLUE if delta > 0 else VERMILLION
            self.arrows[t - 1].remove()
            self.arrows[t - 1] = self.axes.annotate(
                "", (t, after), (t, before), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2}
            )
            text = rf"$\delta_{t}$ = {_signed(delta)}"
            self.labels[t - 1].set(y=(before + after) / 2, text=text, color=ink(colour))
        self.end.xy = (len(path.worth), path.worth[-1])
        self.end.set_text(f"return {number(path.worth[-1])}")


def value_path(
    world: World,
    policy: Policy,
    response: Sequence[int],
    values: Float[Tensor, " rows"] | None = None,
    words: Sequence[str] | None = None,
) -> tuple[Figure, str]:
    """One response as a staircase of values, with its alternative text, for `show`."""
    path = compute_path(world, policy, response, values, words)
    return _drawn(PathArtists(len(path.tokens)), path)


# Learning the values


@dataclass(frozen=True)
class Errors:
    """How far learned values are from the exact ones, over the updates: mean and range over the tables.

    The error of a position is √(Σ_s d(s) (V(s) − V^π(s))²) over its states s, each with the probability d(s)
    that a response comes by.
    """

    seeds: int
    mean: Float[np.ndarray, "positions updates"]
    low: Float[np.ndarray, "positions updates"]
    high: Float[np.ndarray, "positions updates"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        updates = self.mean.shape[1] - 1
        parts = [
            f"before token {t} from {_range(mean[0], mean[-1])} (all: {_range(low[-1], high[-1])})"
            for t, (mean, low, high) in enumerate(zip(self.mean, self.low, self.high), start=1)
        ]
        tables = f"mean of {self.seeds} tables"
        return f"Error of learned values over {updates} updates, {tables}: {'; '.join(parts)}."


def compute_errors(world: World, policy: Policy, history: Float[Tensor, "updates_and_start seeds rows"]) -> Errors:
    """The errors of tables of values against the exact ones."""
    squares = exact.visits(policy) * (history - exact.values(world, policy)) ** 2
    errors = torch.stack([squares[..., level].sum(dim=-1).sqrt() for level in world.levels]).numpy()
    return Errors(history.shape[1], errors.mean(axis=2), errors.min(axis=2), errors.max(axis=2))


class ErrorsArtists:
    """A line and its range for the states before each token."""

    @applied()
    def __init__(self, positions: int, updates: int) -> None:
        self.figure, ((self.axes,),) = panels(1, 1, height=340, right=150)
        unit = "root mean square error, points; band: all seeds"
        heading(self.axes, "How wrong are the learned values?", unit)
        over_updates(self.axes, updates)
        self.axes.set_xlim(0, updates)
        colours = SERIES[:positions]
        self.bands = [band(self.axes, colour) for colour in colours]
        self.lines = [self.axes.plot([], [], color=colour, **END_DOT)[0] for colour in colours]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, errors: Errors) -> None:
        """Show these numbers."""
        update = np.arange(errors.mean.shape[1])
        for t, (line, area) in enumerate(zip(self.lines, self.bands)):
            line.set_data(update, errors.mean[t])
            line.set_label(f"before token {t + 1}: {number(errors.mean[t, -1])}")
            area.set_data(update, errors.low[t], errors.high[t])
        fit(self.axes, errors.low, errors.high, include=[0])
        self.labels.place()


def learning_curves(world: World, policy: Policy, history: Float[Tensor, "updates_and_start seeds rows"]) -> tuple[Figure, str]:
    """The error of learned values over the updates, with its alternative text, for `show`."""
    errors = compute_errors(world, policy, history)
    return _drawn(ErrorsArtists(len(world.levels), len(history) - 1), errors)


# Bias and variance over λ


@dataclass(frozen=True)
class Tradeoff:
    """Bias² and variance of ĝ with GAE at each λ, exact, in units of |∇J|²; one row a table of values."""

    batch: int  # N
    lams: Float[np.ndarray, " lams"]
    bias2: dict[str, Float[np.ndarray, "seeds lams"]]
    variance: dict[str, Float[np.ndarray, "seeds lams"]]

    def error(self, name: str) -> Float[np.ndarray, "seeds lams"]:
        """Bias² + variance: the expected squared distance of ĝ from ∇J."""
        return self.bias2[name] + self.variance[name]

    def best(self, name: str) -> tuple[float, float]:
        """The λ at which the mean error over the tables is least, and that error."""
        mean = self.error(name).mean(axis=0)
        return float(self.lams[mean.argmin()]), float(mean.min())

    def with_batch(self, batch: int) -> Tradeoff:
        """The same for batches of another size: the bias stays, the variance goes with 1/N."""
        variance = {name: x * self.batch / batch for name, x in self.variance.items()}
        return Tradeoff(batch, self.lams, self.bias2, variance)

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = []
        for name in self.bias2:
            bias2, variance = self.bias2[name].mean(axis=0), self.variance[name].mean(axis=0)
            best, least = map(number, self.best(name))
            parts.append(
                f"{name}: bias² from {_range(bias2[0], bias2[-1])}, variance from "
                f"{_range(variance[0], variance[-1])}, their sum least at λ = {best} with {least}."
            )
        lams = _range(self.lams[0], self.lams[-1])
        return f"Squared error of a gradient of {self.batch} responses for λ from {lams}, in units of |∇J|². " + " ".join(parts)


def compute_tradeoff(
    world: World,
    policy: Policy,
    values: Mapping[str, Float[Tensor, "seeds rows"]],
    batch: int = 16,
    lams: Sequence[float] = LAMS,
) -> Tradeoff:
    """Exact moments of ĝ for each kind of values, each of its tables and each λ.

    Raises ValueError if there is no table of values.
    """
    if not values:
        raise ValueError("no values: give at least one table")
    y, g = world.sequences, exact.gradient(world, policy)
    rewards, mask = world.rewards(y), world.mask(y)
    bias2, variance = {}, {}
    for name, tables in values.items():
        runs = Policy(policy.world, policy.logits.expand(len(tables), -1, -1))
        v = _at(world, y.expand(len(tables), -1, -1), tables)
        r, m = rewards.expand(v.shape), mask.expand(v.shape)
        moments = [exact.moments(runs, rl.gae(r, v, m, lam=lam), batch) for lam in lams]
        bias2[name] = np.stack([((one.mean - g) ** 2).sum(dim=-1) / (g @ g) for one in moments], axis=1)
        variance[name] = np.stack([one.variance / (g @ g) for one in moments], axis=1)
    return Tradeoff(batch, np.array(lams), bias2, variance)


class TradeoffArtists:
    """A panel for each kind of values: bias², variance and their sum over λ, a dot where that is least."""

    LOOKS = {"bias²": VERMILLION, "variance": SKY, "sum": BLACK}  # noqa: RUF012

    @applied()
    def __init__(self, names: Sequence[str]) -> None:
        right = 16 + round(max(text_width(name, SMALL) for name in self.LOOKS))
        self.figure, (self.axes,) = panels(1, len(names), height=360, right=right)
        self.bands, self.lines, self.dots, self.labels, self.notes = [], [], [], [], []
        for axes, name in zip(self.axes, names):
            heading(axes, name, "squared error of ĝ, units of |∇J|²")
            axes.set_xlim(0, 1)
            axes.set_xlabel("λ")
            self.bands.append([band(axes, colour) for colour in self.LOOKS.values()])
            lines = [axes.plot([], [], color=colour, label=look)[0] for look, colour in self.LOOKS.items()]
            self.lines.append(lines)
            self.labels.append(EndLabels(axes, lines))
            self.dots += axes.plot([], [], "o", color=BLACK, ms=7, clip_on=False)
            self.notes.append(axes.annotate("", (0, 0), xytext=(0, 12), textcoords="offset points", fontsize=SMALL))

    def draw(self, numbers: Tradeoff) -> None:
        """Show these numbers. All panels have one scale."""
        names = list(numbers.bias2)
        highest = max(numbers.error(name).max() for name in names)
        for i, (axes, name) in enumerate(zip(self.axes, names)):
            shown = numbers.bias2[name], numbers.variance[name], numbers.error(name)
            for line, area, values in zip(self.lines[i], self.bands[i], shown):
                line.set_data(numbers.lams, values.mean(axis=0))
                area.set_data(numbers.lams, values.min(axis=0), values.max(axis=0))
            best, least = numbers.best(name)
            self.dots[i].set_data([best], [least])
            self.notes[i].xy = (best, least)
            self.notes[i].set_text(f"least: {number(least, 2 if least >= 0.1 else 4)}")
            self.notes[i].set_ha("left" if best < 0.2 else "right" if best > 0.8 else "center")
            fit(axes, include=[0.0, float(highest)])
            self.labels[i].place()


def tradeoff(
    world: World,
    policy: Policy,
    values: Mapping[str, Float[Tensor, "seeds rows"]],
    batch: int = 16,
    lams: Sequence[float] = LAMS,
) -> tuple[Figure, str]:
    """Bias² and variance over λ for several kinds of values, with alternative text, for `show`."""
    return _drawn(TradeoffArtists(list(values)), compute_tradeoff(world, policy, values, batch, lams))


# The λ to take for a batch


@dataclass(frozen=True)
class BestLam:
    """The λ of the least error for each batch size: mean and range over the tables of each kind of values."""

    batches: Int[np.ndarray, " batches"]
    lam: dict[str, Float[np.ndarray, "seeds batches"]]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [f"{name} from {_range(*lam.mean(axis=0)[[0, -1]])}" for name, lam in self.lam.items()]
        return (
            f"The λ with the least squared error, for batches of {self.batches[0]:,} to {self.batches[-1]:,} "
            f"responses: {'; '.join(parts)}."
        )


def compute_best_lam(numbers: Tradeoff, batches: Sequence[int]) -> BestLam:
    """The best λ of each table for each of these batch sizes."""
    errors = [numbers.with_batch(batch) for batch in batches]
    lam = {name: np.stack([one.lams[one.error(name).argmin(axis=1)] for one in errors], axis=1) for name in numbers.bias2}
    return BestLam(np.array(batches), lam)


class BestLamArtists:
    """A line and its range for each kind of values, over the batch size."""

    @applied()
    def __init__(self, names: Sequence[str], batches: Sequence[int]) -> None:
        right = 16 + round(max(text_width(name, SMALL) for name in names))
        self.figure, ((self.axes,),) = panels(1, 1, height=320, right=right)
        heading(self.axes, "Which λ makes the least error?", "λ; band: all seeds")
        self.axes.set_xscale("log", base=2)
        self.axes.set_xlim(batches[0], batches[-1])
        self.axes.set_xticks(batches[::2], [f"{batch:,}" for batch in batches[::2]])
        self.axes.set_xlabel("responses in a batch, N")
        self.axes.set_ylim(0, 1)
        self.bands = [band(self.axes, colour) for colour in SERIES[: len(names)]]
        self.lines = [self.axes.plot([], [], color=colour, label=name, **END_DOT)[0] for colour, name in zip(SERIES, names)]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: BestLam) -> None:
        """Show these numbers."""
        for line, area, lam in zip(self.lines, self.bands, numbers.lam.values()):
            line.set_data(numbers.batches, lam.mean(axis=0))
            area.set_data(numbers.batches, lam.min(axis=0), lam.max(axis=0))
        self.labels.place()


def best_lam(numbers: Tradeoff, batches: Sequence[int]) -> tuple[Figure, str]:
    """The best λ against the batch size, with its alternative text, for `show`."""
    return _drawn(BestLamArtists(list(numbers.bias2), batches), compute_best_lam(numbers, batches))


# Longer responses


@dataclass(frozen=True)
class Lengths:
    """The first token's advantage where responses have T tokens and the whole return comes with the last.

    noise: with exact values, standard deviation of Â_1 given the first token.
    signal: with values of 0, E[Â_1 | right token] − E[Â_1 | wrong token]; the exact advantages differ by 1.
    """

    lengths: Int[np.ndarray, " lengths"]  # T
    lams: tuple[float, ...]
    noise: Float[np.ndarray, "lams lengths"]
    signal: Float[np.ndarray, "lams lengths"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        first, last = self.lengths[0], self.lengths[-1]
        parts = [
            f"at λ = {lam:g} the noise goes from {_range(noise[0], noise[-1])} and the signal from "
            f"{_range(signal[0], signal[-1])}"
            for lam, noise, signal in zip(self.lams, self.noise, self.signal)
        ]
        return (
            f"The first token's advantage in responses of {first} to {last} tokens. Noise with exact values, "
            f"and signal without any: {'; '.join(parts)}."
        )


def compute_lengths(lengths: Sequence[int], lams: Sequence[float], vocab: int = 3) -> Lengths:
    """Noise and signal of Â_1, by enumeration, for the policy that is right half of the time."""
    noise, signal = np.empty((2, len(lams), len(lengths)))
    for j, length in enumerate(lengths):
        world = World(vocab=vocab, length=length)
        policy = half_right(world)
        y, probs, values = world.sequences, exact.sequence_probs(policy), exact.values(world, policy)
        right = y[:, 0] == world.target[0]
        for i, lam in enumerate(lams):
            first = {
                name: rl.gae(world.rewards(y), v[world.states(y)], world.mask(y), lam=lam)[:, 0]
                for name, v in (("exact", values), ("zero", torch.zeros_like(values)))
            }
            mean = {
                (name, given): (probs * x)[given == right].sum() / probs[given == right].sum()
                for name, x in first.items()
                for given in (True, False)
            }
            centred = first["exact"] - torch.where(right, mean["exact", True], mean["exact", False])
            noise[i, j] = (probs * centred**2).sum().sqrt()
            signal[i, j] = mean["zero", True] - mean["zero", False]
    return Lengths(np.array(lengths), tuple(lams), noise, signal)


class LengthsArtists:
    """Left the noise of the first token's advantage, right what of its signal arrives, over the length."""

    @applied()
    def __init__(self, lengths: Sequence[int], lams: Sequence[float]) -> None:
        self.figure, ((self.noise, self.signal),) = panels(1, 2, height=340, right=84)
        heading(self.noise, "Exact V: how noisy is Â₁?", "standard deviation, points")
        heading(self.signal, "V = 0: what of Â₁ is left?", "right token minus wrong token; exact: 1 point")
        self.lines, self.labels = [], []
        for axes in (self.noise, self.signal):
            axes.set_xlim(lengths[0], lengths[-1])
            axes.set_xticks(lengths)
            axes.set_xlabel("tokens in a response, T")
            lines = [axes.plot([], [], color=_lam_colour(lam), label=f"λ = {lam:g}", **END_DOT)[0] for lam in lams]
            self.lines.append(lines)
            self.labels.append(EndLabels(axes, lines))

    def draw(self, numbers: Lengths) -> None:
        """Show these numbers."""
        for axes, lines, labels, values in zip(
            (self.noise, self.signal), self.lines, self.labels, (numbers.noise, numbers.signal)
        ):
            for line, row in zip(lines, values):
                line.set_data(numbers.lengths, row)
            fit(axes, values, include=[0])
            labels.place()


def longer_responses(lengths: Sequence[int], lams: Sequence[float], vocab: int = 3) -> tuple[Figure, str]:
    """Noise and signal of the first advantage against length, with alternative text, for `show`."""
    return _drawn(LengthsArtists(lengths, lams), compute_lengths(lengths, lams, vocab))


# Training


@dataclass(frozen=True)
class Training:
    """Mean return of the batches of several learners over the updates, each with its 95 % interval."""

    learners: tuple[Learner, ...]
    seeds: int
    highest: float  # of all returns
    mean: Float[np.ndarray, "learners updates"]
    half_width: Float[np.ndarray, "learners updates"]
    right: Float[np.ndarray, "learners positions"]  # share of right tokens at the end, by position

    def __getitem__(self, name: str) -> Float[np.ndarray, " updates"]:
        """The mean return of the learner of that name."""
        return next(mean for learner, mean in zip(self.learners, self.mean) if learner.name == name)

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        updates = self.mean.shape[1]
        parts = [
            f"{learner.name}: {number(mean[updates // 4])} at update {updates // 4 + 1} and "
            f"{number(mean[-1])} ± {number(half[-1])} at the end"
            for learner, mean, half in zip(self.learners, self.mean, self.half_width)
        ]
        return (
            f"Mean return of at most {number(self.highest, 0)} points over {updates} updates, mean of "
            f"{self.seeds} seeds. {'; '.join(parts)}."
        )


def compute_training(world: World, lams: Sequence[float], seeds: int = 40, updates: int = 150, lr: float = 0.1) -> Training:
    """Trains with a learned V and each λ, with exact values at λ = 0, and with the batch mean for a baseline.

    All start from the uniform policy and values of 0, see the same batches of 16 as far as their policies
    agree, and have one learning rate for logits and values.
    """
    learners = (
        Learner("exact V, λ = 0", lr=lr, baseline="state", lam=0.0),
        Learner("batch mean", lr=lr, baseline="mean"),
        *(Learner(f"λ = {lam:g}", lr=lr, value_lr=lr, baseline="learned", lam=lam) for lam in lams),
    )
    trained = train(world, learners, range(seeds), updates)
    policy, scores = trained.policy, trained.scores.numpy()
    reached = exact.visits(policy)[..., None] * policy.table  # probability of each token in each state
    right = [reached[..., level, token].sum(dim=-1) for level, token in zip(world.levels, world.target)]
    return Training(
        learners=learners,
        seeds=seeds,
        highest=world.returns(world.sequences).max().item(),
        mean=scores.mean(axis=1),
        half_width=1.96 * scores.std(axis=1, ddof=1) / seeds**0.5,
        right=torch.stack(right, dim=-1).mean(dim=1).numpy(),
    )


class TrainingArtists:
    """One curve and its interval a learner."""

    @applied()
    def __init__(self, learners: Sequence[Learner], updates: int) -> None:
        right = 16 + round(max(text_width(learner.name, SMALL) for learner in learners))
        self.figure, ((self.axes,),) = panels(1, 1, height=360, right=right)
        heading(self.axes, "Does it learn?", "mean return, points; band: 95 % interval of the mean")
        over_updates(self.axes, updates)
        self.ceiling = self.axes.axhline(0, color=MUTED, lw=1)
        self.bands, self.lines = [], []
        for learner in learners:
            baselines = {"state": BLACK, "mean": COLOURS["REINFORCE + baseline"]}
            colour = baselines.get(learner.baseline) or _lam_colour(learner.lam)
            self.bands.append(band(self.axes, colour))
            self.lines += self.axes.plot([], [], color=colour, label=learner.name, **END_DOT)
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: Training) -> None:
        """Show these numbers."""
        update = np.arange(1, numbers.mean.shape[1] + 1)
        for line, area, mean, half in zip(self.lines, self.bands, numbers.mean, numbers.half_width):
            line.set_data(update, mean)
            area.set_data(update, mean - half, mean + half)
        self.ceiling.set_ydata([numbers.highest] * 2)
        fit(self.axes, numbers.mean - numbers.half_width, include=[0, numbers.highest])
        self.labels.place()


def training_curves(numbers: Training) -> tuple[Figure, str]:
    """The curves of learners, with their alternative text, for `show`."""
    return _drawn(TrainingArtists(numbers.learners, numbers.mean.shape[1]), numbers)
