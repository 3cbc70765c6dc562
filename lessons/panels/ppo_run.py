"""The pictures of a PPO run: its curves, runs side by side, where its time goes, what four models weigh.

    show(*run_curves(*read_run(folder)))
    show(*compare_runs({"β = 0.05": [curves_of(folder) for folder in ...], "β = 0": [...]}))
    show(*time_by_phase(metrics))
    show(*four_models(trainer.models))

`LiveRun` draws the curves while a run goes on. Score and gold are in standard deviations of the reference's
samples, where 0 is their mean: the reward model's scores come so, gold is shifted and scaled by its report.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lessons.gpt.memory import parameters
from lessons.gpt.preferences import RewardReport
from lessons.gpt.rollout import Rollout
from lessons.live.figure import LiveFigure
from lessons.live.style import (
    BLACK,
    BLUE,
    COLOURS,
    DPI,
    END_DOT,
    GREY,
    INK,
    LARGE,
    MUTED,
    SERIES,
    SKY,
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
    text_on,
    text_width,
)

DEVIATIONS = "standard deviations of the reference's samples"


def read_run(folder: Path) -> tuple[list[dict], RewardReport]:
    """The metrics of the run in a folder, one dict an update, and its reward model's report.

    Raises FileNotFoundError if there is no run, ValueError if a file of it is damaged.
    """
    texts = {}
    for name in ("metrics.jsonl", "reward_report.json"):
        try:
            texts[name] = (Path(folder) / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(f"no run in {folder}: {name} is missing") from None
    try:
        name = "metrics.jsonl"
        metrics = [json.loads(line) for line in texts[name].splitlines()]
        name = "reward_report.json"
        return metrics, RewardReport(**json.loads(texts[name]))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{Path(folder) / name} is damaged: {error}") from None


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


# One run


@dataclass(frozen=True)
class Curves:
    """What a run did, a number an update, of the policy that sampled; at update 1 that is the reference."""

    update: Int[np.ndarray, " updates"]
    score: Float[np.ndarray, " updates"]  # standard deviations of the reference's samples
    gold: Float[np.ndarray, " updates"]  # likewise; NaN if all of the reference's samples have the same gold
    kl: Float[np.ndarray, " updates"]  # nats a response, to the reference
    entropy: Float[np.ndarray, " updates"]  # nats a token
    length: Float[np.ndarray, " updates"]  # tokens a response
    eos_rate: Float[np.ndarray, " updates"]  # share of the responses that end with EOS
    distinct: Float[np.ndarray, " updates"]  # share of different responses

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""

        def change(values: np.ndarray) -> str:
            return f"{number(values[0], 1)} to {number(values[-1], 1)}"

        return (
            f"Curves of a PPO run over {_count(len(self.update), 'update')}. In {DEVIATIONS}, the reward "
            f"model's score goes from {change(self.score)} and gold from {change(self.gold)}. The KL to the "
            f"reference goes from {change(self.kl)} nats a response, the entropy from {change(self.entropy)} "
            f"nats a token. At the end {_percent(self.eos_rate[-1])} of the responses end by themselves, "
            f"{_percent(self.distinct[-1])} are different, and they are {number(self.length[-1], 1)} tokens "
            f"long, {_percent(self.length[-1] / self.length[0])} of the length at update 1."
        )


def compute_curves(metrics: Sequence[Mapping], report: RewardReport) -> Curves:
    """The curves of a run from the lines of its metrics.jsonl. Raises ValueError if there are none."""
    return _curves(metrics, report.gold_mean, report.gold_std)


def _curves(metrics: Sequence[Mapping], gold_mean: float, gold_std: float) -> Curves:
    if not metrics:
        raise ValueError("no metrics: the run has not finished an update yet")

    def column(name: str) -> np.ndarray:
        return np.array([line[name] for line in metrics], dtype=float)

    deviation = gold_std if gold_std > 0 else np.nan
    return Curves(
        update=np.array([line["update"] for line in metrics], dtype=int),
        score=column("score"),
        gold=(column("gold") - gold_mean) / deviation,
        kl=column("kl"),
        entropy=column("entropy"),
        length=column("response_length"),
        eos_rate=column("eos_rate"),
        distinct=column("distinct"),
    )


def curves_of(folder: Path) -> Curves:
    """The curves of the run in a folder. Raises FileNotFoundError or ValueError as `read_run` does."""
    return compute_curves(*read_run(folder))


def table_rows(curves: Curves) -> list[str]:
    """The curves as a table for a terminal: a header of two lines, names and units, and a row an update."""
    columns = {  # name, unit, values, digits
        "score": ("std", curves.score, 2),
        "gold": ("std", curves.gold, 2),
        "KL": ("nats", curves.kl, 2),
        "entropy": ("nats/token", curves.entropy, 2),
        "length": ("tokens", curves.length, 1),
        "ended": ("%", 100 * curves.eos_rate, 0),
        "different": ("%", 100 * curves.distinct, 0),
    }
    names = "update" + "".join(f"{name:>12}" for name in columns)
    units = "      " + "".join(f"{unit:>12}" for unit, *_ in columns.values())
    rows = [
        f"{update:6}" + "".join(f"{number(values[i], digits):>12}" for _, values, digits in columns.values())
        for i, update in enumerate(curves.update)
    ]
    return [f"{names}\n{units}", *rows]


def recorded_curves(table: Path) -> dict[str, list[Curves]]:
    """The runs of a recorded sweep by their β, each with one curve a reward model and seed, in the order of the table.

    A table is a CSV file with the columns reward_seed, beta, seed, update, score, gold, kl, entropy, response_length,
    eos_rate and distinct; its first line, behind a #, is the command that made it. Gold is in standard deviations already.
    Raises FileNotFoundError if there is none, ValueError if it lacks a column.
    """
    if not Path(table).is_file():
        raise FileNotFoundError(f"no recorded sweep at {table}")
    runs: dict[tuple[str, str], list[dict]] = {}
    with open(table, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(row for row in file if not row.startswith("#")):
            runs.setdefault((line.get("beta"), line.get("reward_seed"), line.get("seed")), []).append(line)
    curves: dict[str, list[Curves]] = {}
    try:
        for (beta, *_), lines in runs.items():
            lines = [{name: float(x) for name, x in line.items()} for line in lines]
            curves.setdefault(f"β = {float(beta):g}", []).append(_curves(lines, gold_mean=0.0, gold_std=1.0))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{table} is no table of a sweep: {error}") from None
    return curves


class CurvesArtists:
    """Four panels: did it get better, how far did it move, does it still explore, does it still write."""

    @applied()
    def __init__(self, updates: int) -> None:
        self.figure, axes = panels(2, 2, height=560, right=116)
        (self.better, self.moved), (self.explores, self.writes) = axes
        heading(self.better, "Did it get better?", DEVIATIONS)
        heading(self.moved, "How far did it move?", "KL to the reference, nats a response")
        heading(self.explores, "Does it still explore?", "entropy of the policy, nats a token")
        heading(self.writes, "Does it still write?", "% of the responses; length, % of update 1")
        for one in axes.flat:
            over_updates(one, updates)

        def line(one, colour: str, width: float = 2):
            return one.plot([], [], color=colour, lw=width, **END_DOT)[0]

        (reference,) = self.better.plot(
            [1, updates], [0, 0], color=COLOURS["reference"], lw=1, label="reference"
        )
        self.score, self.gold = (line(self.better, COLOURS[name]) for name in ("score", "gold"))
        self.kl = line(self.moved, COLOURS["KL"])
        self.entropy = line(self.explores, COLOURS["policy"])
        # The first is wide, so that it can be seen under the second: often both are at 100 %.
        self.shares = [line(self.writes, *look) for look in ((BLUE, 4), (SKY, 2), (BLACK, 2))]
        self.labels = [
            EndLabels(self.better, [reference, self.score, self.gold]),
            EndLabels(self.moved, [self.kl]),
            EndLabels(self.explores, [self.entropy]),
            EndLabels(self.writes, self.shares),
        ]

    def draw(self, curves: Curves) -> None:
        """Show these numbers."""
        length = curves.length / curves.length[0]
        shares = {"ended": curves.eos_rate, "different": curves.distinct, "length": length}
        for line, values, name in (
            (self.score, curves.score, "score "),
            (self.gold, curves.gold, "gold "),
            (self.kl, curves.kl, ""),
            (self.entropy, curves.entropy, ""),
        ):
            line.set_data(curves.update, values)
            line.set_label(name + number(values[-1], 1))
        for line, (name, values) in zip(self.shares, shares.items()):
            line.set_data(curves.update, 100 * values)
            line.set_label(f"{name} {_percent(values[-1])}")
        fit(self.better, curves.score, curves.gold, include=[0, 1])
        fit(self.moved, curves.kl, include=[0, 1])
        fit(self.explores, curves.entropy, include=[0, 1])
        fit(self.writes, *(100 * values for values in shares.values()), include=[0, 100])
        for labels in self.labels:
            labels.place()


# Several runs


@dataclass(frozen=True)
class Comparison:
    """Kinds of runs side by side: of each the number of seeds, and mean, lowest and highest over them."""

    seeds: dict[str, int]
    mean: dict[str, Curves]
    low: dict[str, Curves]
    high: dict[str, Curves]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        sentences = [
            f"{name}, mean of {_count(self.seeds[name], 'seed')} after {_count(len(end.update), 'update')}: "
            f"score {number(end.score[-1], 1)} and gold {number(end.gold[-1], 1)} {DEVIATIONS}, KL "
            f"{number(end.kl[-1], 1)} nats a response, entropy {number(end.entropy[-1], 1)} nats a token, "
            f"{number(end.length[-1], 1)} tokens a response, {_percent(end.distinct[-1])} of the responses "
            f"different and {_percent(end.eos_rate[-1])} ended."
            for name, end in self.mean.items()
        ]
        return " ".join([f"Curves of {_count(len(sentences), 'kind')} of runs side by side.", *sentences])


def compute_comparison(runs: Mapping[str, Sequence[Curves]]) -> Comparison:
    """Mean and range over seeds of each kind of run.

    Raises ValueError if there is nothing to compare, or the runs of a kind differ in their number of updates.
    """
    if not runs:
        raise ValueError("no runs to compare")
    for name, curves in runs.items():
        lengths = sorted({len(one.update) for one in curves})
        if len(lengths) != 1:
            raise ValueError(
                f"{name}: there must be a run, and all must have the same number of updates, not {lengths}"
            )

    def over_seeds(reduce) -> dict[str, Curves]:
        return {
            name: Curves(
                update=curves[0].update,
                **{
                    field.name: reduce([getattr(one, field.name) for one in curves], axis=0)
                    for field in fields(Curves)
                    if field.name != "update"
                },
            )
            for name, curves in runs.items()
        }

    seeds = {name: len(curves) for name, curves in runs.items()}
    return Comparison(seeds, mean=over_seeds(np.mean), low=over_seeds(np.min), high=over_seeds(np.max))


class ComparisonArtists:
    """Six panels with one colour a kind of run: its mean and, over several seeds, their range as a band."""

    # fields of Curves with their line styles, heading, unit, factor to the unit, what the axis must hold
    PANELS = (
        ({"score": "-"}, "Score", "std of the reference's samples", 1, (0,)),
        ({"gold": "-"}, "Gold", "std of the reference's samples", 1, (0,)),
        ({"kl": "-"}, "KL to the reference", "nats a response", 1, (0,)),
        ({"entropy": "-"}, "Entropy", "nats a token", 1, (0,)),
        ({"length": "-"}, "Length", "tokens a response", 1, (0,)),
        (
            {"distinct": "-", "eos_rate": "--"},
            "Different; ended (dashed)",
            "% of the responses",
            100,
            (0, 100),
        ),
    )

    @applied()
    def __init__(self, names: Sequence[str], updates: int) -> None:
        if len(names) > len(SERIES):
            raise ValueError(f"at most {len(SERIES)} kinds of runs have a colour, not {len(names)}")
        left, height = 44, 550
        right = 14 + round(max(text_width(name, SMALL) for name in names))
        self.figure, axes = panels(2, 3, height=height, left=left, right=right, foot=20)
        self.foot = self.figure.text(left / WIDTH, 10 / height, "", fontsize=SMALL, color=MUTED)
        self.axes, self.lines, self.bands, self.labels = list(axes.flat), {}, {}, []
        for one, (styles, title, unit, *_) in zip(self.axes, self.PANELS):
            heading(one, title, unit)
            over_updates(one, updates)
            if title in ("Score", "Gold"):
                one.axhline(0, color=COLOURS["reference"], lw=1)
            for name, colour in zip(names, SERIES):
                for field, style in styles.items():
                    self.bands[field, name] = band(one, colour)
                    (self.lines[field, name],) = one.plot([], [], color=colour, ls=style, label=name)
            self.labels.append(EndLabels(one, [self.lines[next(iter(styles)), name] for name in names]))

    def draw(self, comparison: Comparison) -> None:
        """Show these numbers."""
        for one, (styles, _, _, factor, include) in zip(self.axes, self.PANELS):
            shown = []
            for field, name in ((field, name) for field in styles for name in comparison.mean):
                update = comparison.mean[name].update
                mean, low, high = (
                    factor * getattr(curves[name], field)
                    for curves in (comparison.mean, comparison.low, comparison.high)
                )
                self.lines[field, name].set_data(update, mean)
                self.bands[field, name].set_data(update, low, high)
                shown += [low, high]
            fit(one, *shown, include=include)
        for labels in self.labels:
            labels.place()
        seeds = ", ".join(f"{name}: {_count(count, 'seed')}" for name, count in comparison.seeds.items())
        self.foot.set_text(f"Line: mean; band: lowest to highest. {seeds}.")


# Where the time goes


@dataclass(frozen=True)
class Phases:
    """Seconds an update spends in each of its phases, mean over the updates."""

    names: tuple[str, ...]
    seconds: Float[np.ndarray, " phases"]

    @property
    def shares(self) -> Float[np.ndarray, " phases"]:
        """Each phase's share of the update."""
        return self.seconds / self.seconds.sum()

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [f"{_phase(name)} {_percent(share)}" for name, share in zip(self.names, self.shares)]
        return f"An update takes {number(self.seconds.sum())} s on the mean. By phase: {', '.join(parts)}."


