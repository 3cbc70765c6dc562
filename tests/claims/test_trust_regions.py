"""The claims of lesson 5 can fail: each of its bounds refuses the figure that a known fault gives.

Bounds are the notebook's own: the fourth argument of a call of `shows`.
"""

import ast
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lessons import claims
from lessons.claims import ClaimFailed, code_cells, shows
from lessons.panels import trust_regions as panels
from lessons.tabular import Learner, World, exact, random_policy

CELLS = code_cells(Path(__file__).parents[2] / "notebooks" / "05_trust_regions.ipynb")
WORLD = World(vocab=8, length=3)
START = panels.right_with(WORLD, 1 / 4)
UNCENTRED = Learner("offset left in", offset=10.0, passes=4, epsilon=0.2)


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim in the notebook, by its id and text."""
    found = {}
    for node in (node for cell in CELLS for node in ast.walk(ast.parse(cell))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
            id, text, _, bound = node.args
            found[id.value, text.value] = eval(ast.unparse(bound), vars(claims).copy())
    return found


@cache
def notebook() -> dict:
    """What the first cell makes, all functions, and what the cell with the network makes."""
    names = {}
    exec(CELLS[0], names)  # noqa: S102
    for cell in CELLS[1:]:
        if "def ppo():" in cell:
            exec(cell, names)  # noqa: S102
        for node in (node for node in ast.parse(cell).body if isinstance(node, ast.FunctionDef)):
            exec(ast.unparse(node), names)  # noqa: S102
    return names


@cache
def step(size: float) -> panels.TooFar:
    return panels.compute_too_far(WORLD, START, sizes=(size,), seeds=10)


def longest_step_without_the_line_search():
    longest = 0.0
    for seed in range(20):
        p = random_policy(WORLD, seed)
        y, advantages = panels.sampled(WORLD, p, batch=64, seed=seed)
        g = p.score_sum(y, advantages) / 64
        x = exact.natural_gradient(p, g)
        longest = max(longest, exact.kl(p, p.moved((0.2 / (x @ g)).sqrt() * x)).item())
    return longest


def gain(direction, nats=0.1):
    return (exact.J(WORLD, notebook()["within"](START, direction, nats)) - exact.J(WORLD, START)).item()


def natural_over_plain_if_the_fisher_matrix_is_left_out():
    g = exact.gradient(WORLD, START)
    return gain(g) / gain(1.0 * g)


def natural_over_plain_without_sampling():
    g = exact.gradient(WORLD, START)
    return gain(exact.natural_gradient(START, g)) / gain(g)


@cache
def uncentred_over_natural(batch, nats):
    """PPO-clip's gain with returns of 10 to 13 whose mean is not subtracted."""
    J, _ = panels.compute_leashes(WORLD, START, [UNCENTRED], 10, 1, batch).of(UNCENTRED.name)
    start = panels.copies(START, 10)
    y, advantages = panels.sampled(WORLD, start, batch, seed=0)
    x = exact.natural_gradient(start, start.score_sum(y, advantages))
    full = (exact.J(WORLD, notebook()["within"](start, x, nats)) - exact.J(WORLD, START)).mean().item()
    return (J[1] - J[0]).mean() / full


@cache
def trained(*settings, updates=100):
    learner = Learner("it", baseline="mean", **dict(settings))
    J, kl = panels.compute_leashes(WORLD, START, [learner], 20, updates).of("it")
    return J, kl


def clip_that_never_holds_over_no_leash():
    rate = ("lr", 0.3), ("passes", 4)
    free = trained(*rate, updates=10)[1].max()
    return trained(*rate, ("epsilon", 1e9), updates=10)[1].max() / free


def offset_left_in_less_trpo():
    J, _ = panels.compute_leashes(WORLD, START, [UNCENTRED], 10, 20).of(UNCENTRED.name)
    return J[-1].mean() - trained(("delta", 0.1), updates=20)[0][-1].mean()


def stuck_behind_a_fence_of_a_hundred_nats():
    return (trained(("delta", 100.0))[0][-1] < panels.SOLVED).mean()


def one_gradient_over_four_passes():
    n = notebook()
    return n["seconds"](n["surrogate_gradient"]) / n["seconds"](n["ppo"])


