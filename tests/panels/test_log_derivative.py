"""The pictures of the log-derivative trick: their numbers, what they draw, what they say."""

import numpy as np
import pytest
import torch

from lessons.live.figure import png
from lessons.panels.log_derivative import (
    ConvergenceArtists,
    LearningArtists,
    MapArtists,
    StepsArtists,
    VarianceLeft,
    VarianceLeftArtists,
    all_responses,
    compute_convergence,
    compute_learning,
    compute_map,
    compute_steps,
    compute_variance_left,
    convergence,
    learning,
    response_steps,
    token_weights,
    variance_left,
)
from lessons.rl import returns
from lessons.tabular import Policy, World, exact, random_policy, uniform_policy

WORDS = "film dull a plot not superb the very".split()


@pytest.fixture(scope="module")
def world():
    return World(vocab=8, length=3)


@pytest.fixture(scope="module")
def policy(world):
    return random_policy(world, seed=3)


@pytest.fixture
def y():
    return torch.tensor([2, 1, 0])  # a dull film: two points


class TestSteps:
    def test_are_the_rows_of_the_policy_and_the_rewards(self, world, policy, y):
        steps = compute_steps(world, policy, y, WORDS)
        rows = [0, 1 + 2, 1 + 8 + 2 * 8 + 1]  # empty, "a", "a dull"
        assert steps.pi.tolist() == policy.table[rows].tolist()
        assert steps.moved.tolist() == steps.pi.tolist()
        assert steps.response == ("a", "dull", "film")
        assert steps.reward.tolist() == [0, 0, 2]

    def test_move_each_row_by_the_return_times_one_hot_minus_pi(self, world, policy, y):
        steps = compute_steps(world, policy, y, WORDS, step=0.25)
        push = 0.25 * 2 * (np.eye(8)[[2, 1, 0]] - steps.pi)
        weights = steps.pi * np.exp(push)
        assert steps.moved == pytest.approx(weights / weights.sum(axis=1, keepdims=True))

    def test_of_a_response_without_points_go_nowhere(self, world, policy):
        steps = compute_steps(world, policy, torch.tensor([0, 0, 1]), WORDS, step=3.0)
        assert steps.moved == pytest.approx(steps.pi)

    def test_say_what_was_chosen(self, world, y):
        alt = compute_steps(world, uniform_policy(world), y, WORDS).alt
        assert "At the start: a is chosen, with probability 0.12; reward 0." in alt
        assert "After “a dull”: film is chosen, with probability 0.12; reward 2." in alt
        assert "after the step" not in alt
        stepped = compute_steps(world, uniform_policy(world), y, WORDS, step=1.0).alt
        assert "with probability 0.12, 0.51 after the step" in stepped

    def test_are_drawn_and_drawn_again(self, world, policy, y, check_picture):
        artists, pictures = StepsArtists(WORDS, 3), set()
        for step in (0.0, 0.5, 50.0):
            steps = compute_steps(world, policy, y, WORDS, step)
            artists.draw(steps)
            widths = [[bar.get_width() for bar in bars] for bars in artists.bars]
            assert widths == steps.pi.tolist()
            assert artists.dots[1].get_xdata().tolist() == steps.moved[1].tolist()
            assert artists.dots[1].get_visible() == (step > 0)
            check_picture(artists.figure)
            pictures.add(png(artists.figure))
        assert len(pictures) == 3

    def test_need_a_word_for_each_token(self, world, policy, y):
        with pytest.raises(ValueError, match="a world of 8 tokens needs as many words, not 7"):
            response_steps(world, policy, y, WORDS[:7])