def _phase(name: str) -> str:
    return name.replace("_", " ").replace("kl", "KL")


def compute_phases(metrics: Sequence[Mapping]) -> Phases:
    """The phases' seconds from a run's metrics. Raises ValueError if there are none."""
    if not metrics:
        raise ValueError("no metrics: the run has not finished an update yet")
    names = tuple(metrics[0]["seconds"])
    seconds = np.array([[line["seconds"][name] for name in names] for line in metrics], dtype=float)
    return Phases(names, seconds.mean(axis=0))


PHASE_COLOURS = {  # of the model at work, pale where it does not learn
    "prompts": (GREY, 0.5),
    "rollout": (COLOURS["policy"], 0.5),
    "score": (COLOURS["reward"], 0.5),
    "kl_reward": (COLOURS["reference"], 0.5),
    "advantages": (COLOURS["value"], 0.5),
    "update_policy": (COLOURS["policy"], 1.0),
    "update_value": (COLOURS["value"], 1.0),
}


class PhasesArtists:
    """One bar of a whole update, cut into its phases in order.

    A wide part is named inside it. The narrow ones are named below, each at the foot of a line of its own;
    the bar leaves room on the right for the last of them.
    """

    LEFT, RIGHT, TOP, BAR, ROW, AIR = 10, WIDTH - 180, 42, 44, 19, 10  # pixels

    @applied()
    def __init__(self, names: Sequence[str]) -> None:
        self.figure = canvas(self.TOP + self.BAR)  # `draw` makes room for the rows that it needs
        self.axes = self.figure.add_axes([0, 0, 1, 1], xlim=(0, WIDTH))
        self.axes.axis("off")
        title = "Where the time of an update goes"
        self.axes.text(self.LEFT, 22, title, fontsize=LARGE, fontweight="bold", va="center_baseline")
        self.total = self.axes.text(self.RIGHT + self.AIR, self.TOP + self.BAR / 2, "", va="center_baseline")
        self.bars, self.leaders, self.labels = [], [], []
        for name in names:
            colour, alpha = PHASE_COLOURS.get(name, (GREY, 1.0))
            on_white = 1 - alpha * (1 - np.array(to_rgb(colour)))
            bar = Rectangle((0, self.TOP), 0, self.BAR, facecolor=on_white, edgecolor="white")
            self.bars.append(self.axes.add_patch(bar))
            self.leaders += self.axes.plot([], [], color=MUTED, lw=0.8, solid_capstyle="butt")
            self.labels.append(self.axes.text(0, 0, "", fontsize=SMALL, linespacing=1.3))

    def draw(self, phases: Phases) -> None:
        """Show these numbers."""
        self.total.set_text(f"{number(phases.seconds.sum())} s an update")
        edges = self.LEFT + (self.RIGHT - self.LEFT) * np.concatenate([[0], np.cumsum(phases.shares)])
        y = bottom = self.TOP + self.BAR
        for i in reversed(range(len(phases.names))):  # so that no text crosses the line of one further left
            left, right, label = edges[i], edges[i + 1], self.labels[i]
            self.bars[i].set(x=left, width=right - left)
            name = f"{i + 1} {_phase(phases.names[i])}"
            size = f"{number(phases.seconds[i])} s, {_percent(phases.shares[i])}"
            if right - left > max(text_width(name, SMALL), text_width(size, SMALL)) + 2 * self.AIR:
                label.set(x=left + self.AIR, y=bottom - self.BAR / 2, text=f"{name}\n{size}", va="center")
                label.set_color(text_on(self.bars[i].get_facecolor()[:3]))
                self.leaders[i].set_data([], [])
            else:
                y += self.ROW
                middle = (left + right) / 2
                label.set(x=middle + 8, y=y, text=f"{name}: {size}", va="center_baseline", color=INK)
                self.leaders[i].set_data([middle, middle, middle + 5], [bottom, y, y])
        self.figure.set_figheight((y + self.ROW) / DPI)
        self.axes.set_ylim(y + self.ROW, 0)


