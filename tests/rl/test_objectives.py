import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lessons.rl import clipped_surrogate, entropy, kl_penalised, masked_mean, reinforce, value_loss

NAN, INF = math.nan, math.inf

# Every loss as loss(trained, old, told, mask): what is trained, what it was, what it is told.
TOKEN_MEANS = {
    "clipped_surrogate": lambda x, old, told, mask, tokens=None: clipped_surrogate(
        x, old, told, mask, 0.2, tokens
    )[0],
    "kl_penalised": lambda x, old, told, mask, tokens=None: kl_penalised(x, old, told, mask, 0.5, tokens)[0],
    "value_loss": lambda x, old, told, mask, tokens=None: value_loss(x, old, told, mask, None, tokens),
    "clipped value_loss": lambda x, old, told, mask, tokens=None: value_loss(x, old, told, mask, 0.2, tokens),
}
LOSSES = TOKEN_MEANS | {"reinforce": lambda x, old, told, mask: reinforce(x, told, mask)}
each_token_mean = pytest.mark.parametrize("loss", TOKEN_MEANS.values(), ids=TOKEN_MEANS)
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def all_true(x):
    return torch.ones_like(x, dtype=torch.bool)


def inputs(*shape):
    """Log-probs or values, the old ones (some ratios leave 1 ± 0.2), and advantages or returns."""
    old, step, told = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (old + 0.3 * step).requires_grad_(), old, told


def value_and_gradient(loss, x):
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    return loss.detach(), gradient


# Rows of lengths 1 and 3: padding, and means over tokens that are not means over rows.
MASK = torch.tensor([[True, False, False], [True, True, True]])


class TestEveryLoss:
    @each_loss
    @pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
    def test_padding_reaches_neither_loss_nor_gradient(self, loss, garbage):
        x, old, told = inputs(2, 3)
        clean, clean_gradient = value_and_gradient(loss(x, old, told, MASK), x)
        assert (clean_gradient[~MASK] == 0).all()
        dirty = [torch.where(MASK, tensor.detach(), garbage) for tensor in (x, old, told)]
        x = dirty[0].requires_grad_()
        value, gradient = value_and_gradient(loss(x, *dirty[1:], MASK), x)
        assert value.equal(clean)
        assert gradient.equal(clean_gradient)

    @each_loss
    def test_trains_its_first_argument_only(self, loss):
        x, old, told = inputs(2, 3)
        loss(x, old.requires_grad_(), told.requires_grad_(), MASK).backward()
        assert x.grad.abs().max() > 0
        assert old.grad is None and told.grad is None

    @each_loss
    def test_runs_are_independent(self, loss):
        x, old, told = inputs(3, 2, 4, 5)
        mask = torch.rand(3, 2, 4, 1, generator=torch.Generator().manual_seed(0)) * 5 + 1 > torch.arange(5)
        together = loss(x, old, told, mask)
        assert together.shape == (3, 2)
        for run in [(i, j) for i in range(3) for j in range(2)]:
            assert_close(together[run], loss(x[run], old[run], told[run], mask[run]))

    @each_token_mean
    def test_weighs_tokens_not_rows(self, loss):
        x, old, told = inputs(2, 3)
        alone = torch.stack(
            [loss(*(t[MASK][i].reshape(1, 1) for t in (x, old, told, MASK))) for i in range(4)]
        )
        assert_close(loss(x, old, told, MASK), alone.mean())
        mean_of_row_means = (alone[0] + alone[1:].mean()) / 2
        assert (alone.mean() - mean_of_row_means).abs() > 0.01  # so that the other mean would show

    @each_token_mean
    def test_parts_of_a_batch_sum_to_it_and_a_part_may_be_empty(self, loss):
        x, old, told = inputs(3, 3)
        mask = torch.cat([MASK, MASK[:1] & False])
        whole = value_and_gradient(loss(x, old, told, mask), x)
        parts = [loss(x[i : i + 1], old[i : i + 1], told[i : i + 1], mask[i : i + 1], 4) for i in range(3)]
        assert_close(value_and_gradient(sum(parts), x), whole)
        assert parts[2] == 0

    @each_token_mean
    def test_an_empty_mask_raises(self, loss):
        with pytest.raises(ValueError, match="no token"):
            loss(*inputs(2, 3), MASK & False)