class TestMap:
    def test_has_every_response_in_its_cell(self, world, policy):
        numbers = compute_map(world, policy, WORDS)
        y = torch.tensor([2, 1, 7])
        assert numbers.pi[2, 8 * 1 + 7] == pytest.approx(policy.log_probs(y).sum().exp().item())
        assert numbers.returns[2, 8 * 5 + 0] == 3
        assert numbers.pi.sum() == pytest.approx(1)
        assert numbers.J == pytest.approx(exact.J(world, policy).item())

    def test_names_the_best_and_the_most_probable_response(self, world):
        logits = torch.zeros(world.rows, 8, dtype=torch.float64)
        logits[0, 4], logits[1 + 4, 7], logits[1 + 8 + 8 * 4 + 7, 1] = 3.0, 3.0, 3.0  # not very dull
        alt = compute_map(world, Policy(world, logits), WORDS).alt
        assert "Most probable is “not very dull”, with 0.408." in alt
        assert "The highest return, 3, is that of “a superb film”" in alt

    def test_is_drawn_and_drawn_again(self, world, policy, check_picture):
        artists = MapArtists(WORDS)
        artists.draw(compute_map(world, policy, WORDS))
        first = png(artists.figure)
        nothing = compute_map(World(reward=lambda y: 0.0 * y[..., 0]), policy, WORDS)
        for numbers in (compute_map(world, uniform_policy(world), WORDS), nothing):
            artists.draw(numbers)
            drawn = [image.get_array().tolist() for image in artists.images]
            assert drawn == [numbers.pi.tolist(), numbers.returns.tolist(), numbers.product.tolist()]
            check_picture(artists.figure)
            assert png(artists.figure) != first

    @pytest.mark.parametrize("other", [World(vocab=8, length=2), World(vocab=8, length=3, end=7)])
    def test_is_of_three_words(self, other):
        with pytest.raises(ValueError, match="responses of exactly three words"):
            all_responses(other, uniform_policy(other), WORDS)


class TestConvergence:
    def test_knows_the_exact_gradient_and_the_exact_error(self, world, policy):
        numbers = compute_convergence(world, policy, (3, 5), "x", sizes=3, repetitions=2)
        gradient = exact.gradient(world, policy)
        assert numbers.N.tolist() == [1, 4, 16]
        assert numbers.exact_entry == gradient.view(73, 8)[3, 5].item()
        R, y = world.returns(world.sequences), world.sequences
        distance = (R[:, None] * policy.score(y) - gradient).norm(dim=-1)
        variance = (exact.sequence_probs(policy) @ distance**2).item()
        assert numbers.exact_error == pytest.approx(np.sqrt(variance / numbers.N) / gradient.norm().item())

    def test_of_one_sample_an_estimate_is_one_of_the_terms(self, world, policy):
        numbers = compute_convergence(world, policy, (0, 2), "x", sizes=1, repetitions=50)
        y = world.sequences
        terms = world.returns(y)[:, None] * policy.score(y)
        gradient = exact.gradient(world, policy)
        distances = (terms - gradient).norm(dim=-1) / gradient.norm()
        for error, entry in zip(numbers.error[0], numbers.entry[0]):
            fits = np.isclose(distances.numpy(), error) & np.isclose(terms[:, 2].numpy(), entry)
            assert fits.any()

    def test_measured_errors_lie_near_the_exact_ones(self, world, policy):
        numbers = compute_convergence(world, policy, (0, 2), "x", sizes=6, repetitions=400)
        assert numbers.rms == pytest.approx(numbers.exact_error, rel=0.1)
        assert numbers.slope == pytest.approx(-0.5, abs=0.03)

    def test_an_offset_changes_no_gradient_and_makes_more_noise(self, policy):
        plain, offset = (
            compute_convergence(World(offset=offset), policy, (0, 2), "x", sizes=1, repetitions=1)
            for offset in (0.0, 10.0)
        )
        assert offset.exact_entry == pytest.approx(plain.exact_entry)
        assert offset.exact_error[0] > 3 * plain.exact_error[0]

    def test_is_drawn_and_drawn_again(self, world, policy, check_picture):
        artists, pictures = ConvergenceArtists(), set()
        for sizes, offset in ((2, 0.0), (10, 0.0), (10, 100.0)):
            numbers = compute_convergence(
                World(offset=offset), policy, (0, 2), "“a” at the start", sizes=sizes, repetitions=40
            )
            artists.draw(numbers)
            assert artists.lines[1].get_ydata().tolist() == numbers.rms.tolist()
            assert artists.lines[0].get_ydata() == pytest.approx(numbers.entry.mean(axis=1))
            assert artists.exact_error.get_ydata().tolist() == numbers.exact_error.tolist()
            check_picture(artists.figure)
            pictures.add(png(artists.figure))
        assert len(pictures) == 3

    def test_says_how_far_it_came(self, world, policy):
        numbers = compute_convergence(world, policy, (0, 2), "“a” at the start", repetitions=100)
        _, alt = convergence(numbers)
        assert "from 1 to 262,144 samples, 100 repetitions each" in alt
        assert f"“a” at the start: exact {numbers.exact_entry:.3f};".replace("-", "−") in alt
        assert "with slope −0.50" in alt or "with slope −0.49" in alt


