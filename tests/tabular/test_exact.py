"""Every exact value against another way to it: lists of all responses or batches, differences, samples."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons import rl
from lessons.tabular import Policy, World, exact, random_policy, uniform_policy

FIXED = World(vocab=8, length=3, offset=10.0)
ENDING = World(vocab=4, length=4, end=3, offset=1.0)
TINY = World(vocab=3, length=2, end=0, reward=lambda y: (2.0 * y[..., 0] - y[..., 1]) ** 2)
WORLDS = [FIXED, ENDING, World(vocab=4, length=4, end=1, pays="token"), TINY]

each_world = pytest.mark.parametrize("world", WORLDS)


def assert_equal(actual, expected, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def listed(world, policy):
    """Every response with its probability, return and score, by the definitions."""
    y = world.sequences
    table = policy.logits.softmax(dim=-1)
    probs = torch.where(world.mask(y), table[world.states(y), y], 1).prod(dim=-1)
    return y, probs, world.returns(y), policy.score(y)


@each_world
def test_probabilities_of_all_responses_are_products_and_sum_to_one(world):
    policy = random_policy(world, seed=0)
    _, probs, _, _ = listed(world, policy)
    assert_equal(exact.sequence_probs(policy), probs, atol=1e-14)
    assert_equal(probs.sum(), torch.tensor(1.0).double(), atol=1e-13)


@each_world
def test_expected_return_is_the_sum_over_all_responses(world):
    policy = random_policy(world, seed=0)
    _, probs, returns, _ = listed(world, policy)
    assert_equal(exact.J(world, policy), (probs * returns).sum())


@each_world
def test_gradient_is_the_sum_over_all_responses_of_return_times_score(world):
    policy = random_policy(world, seed=0)
    _, probs, returns, score = listed(world, policy)
    assert_equal(exact.gradient(world, policy), (probs * returns) @ score)


@each_world
def test_gradient_is_that_of_autograd_and_of_finite_differences(world):
    policy = random_policy(world, seed=0)
    logits = policy.logits.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(exact.J(world, Policy(world, logits)), logits)
    gradient = exact.gradient(world, policy)
    assert_equal(gradient, by_autograd.flatten())
    for seed in range(3):
        x = random_policy(world, seed=seed + 1).logits.flatten()
        h = 1e-4
        slope = (exact.J(world, policy.moved(h * x)) - exact.J(world, policy.moved(-h * x))) / (2 * h)
        assert_equal(slope, gradient @ x, atol=1e-6)


def test_sampled_expected_return_and_gradient_come_to_the_exact_ones():
    policy, n = random_policy(FIXED, seed=0), 100_000
    y = policy.sample((n,), seed=1)
    returns = FIXED.returns(y)
    assert abs(returns.mean() - exact.J(FIXED, policy)) < 4 * returns.std() / n**0.5
    weights = returns[:, None].expand(y.shape)
    estimate = policy.score_sum(y, weights) / n
    variance = exact.moments(policy, FIXED.returns(FIXED.sequences)[:, None].expand(512, 3)).variance / n
    error = (estimate - exact.gradient(FIXED, policy)).square().sum()
    # The squared error has mean `variance`; its standard deviation is below √2 times that.
    assert error < (1 + 4 * 2**0.5) * variance


@each_world
def test_values_are_mean_rewards_to_go_of_the_responses_that_come_by(world):
    policy = random_policy(world, seed=0)
    y, probs, _, _ = listed(world, policy)
    mask, states = world.mask(y), world.states(y)
    to_go = rl.returns(world.rewards(y), mask)
    visits, values, q = torch.zeros(world.rows), torch.zeros(world.rows), torch.zeros(world.rows, world.vocab)
    visits, values, q = visits.double(), values.double(), q.double()
    taken = torch.zeros_like(q)
    for i, t in itertools.product(range(len(y)), range(world.length)):
        if mask[i, t]:
            state, token = states[i, t], y[i, t]
            visits[state] += probs[i]
            values[state] += probs[i] * to_go[i, t]
            taken[state, token] += probs[i]
            q[state, token] += probs[i] * to_go[i, t]
    reached = visits > 0
    assert_equal(exact.visits(policy), visits)
    assert_equal(exact.values(world, policy)[reached], (values / visits)[reached])
    assert_equal(exact.q_values(world, policy)[reached], (q / taken)[reached])
    assert_equal(exact.advantages(world, policy)[reached], (q / taken - (values / visits)[:, None])[reached])
    assert (exact.values(world, policy)[~reached] == 0).all()


@each_world
def test_kl_and_entropy_are_sums_over_all_responses(world):
    p, q = random_policy(world, seed=0), random_policy(world, seed=1)
    probs, other = exact.sequence_probs(p), exact.sequence_probs(q)
    assert_equal(exact.kl(p, q), (probs * (probs / other).log()).sum())
    assert_equal(exact.entropy(p), -(probs * probs.log()).sum())


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_kl_is_never_negative_and_zero_to_itself(seed, other_seed):
    p, q = random_policy(ENDING, seed), random_policy(ENDING, other_seed)
    assert exact.kl(p, q) >= -1e-12
    assert_equal(exact.kl(p, p), torch.tensor(0.0).double())


def test_entropy_of_the_uniform_policy_is_three_times_log_eight():
    assert_equal(exact.entropy(uniform_policy(FIXED)), 3 * torch.tensor(8.0).double().log())


@each_world
@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_tilted_policy_gives_each_response_the_reference_times_exp_of_its_return(world, beta):
    ref = random_policy(world, seed=0)
    weights = exact.sequence_probs(ref) * ((world.returns(world.sequences) - world.offset) / beta).exp()
    assert_equal(exact.sequence_probs(exact.tilted(world, ref, beta)), weights / weights.sum())


def test_tilted_policy_beats_a_thousand_others_on_the_penalised_return():
    ref, beta = random_policy(ENDING, seed=0), 0.5

    def penalised(policy):
        return exact.J(ENDING, policy) - beta * exact.kl(
            policy, Policy(ENDING, ref.logits.expand_as(policy.logits))
        )

    optimum = exact.tilted(ENDING, ref, beta)
    near = Policy(ENDING, optimum.logits + 0.1 * random_policy(ENDING, seed=1, runs=(500,)).logits)
    for others in (random_policy(ENDING, seed=2, runs=(500,)), near):
        assert (penalised(others) <= penalised(optimum) + 1e-10).all()


@each_world
def test_fisher_is_the_mean_of_score_times_score_and_zero_outside_its_blocks(world):
    if world.rows * world.vocab > 400:
        world = World(vocab=4, length=3, offset=10.0)
    policy = random_policy(world, seed=0)
    _, probs, _, score = listed(world, policy)
    dense = torch.einsum("y,yi,yj->ij", probs, score, score)
    assert_equal(torch.block_diag(*exact.fisher(policy)), dense)


def test_fisher_is_the_curvature_of_the_kl():
    policy = random_policy(ENDING, seed=0)
    x = random_policy(ENDING, seed=1).logits
    quadratic = torch.einsum("sa,sab,sb->", x, exact.fisher(policy), x) / 2
    h = 1e-3
    assert_equal(exact.kl(policy, policy.moved(h * x.flatten())) / h**2, quadratic, atol=1e-2 * quadratic)


@each_world
def test_natural_gradient_is_the_pseudo_inverse_of_fisher_times_gradient(world):
    policy = random_policy(world, seed=0)
    y = policy.sample((16,), seed=1)
    sampled = policy.score_sum(y, world.returns(y)[:, None].expand(y.shape))
    inverse = torch.linalg.pinv(exact.fisher(policy), hermitian=True)
    for gradient in (exact.gradient(world, policy), sampled):
        expected = (inverse @ gradient.view(world.rows, world.vocab, 1)).flatten()
        assert_equal(exact.natural_gradient(policy, gradient), expected, atol=1e-8)


def test_natural_gradient_of_the_exact_gradient_is_the_centred_advantage():
    policy = random_policy(FIXED, seed=0)
    advantages = exact.advantages(FIXED, policy)
    x = exact.natural_gradient(policy, exact.gradient(FIXED, policy))
    assert_equal(x, (advantages - advantages.mean(dim=-1, keepdim=True)).flatten())


def test_natural_gradient_leaves_alone_what_changes_no_response():
    policy = random_policy(ENDING, seed=0)
    x = exact.natural_gradient(policy, exact.gradient(ENDING, policy)).view(ENDING.rows, ENDING.vocab)
    assert (x[exact.visits(policy) == 0] == 0).all()
    assert_equal(x.sum(dim=-1), torch.zeros(ENDING.rows).double())


def all_batches(world, policy, batch):
    """Every batch of `batch` responses, with its probability."""
    n = len(world.sequences)
    index = torch.cartesian_prod(*[torch.arange(n)] * batch).view(-1, batch)
    return index, exact.sequence_probs(policy)[index].prod(dim=-1)


def assert_moments(moments, probs, estimates):
    mean = probs @ estimates
    assert_equal(moments.mean, mean)
    assert_equal(moments.variance, probs @ (estimates - mean).square().sum(dim=-1))


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_moments_of_independent_terms_are_those_over_all_batches(batch):
    policy = random_policy(TINY, seed=0)
    y = TINY.sequences
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index, probs = all_batches(TINY, policy, batch)
    terms = policy.score(y, weights)
    assert_moments(exact.moments(policy, weights, batch), probs, terms[index].mean(dim=1))


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_moments_with_a_baseline_from_the_batch_are_those_over_all_batches(batch):
    policy = random_policy(TINY, seed=0)
    _, _, returns, score = listed(TINY, policy)
    index, probs = all_batches(TINY, policy, batch)
    R, s = returns[index], score[index]
    others = (R.sum(dim=1, keepdim=True) - R) / (batch - 1)
    assert_moments(
        exact.leave_one_out_moments(TINY, policy, batch), probs, ((R - others)[..., None] * s).mean(dim=1)
    )
    mean = R.mean(dim=1, keepdim=True)
    assert_moments(
        exact.batch_mean_moments(TINY, policy, batch), probs, ((R - mean)[..., None] * s).mean(dim=1)
    )


@pytest.mark.parametrize("world", [FIXED, ENDING])
def test_sampled_estimates_scatter_as_their_exact_variance_says(world):
    policy, batches, batch = random_policy(world, seed=0), 4_000, 16
    y = policy.sample((batches, batch), seed=1)
    R = world.returns(y)
    returns = world.returns(world.sequences)[:, None].expand(world.sequences.shape)
    others = (R.sum(dim=1, keepdim=True) - R) / (batch - 1)
    for weights, (mean, variance) in (
        (R, exact.moments(policy, returns, batch)),
        (R - others, exact.leave_one_out_moments(world, policy, batch)),
        (R - R.mean(dim=1, keepdim=True), exact.batch_mean_moments(world, policy, batch)),
    ):
        estimates = policy.score_sum(y, weights[..., None].expand(y.shape)) / batch
        distances = (estimates - mean).square().sum(dim=-1)
        assert abs(distances.mean() - variance) < 4 * distances.std() / batches**0.5


def test_moments_hold_for_each_run_alone():
    policy = random_policy(ENDING, seed=0, runs=(2, 2))
    weights = ENDING.returns(ENDING.sequences)[:, None].expand(ENDING.sequences.shape)
    mean, variance = exact.moments(policy, weights, 16)
    loo_mean, loo_variance = exact.leave_one_out_moments(ENDING, policy, 16)
    for i, j in itertools.product(range(2), range(2)):
        own = Policy(ENDING, policy.logits[i, j])
        assert_equal(mean[i, j], exact.moments(own, weights, 16).mean)
        assert_equal(variance[i, j], exact.moments(own, weights, 16).variance)
        assert_equal(loo_mean[i, j], exact.leave_one_out_moments(ENDING, own, 16).mean)
        assert_equal(loo_variance[i, j], exact.leave_one_out_moments(ENDING, own, 16).variance)


@each_world
def test_a_baseline_moves_no_mean(world):
    """Constant, or of the state; and GAE with λ = 1 is unbiased however wrong its values are."""
    policy = random_policy(world, seed=0)
    y, mask = world.sequences, world.mask(world.sequences)
    to_go = rl.returns(world.rewards(y), mask)
    b = torch.randn(world.rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[
        world.states(y)
    ]
    gradient = exact.gradient(world, policy)
    for weights in (to_go, to_go - 7.0, to_go - b, rl.gae(world.rewards(y), b, mask, lam=1.0)):
        assert_equal(exact.moments(policy, weights).mean, gradient)


def test_values_of_another_world_are_refused():
    policy = uniform_policy(FIXED)
    for function in (exact.J, exact.values, exact.gradient):
        with pytest.raises(ValueError, match="vocab, length and end must agree"):
            function(World(vocab=8, length=3, end=0), policy)


def test_bad_beta_and_batch_are_refused():
    policy = uniform_policy(TINY)
    with pytest.raises(ValueError, match="beta must be positive"):
        exact.tilted(TINY, policy, 0.0)
    with pytest.raises(ValueError, match="at least 2 responses"):
        exact.leave_one_out_moments(TINY, policy, 1)
    with pytest.raises(ValueError, match="at least 1 response"):
        exact.moments(policy, torch.ones(TINY.sequences.shape, dtype=torch.float64), 0)