def bowl_without_its_half():
    F = torch.block_diag(*exact.fisher(START))
    x = 0.01 * torch.randn(584, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (x @ F @ x) / exact.kl(START, START.moved(x))


@cache
def spread(goal):
    """Largest KL of updates 7 to 9 over the smallest, with β from 0.1 to 100."""
    learners = [
        Learner(str(beta), lr=0.1, baseline="mean", passes=4, penalty=beta, penalty_target=goal)
        for beta in (0.1, 3.0, 100.0)
    ]
    nats = panels.compute_leashes(WORLD, START, learners, 5, 9, 64).kl[:, 6:].mean(axis=(1, 2))
    return nats.max() / nats.min()


@cache
def held_words() -> dict[str, float]:
    arms = panels.compute_beyond(WORLD, START, batches=5)
    return dict(zip(arms.names, np.nanmean(arms.moved, axis=1), strict=True))


def outside_of_a_clip_too_wide():
    return panels.compute_beyond(WORLD, START, epsilon=100.0, batches=3).outside[0][-1].mean()


@cache
def never_stopped() -> panels.Stopping:
    return panels.compute_stopping(WORLD, START, stops=(None, 1e9), seeds=3, updates=5)


@cache
def stale(epsilon=0.2) -> panels.Staleness:
    return panels.compute_staleness(WORLD, START, epsilon=epsilon, seeds=20)


def behind(arm, k):
    return (stale().fresh[arm, k] - stale().old[arm, k]).mean()


FREE, CLIPPED, EIGHT = 0, 1, 4
FAULTS = {
    ("E1", "step size 3: share of 40 seeds stuck below 2.5, 150 updates later"): lambda: step(300).stuck[0],
    ("E1", "step size 300: the same"): lambda: step(3).stuck[0],
    ("E1", "step size 300: share of the next batches with all returns equal"): lambda: step(3).silent.mean(),
    ("E2", "TRPO, 20 random policies, δ = 0.1: largest KL of a step, nats"): longest_step_without_the_line_search,
    ("E2", "exact gradient, 0.1 nats: gain along F⁻¹g over gain along g"): (
        natural_over_plain_if_the_fisher_matrix_is_left_out
    ),
    ("E2", "16 samples, 0.1 nats: the same"): natural_over_plain_without_sampling,
    ("E2", "one update on 64 responses: PPO-clip's gain over that of F⁻¹ĝ at the same KL"): (
        partial(uncentred_over_natural, 64, 0.12)
    ),
    ("E2", "one update on 4,096 responses: the same"): partial(uncentred_over_natural, 4096, 0.16),
    ("E2", "TRPO, δ = 0.1: largest KL of 4,000 updates, nats"): longest_step_without_the_line_search,
    ("E2", "PPO-clip: largest KL over that without a leash"): clip_that_never_holds_over_no_leash,
    ("E2", "matches at update 20: PPO-clip less TRPO"): offset_left_in_less_trpo,
    ("E2", "share of TRPO's seeds stuck at the end"): stuck_behind_a_fence_of_a_hundred_nats,
    ("E2", "time of TRPO's direction over that of PPO's four passes"): one_gradient_over_four_passes,
    ("E2", "the bowl ½ xᵀFx over the exact KL, for a small step"): bowl_without_its_half,
    ("E3", "fixed β from 0.1 to 100, updates 7 to 9: largest KL over smallest"): lambda: spread(0.005),
    ("E3", "adaptive β from the same three: largest KL over smallest"): lambda: spread(None),
    ("E7", "table, SGD: mean move of a held word's log ρ in a pass"): lambda: held_words()["table, Adam"],
    ("E7", "table, Adam: the same"): lambda: held_words()["table, SGD"],
    ("E7", "shared, SGD: the same"): lambda: held_words()["table, SGD"],
    ("E7", "table, SGD: share of words outside 1 ± ε all the same"): outside_of_a_clip_too_wide,
    ("E7", "stop at 0.02 nats a word: largest KL of an update over that without a stop"): (
        lambda: np.divide(*never_stopped().kl.max(axis=(1, 2)))
    ),
    ("E7", "share of the 16 passes that the stop leaves, on average"): (lambda: never_stopped().passes.mean() / 16),
    ("E9", "64 passes without the clip: J promised, of 3"): lambda: stale().promise[CLIPPED, -1].mean(),
    # The surrogate taken for J.
    ("E9", "64 passes without the clip: J"): lambda: stale().promise[FREE, -1].mean(),
    ("E9", "8 passes without the clip: cosine of a fresh batch less that of the old one"): (
        partial(behind, CLIPPED, EIGHT)
    ),
    ("E9", "64 passes with the clip: the same"): partial(behind, FREE, EIGHT),
    ("E9", "KL after 64 passes without the clip over that with it"): (
        lambda: np.divide(*stale(epsilon=1e9).kl[:, -1].mean(axis=-1))
    ),
}


def test_every_claim_of_the_lesson_has_its_fault():
    assert FAULTS.keys() == bounds().keys()
    assert {id for id, _ in FAULTS} == {"E1", "E2", "E3", "E7", "E9"}


@pytest.mark.parametrize("claim", FAULTS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_the_figure_of_a_fault_leaves_the_bound(claim):
    with pytest.raises(ClaimFailed):
        shows(*claim, FAULTS[claim](), bounds()[claim])
