"""The claims of lesson 4 can fail: each of its bounds refuses the figure that a known fault gives."""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from lessons import claims, rl
from lessons.claims import ClaimFailed, shows
from lessons.panels.estimator_card import compute_card, old_sample_estimators
from lessons.panels.ratio_and_clip import compute_locking, compute_pushes, compute_sweep, locking_learners, skilled
from lessons.tabular import Policy, World, exact, five_learners, random_policy, table, train, uniform_policy
from lessons.tabular.table import ARTICLE, UPDATES, TableConfig

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "04_ratio_and_clip.ipynb"

WORLD = World(vocab=8, length=3)
OLD, NOW = skilled(WORLD, 0.5), skilled(WORLD, 0.65)
Y, S, R = WORLD.sequences, WORLD.states(WORLD.sequences), WORLD.returns(WORLD.sequences)
A_HAT = R[:, None] - exact.values(WORLD, OLD)[S]
CASES = {(1.3, 1): (1.2, 0.0), (1.3, -1): (-1.3, -1.3), (0.7, 1): (0.7, 0.7), (0.7, -1): (-0.8, 0.0)}


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim of the notebook, by its id and its text."""
    found = {}
    for source in claims.code_cells(NOTEBOOK):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
                id, text, _, bound = node.args
                found[id.value, text.value] = eval(ast.unparse(bound), vars(claims).copy())
    return found


# E4


def bias_with(rho):
    g = exact.gradient(WORLD, NOW)
    mean = exact.sequence_probs(OLD) @ NOW.score(Y, rho * A_HAT)
    return (mean - g).norm() / g.norm()


def the_ratio_is_upside_down():
    return bias_with((OLD.log_probs(Y) - NOW.log_probs(Y)).sum(dim=-1, keepdim=True).exp())


def the_ratio_is_there_after_all():
    return bias_with((NOW.log_probs(Y) - OLD.log_probs(Y)).sum(dim=-1, keepdim=True).exp())


def old_log_probs_are_those_of_another_policy():
    p, other = random_policy(WORLD, seed=0), random_policy(WORLD, seed=1)
    y = p.sample((16,), seed=0)
    A_hat = WORLD.returns(y)[:, None] - exact.values(WORLD, p)[WORLD.states(y)]
    rho_t = (p.log_probs(y) - other.log_probs(y)).exp()
    return ((p.score_sum(y, rho_t * A_hat) - p.score_sum(y, A_hat)) / 16).abs().max()


def the_mean_over_tokens_is_taken_for_the_sum():
    p = random_policy(WORLD, seed=0)
    theta = p.logits.clone().requires_grad_()
    log_probs = Policy(WORLD, theta).log_probs(Y)
    weights = 512 * exact.sequence_probs(p)[:, None] * (R[:, None] - exact.values(WORLD, p)[S])
    loss, _ = rl.clipped_surrogate(log_probs, p.log_probs(Y), weights, WORLD.mask(Y), 0.2)
    loss.backward()
    return (-theta.grad.flatten() - exact.gradient(WORLD, p)).abs().max()


# E5, E6 and E3


def furthest(objective, what):
    off = []
    for (ratio, A_hat), right in CASES.items():
        log_pi = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
        value = objective(log_pi.exp(), A_hat)
        value.backward()
        off.append(abs((value.item(), log_pi.grad.item())[what] - right[what]))
    return max(off)


def the_maximum_is_taken():
    return furthest(lambda rho, A: torch.maximum(rho * A, rho.clamp(0.8, 1.2) * A), 0)


def the_clipped_term_is_taken_alone():
    return furthest(lambda rho, A: rho.clamp(0.8, 1.2) * A, 1)


def from_the_wrong_side_with_the_clipped_term_alone(word):
    old = torch.full((2,), 1 / 8, dtype=torch.float64).log()
    logits = torch.zeros(8, dtype=torch.float64)
    logits[:2] = torch.tensor([0.7, 1.3]).log()
    for _ in range(20):
        logits.requires_grad_()
        rho = (logits.log_softmax(dim=-1)[:2] - old).exp()
        objective = (rho.clamp(0.8, 1.2) * torch.tensor([1.0, -1.0])).mean()
        logits = (logits + 0.1 * torch.autograd.grad(objective, logits)[0]).detach()
    return 8 * logits.softmax(dim=-1)[word]


@cache
def card():
    return compute_card(WORLD, NOW, old_sample_estimators(WORLD, NOW, OLD), batches=2)


# C7 and C10


@cache
def learners():
    """Scores of five seeds, by name and learning rate: the table's, and four passes without a baseline."""
    ours = [one for lr in (0.1, 0.03) for one in five_learners(lr)[:4]]
    ours += [replace(one, name="4 passes, no baseline", baseline=None) for one in ours if one.passes == 4]
    scores = train(WORLD, ours, range(5)).scores
    return {(one.name, one.lr): each for one, each in zip(ours, scores)}


