import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lessons.rl import AdaptiveKL, FixedKL, PenaltyKL, k1, k2, k3, masked_mean, per_token_rewards

NAN, INF = math.nan, math.inf
LOG2 = math.log(2)

P = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
KL_PQ = 0.25 * LOG2  # 0.5 log 2 + 0.25 log 1 + 0.25 log ½
P2 = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
Q2 = torch.tensor([0.1, 0.8, 0.1], dtype=torch.float64)
KL_P2Q2 = 0.7 * math.log(7) + 0.2 * math.log(1 / 4)
KL_Q2P2 = 0.1 * math.log(1 / 7) + 0.8 * math.log(4)


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def expected(estimator, p, q):
    """The estimator's exact mean over samples of p."""
    return (p * estimator(p.log(), q.log())).sum()


class TestValues:
    def test_of_each_outcome_by_hand(self):
        log_p, log_q = P.log(), Q.log()  # ℓ = log 2, 0, −log 2
        assert_close(k1(log_p, log_q), double([LOG2, 0, -LOG2]))
        assert_close(k2(log_p, log_q), double([LOG2**2 / 2, 0, LOG2**2 / 2]))
        assert_close(k3(log_p, log_q), double([LOG2 - 0.5, 0, 1 - LOG2]))

    @pytest.mark.parametrize("estimator", [k1, k3])
    def test_k1_and_k3_average_to_the_kl_in_the_stated_direction(self, estimator):
        assert_close(expected(estimator, P, Q).item(), KL_PQ)
        assert_close(expected(estimator, P2, Q2).item(), KL_P2Q2)
        assert_close(expected(estimator, Q2, P2).item(), KL_Q2P2)
        assert abs(KL_P2Q2 - KL_Q2P2) > 0.1  # so that a swapped direction would show

    def test_k2_is_biased(self):
        assert_close(expected(k2, P, Q).item(), 0.75 * LOG2**2 / 2)
        assert 0.75 * LOG2**2 / 2 > KL_PQ + 0.006

    def test_only_k1_is_negative_on_a_sample(self):
        assert k1(P.log(), Q.log()).min() < 0
        assert k2(P.log(), Q.log()).min() == k3(P.log(), Q.log()).min() == 0

    def test_k3_keeps_its_digits_near_zero_in_float32(self):
        log_ratio, exact = torch.tensor(1e-3), 1e-6 / 2 - 1e-9 / 6
        assert_close(k3(log_ratio, torch.tensor(0.0)).item(), exact, rtol=1e-3, atol=0)
        assert abs((-log_ratio).exp() - 1 + log_ratio - exact) > 0.01 * exact

    @given(st.floats(-20, 20), st.floats(-20, 20))
    def test_k2_and_k3_are_never_negative(self, log_p, log_q):
        log_p, log_q = double(log_p), double(log_q)
        assert k2(log_p, log_q) >= 0
        assert k3(log_p, log_q) >= -1e-14


# Two tokens of a vocabulary of 3, nine sequences: a row of logits for the first token, one for each second.
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(4, 3, dtype=torch.float64, generator=GENERATOR)
REF_LOGITS = torch.randn(4, 3, dtype=torch.float64, generator=GENERATOR)
SEQUENCES = torch.cartesian_prod(torch.arange(3), torch.arange(3))


def token_log_probs(logits):
    """log π of both tokens of all nine sequences."""
    table = logits.log_softmax(-1)
    first, second = SEQUENCES.T
    return torch.stack([table[0, first], table[1 + first, second]], dim=-1)


def gradient(loss):
    """Of `loss(log_probs, ref_log_probs)` with respect to the policy's logits."""
    logits = LOGITS.clone().requires_grad_()
    loss(token_log_probs(logits), token_log_probs(REF_LOGITS)).backward()
    return logits.grad


def expected_gradient(per_sequence_loss):
    """The mean gradient over samples of the policy: sampling is not differentiated, so π(y) is a constant."""

    def mean_loss(log_probs, ref):
        return (log_probs.detach().sum(-1).exp() * per_sequence_loss(log_probs, ref)).sum()

    return gradient(mean_loss)


def exact_kl(log_p, log_q):
    """KL(p‖q) between the distributions of sequences."""
    log_p, log_q = log_p.sum(-1), log_q.sum(-1)
    return (log_p.exp() * (log_p - log_q)).sum()


