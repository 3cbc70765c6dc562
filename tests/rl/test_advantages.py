import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lessons.rl import gae, masked_mean, returns, td_errors, whiten

NAN, INF = math.nan, math.inf


def lengths_to_mask(lengths, time):
    return torch.arange(time) < torch.tensor(lengths)[:, None]


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


# Rows of lengths 1, 3 and 5; only the last token is rewarded; garbage in the padding.
MASK = lengths_to_mask([1, 3, 5], 5)
REWARDS = double([[2, NAN, 7, INF, -7], [0, 0, 4, NAN, 9], [0, 0, 0, 0, 8]])
VALUES = double([[1, 5, NAN, -INF, 3], [1, 2, 3, 100, NAN], [1, 2, 4, 4, 6]])
TD_ERRORS = double([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 2, 0, 2, 2]])


@st.composite
def batches(draw):
    """Rewards, values and mask of 1 to 3 rows and 1 to 5 tokens; empty rows too; NaN in the padding."""
    rows, time = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    numbers = st.lists(st.floats(-10, 10), min_size=rows * time, max_size=rows * time)
    mask = lengths_to_mask(draw(st.lists(st.integers(0, time), min_size=rows, max_size=rows)), time)
    rewards, values = (torch.where(mask, double(draw(numbers)).reshape(rows, time), NAN) for _ in range(2))
    return rewards, values, mask


fractions = st.floats(0, 1)


class TestMaskedMean:
    def test_weighs_tokens_not_rows(self):
        x, mask = double([[6, NAN, NAN], [1, 2, 3]]), lengths_to_mask([1, 3], 3)
        assert masked_mean(x, mask) == 3  # (6 + 1 + 2 + 3) / 4; the mean of the rows' means is 4

    @pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
    def test_padding_reaches_neither_value_nor_gradient(self, garbage):
        x = double([[2, garbage], [3, 4]]).requires_grad_()
        mean = masked_mean(x, lengths_to_mask([1, 2], 2))
        mean.backward()
        assert mean == 3
        assert_close(x.grad, double([[1 / 3, 0], [1 / 3, 1 / 3]]))

    def test_keeps_the_runs(self):
        x = torch.arange(24, dtype=torch.float64).reshape(2, 2, 2, 3)
        mask = torch.ones_like(x, dtype=torch.bool)
        assert_close(masked_mean(x, mask), double([[2.5, 8.5], [14.5, 20.5]]))

    def test_parts_of_a_batch_sum_to_its_mean(self):
        x, mask = double([[6, NAN, NAN], [1, 2, 3], [NAN, NAN, NAN]]), lengths_to_mask([1, 3, 0], 3)
        parts = [masked_mean(x[i : i + 1], mask[i : i + 1], tokens=4) for i in range(3)]
        assert [part.item() for part in parts] == [1.5, 1.5, 0]

    def test_tokens_may_differ_between_runs(self):
        x = torch.ones(2, 1, 3, dtype=torch.float64)
        mask = torch.ones(2, 1, 3, dtype=torch.bool)
        assert_close(masked_mean(x, mask, tokens=torch.tensor([6, 3])), double([0.5, 1]))

    def test_an_empty_mask_raises_even_in_one_run_of_two(self):
        mask = torch.tensor([[[True, True]], [[False, False]]])
        with pytest.raises(ValueError, match="no token"):
            masked_mean(torch.zeros(2, 1, 2), mask)
        with pytest.raises(ValueError, match="no token"):
            masked_mean(torch.zeros(2, 1, 2), mask, tokens=0)


class TestReturns:
    def test_by_hand(self):
        rewards = double([[1, 2, NAN, 9], [4, 8, 16, 32], [NAN, NAN, NAN, NAN]])
        mask = lengths_to_mask([2, 4, 0], 4)
        assert_close(returns(rewards, mask), double([[3, 2, 0, 0], [60, 56, 48, 32], [0] * 4]))
        assert_close(returns(rewards, mask, gamma=0.5), double([[2, 2, 0, 0], [16, 24, 32, 32], [0] * 4]))


