"""One response of a rollout taken apart, token by token: a strip of numbers under its words.

show(*token_strip(rollout, row=0, tokenizer=trainer.tokenizer))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from transformers import PreTrainedTokenizerBase

from lessons.gpt.rollout import Rollout
from lessons.live.style import (
    DIVERGING,
    INK,
    LARGE,
    MUTED,
    SEQUENTIAL,
    SMALL,
    WIDTH,
    applied,
    canvas,
    number,
    text_on,
    text_width,
)

NEEDED = ("ref_log_probs", "scores", "gold", "rewards", "values", "returns", "advantages")
LONGEST_WORD, LONGEST_PROMPT = 20, 100  # characters shown
FOOT = (
    "KL: log π − log π of the reference. "
    "std: standard deviations of the score over the reference's samples.\n"
    "Advantage: GAE. "
    "Whitened: shifted and scaled to mean 0 and variance 1 over the batch, as the policy's loss takes it."
)


@dataclass(frozen=True)
class Row:
    """One number a token. Colours run from 0 to `scale`, both ways if `diverging`, else to −scale only."""

    name: str
    unit: str
    values: Float[np.ndarray, " time"]
    scale: float
    diverging: bool = True

    def colours(self) -> Float[np.ndarray, "time 3"]:
        """The colours of the cells."""
        x = self.values / (self.scale or 1.0)
        return (DIVERGING((1 + x) / 2) if self.diverging else SEQUENTIAL(-x))[:, :3]


@dataclass(frozen=True)
class Strip:
    """A response as words, and its rows of numbers."""

    prompt: str
    words: tuple[str, ...]
    rows: tuple[Row, ...]
    score: float
    gold: float

    def __getitem__(self, name: str) -> Float[np.ndarray, " time"]:
        """The values of the row of that name."""
        return next(row.values for row in self.rows if row.name == name)

    @property
    def summary(self) -> str:
        """Score, gold, KL and rewards of the whole response."""
        return (
            f"score {number(self.score)} std, gold {number(self.gold)} points, "
            f"KL {number(self['KL'].sum())} nats over {len(self.words)} tokens; "
            f"the rewards sum to {number(self['reward'].sum())} std"
        )

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        kl, values, advantages = self["KL"], self["V(s_t)"], self["advantage"]
        most, best, worst = kl.argmax(), advantages.argmax(), advantages.argmin()
        return (
            f"A response token by token. Prompt: “{self.prompt}” Response: “{' '.join(self.words)}” "
            f"Over all: {self.summary}. The KL is largest on “{self.words[most]}” with {number(kl[most])}. "
            f"The value goes from {number(values[0])} before the first token to {number(values[-1])} before "
            f"the last. The advantage is highest on “{self.words[best]}” with {number(advantages[best])} and "
            f"lowest on “{self.words[worst]}” with {number(advantages[worst])}."
        )


def compute_strip(rollout: Rollout, row: int, tokenizer: PreTrainedTokenizerBase) -> Strip:
    """The response in one row of a rollout that has been scored and has its advantages.

    log π and log π_ref share one scale of colours; so do reward, value and advantage, which have one unit.
    Raises ValueError if the rollout has no such row, or lacks a tensor.
    """
    missing = [name for name in NEEDED if getattr(rollout, name) is None]
    if missing:
        raise ValueError(
            f"the rollout has no {', '.join(missing)} yet: phases 3 to 5 of an update fill them in"
        )
    if not 0 <= row < len(rollout.mask):
        raise ValueError(f"row must be between 0 and {len(rollout.mask) - 1}, not {row}")

    mask = rollout.mask[row]

    def values(name: str) -> np.ndarray:
        return getattr(rollout, name)[row][mask].double().cpu().numpy()

    log_probs, ref_log_probs = values("old_log_probs"), values("ref_log_probs")
    kl = log_probs - ref_log_probs
    raw = values("returns") - values("values")  # the advantage before whitening
    logs = _largest(log_probs, ref_log_probs)
    stds = _largest(values("rewards"), values("values"), raw)
    before = rollout.prompt_width
    prompt = rollout.tokens[row, :before][rollout.attention_mask[row, :before].bool()]
    return Strip(
        prompt=tokenizer.decode(prompt).strip(),
        words=tuple(_word(tokenizer, token) for token in rollout.response_tokens[row][mask].tolist()),
        rows=(
            Row("log π", "nats", log_probs, logs, diverging=False),
            Row("log π_ref", "nats", ref_log_probs, logs, diverging=False),
            Row("KL", "nats", kl, _largest(kl)),
            Row("reward", "std", values("rewards"), stds),
            Row("V(s_t)", "std", values("values"), stds),
            Row("advantage", "std", raw, stds),
            Row("whitened", "", values("advantages"), _largest(values("advantages"))),
        ),
        score=rollout.scores[row].item(),
        gold=rollout.gold[row].item(),
    )


def _largest(*arrays: np.ndarray) -> float:
    # At least 0.1: what is printed as 0.00 shall look like it.
    return max(0.1, *(float(np.abs(array).max()) for array in arrays))


def _word(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as it is read: without the space that some tokenizers put before it."""
    if token == tokenizer.eos_token_id:
        return "EOS"
    return tokenizer.decode([token]).strip() or "␣"