class TestReinforce:
    def test_sums_over_time_and_means_over_the_batch(self):
        log_probs, weights = double([[-1, NAN, NAN], [-1, -2, -3]]), double([[10, NAN, NAN], [1, 2, 3]])
        assert reinforce(log_probs, weights, MASK) == (10 + 1 + 4 + 9) / 2

    @pytest.mark.parametrize("baseline", [0.0, 7.0])
    def test_is_an_unbiased_gradient_of_j_where_lengths_differ(self, baseline):
        # Vocabulary: end, a, b. A response ends with the end token or after two tokens. A uniform policy
        # writes [end] in 1 of 3, each of six others in 1 of 9: these nine rows are its exact distribution.
        logits = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)  # first token, after a, after b
        first, second = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
        mask = torch.stack([first >= 0, first != 0], dim=-1)
        R = double([11, 11, 11, 10, 13, 12, 14, 10, 17])
        table = logits.log_softmax(-1)
        log_probs = torch.stack([table[0, first], table[first, second]], dim=-1)
        weights = (R - baseline)[:, None].expand(9, 2)

        (estimate,) = torch.autograd.grad(-reinforce(log_probs, weights, mask), logits, retain_graph=True)
        J = (torch.where(mask, log_probs, 0).sum(-1).exp() * R / double([3, 3, 3] + [1] * 6)).sum()
        (exact,) = torch.autograd.grad(J, logits, retain_graph=True)
        assert_close(estimate, exact)

        row_means = torch.where(mask, weights * log_probs, 0).sum(-1) / mask.sum(-1)
        (biased,) = torch.autograd.grad(row_means.mean(), logits)
        assert torch.cosine_similarity(biased.flatten(), exact.flatten(), dim=0) < 0.99


