"""One look for every picture: colours, sizes, and the helpers that label a line, a band and an axis.

    figure, axes = panels(2, 2, height=520)
    (line,) = axes[0, 0].plot(update, kl, color=COLOURS["KL"], label="KL")
    heading(axes[0, 0], "How far did it move?", "KL to the reference, nats a response")
    EndLabels(axes[0, 0], [line]).place()

Sizes are in pixels of the finished PNG, which JupyterLab and GitHub show one to one. Nothing here changes
matplotlib's global settings or pyplot's list of open figures: `applied()` sets the style while a picture is
built or rendered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

# Okabe and Ito, Color Universal Design (2008), without their yellow, which is too pale for a line on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#767676"

COLOURS = {
    # learners
    "REINFORCE": VERMILLION,
    "REINFORCE, no offset": ORANGE,
    "REINFORCE + baseline": SKY,
    "baseline, 4 passes": GREEN,
    "PPO": BLUE,
    # the four models, and what each of them gives
    "policy": BLUE,
    "reference": GREY,
    "reward": PURPLE,
    "score": PURPLE,
    "value": GREEN,
    # what is measured beside them
    "gold": ORANGE,
    "KL": VERMILLION,
    "advantage": SKY,
    # an estimate beside the truth
    "estimate": SKY,
    "exact": BLACK,
}
"""The one colour of each learner and each quantity, in every lesson. No chart needs two of a colour."""

SERIES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
"""Colours for runs that differ in a setting only, in this order."""

INK, MUTED, RULE = "#222222", "#666666", "#E4E4E4"

DIVERGING = LinearSegmentedColormap.from_list("lessons.diverging", [VERMILLION, "#FFFFFF", BLUE], N=257)
"""Negative vermillion, 0 white, positive blue."""
SEQUENTIAL = LinearSegmentedColormap.from_list("lessons.sequential", ["#FFFFFF", "#4D4D4D"])
"""0 white, the largest dark grey."""

WIDTH = 860  # fits a cell of JupyterLab and of GitHub on a laptop, without being scaled
DPI = 100
SMALL, NORMAL, LARGE = 9, 10, 11  # points: 12.5, 14 and 15 pixels
ROUND_STEPS = (1, 2, 5, 10)  # between ticks

STYLE = {
    "figure.dpi": DPI,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": NORMAL,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SMALL,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "axes.prop_cycle": matplotlib.cycler(color=SERIES),
}
END_DOT = {"marker": "o", "markersize": 4.5, "markevery": [-1], "clip_on": False}
"""For `plot`: a dot on a line's last point, where its label stands."""

_RENDERER = RendererAgg(1, 1, DPI)  # to measure text with


def applied():
    """A context, or a decorator, in which matplotlib draws in this style, whatever the reader has set."""
    return matplotlib.style.context(STYLE, after_reset=True)


