"""A claim, its measured figure and its bound: what a lesson says, checked where it says it.

    shows("C4", "without the offset a batch knows the direction", cosines(0).mean(), between(0.36, 0.44))

prints one line, or raises `ClaimFailed` if the figure leaves its bound.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

CLAIMS = {
    # A. The map from text to reinforcement learning
    "A1": "state, action, policy, episode, reward and return are objects of one real response",
    "A2": "the goal J is the expected reward of the model's own samples, here a sum over 512 sequences",
    "A3": "text needs no discount: episodes are short and certain to end",
    # B. The log-derivative trick
    "B1": "the mean of sampled gradient estimates goes to the exact gradient of J",
    "B2": "REINFORCE is maximum likelihood on own samples, weighted by reward",
    "B3": "the reward needs no gradient: a black box gives the same update",
    "B4": "a token needs only the reward that comes after it: same mean, less noise",
    # C. Baselines
    "C1": "a baseline that does not depend on the action adds nothing to the expected gradient",
    "C2": "a baseline that looks at the chosen token is biased",
    "C3": "with rewards of 10 to 13 every sample is pushed up; minus the mean, about a third are",
    "C4": "an offset in the reward drowns the direction of one batch's gradient",
    "C5": "leave-one-out is the batch mean times N/(N-1): the same learner under Adam",
    "C6": "Adam does not rescue a reward with an offset",
    "C7": "five learners at two learning rates: how many of ten seeds solve the task",
    "C8": "rewards of 0 to 3 still push up the wrong tokens of a partly right answer",
    "C9": "a policy can lock onto a wrong answer; entropy, KL penalty or smaller steps make it rarer",
    "C10": "four passes a batch are fast with or without the clip: the extra steps did it",
    # D. Values and GAE
    "D1": "the value of a state is the expected return from it, and regression learns it",
    "D2": "the TD error is the change in value plus any reward",
    "D3": "lambda = 0 is the TD error: little noise, biased where the values are wrong",
    "D4": "lambda = 1 is the return minus the value: unbiased however wrong the values, and noisy",
    "D5": "between them, bias is traded against variance",
    "D6": "one reward at the end: advantages get noisier as responses get longer",
    "D7": "policy and value losses pull a shared trunk apart",
    # E. The clip and trust regions
    "E1": "too large a step collapses the policy, and its own samples then teach it nothing",
    "E2": "PPO gets most of what TRPO's bounded step gets, without second order",
    "E3": "PPO has two forms: the clip, and a KL penalty with an adaptive coefficient",
    "E4": "at the old policy the gradient of ratio times advantage is the policy gradient",
    "E5": "the four worked cases of the clip, value and gradient",
    "E6": "past the clip there is no more reward for movement, but corrections never stop",
    "E7": "the clip is a soft limit: ratios leave it, so runs watch the KL to the old policy",
    "E8": "the clip pays when steps are large",
    "E9": "more passes over one batch drift away from the data that sampled it",
    # F. Rewards, references and the leash
    "F1": "a reward model learns from preference pairs; its accuracy on held-out pairs",
    "F2": "the KL reward is a number on each token; its own gradient adds nothing",
    "F3": "the optimum under a KL penalty is the reference, tilted by exp(r / beta)",
    "F4": "KL on every token is a denser signal for the values than one KL at the end",
    "F5": "without the KL term the policy finds sequences that fool the reward model",
    "F6": "beta too low degenerates, too high stands still; a controller can hold a target KL",
    "F7": "the value model starts better from the reward model than fresh",
    "F8": "k1, k2 and k3: three estimates of one KL, and three different losses",
    # G. The four models
    "G1": "two models are trained and two are frozen, which do not move by a bit",
    "G2": "memory: 16 bytes for each trained parameter, 2 for each frozen one",
    "G3": "the loop: prompts, rollout, score, per-token KL, GAE, policy update, value update",
    "G4": "several passes pay for the rollout: the share of time that generation takes",
    "G5": "DPO, GRPO and RLOO do with fewer models; what each costs and reaches",
    # H. When it falls down
    "H1": "over-optimisation: the proxy keeps rising while the gold reward peaks and falls",
    "H2": "an ensemble, a refreshed reward model or a KL budget holds it off",
    "H3": "beta too low collapses, beta too high gains nothing",
    "H4": "samples get stale within a batch",
    "H5": "sparse rewards and long responses; shaping helps, and is gamed",
    "H6": "what the loss is divided by decides whether long or short responses weigh more",
}


# One real number: an int, a float, or a 0-d tensor or array. `_number` checks it.
Number = Any


class ClaimFailed(AssertionError):
    """A measured figure left the bound of its claim."""


def _number(what: str, value: Number) -> int | float:
    """`value` as a plain finite number; `what` names it in the ValueError if it is none."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a tensor or array of one number
        value = value.item()
    if isinstance(value, bool):
        raise ValueError(f"{what} must be a number, not {value}: say how much, and bound that")
    if not isinstance(value, Real):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ValueError(f"{what} must be one real number, not {type(value).__name__}{shape}")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, not {value}")
    return int(value) if isinstance(value, int) else float(value)


def _figure(x: float) -> str:
    return f"{x:,}" if isinstance(x, int) else f"{x:,.4g}"