class TestTdErrors:
    def test_by_hand_for_lengths_1_3_and_5(self):
        assert_close(td_errors(REWARDS, VALUES, MASK), TD_ERRORS)

    def test_gamma_discounts_the_next_value(self):
        expected = double([[1, 0, 0, 0, 0], [0, -0.5, 1, 0, 0], [0, 0, -2, -1, 2]])
        assert_close(td_errors(REWARDS, VALUES, MASK, gamma=0.5), expected)

    def test_value_is_zero_after_an_end_token_and_after_a_cut(self):
        # The same two tokens, once followed by padding that has a value, once cut off at the last column.
        rewards, values = double([[0, 3, 0], [NAN, 0, 3]]), double([[1, 2, 50], [50, 1, 2]])
        mask = torch.tensor([[True, True, False], [False, True, True]])
        assert_close(td_errors(rewards, values, mask), double([[1, 1, 0], [0, 1, 1]]))


class TestGae:
    def test_by_hand_for_lengths_1_3_and_5(self):
        expected = double(
            [[1, 0, 0, 0, 0], [1 + 0.75, 1 + 0.5, 1, 0, 0], [1 + 1.375, 2 + 0.75, 1.5, 2 + 1, 2]]
        )
        assert_close(gae(REWARDS, VALUES, MASK, lam=0.5), expected)
        assert_close(gae(REWARDS, VALUES, MASK, lam=0.0), TD_ERRORS)
        # λ = 1: what is still to come, 2, 4 and 8, minus the value
        expected = double([[1, 0, 0, 0, 0], [3, 2, 1, 0, 0], [7, 6, 4, 4, 2]])
        assert_close(gae(REWARDS, VALUES, MASK, lam=1.0), expected)

    def test_gamma_by_hand(self):
        # δ = (0, −0.5, 1) in the second row, and γλ = 0.25
        advantages = gae(REWARDS, VALUES, MASK, gamma=0.5, lam=0.5)
        assert_close(advantages[1], double([-0.0625, -0.25, 1, 0, 0]))

    def test_a_cut_response_is_terminal_like_an_ended_one(self):
        ended = gae(double([[0, 1, 3, NAN]]), double([[1, 2, 3, 40]]), lengths_to_mask([3], 4))
        cut = gae(double([[0, 1, 3]]), double([[1, 2, 3]]), lengths_to_mask([3], 3))
        assert_close(ended[:, :3], cut)

    def test_as_many_nonzero_advantages_as_response_tokens(self):
        generator = torch.Generator().manual_seed(0)
        rewards, values = torch.randn(2, 6, 5, generator=generator)
        mask = lengths_to_mask([1, 2, 3, 4, 5, 5], 5)
        assert (gae(rewards, values, mask) != 0).equal(mask)

    def test_an_empty_row_gets_zeros_and_left_padding_changes_nothing(self):
        rewards, values = double([[NAN, NAN, NAN], [NAN, 0, 4]]), double([[NAN, 1, 1], [7, 1, 2]])
        mask = torch.tensor([[False, False, False], [False, True, True]])
        assert_close(gae(rewards, values, mask, lam=0.5), double([[0, 0, 0], [0, 2, 2]]))

    def test_runs_are_independent(self):
        generator = torch.Generator().manual_seed(0)
        rewards, values = torch.randn(2, 3, 2, 4, 5, generator=generator)
        mask = torch.rand(3, 2, 4, 1, generator=generator) * 6 > torch.arange(5)
        together = gae(rewards, values, mask)
        for run in [(i, j) for i in range(3) for j in range(2)]:
            assert together[run].equal(gae(rewards[run], values[run], mask[run]))

    @given(batches(), fractions, fractions)
    def test_is_the_discounted_sum_of_td_errors(self, batch, gamma, lam):
        delta = td_errors(*batch, gamma)
        time = delta.shape[1]
        expected = [
            [sum((gamma * lam) ** (u - t) * row[u] for u in range(t, time)) for t in range(time)]
            for row in delta
        ]
        assert_close(gae(*batch, gamma, lam), double(expected))

    @given(batches(), fractions)
    def test_lambda_1_telescopes_to_returns_minus_values(self, batch, gamma):
        rewards, values, mask = batch
        expected = torch.where(mask, returns(rewards, mask, gamma) - values, 0)
        assert_close(gae(rewards, values, mask, gamma, lam=1.0), expected)

    @given(batches(), fractions)
    def test_lambda_0_is_the_td_error(self, batch, gamma):
        assert gae(*batch, gamma, lam=0.0).equal(td_errors(*batch, gamma))

    def test_a_gap_in_the_mask_raises(self):
        x, mask = torch.zeros(1, 3), torch.tensor([[True, False, True]])
        for function in (lambda: returns(x, mask), lambda: td_errors(x, x, mask), lambda: gae(x, x, mask)):
            with pytest.raises(ValueError, match="gap"):
                function()

    @pytest.mark.parametrize("value", [-0.1, 1.1, 95.0, NAN])
    def test_gamma_and_lam_outside_0_to_1_raise(self, value):
        x, mask = torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)
        for function in (
            lambda: returns(x, mask, gamma=value),
            lambda: td_errors(x, x, mask, gamma=value),
            lambda: gae(x, x, mask, gamma=value),
            lambda: gae(x, x, mask, lam=value),
        ):
            with pytest.raises(ValueError, match="between 0 and 1"):
                function()


