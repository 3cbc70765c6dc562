"""The pictures of the lesson on trust regions: their numbers, what they draw, what they say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lessons import rl
from lessons.live.figure import png
from lessons.live.style import COLOURS
from lessons.panels import trust_regions as panels
from lessons.tabular import Learner, Policy, World, exact, random_policy, train

SMALL = World(vocab=3, length=2, target=(2, 0))
EIGHT = World(vocab=8, length=3)


def right(world=SMALL, probability=0.4):
    return panels.right_with(world, probability)


def learners(**settings):
    return [Learner("PPO-clip", baseline="mean", passes=2, epsilon=0.2, **settings), Learner("TRPO", baseline="mean", delta=0.1)]


class TestRightWith:
    @pytest.mark.parametrize("probability", [0.01, 0.25, 0.99])
    def test_gives_the_targets_token_its_probability_in_every_state(self, probability):
        table = right(EIGHT, probability).table
        for level, token in zip(EIGHT.levels, EIGHT.target, strict=True):
            assert table[level, token].numpy() == pytest.approx(probability)
        assert exact.J(EIGHT, right(EIGHT, probability)).item() == pytest.approx(3 * probability)

    @pytest.mark.parametrize("probability", [0.0, 1.0, -1.0])
    def test_refuses_what_is_no_probability_of_a_softmax(self, probability):
        with pytest.raises(ValueError, match="between 0 and 1"):
            right(EIGHT, probability)


def test_a_batch_comes_with_its_returns_less_their_mean_on_every_token():
    y, advantages = panels.sampled(SMALL, panels.copies(right(), 2), batch=5, seed=3)
    R = SMALL.returns(y)
    assert y.shape == advantages.shape == (2, 5, 2)
    for run in range(2):
        for i in range(5):
            assert advantages[run, i].tolist() == pytest.approx([(R[run, i] - R[run].mean()).item()] * 2)


class TestDirections:
    def test_are_the_two_sums(self):
        numbers = panels.compute_directions(old=0.3, least=0.01)
        p, q = np.array([0.3, 0.7]), np.array([numbers.new[7], 1 - numbers.new[7]])
        assert numbers.old_new[7] == pytest.approx((p * np.log(p / q)).sum())
        assert numbers.new_old[7] == pytest.approx((q * np.log(q / p)).sum())
        assert "2.42 nats, KL(new‖old) only 0.68" in panels.compute_directions().alt

    @pytest.mark.parametrize("old", [0.01, 0.5, 0.99])
    def test_can_be_drawn(self, old, check_picture):
        figure, alt = panels.directions(old)
        check_picture(figure)
        assert "old policy" in alt


class TestTooFar:
    def test_is_one_step_along_the_batchs_gradient(self):
        numbers = panels.compute_too_far(SMALL, right(), sizes=(0.5, 50.0), seeds=3, later=0, batch=4)
        old = panels.copies(right(), 3)
        y = old.sample((4,), seed=0)
        R = SMALL.returns(y)
        for seed in range(3):
            g_hat = ((R[seed] - R[seed].mean())[:, None] * right().score(y[seed])).mean(dim=0)
            moved = right().moved(50.0 * g_hat)
            assert numbers.J_after[1, seed] == pytest.approx(exact.J(SMALL, moved).item())
            assert numbers.kl[1, seed] == pytest.approx(exact.kl(right(), moved).item())
        assert (numbers.J_later == numbers.J_after).all()
        assert numbers.start == pytest.approx(0.8)

    def test_equal_responses_have_equal_returns(self):
        numbers = panels.compute_too_far(SMALL, right(), sizes=(1.0, 1000.0), seeds=5, later=0)
        assert (numbers.same <= numbers.silent).all()
        assert numbers.silent[1].mean() > 0.5

    def test_a_seed_is_stuck_below_two_and_a_half(self):
        numbers = panels.compute_too_far(EIGHT, right(EIGHT), sizes=(1.0,), seeds=4, later=0)
        assert replace(numbers, J_later=np.array([[2.49, 2.51, 3.0, 0.1]])).stuck.tolist() == [0.5]

    @pytest.mark.parametrize("given", [{"sizes": (1e-3, 1e4)}, {"sizes": (1.0, 10.0), "batch": 2}, {"seeds": 2}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        figure, alt = panels.too_far(panels.compute_too_far(EIGHT, right(EIGHT), **{"seeds": 3, "later": 2, **given}))
        check_picture(figure)
        assert "of seeds stuck" in alt


class TestLeashes:
    def test_are_the_runs_of_train_with_exact_J_and_KL(self):
        numbers = panels.compute_leashes(SMALL, right(), learners(), seeds=3, updates=2, batch=4)
        before, after = (
            train(SMALL, learners(), range(3), updates, batch=4, start=right()).policy for updates in (1, 2)
        )
        assert numbers.J[:, 2] == pytest.approx(exact.J(SMALL, after).numpy())
        assert numbers.kl[:, 1] == pytest.approx(exact.kl(before, after).numpy())
        assert numbers.J[:, 0] == pytest.approx(np.full((2, 3), 0.8))
        assert numbers.of("TRPO")[1].max() <= 0.1

    def test_both_pictures_can_be_drawn(self, check_picture):
        numbers = panels.compute_leashes(EIGHT, right(EIGHT), learners(), seeds=3, updates=4)
        for figure, alt in (panels.leashes(numbers, bound=0.1), panels.penalties(numbers, target=0.06)):
            check_picture(figure)
            assert "TRPO" in alt
            assert "dashed line" in alt


class TestSharedWeights:
    def test_begin_as_the_given_policy(self):
        policy = panels.SharedWeights(right(EIGHT), runs=2).policy()
        assert torch.allclose(policy.table, right(EIGHT).table.expand(2, -1, -1))

    def test_are_the_sum_of_position_and_earlier_tokens_times_U(self):
        weights = panels.SharedWeights(right(EIGHT), runs=2)
        with torch.no_grad():
            for i, parameter in enumerate(weights.parameters):
                parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        positions, tokens, U = weights.parameters
        logits = weights.policy().logits
        assert torch.allclose(logits[1, 0], positions[1, 0] @ U[1])
        y = torch.tensor([5, 3, 0])
        states = EIGHT.states(y)
        assert torch.allclose(logits[1, states[1]], (positions[1, 1] + tokens[1, 0, 5]) @ U[1])
        by_hand = (positions[1, 2] + tokens[1, 0, 5] + tokens[1, 1, 3]) @ U[1]
        assert torch.allclose(logits[1, states[2]], by_hand)

    def test_refuse_a_policy_that_depends_on_more_than_the_position(self):
        with pytest.raises(ValueError, match="same logits in all states"):
            panels.SharedWeights(random_policy(EIGHT, seed=0), runs=1)


class TestBeyond:
    def test_first_steps_are_of_one_size_and_the_first_arm_is_plain_gradient_descent(self):
        numbers = panels.compute_beyond(EIGHT, right(EIGHT), passes=3, batches=2, batch=6, first=0.05)
        start = panels.copies(right(EIGHT), 2)
        y, advantages = panels.sampled(EIGHT, start, 6, seed=0)
        theta, old = start.logits.clone().requires_grad_(), start.log_probs(y)
        for k in range(3):
            log_probs = Policy(EIGHT, theta).log_probs(y)
            loss, _ = rl.clipped_surrogate(log_probs, old, advantages, EIGHT.mask(y), 0.2)
            theta.data -= numbers.lr[0] * torch.autograd.grad(loss.sum(), theta)[0]
            log_ratio = (Policy(EIGHT, theta).log_probs(y) - old).detach()
            if k == 0:
                assert log_ratio.square().mean().sqrt().item() == pytest.approx(0.05, rel=0.05)
            outside = ((log_ratio.exp() - 1).abs() > 0.2).double().mean(dim=(-2, -1))
            assert numbers.outside[0, k] == pytest.approx(outside.numpy())
        assert numbers.kl[0, 2] == pytest.approx(exact.kl(start, Policy(EIGHT, theta.detach())).numpy())

    def test_held_tokens_stand_still_in_a_table_moved_by_plain_steps_only(self):
        numbers = panels.compute_beyond(EIGHT, right(EIGHT), passes=8, batches=4)
        sgd, adam, shared = np.nanmax(numbers.moved, axis=1)
        assert sgd == 0
        assert adam > 0.01
        assert shared > 0.001

    @pytest.mark.parametrize("given", [{"epsilon": 0.01}, {"epsilon": 0.9, "first": 0.2}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        numbers = panels.compute_beyond(EIGHT, right(EIGHT), passes=6, batches=3, **given)
        figure, alt = panels.beyond_the_clip(numbers)
        check_picture(figure)
        assert "shared, SGD" in alt


class TestStopping:
    def test_without_a_stop_it_is_the_learner_of_the_tabular_world(self):
        numbers = panels.compute_stopping(SMALL, right(), stops=(None,), seeds=2, updates=1, passes=3, batch=6)
        start = panels.copies(right(), 2)
        y, advantages = panels.sampled(SMALL, start, 6, seed=0)
        theta, old = start.logits.clone().requires_grad_(), start.log_probs(y)
        optimiser = torch.optim.Adam([theta], lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss, _ = rl.clipped_surrogate(Policy(SMALL, theta).log_probs(y), old, advantages, SMALL.mask(y), 0.2)
            loss.sum().backward()
            optimiser.step()
        assert numbers.J[0] == pytest.approx(exact.J(SMALL, Policy(SMALL, theta.detach())).numpy(), abs=1e-5)
        assert (numbers.passes == 3).all()

    def test_a_stop_at_nothing_leaves_the_first_pass_only(self):
        numbers = panels.compute_stopping(SMALL, right(), stops=(None, 1e-12), seeds=4, updates=2, passes=5)
        assert (numbers.passes[0] == 5).all()
        assert (numbers.passes[1, 0] == 1).all()
        assert (numbers.kl[1, 0] < numbers.kl[0, 0]).all()


class TestStaleness:
    def test_before_the_first_pass_nothing_has_moved(self):
        numbers = panels.compute_staleness(EIGHT, right(EIGHT), most=2, seeds=3)
        assert numbers.passes.tolist() == [0, 1, 2]
        assert numbers.J[:, 0] == pytest.approx(1.2)
        assert numbers.promise[:, 0] == pytest.approx(1.2)
        assert numbers.kl[:, 0] == pytest.approx(0)
        assert numbers.effective[:, 0] == pytest.approx(1)

    def test_after_two_passes_it_is_what_autograd_finds(self):
        numbers = panels.compute_staleness(EIGHT, right(EIGHT), epsilon=0.1, most=2, lr=5.0, batch=6, seeds=2)
        start = panels.copies(right(EIGHT), 2)
        y, advantages = panels.sampled(EIGHT, start, 6, seed=0)
        theta, old = start.logits.clone().requires_grad_(), start.log_probs(y)
        for _ in range(2):
            loss, _ = rl.clipped_surrogate(Policy(EIGHT, theta).log_probs(y), old, advantages, EIGHT.mask(y), 0.1)
            theta.data -= 5.0 * torch.autograd.grad(loss.sum(), theta)[0]
        now = Policy(EIGHT, theta)
        surrogate = ((now.log_probs(y) - old).exp() * advantages).sum(dim=-1).mean(dim=-1)
        assert numbers.J[1, 2] == pytest.approx(exact.J(EIGHT, now).detach().numpy())
        assert numbers.promise[1, 2] == pytest.approx(1.2 + surrogate.detach().numpy())
        slope = torch.autograd.grad(surrogate.sum(), theta)[0].flatten(-2)
        cosine = torch.cosine_similarity(slope, exact.gradient(EIGHT, Policy(EIGHT, theta.detach())), dim=-1)
        assert numbers.old[1, 2] == pytest.approx(cosine.numpy())

    @pytest.mark.parametrize("given", [{"most": 2, "lr": 0.1}, {"most": 8, "batch": 4}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        figure, alt = panels.staleness(panels.compute_staleness(EIGHT, right(EIGHT), seeds=3, **given))
        check_picture(figure)
        assert "passes over one batch".lower() in alt.lower()


def test_lines_are_redrawn_with_other_numbers():
    first, second = panels.compute_directions(0.5), panels.compute_directions(0.2)
    artists = panels.LinesArtists(first.axes, first.lines)
    artists.draw(first.lines)
    before = png(artists.figure)
    artists.draw(second.lines)
    assert png(artists.figure) != before
    assert artists.lines[0][0].get_ydata().tolist() == second.old_new.tolist()
    assert artists.lines[0][0].get_color() == COLOURS["KL"]
