"""KL divergence from samples, the KL penalty as a reward on each token, and the controllers of its β."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def k1(log_p: Float[Tensor, "*shape"], log_q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """ℓ = log p − log q, in nats, of samples of p.

    Unbiased for KL(p‖q), but negative on some samples. As a loss it is only noise: its gradient with respect
    to p is zero on average.

    Source of k1, k2 and k3: Schulman, Approximating KL Divergence (2020),
    http://joschu.net/blog/kl-approx.html
    """
    return log_p - log_q


def k2(log_p: Float[Tensor, "*shape"], log_q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """½ ℓ² with ℓ = log p − log q, in nats, of samples of p.

    Biased for KL(p‖q), never negative. As a loss its gradient with respect to p is on average that of
    KL(p‖q), if ℓ is the log-ratio of whole responses.
    """
    return (log_p - log_q) ** 2 / 2


def k3(log_p: Float[Tensor, "*shape"], log_q: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """e^{−ℓ} − 1 + ℓ with ℓ = log p − log q, in nats, of samples of p.

    Unbiased for KL(p‖q), never negative. As a loss its gradient with respect to q is on average that of
    KL(p‖q); with respect to p it is that of KL(q‖p), the other direction, if ℓ is the log-ratio of whole
    responses.
    """
    log_ratio = log_p - log_q
    return torch.expm1(-log_ratio) + log_ratio  # near ℓ = 0, exp(−ℓ) − 1 would lose its digits


def per_token_rewards(
    scores: Float[Tensor, "*runs batch"],
    log_probs: Float[Tensor, "*runs batch time"],
    ref_log_probs: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    beta: float | Float[Tensor, "*runs"],
) -> Float[Tensor, "*runs batch time"]:
    """r_t = −β (log π − log π_ref) on each response token, plus the score on the last one; detached.

    The last token is the last True of a row: the end token, or the final token of a response cut off at the
    limit. Masked places get 0.

    Raises ValueError if a row of the mask is empty: its score would be lost.

    Source: Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), eq. 2, token by token.
    """
    if not mask.any(dim=-1).all():
        raise ValueError("a row of the mask is empty: each response needs a token to carry its score")
    tokens_so_far = mask.cumsum(dim=-1)
    last = mask & (tokens_so_far == tokens_so_far[..., -1:])
    beta = torch.as_tensor(beta, dtype=log_probs.dtype, device=log_probs.device)[..., None, None]
    penalty = torch.where(mask, beta * k1(log_probs, ref_log_probs), 0)
    return (torch.where(last, scores[..., None], 0) - penalty).detach()


@dataclass
class FixedKL:
    """A β that stays what it is.

    Raises ValueError if beta is negative or not finite.
    """

    beta: float

    def __post_init__(self):
        _check_beta(self.beta)

    def update(self, kl: float, n: int) -> None:
        """Does nothing; takes what the other controllers take."""


@dataclass
class AdaptiveKL:
    """Steers the KL to the reference to a target: e = clip(kl / target − 1, ±0.2), β ← β (1 + e n / horizon).

    `target` is in nats a response, `horizon` in episodes: over so many, e = 0.2 raises β by about a fifth.
    `beta` is all that changes: to resume, set it to the saved one. A β of 0 stays 0.

    Raises ValueError if beta is negative or not finite, or target or horizon is not positive and finite.

    Source: Ziegler et al., Fine-Tuning Language Models from Human Preferences (2019), section 2.2, with
    K_β = n / horizon.
    """

    beta: float
    target: float
    horizon: float

    def __post_init__(self):
        _check_beta(self.beta)
        _check_positive("target", self.target)
        _check_positive("horizon", self.horizon)

    def update(self, kl: float, n: int) -> None:
        """`kl`: mean KL to the reference in nats a response, not a token; `n`: episodes it is the mean of.

        Raises ValueError if kl is NaN, or if n is so large beside the horizon that β could fall to 0.
        """
        _check_kl(kl)
        if not 0 <= n < 5 * self.horizon:
            raise ValueError(f"n must be from 0 to below 5 horizons, {5 * self.horizon:g} episodes, not {n}")
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.beta *= 1 + error * n / self.horizon


@dataclass
class PenaltyKL:
    """PPO's rule for the β of `kl_penalised`: halved if kl < target / 1.5, doubled if kl > 1.5 target.

    `beta` and `kl` may be tensors, one entry a run. `target` is in nats a token, to the old policy.

    Raises ValueError if beta is negative or not finite, or target is not positive and finite.

    Source: Schulman et al., Proximal Policy Optimization Algorithms (2017), section 4.
    """

    beta: float | Float[Tensor, "*runs"]
    target: float

    def __post_init__(self):
        _check_beta(self.beta)
        _check_positive("target", self.target)

    def update(self, kl: float | Float[Tensor, "*runs"], n: int = 0) -> None:
        """`kl`: mean KL(π_old‖π) in nats a token, after the passes over a batch; `n` is not used.

        Raises ValueError if kl is NaN.
        """
        _check_kl(kl)
        too_far, too_near = kl > 1.5 * self.target, kl < self.target / 1.5
        self.beta = self.beta * (1 + too_far - 0.5 * too_near)  # a factor of 2, 1 or ½, for tensors too


def _check_beta(beta: float | Float[Tensor, "*runs"]) -> None:
    values = torch.as_tensor(beta)
    if not (values.isfinite() & (values >= 0)).all():
        raise ValueError(f"beta must be at least 0 and finite, not {beta}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < torch.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")


def _check_kl(kl: float | Float[Tensor, "*runs"]) -> None:
    if torch.as_tensor(kl).isnan().any():
        raise ValueError("kl is NaN: beta cannot follow it")
