"""The pictures of lesson 6: their numbers against direct computations, what they draw, what they say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessons import rl
from lessons.live.figure import png
from lessons.panels import kl_leash
from lessons.panels.kl_leash import (
    DensityArtists,
    FlawArtists,
    FrontierArtists,
    Leash,
    LossesArtists,
    SpreadArtists,
    SteeringArtists,
    compute_density,
    compute_flaw,
    compute_frontier,
    compute_losses,
    compute_spread,
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

WORLD = World(vocab=8, length=3)
SMALL = World(vocab=3, length=2)
ENDING = World(vocab=3, length=3, end=2)
REF = seldom_repeats(WORLD)

each_tree = pytest.mark.parametrize("world", [SMALL, ENDING], ids=["fixed", "ending"])


def drawn_twice(artists, numbers, check_picture):
    """Draws each and checks the pictures, which must differ; the first drawn again is the first again."""
    pictures = []
    for one in (*numbers, numbers[0]):
        artists.draw(one)
        check_picture(artists.figure)
        pictures.append(png(artists.figure))
    assert pictures[0] == pictures[-1] != pictures[1]


class TestWorlds:
    def test_the_reference_gives_the_last_token_less_and_all_others_the_same(self):
        y = torch.tensor([[2, 2, 2], [2, 5, 2]])
        again = math.exp(-1) / (7 + math.exp(-1))
        other = 1 / (7 + math.exp(-1))
        expected = torch.tensor([[1 / 8, again, again], [1 / 8, other, other]], dtype=torch.float64)
        torch.testing.assert_close(REF.log_probs(y).exp(), expected)

    def test_the_flaw_pays_for_every_such_token(self):
        proxy = flawed(WORLD, token=5, bonus=2.0)
        y = torch.tensor([[5, 5, 5], [2, 5, 0], [2, 1, 0]])
        assert proxy.returns(y).tolist() == [7, 5, 2]

    def test_the_flaw_pays_nothing_behind_the_end(self):
        proxy = flawed(ENDING, token=2, bonus=2.0)
        y = torch.tensor([[0, 2, 2], [2, 2, 2]])
        assert (proxy.returns(y) - ENDING.returns(y)).tolist() == [2, 2]


class TestFrontier:
    def test_numbers_are_direct_ones(self):
        others = random_policy(WORLD, seed=0, runs=(5,))
        numbers = compute_frontier(WORLD, REF, (0.3, 2.0), others)
        assert numbers.betas == (2.0, 0.3)
        y, R = WORLD.sequences, WORLD.returns(WORLD.sequences)
        for beta, kl, reward in zip(numbers.betas, numbers.kl, numbers.reward):
            weights = (REF.log_probs(y).sum(-1) + R / beta).exp()
            pi = weights / weights.sum()
            assert kl == pytest.approx((pi * (pi.log() - REF.log_probs(y).sum(-1))).sum().item())
            assert reward == pytest.approx((pi @ R).item())
        assert numbers.other_kl == pytest.approx(exact.kl(others, REF).numpy())
        assert numbers.other_reward == pytest.approx(exact.J(WORLD, others).numpy())
        assert "β = 0.3" in numbers.alt and "0 of 5 other policies" in numbers.alt

    def test_counts_those_above(self):
        numbers = compute_frontier(WORLD, REF, (0.5,), random_policy(WORLD, seed=0, runs=(3,)))
        better = numbers.other_reward + np.array([0.0, 5.0, 5.0])
        assert numbers.above == 0
        assert replace(numbers, other_reward=better).above == 2

    def test_is_drawn_and_drawn_again(self, check_picture):
        betas, others = (0.2, 0.5, 1.0, 4.0), random_policy(WORLD, seed=0, runs=(20,))
        numbers = [compute_frontier(world, REF, betas, others) for world in (WORLD, flawed(WORLD, 5, 1.0))]
        artists = FrontierArtists((0.5, 1.0))
        drawn_twice(artists, numbers, check_picture)
        assert artists.line.get_ydata() == pytest.approx(numbers[0].reward)
        assert artists.dots.get_xdata() == pytest.approx(numbers[0].kl[[2, 1]])


class TestValues:
    def test_by_hand(self):
        # one token: π = (¾, ¼), π_ref = (½, ½)
        coin = World(vocab=2, length=1, target=(0,))
        policy, ref = (Policy(coin, torch.tensor([[x, 0.0]], dtype=torch.float64)) for x in (math.log(3), 0.0))
        a, b = math.log(1.5), -math.log(2)
        for name, (x, y) in {"k1": (a, b), "k2": (a * a / 2, b * b / 2), "k3": (a - 1 / 3, 1 + b)}.items():
            mean, deviation = 0.75 * x + 0.25 * y, math.sqrt(3 / 16) * abs(x - y)
            assert value_moments(policy, ref)[name] == pytest.approx((mean, deviation))

    @each_tree
    def test_on_samples_of_another_policy(self, world):
        policy, ref, old = (random_policy(world, seed) for seed in range(3))
        sampled = rl.k3(*(p.log_probs(old.sample((40_000,), seed=0)).sum(-1) for p in (policy, ref)))
        mean, deviation = value_moments(policy, ref, old)["k3"]
        assert abs(sampled.mean() - mean) < 4 * deviation / 200
        assert abs(mean - exact.kl(policy, ref)) > 0.1

    def test_spread_is_relative_to_the_kl_and_drawn(self, check_picture):
        paths = [[exact.tilted(world, REF, beta) for beta in (4.0, 1.0, 0.4)] for world in (WORLD, flawed(WORLD, 5, 1.0))]
        numbers = [compute_spread(path, REF) for path in paths]
        mean, deviation = value_moments(paths[0][1], REF)["k2"]
        kl = exact.kl(paths[0][1], REF).item()
        assert numbers[0].bias["k2"][1] == pytest.approx(mean / kl - 1)
        assert numbers[0].deviation["k2"][1] == pytest.approx(deviation / kl)
        assert "k2: bias from 0." in numbers[0].alt
        artists = SpreadArtists()
        drawn_twice(artists, numbers, check_picture)
        assert artists.lines[1][2].get_ydata() == pytest.approx(numbers[0].deviation["k3"])


class TestLosses:
    @each_tree
    def test_gradient_of_the_kl_is_autograds(self, world):
        policy, ref = random_policy(world, seed=0), random_policy(world, seed=1)
        moving = Policy(world, policy.logits.clone().requires_grad_())
        (expected,) = torch.autograd.grad(exact.kl(moving, ref), moving.logits)
        torch.testing.assert_close(kl_gradient(policy, ref), expected.flatten())

    @each_tree
    def test_expected_gradients_are_means_of_the_formulas(self, world):
        policy, ref, old = (random_policy(world, seed) for seed in range(3))
        y = world.sequences
        ell = (policy.log_probs(y) - ref.log_probs(y)).sum(-1)
        factors = {"k1": torch.ones_like(ell), "k2": ell, "k3": 1 - torch.exp(-ell)}
        for sampler in (None, old):
            probs = exact.sequence_probs(sampler or policy)
            for name, gradient in loss_gradients(policy, ref, sampler).items():
                torch.testing.assert_close(gradient, (probs * factors[name]) @ policy.score(y))

    def test_errors_at_the_sampler_and_away_are_drawn(self, check_picture):
        sampler = exact.tilted(WORLD, REF, 1.0)
        ways = [[sampler, exact.tilted(WORLD, REF, beta)] for beta in (0.5, 0.7)]
        numbers = [compute_losses(sampler, way, REF) for way in ways]
        first = numbers[0]
        assert first.drift == pytest.approx([0, exact.kl(sampler, ways[0][1]).item()], abs=1e-12)
        assert first.error["k1"][0] == pytest.approx(1) and first.error["k2"][0] < 1e-10
        assert all(error[1] > 0.1 for error in first.error.values())
        assert "k1 from 1.00" in first.alt
        artists = LossesArtists()
        drawn_twice(artists, numbers, check_picture)
        assert artists.lines[1].get_ydata() == pytest.approx(first.error["k2"])


class TestLeashedValues:
    @each_tree
    @pytest.mark.parametrize("at_end", [False, True])
    def test_are_mean_returns_of_the_responses_that_come_by(self, world, at_end):
        policy, ref, beta = random_policy(world, seed=0), random_policy(world, seed=1), 0.7
        y, probs, mask = world.sequences, exact.sequence_probs(policy), world.mask(world.sequences)
        r = rl.per_token_rewards(world.returns(y), policy.log_probs(y), ref.log_probs(y), mask, beta)
        R = r.sum(-1, keepdim=True).expand(r.shape) if at_end else rl.returns(r, mask)
        values, states = leashed_values(world, policy, ref, beta, at_end), world.states(y)
        for row in range(world.rows):
            by = (states == row) & mask
            if by.any():
                weight = probs[:, None] * by
                assert values[row].item() == pytest.approx(((weight * R).sum() / weight.sum()).item())

    def test_take_a_beta_for_every_run(self):
        policy, betas = random_policy(SMALL, seed=0, runs=(2,)), torch.tensor([0.1, 2.0], dtype=torch.float64)
        ref = random_policy(SMALL, seed=1)
        both = leashed_values(SMALL, policy, ref, betas, at_end=True)
        for i, beta in enumerate(betas):
            alone = leashed_values(SMALL, Policy(SMALL, policy.logits[i]), ref, float(beta), at_end=True)
            torch.testing.assert_close(both[i], alone)


class TestTraining:
    @each_tree
    @pytest.mark.parametrize(
        "leash", [Leash("a", 0.4, lam=0.5), Leash("b", 0.4, at_end=True, lam=0.5), Leash("c", 0.4, target=0.1, horizon=40)]
    )
    def test_is_what_a_plain_loop_makes_of_one_run(self, world, leash):
        ref = random_policy(world, seed=1)
        runs = train_leashed(world, ref, [leash], seeds=1, updates=3, batch=5, every=2)
        logits, V = ref.logits.clone().requires_grad_(), torch.zeros(world.rows, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([{"params": [logits], "lr": 0.05}, {"params": [V], "lr": 0.1}])
        stream, beta = torch.Generator().manual_seed(0), leash.beta
        for _ in range(3):
            policy = Policy(world, logits)
            y, _, _ = policy.sample_from(torch.rand(1, 5, world.length, generator=stream, dtype=torch.float64))
            y = y[0]
            mask, log_probs, v = world.mask(y), policy.log_probs(y), V[world.states(y)]
            ell = (log_probs - ref.log_probs(y)).detach()
            r = -beta * ell
            last = mask.sum(-1) - 1
            rows = torch.arange(len(y))
            r[rows, last] += world.returns(y)
            if leash.at_end:
                total = r.sum(-1)
                r = torch.zeros_like(r)
                r[rows, last] = total
            A_hat = rl.gae(r, v.detach(), mask, lam=leash.lam)
            loss = rl.reinforce(log_probs, A_hat, mask) + rl.value_loss(v, v, A_hat + v.detach(), mask)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if leash.target is not None:
                error = float(np.clip(ell.sum(-1).mean().item() / leash.target - 1, -0.2, 0.2))
                beta *= 1 + error * 5 / leash.horizon
        torch.testing.assert_close(runs.policy.logits[0, 0], logits.detach())
        assert runs.beta[0, 0, -1] == pytest.approx(beta)
        assert runs.update.tolist() == [0, 2, 3]
        policy = Policy(world, logits.detach())
        assert runs.kl[0, 0, -1] == pytest.approx(exact.kl(policy, ref).item())
        assert runs.reward[0, 0, -1] == pytest.approx(exact.J(world, policy).item())
        weight = exact.visits(policy)
        off = V.detach() - leashed_values(world, policy, ref, beta, leash.at_end)
        assert runs.value_error[0, 0, -1] == pytest.approx(((weight * off**2).sum() / weight.sum()).sqrt().item())

    def test_starts_at_the_reference(self):
        runs = train_leashed(SMALL, seldom_repeats(SMALL), [Leash("x", 1.0)], seeds=2, updates=1)
        assert runs.kl[..., 0] == pytest.approx(0, abs=1e-12)

    def test_a_bad_beta_gets_one_clear_line(self):
        with pytest.raises(ValueError, match="beta must be at least 0"):
            train_leashed(SMALL, seldom_repeats(SMALL), [Leash("x", -1.0)], seeds=1)


def runs_of(leashes, world=SMALL, seeds=3, updates=20):
    return train_leashed(world, seldom_repeats(world), leashes, seeds, updates, every=5)


class TestDensity:
    LEASHES = (Leash("a word", 0.5, lam=0.5), Leash("at the end", 0.5, at_end=True, lam=0.5))

    def test_objective_is_reward_less_the_fee_and_is_drawn(self, check_picture):
        runs = runs_of(self.LEASHES)
        numbers = compute_density(runs)
        assert numbers.objective == pytest.approx(runs.reward - 0.5 * runs.kl)
        assert numbers.error is runs.value_error
        assert "After 20 updates, mean of 3 seeds: a word: values off by" in numbers.alt
        artists = DensityArtists(numbers.names, 20)
        drawn_twice(artists, [numbers, compute_density(runs_of([replace(x, beta=2.0) for x in self.LEASHES]))], check_picture)
        assert artists.lines[0][1].get_ydata() == pytest.approx(numbers.error[1].mean(axis=0))

    def test_needs_two_seeds(self):
        with pytest.raises(ValueError, match="at least 2"):
            compute_density(runs_of(self.LEASHES, seeds=1))


class TestSteering:
    def test_takes_the_last_quarter_and_is_drawn(self, check_picture):
        leashes = [Leash("", b, target=t, horizon=h) for t, h in ((None, 1), (0.2, 1000), (0.2, 50)) for b in (0.1, 1.0)]
        runs = runs_of(leashes, updates=35)  # measured at 0, 5, …, 35: the last quarter is 30 and 35
        numbers = compute_steering(runs, target=0.2)
        assert numbers.names == ("fixed", "horizon 1,000", "horizon 50") and numbers.betas == (0.1, 1.0)
        expected = runs.kl[3, :, -2:].mean(axis=-1)
        assert numbers.kl[1, 1] == pytest.approx(expected)
        missed = np.abs(expected - 0.2).mean() / 0.2
        assert numbers.missed_by("horizon 1,000")[1] == pytest.approx(missed)
        assert "for a first β of 0.1, 1. fixed: " in numbers.alt
        artists = SteeringArtists(numbers.names, numbers.betas)
        drawn_twice(artists, [numbers, replace(numbers, kl=numbers.kl / 2, target=0.1)], check_picture)
        assert artists.lines[2].get_ydata() == pytest.approx(numbers.kl[2].mean(axis=-1))


class TestFlaw:
    def test_shows_both_scores_of_the_proxys_optimum_and_is_drawn(self, check_picture):
        proxy, betas = flawed(WORLD, 5, 2.0), (0.05, 0.5, 4.0)
        runs = train_leashed(proxy, REF, [Leash("", 0.5), Leash("", 4.0)], seeds=2, updates=10)
        numbers = compute_flaw(WORLD, proxy, REF, betas, runs)
        best = exact.tilted(proxy, REF, 0.5)
        assert numbers.proxy[1] == pytest.approx(exact.J(proxy, best).item())
        assert numbers.gold[1] == pytest.approx(exact.J(WORLD, best).item())
        assert numbers.best == 0.5
        assert numbers.run_gold == pytest.approx(exact.J(WORLD, runs.policy).numpy())
        assert "at β = 0.5, and ends at 1.00" in numbers.alt
        artists = FlawArtists(2)
        drawn_twice(artists, [numbers, compute_flaw(WORLD, flawed(WORLD, 5, 1.5), REF, betas, runs)], check_picture)
        assert artists.lines[1].get_ydata() == pytest.approx(numbers.gold[numbers.kl.argsort()])


def test_each_figure_comes_with_its_sentence():
    runs = runs_of([Leash("fee", 0.5), Leash("bill", 0.5, at_end=True)])
    ref, path = seldom_repeats(SMALL), [exact.tilted(SMALL, seldom_repeats(SMALL), beta) for beta in (2.0, 0.5)]
    others = random_policy(SMALL, seed=0, runs=(3,))
    for _, alt in (
        kl_leash.frontier(SMALL, ref, (0.5, 2.0), others, named=(0.5,)),
        kl_leash.spread_of_values(path, ref),
        kl_leash.errors_of_losses(path[0], path, ref),
        kl_leash.density(runs),
        kl_leash.steering(runs_of([Leash("", 0.5), Leash("", 1.0)]), target=0.5),
        kl_leash.flaw(SMALL, flawed(SMALL, 0, 1.0), ref, (0.5, 2.0), runs),
    ):
        assert alt.endswith(".") and len(alt.split()) > 10