# What the models weigh


@dataclass(frozen=True)
class Weights:
    """Parameters of the models, and the bytes that training holds for them beside activations."""

    names: tuple[str, ...]
    parameters: Int[np.ndarray, " models"]
    trained: Bool[np.ndarray, " models"]
    bytes: Int[np.ndarray, "models parts"]  # weights, gradients, Adam's two moments

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [
            f"{name} {_amount(count)} parameters, {'trained' if trained else 'frozen'}, {_amount(held)}B"
            for name, count, trained, held in zip(
                self.names, self.parameters.tolist(), self.trained, self.bytes.sum(axis=1).tolist()
            )
        ]
        return (
            f"Memory of the models of a PPO run without activations: {'; '.join(parts)}. Together "
            f"{_amount(int(self.bytes.sum()))}B."
        )


def _amount(count: int) -> str:
    """A count with three digits and a prefix: 376 k, 6.02 M, 1.99 G."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * factor:
            x = count / factor
            return f"{number(x, 2 if x < 9.995 else 1 if x < 99.95 else 0)} {prefix}"
    return f"{count} "


def compute_weights(models: Mapping[str, torch.nn.Module]) -> Weights:
    """Counted from the models, and predicted from that what training with Adam holds.

    A trained parameter takes four times its own size: itself, its gradient and two moments; a frozen one only
    itself. In float32 that is 16 bytes and 4.
    """
    trained = np.array([any(p.requires_grad for p in model.parameters()) for model in models.values()])
    own = np.array([sum(p.nbytes for p in model.parameters()) for model in models.values()])
    return Weights(
        names=tuple(models),
        parameters=np.array([parameters(model) for model in models.values()]),
        trained=trained,
        bytes=np.stack([own, own * trained, 2 * own * trained], axis=1),
    )


class WeightsArtists:
    """One bar a model, cut into weights, gradients and Adam's moments."""

    PARTS = {"weights": 1.0, "gradients": 0.6, "Adam's two moments": 0.35}  # noqa: RUF012
    LEFT, RIGHT, TOP, BAR, ROW = 100, WIDTH - 260, 60, 22, 30  # pixels

    @applied()
    def __init__(self, names: Sequence[str]) -> None:
        height = self.TOP + self.ROW * len(names) + 4
        self.figure = canvas(height)
        axes = self.figure.add_axes([0, 0, 1, 1], xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        text = {"va": "center_baseline", "fontsize": SMALL}
        self.title = axes.text(10, 22, "", **text | {"fontsize": LARGE}, fontweight="bold")
        self.parts = [axes.text(0, self.TOP - 11, part, color=MUTED, **text) for part in self.PARTS]
        self.bars, self.sizes = [], []
        for i, name in enumerate(names):
            top, colour = self.TOP + i * self.ROW, COLOURS.get(name, GREY)
            axes.text(10, top + self.BAR / 2, name, va="center_baseline")
            self.sizes.append(axes.text(0, top + self.BAR / 2, "", **text))
            self.bars.append([
                axes.add_patch(Rectangle((0, top), 0, self.BAR, fc=colour, alpha=alpha, ec="white"))
                for alpha in self.PARTS.values()
            ])  # fmt: skip

    def draw(self, weights: Weights) -> None:
        """Show these numbers."""
        total = _amount(int(weights.bytes.sum()))
        self.title.set_text(f"Memory of the models: {total}B, without activations")
        totals = weights.bytes.sum(axis=1)
        scale = (self.RIGHT - self.LEFT) / totals.max()
        edges = self.LEFT + scale * np.pad(weights.bytes.cumsum(axis=1), ((0, 0), (1, 0)))
        for i, bars in enumerate(self.bars):
            for bar, left, right in zip(bars, edges[i], edges[i, 1:]):
                bar.set(x=left, width=right - left)
            state = "trained" if weights.trained[i] else "frozen"
            held, count = _amount(int(totals[i])), _amount(int(weights.parameters[i]))
            self.sizes[i].set(x=edges[i, -1] + 8, text=f"{held}B, {count} parameters, {state}")
        for text, left in zip(self.parts, edges[totals.argmax()]):  # named once, above the largest bar
            text.set_x(left)


# For a notebook


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


def run_curves(metrics: Sequence[Mapping], report: RewardReport) -> tuple[Figure, str]:
    """The curves of one run, with their alternative text, for `show`."""
    curves = compute_curves(metrics, report)
    return _drawn(CurvesArtists(int(curves.update[-1])), curves)


def compare_runs(runs: Mapping[str, Sequence[Curves]]) -> tuple[Figure, str]:
    """Kinds of runs side by side, each with one or more seeds, with their alternative text, for `show`."""
    comparison = compute_comparison(runs)
    updates = max(int(curves.update[-1]) for curves in comparison.mean.values())
    return _drawn(ComparisonArtists(list(runs), updates), comparison)


def time_by_phase(metrics: Sequence[Mapping]) -> tuple[Figure, str]:
    """Where the time of an update goes, with its alternative text, for `show`."""
    phases = compute_phases(metrics)
    return _drawn(PhasesArtists(phases.names), phases)


def four_models(models: Mapping[str, torch.nn.Module]) -> tuple[Figure, str]:
    """What the models weigh, with its alternative text, for `show`."""
    weights = compute_weights(models)
    return _drawn(WeightsArtists(weights.names), weights)


class LiveRun:
    """The curves of a run, redrawn in one output after every `every`-th update; the last picture stays.

    with LiveRun(config.updates, trainer.report) as live:
        for _ in range(config.updates):
            live(*trainer.step())
    """

    def __init__(self, updates: int, report: RewardReport, every: int = 2) -> None:
        self.metrics: list[dict] = []
        self.report, self.every = report, every
        self.artists = CurvesArtists(updates)
        self.live = LiveFigure(self.artists.figure)

    def __call__(self, metrics: dict, rollout: Rollout | None = None) -> None:
        """Take the metrics of one more update, as the `on_update` of a run does."""
        self.metrics.append(metrics)
        if len(self.metrics) % self.every == 0:
            self._refresh()

    def _refresh(self) -> None:
        curves = compute_curves(self.metrics, self.report)
        self.artists.draw(curves)
        self.live.refresh(curves.alt)

    def __enter__(self):
        self.live.__enter__()
        return self

    def __exit__(self, *error) -> None:
        if self.metrics:
            self._refresh()
        self.live.__exit__(*error)