OFFSET, NONE, BASE, FOUR = (one.name for one in five_learners()[:4])


def solved(name, lr, last=10):
    return (learners()[name, lr][:, -last:].mean(-1) >= 2.9).double().mean()


def at_50(name):
    return learners()[name, 0.03][:, 40:50].mean()


def the_article_is_read(as_if):
    """`outside` of a table whose column of the article's figures is another one."""
    with pytest.MonkeyPatch.context() as patch:
        for lr, rows in as_if.items():
            patch.setitem(ARTICLE, lr, rows)
        return table.table(TableConfig(seeds=11))["outside"]


def figures_outside_if_the_two_learning_rates_are_swapped():
    return the_article_is_read({0.1: ARTICLE[0.03], 0.03: ARTICLE[0.1]})["figures"]


def share_of_groups_if_our_own_means_are_taken_for_the_article():
    own = {lr: {} for lr in ARTICLE}
    for one in table.table(TableConfig(seeds=11))["learners"]:
        matches = [one["matches"][str(update)]["mean"] for update in UPDATES]
        own[one["lr"]][one["learner"]] = (*matches, 10 * one["solved"]["last_10_updates"]["mean"])
    return the_article_is_read(own)["share_of_groups"]


def clip_statistics(sign=1, epsilon=0.2):
    """After one large step on a batch, with the sign of its advantages turned, or another ε."""
    old = uniform_policy(WORLD)
    y = old.sample((64,), seed=0)
    A_hat = (WORLD.returns(y) - WORLD.returns(y).mean())[:, None]
    now = old.moved(6 * old.score_sum(y, A_hat.expand(y.shape)) / 64)
    log_probs, old_log_probs = (p.log_probs(y).sum(dim=-1, keepdim=True) for p in (now, old))
    return rl.clipped_surrogate(log_probs, old_log_probs, sign * A_hat, torch.ones(64, 1).bool(), epsilon)[1]


def the_advantage_has_the_wrong_sign():
    stats = clip_statistics(sign=-1)
    return stats["zero_gradient_fraction"] / stats["clip_fraction"]


# E8 and C9


def solved_apart_if_one_pass_is_four():
    four = compute_sweep(WORLD, range(10), passes=(4,), lr=(0.1, 0.3), updates=60)
    return abs(four.solved[0] - four.solved[1]).max()


def gain_if_only_one_pass_is_made():
    return compute_sweep(WORLD, range(3), passes=(1,), lr=(0.3,), updates=20).gain[0, 0]


def loss_if_the_clip_is_a_thousandth():
    return abs(compute_sweep(WORLD, range(3), passes=(4,), lr=(0.03,), updates=60, epsilon=0.001).gain[0, 0])


@cache
def locked(place):
    return compute_locking(WORLD, range(20), [locking_learners()[place]]).locked[0, 0]