class TestLearning:
    def test_is_the_record_of_the_runs(self, check_picture):
        J = torch.tensor([[0.0, 0.2], [0.5, 0.7], [0.8, 1.0]], dtype=torch.float64)
        numbers = compute_learning(J, J / 2, habit="two or more “superb”", best=1.5)
        figure, alt = learning(numbers)
        assert "over 2 updates, means of 2 runs. The expected score goes from 0.10 to 0.90" in alt
        assert "nine in ten runs between 0.81 and 0.99; the best response scores 1.50" in alt
        assert "two or more “superb” goes from 0.05 to 0.45" in alt
        check_picture(figure)
        artists = LearningArtists(updates=2)
        artists.draw(numbers)
        assert artists.lines[0].get_xdata().tolist() == [0, 1, 2]
        assert artists.lines[0].get_ydata() == pytest.approx([0.1, 0.6, 0.9])
        first = png(artists.figure)
        artists.draw(compute_learning(-J, J, habit="nothing", best=0.0))
        check_picture(artists.figure)
        assert png(artists.figure) != first


class TestVarianceLeft:
    @pytest.mark.parametrize("pays", VarianceLeft.PAYS)
    def test_weights_are_those_of_the_sampled_algorithms(self, pays):
        world = World(vocab=3, length=4, pays=pays)
        policy = random_policy(world, seed=0)
        y = world.sequences
        weights = token_weights(world, policy)
        rewards_to_go = returns(world.rewards(y), world.mask(y))
        assert weights["reward-to-go"].tolist() == rewards_to_go.tolist()
        assert weights["whole return"].tolist() == rewards_to_go[:, :1].expand(-1, 4).tolist()
        values = exact.values(world, policy)[world.states(y)]
        assert weights["advantage"].numpy() == pytest.approx((weights["Q"] - values).numpy())

    def test_of_two_tokens_by_hand(self):
        # Two words, two tokens, target (0, 1), all logits 0: the first word is worth r_1, the second r_2.
        world = World(vocab=2, length=2, target=(0, 1), pays="token")
        policy = uniform_policy(world)
        means = [exact.moments(policy, w) for w in token_weights(world, policy).values()]
        # |one-hot − π|² = ½ for each token. E[w²] of the whole return is (4 + 1 + 1 + 0) / 4 = 3/2 for both,
        # to go: 3/2 and ½; Q: (9/4 + 1/4) / 2 = 5/4 and ½; A: ¼ and ¼. |∇J|² = ⅛ + 2 · 1/32 = 3/16.
        seconds = [3 / 2 + 3 / 2, 3 / 2 + 1 / 2, 5 / 4 + 1 / 2, 1 / 4 + 1 / 4]
        assert [m.variance.item() for m in means] == pytest.approx([s / 2 - 3 / 16 for s in seconds])

    def test_shares_are_those_of_the_moments_and_no_weight_is_biased(self):
        numbers = compute_variance_left(lengths=(2, 3), vocab=3, policies=4, seed=5)
        assert numbers.share.shape == (2, 4, 2, 4)
        world = World(vocab=3, length=3, pays="token")
        policy = random_policy(world, seed=5, runs=(4,))
        whole, to_go, *_ = (exact.moments(policy, w).variance for w in token_weights(world, policy).values())
        assert numbers.share[0, 1, 1] == pytest.approx((to_go / whole).numpy())
        assert numbers.share[1, 1] == pytest.approx(np.ones((2, 4)))
        assert numbers.bias < 1e-12

    def test_is_drawn_and_drawn_again(self, check_picture):
        artists, pictures = VarianceLeftArtists(), set()
        for lengths in ((2, 3), (2, 3, 4, 5)):
            numbers = compute_variance_left(lengths=lengths, vocab=3, policies=3)
            artists.draw(numbers)
            assert artists.lines[0][1].get_ydata() == pytest.approx(numbers.share[0, 1].mean(axis=-1))
            check_picture(artists.figure)
            pictures.add(png(artists.figure))
        assert len(pictures) == 2
        figure, alt = variance_left(numbers)
        assert "mean of 3 policies, for responses of 2 to 5 tokens" in alt
        assert "paid at the end, at 5 tokens: whole return 1.00, reward-to-go 1.00" in alt
        check_picture(figure)
