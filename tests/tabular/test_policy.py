"""Sampling, log-probs and scores of a table of logits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons.tabular import Policy, World, exact, random_policy, uniform_policy
from lessons.tabular.policy import softmax

WORLDS = [World(vocab=8, length=3), World(vocab=4, length=4, end=3)]


def uniforms(*size):
    return torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("world", WORLDS)
def test_samples_follow_the_probabilities_of_the_policy(world):
    policy, n = random_policy(world, seed=0), 200_000
    y = policy.sample((n,), seed=1)
    base = world.vocab ** torch.arange(world.length)
    numbers = (world.sequences * base).sum(dim=-1)
    counts = torch.bincount((y * base).sum(dim=-1), minlength=world.vocab**world.length)[numbers]
    assert counts.sum() == n  # every sample is one of the responses that there are
    probs = exact.sequence_probs(policy)
    z = (counts / n - probs) / (probs * (1 - probs) / n).sqrt()
    # Σ z² over k responses is about χ² with k degrees of freedom: mean k, standard deviation √(2k).
    k = len(probs)
    assert abs((z**2 * (1 - probs)).sum() - (k - 1)) < 4 * (2 * k) ** 0.5


def test_runs_sample_from_their_own_logits():
    world = World(vocab=3, length=2)
    logits = torch.zeros(2, world.rows, 3, dtype=torch.float64)
    logits[0, :, 1], logits[1, :, 2] = 50.0, 50.0
    y = Policy(world, logits).sample((5,), seed=0)
    assert (y[0] == 1).all()
    assert (y[1] == 2).all()


@pytest.mark.parametrize("world", WORLDS)
def test_log_probs_stored_while_sampling_are_those_of_scoring(world):
    policy = random_policy(world, seed=0, runs=(3,), scale=2.0)
    y, log_probs, pi = policy.sample_from(uniforms(3, 50, world.length))
    torch.testing.assert_close(log_probs, policy.log_probs(y), rtol=0, atol=0)
    torch.testing.assert_close(pi[0], policy.table[0][world.states(y)[0]], rtol=0, atol=1e-15)


def test_a_number_takes_the_token_in_whose_share_it_falls():
    world = World(vocab=4, length=1)
    policy = Policy(world, torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log())
    numbers = torch.tensor([0.0, 0.0999, 0.1001, 0.2999, 0.3001, 0.6001, 1 - 2**-53], dtype=torch.float64)
    assert policy.sample_from(numbers[:, None])[0][:, 0].tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_token_log_probs_by_hand():
    world = World(vocab=2, length=2)
    policy = Policy(world, torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64))
    expected = [0.5, torch.tensor(1.0).sigmoid().item()]  # state 1 holds the prefix 0
    torch.testing.assert_close(
        policy.log_probs(torch.tensor([0, 1])).exp(), torch.tensor(expected, dtype=torch.float64)
    )


def test_what_stands_behind_the_end_token_changes_nothing():
    world = World(vocab=4, length=4, end=3)
    policy = random_policy(world, seed=0)
    y, other = torch.tensor([1, 3, 3, 3]), torch.tensor([1, 3, 0, 2])
    weights = torch.tensor([1.0, 2.0, 100.0, torch.nan], dtype=torch.float64)
    assert policy.log_probs(y).equal(policy.log_probs(other))
    assert policy.log_probs(other)[2:].equal(torch.zeros(2, dtype=torch.float64))
    assert policy.score(y).equal(policy.score(other))
    torch.testing.assert_close(
        policy.score(other, weights), policy.score(y, torch.tensor([1.0, 2.0, 0.0, 0.0]).double())
    )


@pytest.mark.parametrize("world", WORLDS)
def test_score_is_the_gradient_of_the_log_prob(world):
    policy = random_policy(world, seed=0)
    y = policy.sample((20,), seed=1)
    weights = uniforms(*y.shape)
    for own_weights in (None, weights):
        logits = policy.logits.clone().requires_grad_()
        log_probs = Policy(world, logits).log_probs(y)
        summed = log_probs.sum(dim=-1) if own_weights is None else (weights * log_probs).sum(dim=-1)
        expected = torch.stack(
            [torch.autograd.grad(one, logits, retain_graph=True)[0].flatten() for one in summed]
        )
        torch.testing.assert_close(policy.score(y, own_weights), expected, rtol=0, atol=1e-14)


def test_score_sum_adds_the_scores_of_each_batch_and_each_run():
    world = WORLDS[1]
    policy = random_policy(world, seed=0, runs=(2,))
    y = policy.sample((3, 16), seed=1)
    weights = uniforms(*y.shape)
    by_hand = torch.stack(
        [
            Policy(world, policy.logits[run]).score(y[run, batch], weights[run, batch]).sum(dim=0)
            for run in range(2)
            for batch in range(3)
        ]
    )
    torch.testing.assert_close(policy.score_sum(y, weights), by_hand.view(2, 3, -1), rtol=0, atol=1e-13)


def test_the_same_seed_gives_the_same_samples():
    policy = uniform_policy(WORLDS[0])
    assert policy.sample((4, 5), seed=3).equal(policy.sample((4, 5), seed=3))
    assert not policy.sample((4, 5), seed=3).equal(policy.sample((4, 5), seed=4))


def test_moved_adds_to_the_logits_in_the_order_of_the_gradient():
    world = WORLDS[0]
    policy = random_policy(world, seed=0)
    step = torch.zeros(world.rows * world.vocab, dtype=torch.float64)
    step[2 * world.vocab + 5] = 1.0
    assert (policy.moved(step).logits - policy.logits).nonzero().tolist() == [[2, 5]]


@given(st.lists(st.floats(-700, 700), min_size=2, max_size=8))
def test_softmax_is_torchs_own(row):
    logits = torch.tensor(row, dtype=torch.float64)
    pi, log_pi = softmax(logits)
    torch.testing.assert_close(pi, logits.softmax(dim=-1))
    torch.testing.assert_close(log_pi, logits.log_softmax(dim=-1))


def test_logits_of_another_world_are_refused():
    with pytest.raises(ValueError, match=r"rows × vocab = \(73, 8\)"):
        Policy(WORLDS[0], torch.zeros(72, 8, dtype=torch.float64))