class TestClippedSurrogate:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "objective", "gradient"),
        [(1.3, 1, 1.2, 0.0), (1.3, -1, -1.3, -1.3), (0.7, 1, 0.7, 0.7), (0.7, -1, -0.8, 0.0)],
    )
    def test_the_four_cases(self, ratio, advantage, objective, gradient):
        log_prob = double([[math.log(ratio) - 2]]).requires_grad_()
        loss, _ = clipped_surrogate(log_prob, double([[-2]]), double([[advantage]]), all_true(log_prob), 0.2)
        loss.backward()
        assert_close(loss.item(), -objective)
        assert_close(log_prob.grad.item(), -gradient)  # d(ρÂ)/d log π = ρÂ where the clip does not hold

    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    def test_inside_the_clip_the_gradient_is_that_of_the_ratio(self, advantage):
        log_probs = double([[0.9, 1.0, 1.1]]).log().requires_grad_()
        advantages = torch.full_like(log_probs, advantage)
        loss, _ = clipped_surrogate(
            log_probs, torch.zeros(1, 3).double(), advantages, all_true(log_probs), 0.2
        )
        loss.backward()
        assert_close(log_probs.grad, -advantage * double([[0.9, 1.0, 1.1]]) / 3)

    def test_at_the_old_policy_the_gradient_is_the_policy_gradient(self):
        log_probs, _, advantages = inputs(2, 3)
        loss, _ = clipped_surrogate(log_probs, log_probs, advantages, MASK, 0.2)
        policy_gradient = masked_mean(advantages * log_probs, MASK)
        assert_close(
            -value_and_gradient(loss, log_probs)[1], value_and_gradient(policy_gradient, log_probs)[1]
        )

    def test_statistics_by_hand(self):
        ratio = double([[1.3, 1.3, 0.7, NAN], [0.7, 1.1, 0.5, 0.5]])
        advantages = double([[1, -1, 1, INF], [-1, 1, 0, -1]])
        mask = torch.tensor([[True, True, True, False], [True] * 4])
        _, stats = clipped_surrogate(ratio.log(), torch.zeros_like(ratio), advantages, mask, 0.2)
        assert_close(stats["clip_fraction"].item(), 6 / 7)
        assert_close(stats["zero_gradient_fraction"].item(), 3 / 7)  # (1.3, 1), (0.7, −1), (0.5, −1)
        assert_close(stats["max_ratio_error"].item(), 0.5)
        k3_sum = sum(rho - 1 - math.log(rho) for rho in (1.3, 1.3, 0.7, 0.7, 1.1, 0.5, 0.5))
        assert_close(stats["approx_kl"].item(), k3_sum / 7)

    def test_zero_gradient_fraction_counts_the_tokens_that_autograd_leaves_at_zero(self):
        log_probs, old, advantages = inputs(20, 10)
        loss, stats = clipped_surrogate(log_probs, old, advantages, all_true(old), 0.2)
        loss.backward()
        share = (log_probs.grad == 0).double().mean()
        assert_close(stats["zero_gradient_fraction"], share)
        assert 0.05 < share < stats["clip_fraction"] - 0.05

    def test_approx_kl_is_from_the_old_policy_to_the_new(self):
        # Four tokens sampled from the old policy (½, ¼, ¼), each as often as it is likely.
        old, new = double([[0.5, 0.5, 0.25, 0.25]]).log(), double([[0.1, 0.1, 0.1, 0.8]]).log()
        _, stats = clipped_surrogate(new, old, torch.zeros_like(old), all_true(old), 0.2)
        kl_old_new = 0.5 * math.log(5) + 0.25 * math.log(2.5) + 0.25 * math.log(1 / 3.2)
        kl_new_old = 0.1 * math.log(1 / 5) + 0.1 * math.log(1 / 2.5) + 0.8 * math.log(3.2)
        assert_close(stats["approx_kl"].item(), kl_old_new)
        assert kl_old_new > kl_new_old + 0.05  # so that the other direction would show

    def test_an_unchanged_policy_has_ratio_1_to_the_bit(self):
        log_probs = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)) - 20
        loss, stats = clipped_surrogate(log_probs, log_probs, torch.ones(4, 7), all_true(log_probs), 0.2)
        assert loss == -1
        assert all(value == 0 for value in stats.values())

    def test_statistics_of_parts_sum_to_those_of_the_batch(self):
        log_probs, old, advantages = inputs(2, 3)
        _, whole = clipped_surrogate(log_probs, old, advantages, MASK, 0.2)
        rows = [
            clipped_surrogate(
                log_probs[i : i + 1], old[i : i + 1], advantages[i : i + 1], MASK[i : i + 1], 0.2, 4
            )[1]
            for i in range(2)
        ]
        for name in ("clip_fraction", "zero_gradient_fraction", "approx_kl"):
            assert_close(rows[0][name] + rows[1][name], whole[name])
        assert max(row["max_ratio_error"] for row in rows) == whole["max_ratio_error"]

    def test_statistics_keep_the_runs_and_are_detached(self):
        log_probs, old, advantages = inputs(3, 2, 4)
        for _, stats in (
            clipped_surrogate(log_probs, old, advantages, all_true(old), 0.2),
            kl_penalised(log_probs, old, advantages, all_true(old), 0.2),
        ):
            assert all(value.shape == (3,) and not value.requires_grad for value in stats.values())

    @given(st.floats(-3, 3), st.floats(-5, 5), st.floats(0.01, 0.9))
    def test_never_promises_more_than_the_unclipped_objective(self, log_ratio, advantage, epsilon):
        log_prob = double([[log_ratio]])
        loss, _ = clipped_surrogate(
            log_prob, double([[0]]), double([[advantage]]), all_true(log_prob), epsilon
        )
        assert -loss <= math.exp(log_ratio) * advantage + 1e-12
        assert -loss <= (1 + epsilon) * max(advantage, 0) + 1e-12

    @pytest.mark.parametrize("epsilon", [0.0, -0.2, NAN])
    def test_an_epsilon_that_is_not_positive_raises(self, epsilon):
        with pytest.raises(ValueError, match="epsilon must be positive"):
            clipped_surrogate(*inputs(2, 3), MASK, epsilon)

    def test_an_infinite_epsilon_is_no_clip(self):
        log_probs, old, advantages = inputs(2, 3)
        loss, stats = clipped_surrogate(log_probs, old, advantages, MASK, INF)
        assert_close(loss, -masked_mean((log_probs - old).exp() * advantages, MASK))
        assert stats["clip_fraction"] == 0


