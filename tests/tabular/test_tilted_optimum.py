"""The optimum under a KL penalty, π* ∝ π_ref exp(R/β), against a thousand policies at random and against its proof."""

import pytest
import torch

from lessons.tabular import Policy, World, exact, random_policy, uniform_policy

WORLDS = {
    "fixed": World(vocab=8, length=3),
    "ending": World(vocab=4, length=4, end=3, offset=1.0),
    "any reward": World(vocab=3, length=3, reward=lambda y: (2.0 * y[..., 0] - y[..., 1]) ** 2 - y[..., 2]),
}
BETAS = (0.05, 0.3, 1.0, 5.0)

each_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
each_beta = pytest.mark.parametrize("beta", BETAS)


def objective(world, policy, ref, beta):
    """E[R] − β KL(π‖π_ref)."""
    return exact.J(world, policy) - beta * exact.kl(policy, ref)


def a_thousand(world, ref, best):
    """Policies near and far: half of them around the reference, half around the optimum."""
    size = torch.tensor([0.01, 0.1, 0.5, 1.0, 3.0], dtype=torch.float64).repeat(100)[:, None, None]
    noise = random_policy(world, seed=1, runs=(2, 500)).logits
    return Policy(world, torch.cat([ref.logits + size * noise[0], best.logits + size * noise[1]]))


@each_world
@each_beta
def test_beats_a_thousand_random_policies(world, beta):
    ref = random_policy(world, seed=0)
    best = exact.tilted(world, ref, beta)
    others = a_thousand(world, ref, best)
    gaps = objective(world, best, ref, beta) - objective(world, others, ref, beta)
    assert gaps.shape == (1000,)
    assert gaps.min() >= -1e-10


@each_world
@each_beta
def test_wins_by_beta_times_the_kl_to_it(world, beta):
    ref = random_policy(world, seed=0)
    best = exact.tilted(world, ref, beta)
    others = a_thousand(world, ref, best)
    gaps = objective(world, best, ref, beta) - objective(world, others, ref, beta)
    tiled = Policy(world, best.logits.expand(1000, -1, -1))
    torch.testing.assert_close(gaps, beta * exact.kl(others, tiled), rtol=0, atol=1e-10)


@each_world
@each_beta
def test_is_worth_beta_log_z(world, beta):
    ref = random_policy(world, seed=0)
    y = world.sequences
    log_Z = (ref.log_probs(y).sum(dim=-1) + world.returns(y) / beta).logsumexp(dim=-1)
    worth = objective(world, exact.tilted(world, ref, beta), ref, beta)
    torch.testing.assert_close(worth, beta * log_Z, rtol=0, atol=1e-10)


def test_of_one_token_by_hand():
    # reference ½ and ½, returns 1 and 0, β = 1: π* = (e, 1)/(e + 1), worth log((e + 1)/2)
    world = World(vocab=2, length=1, target=(0,))
    ref = uniform_policy(world)
    best = exact.tilted(world, ref, 1.0)
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    torch.testing.assert_close(best.table[0], torch.stack([e, torch.ones_like(e)]) / (e + 1))
    torch.testing.assert_close(objective(world, best, ref, 1.0), ((e + 1) / 2).log())