class TestGradients:
    def test_k1_as_a_loss_has_zero_expected_gradient(self):
        gradient_k1 = expected_gradient(lambda log_probs, ref: k1(log_probs, ref).sum(-1))
        assert_close(gradient_k1, torch.zeros_like(LOGITS))
        assert gradient(exact_kl).abs().max() > 0.1

    def test_k2_of_the_sequence_log_ratio_has_the_gradient_of_the_kl(self):
        gradient_k2 = expected_gradient(lambda log_probs, ref: k2(log_probs.sum(-1), ref.sum(-1)))
        assert_close(gradient_k2, gradient(exact_kl))

    def test_k2_summed_over_tokens_does_not(self):
        gradient_k2 = expected_gradient(lambda log_probs, ref: k2(log_probs, ref).sum(-1))
        assert (gradient_k2 - gradient(exact_kl)).abs().max() > 0.05

    def test_k3_of_the_sequence_log_ratio_has_the_gradient_of_the_other_direction(self):
        gradient_k3 = expected_gradient(lambda log_probs, ref: k3(log_probs.sum(-1), ref.sum(-1)))
        assert_close(gradient_k3, gradient(lambda log_probs, ref: exact_kl(ref, log_probs)))
        assert (gradient_k3 - gradient(exact_kl)).abs().max() > 0.1

    def test_k3_of_old_samples_has_the_gradient_of_the_kl_to_the_new_policy(self):
        # Samples of the reference here, the gradient in the second argument: the KL penalty of PPO.
        def mean_k3(log_probs, old):
            return (old.sum(-1).exp() * k3(old, log_probs).sum(-1)).sum()

        assert_close(gradient(mean_k3), gradient(lambda log_probs, old: exact_kl(old, log_probs)))


class TestPerTokenRewards:
    def test_score_on_the_end_token_and_on_the_last_token_of_a_cut_response(self):
        # [a, end, padding] and three tokens without an end; log π − log π_ref is 1, −2 and 0.5, −1, 2.
        log_probs = double([[-1, -3, NAN], [-1, -2, -1]])
        ref_log_probs = double([[-2, -1, INF], [-1.5, -1, -3]])
        mask = torch.tensor([[True, True, False], [True, True, True]])
        rewards = per_token_rewards(double([10, 20]), log_probs, ref_log_probs, mask, beta=0.1)
        assert_close(rewards, double([[-0.1, 10.2, 0], [-0.05, 0.1, 19.8]]))

    def test_sum_to_the_score_minus_beta_times_the_log_ratio_of_the_response(self):
        log_probs, ref = token_log_probs(LOGITS), token_log_probs(REF_LOGITS)
        scores, mask = torch.arange(9, dtype=torch.float64), torch.ones(9, 2, dtype=torch.bool)
        total = per_token_rewards(scores, log_probs, ref, mask, beta=0.3).sum(-1)
        probs = log_probs.sum(-1).exp()
        # E[r − β KL] by enumeration
        objective = (probs * scores).sum() - 0.3 * exact_kl(log_probs, ref)
        assert_close((probs * total).sum(), objective)

    def test_policy_equal_to_the_reference_pays_no_penalty(self):
        log_probs, mask = double([[-1, -2, -3]]), torch.ones(1, 3, dtype=torch.bool)
        assert per_token_rewards(double([5]), log_probs, log_probs, mask, beta=0.7).tolist() == [[0, 0, 5]]

    def test_are_detached(self):
        log_probs = double([[-1.0, -2.0]]).requires_grad_()
        scores = double([1.0]).requires_grad_()
        mask = torch.ones(1, 2, dtype=torch.bool)
        rewards = per_token_rewards(scores, log_probs, double([[-1.0, -1.0]]), mask, beta=0.1)
        assert not rewards.requires_grad

    def test_each_run_may_have_its_own_beta(self):
        log_probs, ref = double([[[-1, -1]], [[-1, -1]]]), double([[[-2, -2]], [[-2, -2]]])
        mask = torch.ones(2, 1, 2, dtype=torch.bool)
        rewards = per_token_rewards(double([[3], [4]]), log_probs, ref, mask, beta=double([0, 0.5]))
        assert_close(rewards, double([[[0, 3]], [[-0.5, 3.5]]]))

    def test_an_empty_row_raises(self):
        x, mask = torch.zeros(2, 2), torch.tensor([[True, True], [False, False]])
        with pytest.raises(ValueError, match="row of the mask is empty"):
            per_token_rewards(torch.zeros(2), x, x, mask, beta=0.1)