class TestKlPenalised:
    def test_by_hand(self):
        # ρ = 2 and ½, Â = 1 and −2; k3(old, new) = ρ − 1 − log ρ = 1 − log 2 and −½ + log 2
        ratio, advantages = double([[2, 0.5]]), double([[1, -2]])
        loss, stats = kl_penalised(
            ratio.log(), torch.zeros_like(ratio), advantages, all_true(ratio), beta=3.0
        )
        assert_close(loss.item(), -((2 - 1) / 2 - 3 * 0.25))
        assert_close(stats["approx_kl"].item(), 0.25)
        assert_close(stats["max_ratio_error"].item(), 1.0)

    def test_has_the_gradient_of_the_exact_objective_away_from_the_old_policy_too(self):
        # Four tokens sampled from the old policy (½, ¼, ¼), each as often as it is likely.
        tokens, old, advantages = torch.tensor([[0, 0, 1, 2]]), double([0.5, 0.25, 0.25]), double([1, -1, 2])
        logits = double([0.3, -1, 0.5]).requires_grad_()
        new = logits.softmax(-1)
        loss, _ = kl_penalised(
            new.log()[tokens], old.log()[tokens], advantages[tokens], tokens >= 0, beta=0.7
        )
        exact = (new * advantages).sum() - 0.7 * (old * (old / new).log()).sum()
        assert_close(-loss, exact)
        (exact_gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
        assert_close(-torch.autograd.grad(loss, logits)[0], exact_gradient)

    def test_each_run_may_have_its_own_beta(self):
        log_probs, old, advantages = inputs(2, 2, 3)
        mask = MASK.expand(2, 2, 3)
        together, _ = kl_penalised(log_probs, old, advantages, mask, double([0.0, 2.0]))
        for run, beta in enumerate([0.0, 2.0]):
            alone, _ = kl_penalised(log_probs[run], old[run], advantages[run], MASK, beta)
            assert_close(together[run], alone)


class TestValueLoss:
    def test_by_hand(self):
        values, returns = double([[1, NAN, NAN], [2, 0, 0]]), double([[0, NAN, NAN], [4, 0, 3]])
        assert value_loss(values, torch.zeros_like(values), returns, MASK) == (1 + 4 + 0 + 9) / 4 / 2

    @pytest.mark.parametrize(
        ("value", "target", "loss", "gradient"),
        [
            (
                2.0,
                3.0,
                2.25 / 2,
                0,
            ),  # moved by 1 from 1 towards 3: counted as 1.5, nothing gained by moving on
            (2.0, 1.0, 1 / 2, 1),  # moved away from its target: pulled back
            (0.0, -1.0, 2.25 / 2, 0),  # the mirror image: counted as 0.5
            (0.0, 1.0, 1 / 2, -1),
            (1.2, 3.0, 3.24 / 2, -1.8),  # within the clip: the plain squared error
        ],
    )
    def test_clip_by_hand(self, value, target, loss, gradient):
        values = double([[value]]).requires_grad_()
        clipped = value_loss(values, double([[1]]), double([[target]]), all_true(values), clip=0.5)
        clipped.backward()
        assert_close(clipped.item(), loss)
        assert_close(values.grad.item(), float(gradient))

    @pytest.mark.parametrize("clip", [0.0, -0.2, NAN])
    def test_a_clip_that_is_not_positive_raises(self, clip):
        with pytest.raises(ValueError, match="clip must be positive"):
            value_loss(*inputs(2, 3), MASK, clip)


class TestEntropy:
    def test_by_hand_in_nats(self):
        logits = double([[[0.5, 0.25, 0.25, 0], [0.25] * 4, [1, 0, 0, 0]]]).log()
        assert_close(entropy(logits), double([[1.5 * math.log(2), math.log(4), 0]]))

    def test_a_token_that_cannot_be_sampled_gets_no_gradient_and_spoils_none(self):
        logits = double([[[0.3, -1.0, -INF]]]).requires_grad_()
        entropy(logits).sum().backward()
        without = double([[[0.3, -1.0]]]).requires_grad_()
        entropy(without).sum().backward()
        assert_close(logits.grad, torch.nn.functional.pad(without.grad, (0, 1)))
        assert without.grad.abs().max() > 0.1

    def test_is_stable_for_large_logits_in_float32(self):
        logits = torch.tensor([[[1e4, 1e4, -1e4], [1e4, 0, 0]]])
        assert_close(entropy(logits), torch.tensor([[math.log(2), 0.0]]))

    @given(st.lists(st.floats(-50, 50), min_size=1, max_size=6), st.floats(-100, 100))
    def test_lies_between_0_and_that_of_a_uniform_choice_and_ignores_a_shift(self, logits, shift):
        logits = double([[logits]])
        value = entropy(logits)
        assert -1e-12 <= value <= math.log(logits.shape[-1]) + 1e-12
        assert_close(entropy(logits + shift), value)

    def test_keeps_the_runs(self):
        assert_close(entropy(torch.zeros(2, 3, 4, 5, 7)), torch.full((2, 3, 4, 5), math.log(7)))
