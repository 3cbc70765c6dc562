"""Every claim of lesson 6 against a known fault: the figure that the fault gives leaves the claim's bound."""

import ast
from functools import cache
from pathlib import Path

import pytest
import torch

from lessons import claims, rl
from lessons.claims import ClaimFailed, shows
from lessons.panels.kl_leash import (
    Leash,
    compute_density,
    compute_steering,
    flawed,
    kl_gradient,
    leashed_values,
    loss_gradients,
    seldom_repeats,
    train_leashed,
    value_moments,
)
from lessons.tabular import Policy, World, exact, random_policy

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_the_kl_leash.ipynb"

WORLD, BETA = World(vocab=8, length=3), 0.5
PROXY = flawed(WORLD, token=5, bonus=2.0)
REF, POLICY = seldom_repeats(WORLD), random_policy(WORLD, seed=1)
BEST = exact.tilted(WORLD, REF, BETA)
Y, R, MASK = WORLD.sequences, WORLD.returns(WORLD.sequences), WORLD.mask(WORLD.sequences)
PI, SCORE = exact.sequence_probs(POLICY), POLICY.score(Y)
FEES = POLICY.log_probs(Y) - REF.log_probs(Y)  # ℓ_t
REWARDS = rl.per_token_rewards(R, POLICY.log_probs(Y), REF.log_probs(Y), MASK, BETA)
GRADIENT = (PI * (R - BETA * FEES.sum(-1))) @ SCORE


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim of the notebook, by its id and its text."""
    found = {}
    for source in claims.code_cells(NOTEBOOK):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
                id, text, _, bound = node.args
                found[id.value, text.value] = eval(ast.unparse(bound), dict(vars(claims)))
    return found


# F2


def the_fee_is_added():
    return ((PI * (R + BETA * FEES.sum(-1))) @ SCORE - GRADIENT).abs().max()


def samples_come_from_the_reference():
    return (exact.sequence_probs(REF) @ SCORE).abs().max()


def a_word_does_not_pay_its_own_fee():
    weights = rl.returns(REWARDS, MASK) + BETA * FEES
    return (exact.moments(POLICY, weights).mean - GRADIENT).abs().max()


# F3


def objective(policies):
    return exact.J(WORLD, policies) - BETA * exact.kl(policies, REF)


def near(policy, size=0.01):
    return Policy(WORLD, policy.logits + size * random_policy(WORLD, seed=0, runs=(50,)).logits)


def beta_multiplies():
    log_weight = REF.log_probs(Y).sum(-1) + R * BETA
    return (log_weight.log_softmax(-1) - BEST.log_probs(Y).sum(-1)).abs().max()


def the_reference_is_forgotten():
    uniform = Policy(WORLD, torch.zeros_like(REF.logits))
    wrong = exact.tilted(WORLD, uniform, BETA)
    return objective(near(BEST)).max() - objective(wrong)


def log_z():
    return (REF.log_probs(Y).sum(-1) + R / BETA).logsumexp(-1)


def the_kl_runs_the_other_way():
    return (exact.J(WORLD, BEST) - BETA * exact.kl(REF, BEST) - BETA * log_z()).abs()


def the_gap_is_measured_the_other_way():
    others = near(BEST, size=1.0)
    best = Policy(WORLD, BEST.logits.expand(50, -1, -1))
    return (objective(BEST) - objective(others) - BETA * exact.kl(best, others)).abs().max()


# F8


def values_of_samples_of_the_reference():
    mean, _ = value_moments(BEST, REF, sampler=REF)["k1"]
    return abs(mean / exact.kl(BEST, REF) - 1)


def k1_in_place_of_k2():
    return value_moments(BEST, REF)["k1"][0] / exact.kl(BEST, REF) - 1


def the_exponent_of_k3_has_the_wrong_sign():
    policy = exact.tilted(WORLD, REF, 10.0)
    probs, ell = exact.sequence_probs(policy), (policy.log_probs(Y) - REF.log_probs(Y)).sum(-1)
    k3 = ell.exp() - 1 + ell
    return (probs @ (k3 - probs @ k3) ** 2).sqrt() / value_moments(policy, REF)["k1"][1]


SAMPLER = exact.tilted(WORLD, REF, 1.0)


def relative(gradient, to):
    return (gradient - to).norm() / to.norm()


def k1_on_old_samples():
    return loss_gradients(BEST, REF, SAMPLER)["k1"].norm() / kl_gradient(BEST, REF).norm()


def k2_is_summed_over_words():
    ell = BEST.log_probs(Y) - REF.log_probs(Y)
    return relative(exact.sequence_probs(BEST) @ BEST.score(Y, ell), kl_gradient(BEST, REF))


def k2_in_place_of_k3():
    return relative(loss_gradients(BEST, REF)["k2"], kl_gradient(BEST, REF))


def gradient_of_kl_from(start):
    moving = Policy(WORLD, BEST.logits.clone().requires_grad_())
    return torch.autograd.grad(exact.kl(start, moving), moving.logits)[0].flatten()


def k3_is_held_against_the_kl():
    return relative(loss_gradients(BEST, REF)["k3"], kl_gradient(BEST, REF))


def the_samples_are_fresh():
    g = kl_gradient(BEST, REF)
    return min(relative(gradient, g) for gradient in loss_gradients(BEST, REF).values())


def k1_pulls_towards_the_old_policy():
    return relative(loss_gradients(BEST, REF, SAMPLER)["k1"], gradient_of_kl_from(SAMPLER))


# F4


def the_value_forgets_the_bill():
    bill = torch.zeros_like(REWARDS)
    bill[:, -1] = REWARDS.sum(-1)
    V = leashed_values(WORLD, POLICY, REF, BETA, at_end=False)[WORLD.states(Y)]
    return (rl.gae(REWARDS, V, MASK, lam=1.0) - rl.gae(bill, V, MASK, lam=1.0)).abs().max()


@cache
def charged(at_end, lam, updates):
    world = World(vocab=4, length=5)
    ways = [Leash("one", BETA, lam=lam), Leash("other", BETA, lam=lam, at_end=at_end)]
    return compute_density(train_leashed(world, seldom_repeats(world), ways, seeds=4, updates=updates))


def at_end_is_ignored(figure):
    numbers = charged(at_end=False, lam=0.5, updates=10)
    return figure(numbers.error[:, :, -1].mean(1), numbers.objective[:, :, -1])


def the_value_is_leaned_on():
    goal = charged(at_end=True, lam=0.5, updates=150).objective[:, :, -1].mean(1)
    return goal[0] - goal[1]


# F6


def gold(beta, proxy=PROXY):
    return exact.J(WORLD, exact.tilted(proxy, REF, beta))


def the_scorer_has_no_flaw():
    values = [gold(beta, proxy=WORLD) for beta in (0.03, 0.1, 0.3, 0.5, 1.0, 10.0)]
    return max(values) / values[0]


def the_fee_of_4_is_charged_as_a_half():
    start = exact.J(WORLD, REF)
    return (gold(0.5) - start) / (gold(0.5) - start)


@cache
def held(beta, horizon):
    """A run that aims at 1.5 nats, or whose β is fixed."""
    leash = Leash("", beta, target=None if horizon is None else 1.5, horizon=horizon or 1)
    return train_leashed(WORLD, REF, [leash], seeds=2)


def missed(beta, horizon):
    return compute_steering(held(beta, horizon), target=1.5).missed_by(held(beta, horizon).leashes[0].what)[0]


def the_horizon_is_ignored():
    swing = held(1.0, 200).kl[..., -5:].std(axis=-1).mean()
    return swing / swing


FAULTS = {
    ("F2", "E[(R − βℓ) ∇ log π] against autograd's ∇F: off by"): the_fee_is_added,
    ("F2", "what is left out, E[∇ℓ]: largest of 584 entries"): samples_come_from_the_reference,
    ("F2", "fees and score from the word on: mean gradient off by"): a_word_does_not_pay_its_own_fee,
    ("F3", "π* by the formula against exact.tilted, 512 responses: off by"): beta_multiplies,
    ("F3", "1,000 other policies: the best one's F less that of π*"): the_reference_is_forgotten,
    ("F3", "F(π*) against β log Z: off by"): the_kl_runs_the_other_way,
    ("F3", "the gap is β KL(π‖π*) for each of them: off by"): the_gap_is_measured_the_other_way,
    ("F8", "k1 and k3 as values: largest bias at 18 policies, units of the KL"): values_of_samples_of_the_reference,
    ("F8", "k2 as a value: its bias at the far end, units of the KL"): k1_in_place_of_k2,
    ("F8", "near the reference: noise of k3 over that of k1"): the_exponent_of_k3_has_the_wrong_sign,
    ("F8", "k1 as a loss: length of its expected gradient over |∇KL|"): k1_on_old_samples,
    ("F8", "k2 of the response as a loss: relative error"): k2_is_summed_over_words,
    ("F8", "k3 as a loss: relative error"): k2_in_place_of_k3,
    ("F8", "k3 as a loss against ∇KL(π_ref‖π): relative error"): k3_is_held_against_the_kl,
    ("F8", "on old samples: least error of the three losses"): the_samples_are_fresh,
    ("F8", "k1 on old samples against −∇KL(π_old‖π): relative error"): k1_pulls_towards_the_old_policy,
    ("F4", "λ = 1 and exact V: advantages, a word against at the end, off by"): the_value_forgets_the_bill,
    ("F4", "λ = 0.95: V's error with a bill at the end, over that with fees a word"): (
        lambda: at_end_is_ignored(lambda error, goal: error[1] / error[0])
    ),
    ("F4", "λ = 0.5: V's error with a bill at the end, over that with fees a word"): (
        lambda: at_end_is_ignored(lambda error, goal: error[1] / error[0])
    ),
    ("F4", "λ = 0.5: points of F that the bill costs"): (
        lambda: at_end_is_ignored(lambda error, goal: goal[0].mean() - goal[1].mean())
    ),
    ("F4", "λ = 0.5: spread between seeds with a bill, over that with fees"): (
        lambda: at_end_is_ignored(lambda error, goal: goal[1].std() / goal[0].std())
    ),
    ("F4", "λ = 0.95: points of F that the bill costs"): the_value_is_leaned_on,
    ("F6", "the optimum's gold at its peak, over that of the smallest β"): the_scorer_has_no_flaw,
    ("F6", "β too low, 0.3: gold lost against β = 0.5, runs"): lambda: gold(0.5, WORLD) - gold(0.3, WORLD),
    ("F6", "β = 0: nats of entropy left of the reference's 6.2"): lambda: exact.entropy(exact.tilted(PROXY, REF, 1.0)),
    ("F6", "β too high, 4: share of the gain in gold that β = 0.5 has"): the_fee_of_4_is_charged_as_a_half,
    ("F6", "horizon 10,000, 200 updates of 16: β can change at most by a factor of"): lambda: (1 + 0.2 * 16 / 1_000) ** 200,
    ("F6", "horizon 200, first β of 1: off the target by"): lambda: missed(1.0, None),
    ("F6", "horizon 10,000, first β of 5: off the target by"): lambda: missed(5.0, 200),
    ("F6", "horizon 200, first β of 0.05: off the target by"): lambda: missed(1.0, 200),
    ("F6", "first β of 1: late swing with horizon 50, over that with 200"): the_horizon_is_ignored,
}


def test_every_claim_of_the_lesson_has_a_fault():
    assert FAULTS.keys() == bounds().keys()
    assert {id for id, _ in FAULTS} == {"F2", "F3", "F4", "F6", "F8"}


@pytest.mark.parametrize("claim", FAULTS, ids=lambda claim: f"{claim[0]} {claim[1]}")
def test_a_known_fault_leaves_the_bound(claim):
    figure = FAULTS[claim]()
    with pytest.raises(ClaimFailed):
        shows(*claim, figure, bounds()[claim])