class TestWhiten:
    def test_by_hand_with_garbage_in_the_padding(self):
        x, mask = double([[1, NAN, INF], [3, 5, 7]]), lengths_to_mask([1, 3], 3)
        # mean 4, biased variance (9 + 1 + 1 + 9) / 4 = 5
        expected = double([[-3, 0, 0], [-1, 1, 3]]) / math.sqrt(5)
        assert_close(whiten(x, mask), expected, rtol=1e-8, atol=0)

    def test_epsilon_is_inside_the_root(self):
        # variance 1e-8, so 1e-4 / √(2e-8); with epsilon outside the root it would be 0.9999
        x = double([[-1e-4, 1e-4]])
        expected = double([[-1, 1]]) / math.sqrt(2)
        assert_close(whiten(x, torch.ones(1, 2, dtype=torch.bool)), expected, rtol=1e-9, atol=0)

    @pytest.mark.parametrize("constant", [0.0, 10.1, -1e6 / 3])
    @pytest.mark.parametrize("shape", [(1, 1), (3, 7), (128, 36)])
    @pytest.mark.parametrize("padding", [0, 2])
    def test_a_constant_becomes_zero_in_float32(self, constant, shape, padding):
        mask = torch.nn.functional.pad(torch.ones(shape, dtype=torch.bool), (0, padding))
        whitened = whiten(torch.where(mask, constant, NAN), mask)
        assert whitened.dtype == torch.float32
        assert (whitened == 0).all()

    @given(st.lists(st.integers(-100, 100), min_size=2, max_size=12), st.integers(-(10**6), 10**6))
    def test_mean_0_and_variance_1_whatever_the_offset_unless_constant(self, numbers, offset):
        x = torch.nn.functional.pad(double([numbers]) + offset, (0, 2), value=NAN)
        mask = lengths_to_mask([len(numbers)], len(numbers) + 2)
        whitened = whiten(x, mask)
        assert masked_mean(whitened, mask).abs() < 1e-9
        variance = float(len(set(numbers)) > 1)
        assert abs(masked_mean(whitened**2, mask) - variance) < 1e-6

    def test_each_run_is_whitened_alone(self):
        x = double([[[1, 3]], [[100, 500]]])
        whitened = whiten(x, torch.ones_like(x, dtype=torch.bool))
        assert_close(whitened, double([[[-1, 1]], [[-1, 1]]]), rtol=1e-7, atol=0)

    def test_an_empty_mask_raises(self):
        with pytest.raises(ValueError, match="no token"):
            whiten(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool))