def _cell(x: float) -> str:
    """A number in at most five characters while it is below 1,000."""
    return number(x, 2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0)


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def wrap(widths: Sequence[float], room: float) -> list[list[int]]:
    """Indices of columns set in lines no wider than `room`, at least one in each."""
    lines, used = [[]], 0.0
    for i, width in enumerate(widths):
        if lines[-1] and used + width > room:
            lines.append([])
            used = 0.0
        lines[-1].append(i)
        used += width
    return lines


class StripArtists:
    """Columns as wide as their words, set in lines like a text; under each word a coloured cell a row."""

    LEFT, RIGHT, TOP, WORD, CELL, GAP, FOOT = 122, WIDTH - 10, 62, 24, 21, 16, 50  # pixels
    MATH = {"log π_ref": r"log π$_\mathrm{ref}$", "V(s_t)": "$V(s_t)$"}  # noqa: RUF012

    @applied()
    def __init__(self, strip: Strip) -> None:
        words = [_shorten(word, LONGEST_WORD) for word in strip.words]
        narrowest = text_width("−0.00", SMALL) + 8
        widths = [math.ceil(max(text_width(word) + 10, narrowest)) for word in words]
        lines = wrap(widths, self.RIGHT - self.LEFT)
        block = self.WORD + self.CELL * len(strip.rows) + self.GAP
        height = self.TOP + block * len(lines) + self.FOOT
        self.figure = canvas(height)
        axes = self.figure.add_axes([0, 0, 1, 1])
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        axes.axis("off")
        plain = {"va": "center_baseline", "parse_math": False}  # a text may hold dollar signs
        axes.text(
            10, 20, f"{_shorten(strip.prompt, LONGEST_PROMPT)} …", fontsize=LARGE, fontweight="bold", **plain
        )
        self.summary = axes.text(10, 42, "", color=MUTED, **plain)
        axes.text(10, height - 12, FOOT, fontsize=SMALL, color=MUTED, linespacing=1.4)

        corners = np.empty((len(strip.rows), len(words), 4, 2))
        self.numbers = np.empty((len(strip.rows), len(words)), dtype=object)
        for n, line in enumerate(lines):
            top = self.TOP + n * block
            for r, row in enumerate(strip.rows):
                y = top + self.WORD + (r + 0.5) * self.CELL
                axes.text(10, y, self.MATH.get(row.name, row.name), fontsize=SMALL, va="center_baseline")
                axes.text(
                    self.LEFT - 8, y, row.unit, fontsize=SMALL, color=MUTED, ha="right", va="center_baseline"
                )
            left = self.LEFT
            for i in line:
                right = left + widths[i]
                colour = MUTED if strip.words[i] == "EOS" else INK
                axes.text(
                    (left + right) / 2, top + self.WORD / 2, words[i], ha="center", color=colour, **plain
                )
                for r in range(len(strip.rows)):
                    y = top + self.WORD + r * self.CELL
                    corners[r, i] = [(left, y), (right, y), (right, y + self.CELL), (left, y + self.CELL)]
                    self.numbers[r, i] = axes.text(
                        (left + right) / 2, y + self.CELL / 2, "", ha="center", fontsize=SMALL, **plain
                    )
                left = right
        self.cells = PolyCollection(corners.reshape(-1, 4, 2), edgecolors="white", linewidths=1)
        axes.add_collection(self.cells, autolim=False)

    def draw(self, strip: Strip) -> None:
        """Show these numbers; the words must be those that the artists were built with."""
        self.summary.set_text(strip.summary)
        colours = np.stack([row.colours() for row in strip.rows])
        self.cells.set_facecolor(colours.reshape(-1, 3))
        for row, texts, backgrounds in zip(strip.rows, self.numbers, colours):
            for text, value, background in zip(texts, row.values, backgrounds):
                text.set(text=_cell(value), color=text_on(background))


def token_strip(rollout: Rollout, row: int, tokenizer: PreTrainedTokenizerBase) -> tuple[Figure, str]:
    """One response taken apart, with its alternative text, for `show`; errors as `compute_strip`."""
    strip = compute_strip(rollout, row, tokenizer)
    artists = StripArtists(strip)
    artists.draw(strip)
    return artists.figure, strip.alt