FAULTS = {
    ("E4", "old samples weighed by ρ(y), three weights: largest bias, in lengths of ∇J"): the_ratio_is_upside_down,
    ("E4", "the same without the ratio, R − V(s_t)"): the_ratio_is_there_after_all,
    ("E4", "at the old policy, ∇ of ρ Â is the policy gradient of the batch: off by"): (
        old_log_probs_are_those_of_another_policy
    ),
    ("E4", "and of all 512 responses it is ∇J: off by"): the_mean_over_tokens_is_taken_for_the_sum,
    ("E5", "four cases, value: furthest from 1.2, −1.3, 0.7, −0.8"): the_maximum_is_taken,
    ("E5", "four cases, gradient: furthest from 0, −1.3, 0.7, 0"): the_clipped_term_is_taken_alone,
    ("E3", "with the usual ε = 0.2 the good word's ratio stops at"): (
        lambda: compute_pushes(epsilon=0.1).ratio[0, 0, 0, -1]
    ),
    ("E6", "steps on after it has stopped: the good word moves by"): (
        lambda: compute_pushes().ratio[0, 1, 0, -1] - compute_pushes().ratio[0, 1, 0, -6]
    ),
    ("E6", "without the clip it goes on to"): lambda: compute_pushes().ratio[0, 0, 0, -1],
    ("E6", "from 0.7 the clip lets it come back, to"): lambda: from_the_wrong_side_with_the_clipped_term_alone(0),
    ("E6", "the bad word from 1.3, to"): lambda: from_the_wrong_side_with_the_clipped_term_alone(1),
    ("E6", "every word past the clip: E[ĝ] along ∇J"): lambda: card().along[-2],
    # A baseline or an offset forgotten, one left in, or one pass in place of four.
    ("C7", "learning rate 0.1, REINFORCE: share of seeds solved"): lambda: solved(BASE, 0.1),
    ("C7", "learning rate 0.1, no offset"): lambda: solved(OFFSET, 0.1),
    ("C7", "learning rate 0.1, baseline"): lambda: solved(OFFSET, 0.1),
    ("C7", "learning rate 0.1, four passes"): lambda: solved(BASE, 0.1),
    ("C7", "learning rate 0.1, PPO"): lambda: solved(BASE, 0.1),
    ("C7", "learning rate 0.03, REINFORCE"): lambda: solved(BASE, 0.03),
    ("C7", "learning rate 0.03, no offset"): lambda: solved(OFFSET, 0.03),
    ("C7", "learning rate 0.03, baseline"): lambda: solved(OFFSET, 0.03),
    ("C7", "learning rate 0.03, four passes"): lambda: solved("4 passes, no baseline", 0.03),
    ("C7", "learning rate 0.03, PPO"): lambda: solved("4 passes, no baseline", 0.03),
    ("C7", "figures of the article outside the range of 95 of 100 groups, of 70"): (
        figures_outside_if_the_two_learning_rates_are_swapped
    ),
    ("C7", "share of groups of ten seeds with as many outside"): (
        share_of_groups_if_our_own_means_are_taken_for_the_article
    ),
    ("C7", "baseline at 0.03, solved by the last update alone"): lambda: solved(BASE, 0.03),
    ("C10", "update 50, learning rate 0.03: matches with one pass"): lambda: at_50(FOUR),
    ("C10", "with four passes, no clip"): lambda: at_50(BASE),
    ("C10", "with four passes and the clip"): lambda: at_50(BASE),
    ("C10", "what the clip adds to four passes, in matches"): lambda: at_50(BASE) - at_50(FOUR),
    ("C10", "share of responses whose ratio left 1 ± 0.2"): (lambda: clip_statistics(epsilon=0.02)["clip_fraction"]),
    ("C10", "of those, share without a gradient"): the_advantage_has_the_wrong_sign,
    ("E8", "one pass: largest difference in solved seeds"): solved_apart_if_one_pass_is_four,
    ("E8", "four passes at 0.3: matches a seed that the clip gains"): gain_if_only_one_pass_is_made,
    ("E8", "sixteen passes at 0.3"): gain_if_only_one_pass_is_made,
    ("E8", "rates up to 0.03, four and sixteen passes: largest gain or loss"): loss_if_the_clip_is_a_thousandth,
    # The remedy forgotten, or one applied where there should be none.
    ("C9", "four passes at 0.1: share of seeds locked"): lambda: locked(2),
    ("C9", "with the clip"): lambda: locked(2),
    ("C9", "with an entropy bonus of 0.2"): lambda: locked(0),
    ("C9", "with a KL penalty, β = 0.1"): lambda: locked(0),
    ("C9", "with a learning rate of 0.03"): lambda: locked(0),
}


def test_every_claim_of_the_lesson_has_a_fault():
    assert FAULTS.keys() == bounds().keys()
    assert {id for id, _ in FAULTS} == {"C7", "C9", "C10", "E3", "E4", "E5", "E6", "E8"}


@pytest.mark.parametrize("claim", FAULTS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_a_known_fault_leaves_the_bound(claim):
    figure = FAULTS[claim]()
    with pytest.raises(ClaimFailed):
        shows(*claim, figure, bounds()[claim])
