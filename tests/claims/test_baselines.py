"""The claims of lesson 2 can fail: each of its bounds refuses the figure that a known fault gives.

Bounds and typed functions are the notebook's own: its first cell is executed, the functions of the others are
defined, and a bound is the fourth argument of a call of `shows`.
"""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from lessons import claims
from lessons.claims import ClaimFailed, code_cells, shows
from lessons.panels.baselines import compute_cosines, compute_wrong_tokens
from lessons.panels.estimator_card import baseline_estimators, compute_card
from lessons.tabular import World, exact, five_learners, train

CELLS = code_cells(Path(__file__).parents[2] / "notebooks" / "02_baselines.ipynb")


def wording(text: ast.expr) -> str:
    """The literal text of a claim, with … for what a loop fills in."""
    if isinstance(text, ast.Constant):
        return text.value
    return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in text.values)


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim in the notebook, by its id and text."""
    found = {}
    for node in (node for cell in CELLS for node in ast.walk(ast.parse(cell))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
            id, text, _, bound = node.args
            found[id.value, wording(text)] = eval(ast.unparse(bound), vars(claims).copy())
    return found


@cache
def notebook() -> dict:
    """The names of the notebook: what its first cell makes, and its functions."""
    names = {}
    exec(CELLS[0], names)  # noqa: S102
    for node in (node for cell in CELLS[1:] for node in ast.parse(cell).body):
        if isinstance(node, ast.FunctionDef):
            exec(ast.unparse(node), names)  # noqa: S102
    return names


def along(mean):
    """E[ĝ] along ∇J, in lengths of it."""
    g = notebook()["grad_J"]
    return mean @ g / (g @ g)


def batches():
    return notebook()["world"].returns(notebook()["policy"].sample((2000, 16), seed=0))


def pushed_up_by_returns():
    return (batches() + 10 > 0).double().mean()


def pushed_up_less_the_mean():
    R = batches() + 10
    return (R > R.mean(-1, keepdim=True)).double().mean(-1).min()


def expected_push_without_the_softmax_term():
    """∇ log π(a|s) taken for the one-hot vector of a alone."""
    n = notebook()
    one_hot = n["policy"].score(n["Y"]) + n["policy"].table[0, 0] * (n["policy"].score(n["Y"]) != 0)
    return (10 * n["pi"] @ one_hot).abs().max()


def bias_of_points_for_some():
    """Ten points only for who has the first word right: they depend on the response."""
    n = notebook()
    return n["bias"]((n["R"] + 10 * (n["Y"][:, 0] == 2))[:, None])


def bias_of_values_one_word_late():
    n = notebook()
    V = exact.values(n["world"], n["policy"])
    return n["bias"](n["R"][:, None] - n["pad"](V[n["S"][:, 1:]], (0, 1)))


def bias_of_values():
    n = notebook()
    return n["bias"](n["R"][:, None] - exact.values(n["world"], n["policy"])[n["S"]])


def rows_that_agree_if_the_batch_mean_counts_as_unbiased():
    n = notebook()
    rows = baseline_estimators(n["world"], n["policy"])
    wrong = [replace(one, moments=one.moments and exact.leave_one_out_moments) for one in rows]
    card = compute_card(n["world"], n["policy"], wrong)
    return int((abs(card.sampled - card.along) <= 4 / 1.96 * card.half_width).sum())


def noise(c):
    return notebook()["variance"](c).sqrt() / notebook()["grad_J"].norm()


@cache
def cosines():
    return compute_cosines(notebook()["world"], notebook()["policy"], batches=1000)


def pairs_less_the_mean_of_the_other():
    n = notebook()
    R = torch.stack(torch.broadcast_tensors(n["R"][:, None], n["R"]), dim=-1)
    w = (n["pi"][:, None] * n["pi"])[..., None] * n["less_mean_of_others"](R)
    return along((w[..., 0].sum(1) + w[..., 1].sum(0)) @ n["score"] / 2)


def leave_one_out_moments():
    return along(exact.leave_one_out_moments(notebook()["world"], notebook()["policy"], 16).mean)


def ratio_if_others_are_divided_by_n():
    R = batches()
    others = R - (R.sum(-1, keepdim=True) - R) / 16
    ratio = others / notebook()["less_mean"](R)
    return (ratio[ratio.isfinite()] - 16 / 15).abs().max()


@cache
def apart_by_plain_steps():
    mean = replace(five_learners(lr=1.0)[2], optimiser="sgd", offset=0.0)
    probs = train(World(), [mean, replace(mean, baseline="leave-one-out")], seeds=range(10), updates=100).policy.table
    return (probs[0] - probs[1]).abs().max()


def push_on_wrong_words_if_each_is_paid_for_itself():
    n = notebook()
    own = World(pays="token").rewards(n["Y"])
    wrong = n["Y"] != torch.tensor(n["world"].target)
    return (n["pi"][:, None] * own * wrong).sum() / (n["pi"][:, None] * own).sum()


@cache
def wrong_words():
    """Shares at 0.9 with R + 10, R and R − batch mean."""
    return compute_wrong_tokens(World(), batches=100).share[:, -1]


@cache
def ends(name, optimiser="adam", lr=0.1):
    """Matches at the end of training, of 5 seeds."""
    learner = next(one for one in five_learners(lr) if one.name == name)
    return train(World(), [replace(learner, optimiser=optimiser)], range(5)).scores[0, :, -10:].mean(-1)


def solved(*learner):
    return (ends(*learner) >= 2.9).double().mean()


@cache
def adam_with_the_exact(offset):
    return notebook()["along_the_way"](lambda R: R + offset, seeds=10)[:, 1].mean()


def plain_step_with_its_gradient():
    n = notebook()
    adam, n["adam"] = n["adam"], lambda g_hat, m, v, k: (g_hat, m, v)
    try:
        return n["along_the_way"](lambda R: R, seeds=2, updates=5, lr=1.0)[:, 2].mean()
    finally:
        n["adam"] = adam


OFFSET, NONE, LESS = "REINFORCE", "REINFORCE, no offset", "REINFORCE + baseline"
FAULTS = {
    ("C3", "returns of 10 to 13: share of samples pushed up, lowest of 2,000 batches"): (pushed_up_less_the_mean),
    ("C3", "minus the batch mean: share of samples pushed up"): pushed_up_by_returns,
    ("C1", "… policy: E[10 ∇ log π], largest of 584 entries"): expected_push_without_the_softmax_term,
    ("C1", "… policy: bias of returns of 10 to 13, in lengths of ∇J"): bias_of_points_for_some,
    ("C1", "bias with b(s_t) = …, in lengths of ∇J"): bias_of_values_one_word_late,
    ("C1", "rows of the card with a sampled mean within four standard errors of the exact"): (
        rows_that_agree_if_the_batch_mean_counts_as_unbiased
    ),
    ("C2", "bias with b = Q(s_t, a_t), in lengths of ∇J"): bias_of_values,
    ("C2", "bias with b = V one word late"): bias_of_values,
    ("C4", "noise of 16 responses with returns of 10 to 13, in lengths of ∇J"): lambda: noise(0),
    ("C4", "the same with returns of 0 to 3"): lambda: noise(10),
    # The rows are R + 10, R + 3, R, R − batch mean: an offset forgotten, one left in, a mean not subtracted.
    ("C4", "mean cosine of a batch with ∇J, returns of 10 to 13"): lambda: cosines().mean[2],
    ("C4", "the same, returns of 0 to 3"): lambda: cosines().mean[1],
    ("C4", "the same, minus the batch mean"): lambda: cosines().mean[2],
    ("C4", "share of batches that point backwards, returns of 10 to 13"): lambda: cosines().backwards[2],
    ("C4", "share of batches that point backwards, minus the batch mean"): lambda: cosines().backwards[2],
    ("C5", "N = 2, all 262,144 pairs: E[ĝ] along ∇J, in lengths of it"): pairs_less_the_mean_of_the_other,
    ("C5", "N = 16: E[ĝ] along ∇J, in lengths of it"): leave_one_out_moments,
    ("C5", "N = 16: leave-one-out over batch mean, furthest of 32,000 from 16/15"): (ratio_if_others_are_divided_by_n),
    ("C5", "Adam: largest difference of any probability after 100 updates, 10 seeds"): apart_by_plain_steps,
    ("C5", "plain steps, leave-one-out with 15/16 of the learning rate: the same"): apart_by_plain_steps,
    ("C6", "Adam, returns of 10 to 13: share of 100 seeds that solve the task"): lambda: solved(NONE),
    ("C6", "Adam, the same minus the batch mean"): lambda: solved(OFFSET),
    ("C6", "cosine of Adam's step with the gradient it was made of, 0 to 3"): plain_step_with_its_gradient,
    ("C6", "cosine of Adam's step with ∇J, returns of 10 to 13"): lambda: adam_with_the_exact(0),
    ("C6", "the same, returns of 0 to 3"): lambda: adam_with_the_exact(10),
    ("C6", "the same, minus the batch mean"): lambda: adam_with_the_exact(10),
    ("C6", "returns of 10 to 13: most seeds solved at any of twelve rates"): lambda: solved(NONE, "sgd", 1.0),
    ("C6", "matches, plain steps at their best rate, 10 to 13"): lambda: ends(NONE, "sgd", 1.0).mean(),
    ("C6", "matches, Adam at its best rate, 10 to 13"): lambda: ends(LESS).mean(),
    ("C6", "matches, plain steps at their best rate, minus the mean"): lambda: ends(OFFSET, "sgd").mean(),
    ("C8", "returns of 0 to 3: share of all upward push that goes to wrong words"): (
        push_on_wrong_words_if_each_is_paid_for_itself
    ),
    ("C8", "policy right nine times in ten: share of wrong words pushed up by 0 to 3"): (lambda: wrong_words()[2]),
    ("C8", "the same, minus the batch mean"): lambda: wrong_words()[1],
}


def test_every_claim_of_the_lesson_has_its_fault():
    assert FAULTS.keys() == bounds().keys()
    assert {id for id, _ in FAULTS} == {"C1", "C2", "C3", "C4", "C5", "C6", "C8"}


@pytest.mark.parametrize("claim", FAULTS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_the_figure_of_a_fault_leaves_the_bound(claim):
    with pytest.raises(ClaimFailed):
        shows(*claim, FAULTS[claim](), bounds()[claim])
