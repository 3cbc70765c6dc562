"""The losses, all to be minimised, and the entropy.

Rows are responses, columns are tokens. `mask` is True where a response token counts, the end token included.
What stands at masked places, NaN included, reaches no loss and no gradient. Weights, advantages, returns and
everything "old" are constants: no gradient flows into them.

`tokens` is the global count of tokens when a batch is split, over processes or accumulated gradients: each
part then gives its share, and the shares sum to the loss, and to the statistics, of the whole batch.
`max_ratio_error` is the exception: of the parts' maxima take the largest.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons.rl.advantages import masked_mean
from lessons.rl.kl import k3


def reinforce(
    log_probs: Float[Tensor, "*runs batch time"],
    weights: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
) -> Float[Tensor, "*runs"]:
    """−(1/batch) Σ_rows Σ_t weight_t log π(a_t|s_t): the sum over time, the mean over the batch.

    Minus its gradient is an unbiased estimate of ∇J, whatever the lengths of the responses, if the weights
    are returns, with or without a baseline.

    Source: Williams, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
    Learning (1992), section 6.
    """
    log_probs, weights = _zero_padding(mask, log_probs, weights.detach())
    return -(weights * log_probs).sum(dim=-1).mean(dim=-1)


def clipped_surrogate(
    log_probs: Float[Tensor, "*runs batch time"],
    old_log_probs: Float[Tensor, "*runs batch time"],
    advantages: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    epsilon: float,
    tokens: int | Int[Tensor, "*runs"] | None = None,
) -> tuple[Float[Tensor, "*runs"], dict[str, Float[Tensor, "*runs"]]]:
    """−mean over tokens of min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â), with ρ = π(a_t|s_t) / π_old(a_t|s_t).

    Returns the loss and detached statistics:
    - clip_fraction: share of tokens with ρ outside 1 ± ε;
    - zero_gradient_fraction: share of tokens that the clip leaves without gradient, ρ > 1 + ε with Â > 0 or
      ρ < 1 − ε with Â < 0;
    - approx_kl: KL(π_old‖π) in nats a token, by k3;
    - max_ratio_error: largest |ρ − 1|.

    Raises ValueError if epsilon is not positive, or if there is no token.

    Source: Schulman et al., Proximal Policy Optimization Algorithms (2017), eq. 7.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, not {epsilon}")
    log_probs, old_log_probs, advantages = _zero_padding(
        mask, log_probs, old_log_probs.detach(), advantages.detach()
    )
    ratio = (log_probs - old_log_probs).exp()
    clipped_ratio = ratio.clamp(1 - epsilon, 1 + epsilon)
    loss = -masked_mean(torch.minimum(ratio * advantages, clipped_ratio * advantages), mask, tokens)

    above, below = ratio > 1 + epsilon, ratio < 1 - epsilon
    no_gradient = (above & (advantages > 0)) | (below & (advantages < 0))
    stats = {
        "clip_fraction": masked_mean((above | below).to(ratio.dtype), mask, tokens),
        "zero_gradient_fraction": masked_mean(no_gradient.to(ratio.dtype), mask, tokens),
        **_drift(ratio, masked_mean(k3(old_log_probs, log_probs), mask, tokens)),
    }
    return loss, stats


def kl_penalised(
    log_probs: Float[Tensor, "*runs batch time"],
    old_log_probs: Float[Tensor, "*runs batch time"],
    advantages: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    beta: float | Float[Tensor, "*runs"],
    tokens: int | Int[Tensor, "*runs"] | None = None,
) -> tuple[Float[Tensor, "*runs"], dict[str, Float[Tensor, "*runs"]]]:
    """−mean over tokens of ρ Â − β KL(π_old‖π), with ρ = π(a_t|s_t) / π_old(a_t|s_t).

    The KL is k3 of the samples, which come from π_old: on average, its value and its gradient are those of
    the exact KL. Returns the loss and detached statistics: approx_kl and max_ratio_error, as in
    `clipped_surrogate`.

    Raises ValueError if there is no token.

    Source: Schulman et al., Proximal Policy Optimization Algorithms (2017), eq. 8.
    """
    log_probs, old_log_probs, advantages = _zero_padding(
        mask, log_probs, old_log_probs.detach(), advantages.detach()
    )
    ratio = (log_probs - old_log_probs).exp()
    kl = masked_mean(k3(old_log_probs, log_probs), mask, tokens)
    loss = -(masked_mean(ratio * advantages, mask, tokens) - beta * kl)
    return loss, _drift(ratio, kl)


def value_loss(
    values: Float[Tensor, "*runs batch time"],
    old_values: Float[Tensor, "*runs batch time"],
    returns: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    clip: float | None = None,
    tokens: int | Int[Tensor, "*runs"] | None = None,
) -> Float[Tensor, "*runs"]:
    """½ mean over tokens of (V − R)², or, with `clip`, of max((V − R)², (V_clip − R)²).

    V_clip = V_old + clamp(V − V_old, −clip, clip): moving a value further than that gains nothing.

    Raises ValueError if clip is not positive, or if there is no token.

    Source of the clip: OpenAI Baselines, ppo2.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be positive, or None for no clip, not {clip}")
    values, old_values, returns = _zero_padding(mask, values, old_values.detach(), returns.detach())
    squared_error = (values - returns) ** 2
    if clip is not None:
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        squared_error = torch.maximum(squared_error, (clipped_values - returns) ** 2)
    return masked_mean(squared_error, mask, tokens) / 2


def entropy(logits: Float[Tensor, "*runs batch time vocab"]) -> Float[Tensor, "*runs batch time"]:
    """−Σ_a π(a|s_t) log π(a|s_t) of the next-token distribution, in nats a token.

    A token with logit −inf adds 0 and gets no gradient. There is no mask here: average with `masked_mean`,
    and keep NaN out of the logits at padding, from where it would reach the gradient.
    """
    log_probs = logits.log_softmax(dim=-1)
    probs = log_probs.exp()
    return -(probs * torch.where(probs > 0, log_probs, 0)).sum(dim=-1)


def _zero_padding(
    mask: Bool[Tensor, "*shape"], *tensors: Float[Tensor, "*shape"]
) -> list[Float[Tensor, "*shape"]]:
    """Before any arithmetic: masked later, NaN would leave the loss but stay in the gradient, as 0 · NaN."""
    return [torch.where(mask, x, 0) for x in tensors]


def _drift(
    ratio: Float[Tensor, "*runs batch time"], kl: Float[Tensor, "*runs"]
) -> dict[str, Float[Tensor, "*runs"]]:
    return {"approx_kl": kl.detach(), "max_ratio_error": (ratio - 1).abs().amax(dim=(-2, -1)).detach()}
