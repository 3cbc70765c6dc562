"""The pictures of lesson 3: their numbers against direct computations, what they draw, what they say."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons import rl
from lessons.live.figure import png
from lessons.panels.gae import (
    LAM_COLOURS,
    BestLam,
    BestLamArtists,
    ErrorsArtists,
    LengthsArtists,
    PathArtists,
    Tradeoff,
    TradeoffArtists,
    TrainingArtists,
    best_lam,
    compute_best_lam,
    compute_errors,
    compute_lengths,
    compute_path,
    compute_tradeoff,
    compute_training,
    half_right,
    learned_values,
    learning_curves,
    longer_responses,
    tradeoff,
    training_curves,
    value_path,
)
from lessons.tabular import Learner, World, exact, random_policy, train

FIXED = World(vocab=8, length=3)  # target 2, 5, 0
SMALL = World(vocab=3, length=2)
ENDING = World(vocab=4, length=3, end=3)
LAMS = tuple(LAM_COLOURS)


def tables(world: World, seeds: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    return scale * torch.randn(seeds, world.rows, generator=stream, dtype=torch.float64)


class TestHalfRight:
    @pytest.mark.parametrize("world", [FIXED, SMALL, World(vocab=4, length=5)])
    def test_writes_the_target_half_of_the_time_whatever_came_before(self, world):
        policy, values = half_right(world), exact.values(world, half_right(world))
        for t, level in enumerate(world.levels):
            right = policy.table[level, world.target[t]]
            others = policy.table[level].sum(dim=-1) - right
            torch.testing.assert_close(right, torch.full_like(right, 0.5))
            torch.testing.assert_close(others, torch.full_like(right, 0.5))
        # the matches so far and half a point for each token to come
        y, states = world.sequences, world.states(world.sequences)
        so_far = (y == torch.tensor(world.target)).double().cumsum(dim=-1).roll(1, dims=-1)
        so_far[:, 0] = 0
        to_come = torch.arange(world.length, 0, -1) / 2
        torch.testing.assert_close(values[states], so_far + to_come, check_dtype=False)


class TestLearnedValues:
    @pytest.mark.parametrize("world", [FIXED, ENDING], ids=["fixed", "ending"])
    def test_are_what_a_plain_loop_over_each_table_makes_of_them(self, world):
        policy = random_policy(world, seed=1)
        history = learned_values(world, policy, updates=4, seeds=2, batch=5, lr=0.1, seed=3)
        samples = policy.sample((4, 2, 5), seed=3)
        assert (history[0] == 0).all()
        for table in range(2):
            V = torch.zeros(world.rows, dtype=torch.float64, requires_grad=True)
            optimiser = torch.optim.Adam([V], lr=0.1)
            for update in range(4):
                y = samples[update, table]
                mask, R = world.mask(y), world.returns(y)  # all of it comes with the last token
                squares = ((V[world.states(y)] - R[:, None]) ** 2)[mask]
                optimiser.zero_grad()
                (squares.mean() / 2).backward()
                optimiser.step()
                torch.testing.assert_close(history[update + 1, table], V.detach())

    def test_come_close_to_the_exact_ones(self):
        policy = half_right(SMALL)
        history = learned_values(SMALL, policy, updates=400, seeds=3, batch=64, lr=0.02)
        assert (history[-1] - exact.values(SMALL, policy)).abs().max() < 0.15


class TestPath:
    def test_by_hand(self):
        path = compute_path(FIXED, half_right(FIXED), (2, 7, 0))
        assert path.tokens == ("token 2", "token 7", "token 0")
        assert path.worth == pytest.approx([1.5, 2, 1.5, 2])
        assert path.td_errors == pytest.approx([0.5, -0.5, 0.5])
        for part in ("first token it is worth 1.50", "token 7 brings it to 1.50 (δ = −0.50)", "up to +0.50"):
            assert part in path.alt

    def test_with_rewards_on_each_token_is_the_same_staircase(self):
        dense = World(vocab=8, length=3, pays="token")
        path, sparse = (compute_path(world, half_right(world), (2, 7, 0)) for world in (dense, FIXED))
        assert path.worth == pytest.approx(sparse.worth)
        assert path.td_errors == pytest.approx(sparse.td_errors)

    def test_ends_with_the_end_token(self):
        policy = random_policy(ENDING, seed=0)
        path = compute_path(ENDING, policy, (2, 3, 3))  # one token, the end, padding
        values = exact.values(ENDING, policy)
        assert path.tokens == ("token 2", "token 3")
        R = ENDING.returns(torch.tensor([2, 3, 3])).item()
        assert path.worth == pytest.approx([values[0].item(), values[1 + 2].item(), R])
        assert path.td_errors == pytest.approx(np.diff(path.worth))

    def test_names_its_tokens(self):
        words = "film dull a plot not superb the very".split()
        path = compute_path(FIXED, half_right(FIXED), (2, 1, 0), words=words)
        assert path.tokens == ("“a”", "“dull”", "“film”")
        assert "“dull” brings it to 1.50 (δ = −0.50)" in path.alt

    def test_takes_other_values(self):
        values = torch.zeros(FIXED.rows, dtype=torch.float64)
        assert compute_path(FIXED, half_right(FIXED), (2, 7, 0), values).td_errors == pytest.approx([0, 0, 2])

    @given(st.tuples(*[st.integers(0, 3)] * 3), st.integers(0, 9))
    def test_steps_add_up_to_the_return_minus_the_first_value(self, response, seed):
        mask = ENDING.mask(torch.tensor(response))
        response = torch.where(mask, torch.tensor(response), 3).tolist()
        V = tables(ENDING, 1, seed=seed)[0]
        path = compute_path(ENDING, random_policy(ENDING, 0), response, V)
        R = ENDING.returns(torch.tensor(response)).item()
        assert path.td_errors.sum() == pytest.approx(R - V[0].item())

    def test_is_drawn_and_drawn_again(self, check_picture):
        artists = PathArtists(3)
        pictures = []
        for response in [(2, 7, 0), (7, 7, 7), (2, 5, 0)]:
            path = compute_path(FIXED, half_right(FIXED), response)
            artists.draw(path)
            drawn = artists.steps.get_ydata()
            assert np.unique(drawn[np.isfinite(drawn)]) == pytest.approx(np.unique(path.worth))
            assert artists.end.get_text() == f"return {path.worth[-1]:.2f}"
            check_picture(artists.figure)
            pictures.append(png(artists.figure))
        assert len(set(pictures)) == 3
        figure, alt = value_path(FIXED, half_right(FIXED), (2, 5, 0))
        assert png(figure) == pictures[-1] and alt == path.alt


class TestErrors:
    def test_are_root_mean_squares_over_what_the_policy_writes(self):
        policy = random_policy(ENDING, seed=2)
        history = tables(ENDING, 2 * 3).view(2, 3, -1)
        errors = compute_errors(ENDING, policy, history)
        # by enumeration: the square at the states of every response, with its probability
        y, probs, exact_values = ENDING.sequences, exact.sequence_probs(policy), exact.values(ENDING, policy)
        squares = (history[..., ENDING.states(y)] - exact_values[ENDING.states(y)]) ** 2
        squares = torch.where(ENDING.mask(y), squares, 0)
        expected = (probs[:, None] * squares).sum(dim=-2).sqrt().movedim(-1, 0).numpy()
        assert errors.seeds == 3
        for got, reduce in ((errors.mean, np.mean), (errors.low, np.min), (errors.high, np.max)):
            assert got == pytest.approx(reduce(expected, axis=-1))

    def test_of_the_exact_values_are_0(self):
        policy = half_right(FIXED)
        errors = compute_errors(FIXED, policy, exact.values(FIXED, policy).expand(2, 1, -1))
        assert errors.high.max() == 0
        assert "over 1 updates, mean of 1 tables: before token 1 from 0.00 to 0.00" in errors.alt

    def test_are_drawn_and_drawn_again(self, check_picture):
        policy = half_right(FIXED)
        artists = ErrorsArtists(3, 20)
        pictures = []
        for lr in (0.05, 0.5):
            history = learned_values(FIXED, policy, updates=20, seeds=3, lr=lr)
            errors = compute_errors(FIXED, policy, history)
            artists.draw(errors)
            assert artists.lines[2].get_ydata().tolist() == errors.mean[2].tolist()
            assert artists.lines[0].get_label() == f"before token 1: {errors.mean[0, -1]:.2f}"
            check_picture(artists.figure)
            pictures.append(png(artists.figure))
        assert len(set(pictures)) == 2
        assert learning_curves(FIXED, policy, history)[1] == errors.alt


def by_enumeration(world, policy, V, lam, batch):
    """Bias² and variance from the vector Σ_t Â_t ∇ log π(a_t|s_t) of every response."""
    y, probs = world.sequences, exact.sequence_probs(policy)
    A_hat = rl.gae(world.rewards(y), V[world.states(y)], world.mask(y), lam=lam)
    vectors, g = policy.score(y, A_hat), exact.gradient(world, policy)
    mean = probs @ vectors
    variance = probs @ ((vectors - mean) ** 2).sum(dim=-1) / batch
    return ((mean - g) ** 2).sum() / (g @ g), variance / (g @ g)


class TestTradeoff:
    @pytest.mark.parametrize("world", [SMALL, ENDING], ids=["fixed", "ending"])
    def test_is_what_enumeration_gives(self, world):
        policy = random_policy(world, seed=0)
        values = {"few": tables(world, 1, seed=1), "more": tables(world, 3, seed=2)}
        numbers = compute_tradeoff(world, policy, values, batch=5, lams=(0.0, 0.7, 1.0))
        for name, seeds in values.items():
            for i, V in enumerate(seeds):
                for j, lam in enumerate((0.0, 0.7, 1.0)):
                    expected = by_enumeration(world, policy, V, lam, batch=5)
                    got = numbers.bias2[name][i, j], numbers.variance[name][i, j]
                    assert got == pytest.approx([x.item() for x in expected], abs=1e-12)

    @given(st.integers(0, 99), st.floats(0.01, 100))
    def test_has_no_bias_at_lambda_1_however_wrong_the_values(self, seed, scale):
        values = {"V": tables(ENDING, 2, scale, seed)}
        numbers = compute_tradeoff(ENDING, random_policy(ENDING, seed), values, lams=(1.0,))
        assert numbers.bias2["V"].max() < 1e-18 * (1 + scale**2)

    def test_has_no_bias_at_any_lambda_with_exact_values(self):
        policy = random_policy(ENDING, seed=0)
        numbers = compute_tradeoff(ENDING, policy, {"V": exact.values(ENDING, policy)[None]})
        assert numbers.bias2["V"].max() < 1e-25
        assert (np.diff(numbers.variance["V"][0]) > 0).all()

    def test_of_another_batch_scales_the_variance_alone(self):
        values = {"V": tables(SMALL, 2)}
        policy = half_right(SMALL)
        scaled = compute_tradeoff(SMALL, policy, values, batch=16).with_batch(100)
        direct = compute_tradeoff(SMALL, policy, values, batch=100)
        assert scaled.batch == 100
        assert scaled.variance["V"] == pytest.approx(direct.variance["V"])
        assert scaled.bias2["V"] == pytest.approx(direct.bias2["V"])

    def test_best_is_where_the_mean_of_the_sum_is_least(self):
        numbers = Tradeoff(
            batch=16,
            lams=np.array([0.0, 0.5, 1.0]),
            bias2={"V": np.array([[4.0, 1.0, 0.0], [2.0, 1.0, 0.0]])},
            variance={"V": np.array([[1.0, 2.0, 6.0], [1.0, 2.0, 2.0]])},
        )
        assert numbers.best("V") == (0.5, 3.0)
        assert numbers.error("V").tolist() == [[5, 3, 6], [3, 3, 2]]
        assert "16 responses for λ from 0.00 to 1.00" in numbers.alt
        assert "V: bias² from 3.00 to 0.00, variance from 1.00 to 4.00, their sum least at λ = 0.50 with 3.00." in numbers.alt

    def test_needs_values(self):
        with pytest.raises(ValueError, match="give at least one table"):
            compute_tradeoff(SMALL, half_right(SMALL), {})

    @pytest.mark.parametrize("batches", [(16, 1), (16, 10_000)])
    def test_is_drawn_and_drawn_again(self, batches, check_picture):
        policy = half_right(FIXED)
        V = exact.values(FIXED, policy)
        values = {
            "untrained V": torch.zeros(1, 73).double(),
            "poor V": V / 2 + tables(FIXED, 3) / 4,
            "V": V[None],
        }
        artists = TradeoffArtists(list(values))
        pictures = []
        for batch in batches:
            numbers = compute_tradeoff(FIXED, policy, values, batch)
            artists.draw(numbers)
            bias2, variance, total = (line.get_ydata() for line in artists.lines[1])
            assert bias2 == pytest.approx(numbers.bias2["poor V"].mean(axis=0))
            assert total == pytest.approx(bias2 + variance)
            assert (artists.dots[1].get_xdata()[0], artists.dots[1].get_ydata()[0]) == numbers.best("poor V")
            check_picture(artists.figure)
            pictures.append(png(artists.figure))
        assert len(set(pictures)) == 2
        assert tradeoff(FIXED, policy, values, batch)[1] == numbers.alt


class TestBestLam:
    NUMBERS = Tradeoff(
        batch=1,
        lams=np.array([0.0, 0.5, 1.0]),
        bias2={"V": np.array([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]])},
        variance={"V": np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])},
    )

    def test_is_found_for_each_table_and_batch(self):
        # sums of the first table: 2, 2.5, 3 at N = 1 and 1.1, 0.7, 0.3 at N = 10; no bias in the second
        numbers = compute_best_lam(self.NUMBERS, (1, 10))
        assert numbers.lam["V"].tolist() == [[0, 1], [0, 0]]
        assert numbers.alt.endswith("1 to 10 responses: V from 0.00 to 0.50.")

    def test_is_drawn_and_drawn_again(self, check_picture):
        batches = [2**k for k in range(15)]
        artists = BestLamArtists(["V"], batches)
        numbers = compute_best_lam(self.NUMBERS, batches)
        artists.draw(numbers)
        assert artists.lines[0].get_ydata().tolist() == numbers.lam["V"].mean(axis=0).tolist()
        check_picture(artists.figure)
        first = png(artists.figure)
        artists.draw(BestLam(numbers.batches, {"V": 1 - numbers.lam["V"]}))
        assert png(artists.figure) != first
        figure, alt = best_lam(self.NUMBERS, batches)
        assert png(figure) == first and alt == numbers.alt


class TestLengths:
    def test_are_those_of_the_closed_form(self):
        # Â_1 − E[Â_1 | a_1] = Σ_l λ^l δ_{1+l}, and every later δ is ±½; with V = 0, Â_1 = λ^(T − 1) R.
        numbers = compute_lengths(range(1, 7), LAMS)
        for i, lam in enumerate(LAMS):
            for j, T in enumerate(range(1, 7)):
                noise = math.sqrt(sum(lam ** (2 * l) for l in range(1, T))) / 2
                assert numbers.noise[i, j] == pytest.approx(noise, abs=1e-12)
                assert numbers.signal[i, j] == pytest.approx(lam ** (T - 1), abs=1e-12)

    def test_do_not_depend_on_the_vocabulary(self):
        few, many = (compute_lengths((1, 3), (0.8,), vocab=vocab) for vocab in (2, 5))
        assert few.noise == pytest.approx(many.noise)
        assert few.signal == pytest.approx(many.signal)

    def test_are_drawn_and_drawn_again(self, check_picture):
        artists = LengthsArtists(range(1, 5), LAMS)
        numbers = compute_lengths(range(1, 5), LAMS)
        artists.draw(numbers)
        assert artists.lines[1][1].get_ydata().tolist() == numbers.signal[1].tolist()
        check_picture(artists.figure)
        figure, alt = longer_responses(range(1, 5), LAMS)
        assert png(figure) == png(artists.figure)
        assert "at λ = 1 the noise goes from 0.00 to 0.87 and the signal from 1.00 to 1.00" in alt
        artists.draw(compute_lengths((1, 2), LAMS))
        assert png(figure) != png(artists.figure)

    def test_need_a_lambda_that_has_a_colour(self):
        with pytest.raises(ValueError, match=r"λ must be one of 0\.0, .*, not 0\.3"):
            longer_responses((1, 2), (0.3,))


@pytest.fixture(scope="module")
def numbers():
    return compute_training(World(vocab=4, length=2), lams=(1.0, 0.0), seeds=3, updates=12, lr=0.2)


class TestTraining:
    def test_is_what_train_gives(self, numbers):
        world = World(vocab=4, length=2)
        learner = Learner(lr=0.2, value_lr=0.2, baseline="learned", lam=0.0)
        alone = train(world, [learner], range(3), updates=12)
        scores = alone.scores[0].numpy()
        assert numbers["λ = 0"] == pytest.approx(scores.mean(axis=0))
        assert numbers.half_width[3] == pytest.approx(1.96 * scores.std(axis=0, ddof=1) / math.sqrt(3))
        assert [learner.name for learner in numbers.learners] == [
            "exact V, λ = 0",
            "batch mean",
            "λ = 1",
            "λ = 0",
        ]
        assert (numbers.seeds, numbers.highest) == (3, 2)
        # the shares of right tokens add up to J
        assert numbers.right[3].sum() == pytest.approx(exact.J(world, alone.policy).mean().item())

    def test_is_told_and_drawn(self, numbers, check_picture):
        artists = TrainingArtists(numbers.learners, 12)
        artists.draw(numbers)
        assert artists.lines[2].get_ydata().tolist() == numbers["λ = 1"].tolist()
        assert artists.ceiling.get_ydata()[0] == 2
        check_picture(artists.figure)
        figure, alt = training_curves(numbers)
        assert alt == numbers.alt
        assert f"λ = 1: {numbers['λ = 1'][3]:.2f} at update 4 and {numbers['λ = 1'][-1]:.2f} ±" in alt
        artists.draw(compute_training(World(vocab=4, length=2), lams=(1.0, 0.0), seeds=2, updates=12))
        assert png(figure) != png(artists.figure)