class Bound:
    """Where a figure must lie. Bounds have lower-case names because they are read as words of a sentence."""

    def __post_init__(self):
        for field in fields(self):
            name = f"{field.name} of {type(self).__name__}()"
            object.__setattr__(self, field.name, _number(name, getattr(self, field.name)))


@dataclass(frozen=True)
class between(Bound):
    """lo ≤ x ≤ hi."""

    lo: Number
    hi: Number

    def __post_init__(self):
        super().__post_init__()
        if not self.lo < self.hi:
            raise ValueError(f"between(lo, hi) needs lo < hi, not {self.lo} and {self.hi}")

    def __contains__(self, x: float) -> bool:
        return self.lo <= x <= self.hi

    def __str__(self) -> str:
        return f"{_figure(self.lo)} to {_figure(self.hi)}"


@dataclass(frozen=True)
class at_least(Bound):
    """x ≥ lo."""

    lo: Number

    def __contains__(self, x: float) -> bool:
        return x >= self.lo

    def __str__(self) -> str:
        return f"at least {_figure(self.lo)}"


@dataclass(frozen=True)
class at_most(Bound):
    """x ≤ hi."""

    hi: Number

    def __contains__(self, x: float) -> bool:
        return x <= self.hi

    def __str__(self) -> str:
        return f"at most {_figure(self.hi)}"


@dataclass(frozen=True)
class about(Bound):
    """|x − value| ≤ tol."""

    value: Number
    tol: Number

    def __post_init__(self):
        super().__post_init__()
        if not self.tol > 0:
            raise ValueError(f"about(value, tol) needs tol > 0, not {self.tol}")

    def __contains__(self, x: float) -> bool:
        return abs(x - self.value) <= self.tol

    def __str__(self) -> str:
        return f"{_figure(self.value)} ± {_figure(self.tol)}"


def shows(id: str, text: str, measured: Number, bound: Any) -> None:
    """Print the claim with its measured figure, or raise if the figure leaves its bound.

    Args:
        id: a key of `CLAIMS`.
        text: the claim in the lesson's own words, one line.
        measured: the figure, one real number.
        bound: `between`, `at_least`, `at_most` or `about`.

    Raises:
        ClaimFailed: `measured` is outside `bound`.
        ValueError: an unknown id, an empty text, a bool, NaN, an infinity, more than one number, or no bound.
    """
    if id not in CLAIMS:
        raise ValueError(f"unknown claim {id!r}: lessons.claims.CLAIMS has them all, A1 to H6")
    if not text.strip() or "\n" in text:
        raise ValueError(f"{id}: the text must be one line that says what is shown, not {text!r}")
    if not isinstance(bound, Bound):
        raise ValueError(f"{id}: the bound must be between, at_least, at_most or about, not {bound!r}")
    measured = _number(f"{id}: measured", measured)
    if measured not in bound:
        # In full: rounded, the figure could look as if it kept the bound.
        raise ClaimFailed(f"{id} ✗ {text}: measured {measured} (bound {bound})")
    print(f"{id} ✓ {text}: measured {_figure(measured)} (bound {bound})")


def printed(output: str) -> list[str]:
    """The ids of the claims that `shows` printed into `output`, in order, each once."""
    return list(dict.fromkeys(re.findall(r"^([A-H]\d+) ✓ .*: measured ", output, flags=re.MULTILINE)))


class Place(NamedTuple):
    """Where a claim is made: the notebook's name and the number in its cell's margin."""

    notebook: str
    cell: int

    def __str__(self) -> str:
        return f"{self.notebook} [{self.cell}]"


def code_cells(notebook: Path) -> list[str]:
    """The sources of the code cells of a notebook file, without empty ones: cell [n] of a run is number n.

    Raises ValueError if the file is not a notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{notebook} is not a notebook: {type(error).__name__}: {error}") from error
    return [source for source in sources if source.strip()]


def _claims_of(source: str) -> Iterator[str]:
    """The literal first arguments of the calls of `shows` in a code cell, in the order they stand there."""
    from IPython.core.inputtransformer2 import TransformerManager  # slow to import, and only needed here

    tree = ast.parse(TransformerManager().transform_cell(source))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
        if called == "shows" and call.args and isinstance(call.args[0], ast.Constant):
            yield call.args[0].value


def carried(notebooks: Path) -> dict[str, list[Place]]:
    """Which claims the notebooks of a folder make, in the order of `CLAIMS`, and where.

    Raises ValueError for a file that is no notebook, a cell that is no Python, or an unknown claim;
    FileNotFoundError if there is no such folder.
    """
    if not notebooks.is_dir():
        raise FileNotFoundError(f"no folder {notebooks}: give the folder that holds the notebooks")
    found: dict[str, list[Place]] = {id: [] for id in CLAIMS}
    for path in sorted(notebooks.glob("*.ipynb")):
        for number, source in enumerate(code_cells(path), start=1):
            place = Place(path.stem, number)
            try:
                ids = list(_claims_of(source))
            except SyntaxError as error:
                raise ValueError(f"{path}, cell [{number}] is not Python: {error.msg}") from error
            for id in ids:
                if id not in found:
                    raise ValueError(f"{path}, cell [{number}]: unknown claim {id!r}")
                if place not in found[id]:
                    found[id].append(place)
    return {id: places for id, places in found.items() if places}
