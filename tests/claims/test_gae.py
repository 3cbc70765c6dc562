"""Every claim of lesson 3 against a known fault: the figure that the fault gives leaves the claim's bound."""

import ast
import math
from functools import cache
from pathlib import Path

import pytest
import torch

from lessons import claims, rl
from lessons.claims import ClaimFailed, shows
from lessons.panels.gae import (
    compute_best_lam,
    compute_lengths,
    compute_tradeoff,
    half_right,
    learned_values,
)
from lessons.tabular import Learner, World, exact, random_policy, train

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_values_and_gae.ipynb"

WORLD = World(vocab=8, length=3)
POLICY = half_right(WORLD)
Y, S, MASK = WORLD.sequences, WORLD.states(WORLD.sequences), WORLD.mask(WORLD.sequences)
R, REWARDS, PI = WORLD.returns(Y), WORLD.rewards(Y), exact.sequence_probs(POLICY)
GRADIENT, V_EXACT = exact.gradient(WORLD, POLICY), exact.values(WORLD, POLICY)
RIGHT = Y == torch.tensor(WORLD.target)


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim of the notebook, by its id and its text."""
    found = {}
    for source in claims.code_cells(NOTEBOOK):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
                id, text, _, bound = node.args
                found[id.value, text.value] = eval(ast.unparse(bound), vars(claims) | {"math": math})
    return found


def bias2(weights, world=WORLD, policy=POLICY):
    g = exact.gradient(world, policy)
    return ((exact.moments(policy, weights).mean - g) ** 2).sum() / (g @ g)


def gae(V, lam, gamma=1.0):
    return rl.gae(REWARDS, V[S], MASK, gamma, lam)


@cache
def tables():
    """The three kinds of values, a few tables of each."""
    history = learned_values(WORLD, POLICY, updates=300, seeds=3)
    return {"untrained V": history[0, :1], "poor V": history[20], "good V": history[300]}


@cache
def tradeoff(lams=tuple(i / 20 for i in range(21))):
    return compute_tradeoff(WORLD, POLICY, tables() | {"exact V": V_EXACT[None]}, lams=lams)


def wild(seeds=2):
    return 10 * torch.randn(seeds, 73, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# D1


def returns_are_not_weighted_with_their_probability():
    by_a_plain_mean = torch.stack([R[(S == row).any(dim=-1)].mean() for row in range(73)])
    return (by_a_plain_mean - V_EXACT).abs().max()


def a_state_met_twice_counts_once():
    y = POLICY.sample((16,), seed=0)
    s, V = WORLD.states(y), torch.zeros(73, dtype=torch.float64, requires_grad=True)
    R_t = rl.returns(WORLD.rewards(y), WORLD.mask(y))
    rl.value_loss(V[s], V[s], R_t, WORLD.mask(y)).backward()
    overwritten = torch.zeros(73, dtype=torch.float64)
    overwritten[s.flatten()] = (V.detach()[s] - R_t).flatten() / s.numel()
    return (overwritten - V.grad).abs().max()


def values_learn_the_reward_of_the_word_in_place_of_the_return():
    V = torch.zeros(73, dtype=torch.float64).index_put((S,), REWARDS * PI[:, None], accumulate=True)
    V = V / exact.visits(POLICY)
    visits = exact.visits(POLICY)
    return (visits @ (V - V_EXACT) ** 2).sqrt() / (visits @ V_EXACT**2).sqrt()


# D2


def v_after_the_last_word_is_not_0():
    V = V_EXACT[S]
    delta = REWARDS + torch.cat([V[:, 1:], V[:, :1]], dim=1) - V
    return (delta - exact.advantages(WORLD, POLICY)[S, Y]).abs().max()


def delta_has_the_wrong_sign(where, extreme):
    return extreme(-rl.td_errors(REWARDS, V_EXACT[S], MASK)[where])


def padding(reads_on: bool):
    world = World(vocab=8, length=4, end=7)
    policy, y = random_policy(world, seed=0), world.sequences
    mask = world.mask(y)
    V = torch.where(mask, exact.values(world, policy)[world.states(y)], 1.0)
    weights = rl.gae(world.rewards(y), V, torch.ones_like(mask) if reads_on else mask, lam=0.0)
    return bias2(weights, world, policy)


# D3


def v_is_shifted_by_one_word():
    return bias2(rl.gae(REWARDS, V_EXACT[S].roll(-1, dims=-1), MASK, lam=0.0))


def lambda_is_ignored(figure):
    """All λ are 1."""
    return figure(tradeoff(lams=(1.0, 1.0)))


def quietest(numbers):
    return max((x[:, 0] / x[:, -1]).max() for x in numbers.variance.values())


def v_is_off_by_the_same_2_points_in_every_state():
    low, high = compute_tradeoff(WORLD, POLICY, {"V": V_EXACT[None] + 2}, lams=(0.0, 1.0)).variance["V"][0]
    return low / high


def learners_do_not_differ():
    """Points between two learners whose λ, or whose values, are ignored."""
    learners = [Learner(name, baseline="learned", lam=1.0) for name in ("λ = 0", "λ = 1")]
    scores = train(World(vocab=4, length=2), learners, seeds=range(3), updates=5).scores.mean(dim=(1, 2))
    return scores[1] - scores[0]


# D4


def the_sum_decays():
    return (gae(wild()[0], lam=0.95) - (rl.returns(REWARDS, MASK) - wild()[0][S])).abs().max()


def a_lambda_below_1_is_used():
    return compute_tradeoff(WORLD, POLICY, {"V": wild()}, lams=(0.99,)).bias2["V"].max()


def given_state_and_word(x):
    place = (8 * S + Y).flatten()
    total, weight = torch.zeros(2, 73 * 8, dtype=torch.float64)
    total = total.index_add(0, place, (PI[:, None] * x).flatten())
    return (total / weight.index_add(0, place, PI.repeat_interleave(3))).view(73, 8)


def first_advantages_with_the_exact_v():
    off = given_state_and_word(gae(V_EXACT, lam=1.0)) - exact.advantages(WORLD, POLICY)
    return off[0].mean()


def the_error_has_the_wrong_sign():
    V = tables()["poor V"][0]
    off = given_state_and_word(gae(V, lam=1.0)) - exact.advantages(WORLD, POLICY)
    return (off - (V - V_EXACT)[:, None]).abs().max()


def noise_decays_with_the_distance():
    noise = compute_lengths((2, 8), (0.95,)).noise[0]
    return noise[1] / noise[0]


def the_score_comes_through_at_lambda_1():
    return compute_lengths((8,), (1.0,)).signal[0, 0]


# D5


def good_values_are_the_untrained_ones():
    return tradeoff().best("untrained V")[0]


def bias_is_forgotten():
    variance = tradeoff().variance["poor V"].mean(axis=0)
    return tradeoff().lams[variance.argmin()]


def bias_is_forgotten_in_the_error():
    variance = tradeoff().variance["poor V"].mean(axis=0)
    return variance[[0, -1]].min() / variance.min()


def poor_values_are_the_untrained_ones():
    return tradeoff().error("untrained V").max() / tradeoff().best("untrained V")[1]


def the_batch_size_is_ignored(figure):
    """All batches are as small as 16."""
    return figure(compute_best_lam(tradeoff(), [16] * 15).lam)


FAULTS = {
    ("D1", "V(s) is the expected return from s: exact.values is off by"): (returns_are_not_weighted_with_their_probability),
    ("D1", "our gradient against autograd's of rl.value_loss: off by"): a_state_met_twice_counts_once,
    ("D1", "regression learns it: error left, worst of 20 tables"): (values_learn_the_reward_of_the_word_in_place_of_the_return),
    ("D2", "δ with exact values is the advantage, 22 policies: off by"): v_after_the_last_word_is_not_0,
    ("D2", "smallest δ of a right word"): lambda: delta_has_the_wrong_sign(RIGHT, torch.min),
    ("D2", "largest δ of a wrong word"): lambda: delta_has_the_wrong_sign(~RIGHT, torch.max),
    ("D2", "V = 0 after the end token: bias² with the exact V"): lambda: padding(reads_on=True),
    ("D2", "reading on into the padding: bias² with the exact V"): lambda: padding(reads_on=False),
    ("D3", "λ = 0, exact V: bias² of the gradient"): v_is_shifted_by_one_word,
    ("D3", "λ = 0, poor V: least bias² of 20 tables"): (
        lambda: lambda_is_ignored(lambda numbers: numbers.bias2["poor V"][:, 0].min())
    ),
    ("D3", "λ = 0, untrained V: bias²"): (lambda: lambda_is_ignored(lambda numbers: numbers.bias2["untrained V"][0, 0])),
    ("D3", "variance at λ = 0 over that at λ = 1: largest of all tables"): (lambda: lambda_is_ignored(quietest)),
    ("D3", "V off by 2 points: λ = 0 is noisier than λ = 1, by a factor of"): (v_is_off_by_the_same_2_points_in_every_state),
    ("D3", "λ = 0, V = 0: what the first of 8 tokens hears"): the_score_comes_through_at_lambda_1,
    ("D3", "learned V, λ = 0: points short of λ = 1 at the end"): learners_do_not_differ,
    ("D3", "exact V, λ = 0: points ahead of learned V, λ = 1, update 30"): learners_do_not_differ,
    ("D4", "λ = 1 is the return minus V(s_t), with V pure noise: off by"): the_sum_decays,
    ("D4", "λ = 1, V pure noise: largest bias², 20 tables, 7 policies"): a_lambda_below_1_is_used,
    ("D4", "even with the exact V, variance at λ = 1 over that at λ = 0"): (
        lambda: lambda_is_ignored(lambda numbers: 1 / quietest(numbers))
    ),
    ("D4", "λ = 1, poor V: the advantage of a first word is off by"): first_advantages_with_the_exact_v,
    ("D4", "and so in every state by −e(s_t), to within"): the_error_has_the_wrong_sign,
    ("D4", "λ = 1: noise of Â_1 in 8 tokens, over that in 2"): noise_decays_with_the_distance,
    ("D5", "good V: the best λ"): good_values_are_the_untrained_ones,
    ("D5", "poor V: the best λ is inside"): bias_is_forgotten,
    ("D5", "poor V: error at the better end, over the least"): bias_is_forgotten_in_the_error,
    ("D5", "poor V: largest error, over the untrained V's least"): poor_values_are_the_untrained_ones,
    ("D5", "poor V, N = 256: best λ, least of 20 tables"): (
        lambda: the_batch_size_is_ignored(lambda lam: lam["poor V"][:, 8].min())
    ),
    ("D5", "good V: rise of the best λ from N = 1 to N = 4,096"): (
        lambda: the_batch_size_is_ignored(lambda lam: (lam["good V"][:, 12] - lam["good V"][:, 0]).mean())
    ),
    ("D5", "γ = 0.8 biases the gradient even with the exact V"): lambda: bias2(gae(V_EXACT, lam=1.0)),
    ("D5", "learned V, λ = 0.5: points short of λ = 1"): learners_do_not_differ,
}


def test_every_claim_of_the_lesson_has_a_fault():
    assert FAULTS.keys() == bounds().keys()
    assert {id for id, _ in FAULTS} == {"D1", "D2", "D3", "D4", "D5"}


@pytest.mark.parametrize("claim", FAULTS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_a_known_fault_leaves_the_bound(claim):
    figure = FAULTS[claim]()
    with pytest.raises(ClaimFailed):
        shows(*claim, figure, bounds()[claim])