class TestAdaptiveKL:
    def test_three_updates_by_hand(self):
        controller = AdaptiveKL(beta=0.1, target=6.0, horizon=1000)
        controller.update(kl=12.0, n=100)  # error 1, clipped to 0.2: × 1.02
        assert_close(controller.beta, 0.102)
        controller.update(kl=5.4, n=100)  # error −0.1: × 0.99
        assert_close(controller.beta, 0.10098)
        controller.update(kl=0.0, n=500)  # error −1, clipped to −0.2, five times the episodes: × 0.9
        assert_close(controller.beta, 0.090882)

    def test_a_kl_on_target_changes_nothing(self):
        controller = AdaptiveKL(beta=0.1, target=6.0, horizon=1000)
        controller.update(kl=6.0, n=1000)
        assert controller.beta == 0.1

    def test_a_mean_over_tokens_in_place_of_responses_would_turn_it_the_wrong_way(self):
        # Responses of 2 and 4 tokens, each token 2 nats from the reference: 6 nats a response, 2 a token.
        mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        log_ratio = k1(torch.where(mask, -1.0, NAN), torch.where(mask, -3.0, NAN))
        per_response = torch.where(mask, log_ratio, 0).sum(-1).mean().item()
        assert per_response == 6
        controller = AdaptiveKL(beta=0.1, target=5.0, horizon=100)
        controller.update(per_response, n=10)  # error 0.2
        assert_close(controller.beta, 0.102)
        controller = AdaptiveKL(beta=0.1, target=5.0, horizon=100)
        controller.update(masked_mean(log_ratio, mask).item(), n=10)  # error −0.6, clipped
        assert_close(controller.beta, 0.098)

    def test_resumes_from_beta_alone(self):
        first = AdaptiveKL(beta=0.1, target=6.0, horizon=1000)
        first.update(kl=9.0, n=64)
        resumed = AdaptiveKL(beta=first.beta, target=6.0, horizon=1000)
        first.update(kl=6.3, n=64)
        resumed.update(kl=6.3, n=64)
        assert resumed.beta == first.beta != 0.1

    def test_a_kl_of_nan_raises_and_leaves_beta(self):
        controller = AdaptiveKL(beta=0.1, target=6.0, horizon=1000)
        with pytest.raises(ValueError, match="NaN"):
            controller.update(kl=NAN, n=10)
        assert controller.beta == 0.1

    @pytest.mark.parametrize("n", [-1, 5000])
    def test_episodes_that_could_turn_beta_to_zero_raise(self, n):
        with pytest.raises(ValueError, match="horizon"):
            AdaptiveKL(beta=0.1, target=6.0, horizon=1000).update(kl=6.0, n=n)

    @given(st.floats(0, 100), st.integers(0, 4999))
    def test_beta_stays_positive_and_moves_towards_the_target(self, kl, n):
        controller = AdaptiveKL(beta=0.1, target=6.0, horizon=1000)
        controller.update(kl, n)
        assert controller.beta > 0
        assert (controller.beta - 0.1) * (kl - 6.0) >= 0


class TestPenaltyKL:
    def test_halves_keeps_and_doubles_by_hand(self):
        controller = PenaltyKL(beta=1.0, target=0.03)
        controller.update(kl=0.0199)
        assert controller.beta == 0.5
        controller.update(kl=0.0201)
        controller.update(kl=0.0449)
        assert controller.beta == 0.5
        controller.update(kl=0.0451, n=64)
        assert controller.beta == 1.0

    def test_each_run_has_its_own_beta(self):
        controller = PenaltyKL(beta=double([1, 1, 3]), target=0.03)
        controller.update(double([0.01, 0.03, 0.05]))
        assert_close(controller.beta, double([0.5, 1, 6]))

    def test_one_beta_may_part_into_several(self):
        controller = PenaltyKL(beta=1.0, target=0.03)
        controller.update(double([0.01, 0.05]))
        assert controller.beta.tolist() == [0.5, 2.0]

    def test_a_kl_of_nan_raises(self):
        with pytest.raises(ValueError, match="NaN"):
            PenaltyKL(beta=1.0, target=0.03).update(double([0.01, NAN]))


def test_fixed_kl_stays():
    controller = FixedKL(0.05)
    controller.update(kl=100.0, n=1000)
    assert controller.beta == 0.05


@pytest.mark.parametrize("beta", [-0.1, NAN, INF])
def test_controllers_refuse_a_bad_beta(beta):
    for build in (
        lambda: FixedKL(beta),
        lambda: AdaptiveKL(beta, 6.0, 1000),
        lambda: PenaltyKL(beta, 0.03),
        lambda: PenaltyKL(double([0.1, beta]), 0.03),
    ):
        with pytest.raises(ValueError, match="beta must be at least 0"):
            build()


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_controllers_refuse_a_bad_target_or_horizon(value):
    for build in (lambda: AdaptiveKL(0.1, value, 1000), lambda: PenaltyKL(0.1, value)):
        with pytest.raises(ValueError, match="target must be positive"):
            build()
    with pytest.raises(ValueError, match="horizon must be positive"):
        AdaptiveKL(0.1, 6.0, value)
