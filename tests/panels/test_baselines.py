"""The pictures of the lesson on baselines: their numbers, what they draw, what they say."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch

from lessons.live.figure import png
from lessons.live.style import COLOURS, GREY
from lessons.panels.baselines import (
    LEARNERS,
    SWEEP,
    CosinesArtists,
    LearningArtists,
    NoiseArtists,
    OneBatchArtists,
    RatesArtists,
    WrongTokensArtists,
    compute_cosines,
    compute_learning,
    compute_noise,
    compute_one_batch,
    compute_rates,
    compute_wrong_tokens,
    cosine_distributions,
    learning_curves,
    learning_rates,
    noise_by_offset,
    one_batch,
    wrong_tokens,
)
from lessons.tabular import World, exact, random_policy, train, uniform_policy
from lessons.tabular.table import wilson

SMALL = World(vocab=3, length=2, target=(2, 0))
ENDED = World(vocab=3, length=3, end=2)
EIGHT = World(vocab=8, length=3)


def drawn_twice(artists, first, second, check_picture):
    """Draws both, checks both pictures, and says whether they differ."""
    pictures = []
    for numbers in (first, second):
        artists.draw(numbers)
        check_picture(artists.figure)
        pictures.append(png(artists.figure))
    return pictures[0] != pictures[1]


class TestOneBatch:
    @pytest.mark.parametrize("world", [SMALL, ENDED])
    def test_pushes_are_sums_over_the_first_tokens(self, world):
        policy = random_policy(world, seed=1)
        numbers = compute_one_batch(world, policy, offset=5.0, batch=7, seed=2)
        y = policy.sample((7,), seed=2)
        R = world.returns(y)
        for push, weights in zip(numbers.pushes, (R + 5, R, R - R.mean())):
            by_hand = np.zeros(world.vocab)
            for token, weight in zip(y[:, 0], weights):
                by_hand[token] += weight / 7
                by_hand -= weight.item() / 7 * policy.table[0].numpy()
            assert push == pytest.approx(by_hand)
        assert numbers.counts.tolist() == [(y[:, 0] == token).sum() for token in range(world.vocab)]
        assert numbers.names == ("R + 5", "R", "R − batch mean")

    def test_exact_gradient_at_the_uniform_policy_is_found_by_hand(self):
        # One point for the right first token: A = 1 − 1/8 or −1/8, times π = 1/8.
        numbers = compute_one_batch(EIGHT, uniform_policy(EIGHT))
        assert numbers.target == 2
        assert numbers.exact == pytest.approx([7 / 64 if token == 2 else -1 / 64 for token in range(8)])
        assert "0.11 for the right token 2 and −0.02 for the others" in numbers.alt

    def test_draws_bars_dots_and_counts(self, check_picture):
        artists = OneBatchArtists(8)
        first, second = (compute_one_batch(EIGHT, uniform_policy(EIGHT), seed=seed) for seed in (0, 1))
        assert drawn_twice(artists, first, second, check_picture)
        for bars, dots, push in zip(artists.bars, artists.dots, second.pushes):
            assert [bar.get_height() for bar in bars] == push.tolist()
            assert dots.get_ydata().tolist() == second.exact.tolist()
        assert artists.axes[0].get_xticklabels()[3].get_text() == f"3\n{second.counts[3]}×"

    @pytest.mark.parametrize("given", [{"batch": 1}, {"offset": 0.0}, {"offset": -100.0}, {"batch": 500}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        artists = OneBatchArtists(8)
        artists.draw(compute_one_batch(EIGHT, uniform_policy(EIGHT), **given))
        check_picture(artists.figure)


class TestNoise:
    @pytest.mark.parametrize("world", [SMALL, ENDED])
    def test_is_the_root_of_the_mean_squared_distance_of_every_response(self, world):
        policy = random_policy(world, seed=3)
        numbers = compute_noise(world, policy, batch=4, low=-1.0, high=2.0, offset=2.0)
        g, probs = exact.gradient(world, policy), exact.sequence_probs(policy)
        R, score = world.returns(world.sequences), policy.score(world.sequences)
        for offset, noise in zip(numbers.at, numbers.of):
            distance = ((R + offset)[:, None] * score - g).square().sum(dim=-1)
            assert noise == pytest.approx(((probs @ distance / 4).sqrt() / g.norm()).item())
        assert numbers.at.tolist() == [2.0, 0.0, -exact.J(world, policy).item()]
        assert numbers.noise[-1] == pytest.approx(numbers.of[0])

    def test_is_least_at_minus_J_for_the_uniform_policy(self):
        numbers = compute_noise(EIGHT, uniform_policy(EIGHT), low=-1.0, high=0.25)
        assert numbers.noise.min() == pytest.approx(numbers.of[2], rel=1e-4)
        assert numbers.of[2] <= numbers.noise.min()
        assert "33.7 with R + 10, 2.2 with R, 1.8 with R − J" in numbers.alt

    def test_draws_the_curve_and_its_points(self, check_picture):
        artists = NoiseArtists()
        first, second = (compute_noise(EIGHT, uniform_policy(EIGHT), batch=batch) for batch in (16, 64))
        assert drawn_twice(artists, first, second, check_picture)
        assert artists.line.get_ydata().tolist() == second.noise.tolist()
        assert [point.get_ydata()[0] for point in artists.points] == second.of.tolist()
        assert artists.labels[0].get_text() == "R + 10: 16.9"

    @pytest.mark.parametrize("given", [{"batch": 1}, {"batch": 1000}, {"offset": -4.0}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        artists = NoiseArtists()
        artists.draw(compute_noise(EIGHT, uniform_policy(EIGHT), **given))
        check_picture(artists.figure)


class TestCosines:
    def test_are_those_of_each_batch(self):
        policy = random_policy(ENDED, seed=4)
        numbers = compute_cosines(ENDED, policy, offsets=(7, 0), batch=5, batches=20, seed=3)
        y, g = policy.sample((20, 5), seed=3), exact.gradient(ENDED, policy)
        for k, responses in enumerate(y):
            R, score = ENDED.returns(responses), policy.score(responses)
            for row, weights in zip(numbers.cosines, (R + 7, R, R - R.mean())):
                g_hat = weights @ score
                expected = (g_hat @ g / (g_hat.norm() * g.norm()).clamp(min=1e-12)).item()
                assert row[k] == pytest.approx(expected, abs=1e-9)
        assert numbers.names == ("R + 7", "R", "R − batch mean")

    def test_are_summed_up_by_their_mean_and_the_share_below_zero(self):
        numbers = compute_cosines(EIGHT, uniform_policy(EIGHT), batches=50)
        numbers = replace(numbers, cosines=np.array([[-0.5, 0.1], [0.0, 0.2], [0.3, 0.3], [-0.1, -0.3]]))
        assert numbers.mean == pytest.approx([-0.2, 0.1, 0.3, -0.2])
        assert numbers.backwards.tolist() == [0.5, 0, 0, 1]
        assert "R + 10: mean −0.20, 50 % of the batches below 0" in numbers.alt

    def test_draw_a_row_each_in_the_colour_of_its_learner(self, check_picture):
        first, second = (compute_cosines(EIGHT, uniform_policy(EIGHT), batches=100, batch=n) for n in (4, 64))
        artists = CosinesArtists(first.names)
        assert drawn_twice(artists, first, second, check_picture)
        assert [line.get_xdata()[0] for line in artists.means] == second.mean.tolist()
        own = [one.get_facecolor()[0, :3].tolist() for one, _ in artists.bands]
        names = ("REINFORCE", None, "REINFORCE, no offset", "REINFORCE + baseline")
        rgb = [tuple(int(COLOURS.get(name, GREY)[i : i + 2], 16) / 255 for i in (1, 3, 5)) for name in names]
        assert own == [pytest.approx(each) for each in rgb]

    @pytest.mark.parametrize("given", [{"batches": 1}, {"batch": 1}, {"offsets": ()}, {"offsets": (-1000,)}])
    def test_extremes_of_the_controls_can_be_drawn(self, given, check_picture):
        given = {"batches": 50} | given
        figure, alt = cosine_distributions(compute_cosines(EIGHT, uniform_policy(EIGHT), **given))
        check_picture(figure)
        assert "nan" not in alt


def share_up_without_baseline(p, length=3):
    """1 − (1 − p)^(length − 1): a wrong token is pushed up if any other one is right."""
    return 1 - (1 - p) ** (length - 1)


class TestWrongTokens:
    def test_are_pushed_up_as_often_as_another_token_is_right(self):
        numbers = compute_wrong_tokens(EIGHT, batches=2000)
        assert numbers.share[0].tolist() == [1.0] * 15
        assert numbers.skill[[0, -1]] == pytest.approx([1 / 8, 0.9])
        # About 48 responses × 2,000 wrong tokens at first, a tenth of them at last.
        assert numbers.share[1] == pytest.approx(share_up_without_baseline(numbers.skill), abs=0.02)

    def test_of_a_batch_of_two_are_above_the_mean_as_often_as_counted_by_hand(self):
        # In a pair the weight is positive if the other response has fewer matches.
        numbers = compute_wrong_tokens(EIGHT, batch=2, batches=4000)
        for p, share in zip(numbers.skill[::7], numbers.share[2, ::7]):
            other = [comb(3, k) * p**k * (1 - p) ** (3 - k) for k in range(4)]
            own = [comb(2, k) * p**k * (1 - p) ** (2 - k) for k in range(3)]
            above = sum(own[m] * sum(other[:m]) for m in range(3))
            assert share == pytest.approx(above, abs=0.03)

    def test_need_a_world_without_an_end(self):
        with pytest.raises(ValueError, match="without an end token is needed"):
            compute_wrong_tokens(ENDED)

    def test_are_drawn(self, check_picture):
        artists = WrongTokensArtists()
        first, second = (compute_wrong_tokens(EIGHT, batches=20, batch=batch) for batch in (4, 64))
        assert drawn_twice(artists, first, second, check_picture)
        assert [line.get_ydata().tolist() for line in artists.lines] == (100 * second.share).tolist()
        assert artists.lines[0].get_label() == "R + 10: 100 %"
        assert "with R + 10 100 % and 100 %" in second.alt


@pytest.fixture(scope="module")
def trained():
    learners = [replace(learner, lr=lr) for lr in (0.3, 0.01) for learner in LEARNERS]
    return train(SMALL, learners, seeds=range(4), updates=12, batch=4)


class TestLearning:
    def test_is_mean_and_interval_over_seeds(self, trained):
        numbers = compute_learning(trained)
        scores = trained.scores.numpy()
        assert numbers.mean == pytest.approx(scores.mean(axis=1))
        half = 1.96 * scores.std(axis=1, ddof=1) / 2
        assert numbers.high - numbers.mean == pytest.approx(half) == numbers.mean - numbers.low
        assert numbers.lr == (0.3, 0.3, 0.3, 0.01, 0.01, 0.01)

    def test_counts_as_solved_who_ends_at_2_9(self, trained):
        scores = torch.full_like(trained.scores, 3.0)
        scores[0, :3] = 2.8
        scores[1, 0, :2] = 0.0  # before the last ten updates
        numbers = compute_learning(replace(trained, scores=scores))
        assert numbers.solved[0] == pytest.approx((0.25, *wilson(torch.tensor([0.0, 0.0, 0.0, 1.0]))))
        assert numbers.solved[1:, 0].tolist() == [1.0] * 5
        assert "REINFORCE at 0.3: 2.85 matches, 25 % of the seeds solved (5 % to 70 %)" in numbers.alt

    def test_needs_two_seeds(self, trained):
        with pytest.raises(ValueError, match="at least 2 seeds, not 1"):
            compute_learning(replace(trained, seeds=(0,)))

    def test_is_drawn_by_learning_rate(self, trained, check_picture):
        first = compute_learning(trained)
        second = compute_learning(replace(trained, scores=trained.scores.flip(-1)))
        artists = LearningArtists(first.names, first.lr, 12)
        assert drawn_twice(artists, first, second, check_picture)
        assert [line.get_ydata().tolist() for line in artists.lines] == second.mean.tolist()
        assert list(artists.axes) == [0.3, 0.01]
        assert [line.axes is artists.axes[0.3] for line in artists.lines] == [True] * 3 + [False] * 3
        assert [line.get_label() for line in artists.lines[:3]] == ["R + 10", "R", "R − batch mean"]


@pytest.fixture(scope="module")
def swept():
    return compute_rates(SMALL, seeds=(3, 4), updates=11, batch=4)


class TestRates:
    def test_are_the_ends_of_separate_trainings(self, swept):
        for i, (optimiser, rates) in enumerate(SWEEP.items()):
            for j, learner in enumerate(LEARNERS):
                alone = replace(learner, optimiser=optimiser, lr=rates[2])
                ends = train(SMALL, [alone], (3, 4), updates=11, batch=4).scores[0, :, -10:].mean(dim=-1)
                assert swept.mean[i, j, 2] == pytest.approx(ends.mean().item())
                assert swept.half_width[i, j, 2] == pytest.approx(1.96 * ends.std().item() / 2**0.5)
        assert swept.lr.tolist() == [list(rates) for rates in SWEEP.values()]

    def test_need_two_seeds(self):
        with pytest.raises(ValueError, match="at least 2 seeds, not 1"):
            compute_rates(SMALL, seeds=(0,))

    def test_are_drawn(self, swept, check_picture):
        artists = RatesArtists(swept.optimisers)
        assert drawn_twice(artists, swept, replace(swept, mean=swept.mean / 2), check_picture)
        assert artists.lines[1][2].get_ydata().tolist() == (swept.mean[1, 2] / 2).tolist()

    def test_are_told_by_the_best_of_each(self, swept):
        mean = np.zeros_like(swept.mean)
        mean[0, 1, 3], mean[1, 2, 4] = 2.5, 2.25
        alt = replace(swept, mean=mean).alt
        assert "sgd, R: 2.50 matches at 0.3" in alt and "adam, R − batch mean: 2.25 matches at 0.3" in alt


def test_every_picture_of_the_notebook_comes_with_a_sentence(check_picture):
    policy = uniform_policy(EIGHT)
    learning = compute_learning(train(EIGHT, LEARNERS, seeds=range(2), updates=10))
    pictures = (
        one_batch(EIGHT, policy),
        noise_by_offset(EIGHT, policy),
        cosine_distributions(compute_cosines(EIGHT, policy, batches=100)),
        wrong_tokens(EIGHT),
        learning_curves(learning),
        learning_rates(compute_rates(EIGHT, seeds=range(2), updates=10)),
    )
    for figure, alt in pictures:
        check_picture(figure)
        assert len(alt.split()) > 20 and alt.endswith(".") and "nan" not in alt