def luminance(colour) -> float:
    """Relative luminance of any matplotlib colour, its alpha aside: 0 black, 1 white (WCAG 2.2)."""
    linear = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour))
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other) -> float:
    """Contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink(colour) -> str:
    """The colour for text on white: darkened until the contrast is 4.5 (WCAG 2.2, 1.4.3)."""
    rgb = to_rgb(colour)
    while contrast(rgb, "white") < 4.5:
        rgb = tuple(0.97 * x for x in rgb)
    return to_hex(rgb)


def text_on(background) -> str:
    """The colour for text on a background: white or `INK`, whichever has more contrast."""
    return max(("white", INK), key=lambda colour: contrast(colour, background))


def text_width(text: str, size: float = NORMAL) -> float:
    """Pixels that a text of that many points takes."""
    font = FontProperties(family=STYLE["font.family"], size=size)
    return _RENDERER.get_text_width_height_descent(text, font, ismath=False)[0]


def number(x: float, digits: int = 2) -> str:
    """A number as print sets it: a true minus sign, no −0.00, and "undefined" where it is not finite."""
    if not math.isfinite(x):
        return "undefined"
    text = f"{x:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


@applied()
def canvas(height: int, width: int = WIDTH) -> Figure:
    """An empty figure of that many pixels. pyplot does not know it, so nothing has to close it."""
    figure = Figure(figsize=(width / DPI, height / DPI))
    FigureCanvasAgg(figure)
    return figure


@applied()
def panels(
    rows: int, columns: int, height: int, left: int = 44, right: int = 80, top: int = 50, bottom: int = 46,
    foot: int = 0,
) -> tuple[Figure, np.ndarray]:  # fmt: skip
    """A figure of equal axes, (rows, columns), with margins in pixels around each, and `foot` below them all.

    Margins are fixed, so that a redrawn picture does not jump.
    """
    figure = canvas(height)
    width, row = WIDTH / columns, (height - foot) / rows
    axes = np.empty((rows, columns), dtype=object)
    for i in range(rows):
        for j in range(columns):
            corner = j * width + left, height - (i + 1) * row + bottom
            size = width - left - right, row - top - bottom
            axes[i, j] = figure.add_axes(
                [corner[0] / WIDTH, corner[1] / height, size[0] / WIDTH, size[1] / height]
            )
            axes[i, j].yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
    return figure, axes


@applied()
def over_updates(axes: Axes, updates: int) -> None:
    """A horizontal axis for updates 1 to `updates`."""
    axes.set_xlim(min(1, updates - 1), updates)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=ROUND_STEPS))
    axes.set_xlabel("update")


@applied()
def heading(axes: Axes, title: str, unit: str) -> None:
    """Above the axes: a bold line, and under it what the vertical axis shows, with its unit."""
    at = {"xy": (0, 1), "xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(title, xytext=(0, 20), fontsize=LARGE, fontweight="bold", **at)
    axes.annotate(unit, xytext=(0, 7), fontsize=SMALL, color=MUTED, **at)


def band(axes: Axes, colour: str) -> FillBetweenPolyCollection:
    """An interval around a line, empty until its `set_data(x, low, high)` is called."""
    return axes.fill_between([], [], [], color=colour, alpha=0.2, linewidth=0)


def fit(axes: Axes, *values: np.ndarray, include: Sequence[float] = ()) -> None:
    """Vertical limits that hold all finite values and `include`, with a little air."""
    every = np.concatenate([np.ravel(np.asarray(v, dtype=float)) for v in (*values, include)])
    every = every[np.isfinite(every)]
    low, high = (every.min(), every.max()) if every.size else (0.0, 1.0)
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - air, high + air)


def spread(
    at: Sequence[float] | np.ndarray,
    sizes: float | Sequence[float],
    low: float = -math.inf,
    high: float = math.inf,
) -> np.ndarray:
    """Centres of labels of these sizes that do not overlap, in the order of `at` and as near it as possible.

    Least squares over the order-preserving placements (pool adjacent violators), then moved into [low, high].
    """
    at = np.asarray(at, dtype=float)
    sizes = np.broadcast_to(np.asarray(sizes, dtype=float), at.shape)
    if not at.size:
        return at
    order = np.argsort(at, kind="stable")
    ordered = sizes[order]
    steps = np.concatenate([[0.0], np.cumsum((ordered[1:] + ordered[:-1]) / 2)])
    blocks: list[tuple[float, int]] = []  # (sum, count) of neighbours that touch
    for x in at[order] - steps:
        total, count = x, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            total, count = total + blocks[-1][0], count + blocks.pop()[1]
        blocks.append((total, count))
    first = np.concatenate([np.full(count, total / count) for total, count in blocks])
    first = np.maximum(np.minimum(first, high - ordered[-1] / 2 - steps[-1]), low + ordered[0] / 2)
    placed = np.empty_like(at)
    placed[order] = first + steps
    return placed


class EndLabels:
    """The names of lines, each beside the last finite point of its own, moved apart where they would overlap.

    A name is the line's label and may change between two calls of `place`.
    """

    @applied()
    def __init__(self, axes: Axes, lines: Sequence[Line2D]) -> None:
        self.axes, self.lines = axes, lines
        self.texts = [
            axes.annotate(
                "", (0, 0), xytext=(6, 0), textcoords="offset points", va="center_baseline", fontsize=SMALL,
                color=ink(line.get_color()), annotation_clip=False,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
            for line in lines
        ]  # fmt: skip

    def place(self) -> None:
        """Put every label where its line ends now. The axes' limits must be set."""
        ends = []
        for line, text in zip(self.lines, self.texts):
            x, y = (np.asarray(values, dtype=float) for values in line.get_data())
            last = np.flatnonzero(np.isfinite(x) & np.isfinite(y))[-1:]
            text.set_visible(last.size > 0)
            if last.size:
                text.set_text(line.get_label())
                ends.append((text, x[last[0]], y[last[0]]))
        if not ends:
            return
        pixels = self.axes.transData.transform([(x, y) for _, x, y in ends])
        line_height = 1.25 * SMALL * self.axes.figure.dpi / 72
        placed = spread(pixels[:, 1], line_height, self.axes.bbox.y0, self.axes.bbox.y1)
        for (text, *_), x, y in zip(ends, pixels[:, 0], placed):
            text.xy = self.axes.transData.inverted().transform((x, y))
