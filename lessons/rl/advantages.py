"""From rewards and values to advantages, one number a token.

Rows are responses, columns are tokens. `mask` is True where a response token counts, the end token included.
The True places of a row stand side by side, as they do when responses are padded on the right. What stands at
masked places, NaN included, reaches no result and no gradient.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


def masked_mean(
    x: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    tokens: int | Int[Tensor, "*runs"] | None = None,
) -> Float[Tensor, "*runs"]:
    """Σ x over the mask / number of tokens: every token weighs the same, whatever the length of its response.

    `tokens` is the global count when a batch is split, over processes or accumulated gradients: the parts
    then sum to the mean over the whole batch, and the mask of a part may be empty.

    Raises ValueError if the count is 0 in any run.
    """
    count = mask.sum(dim=(-2, -1)) if tokens is None else torch.as_tensor(tokens)
    if (count < 1).any():
        raise ValueError("no token to average over: each run needs a True in its mask, or tokens >= 1")
    return torch.where(mask, x, 0).sum(dim=(-2, -1)) / count


def returns(
    rewards: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    gamma: float = 1.0,
) -> Float[Tensor, "*runs batch time"]:
    """Reward-to-go: R_t = r_t + γ R_{t+1} = Σ_l γ^l r_{t+l}, and 0 at masked places.

    Raises ValueError if gamma is outside [0, 1] or a row of the mask has a gap.

    Source: Sutton and Barto, Reinforcement Learning (2nd ed., 2018), eq. 3.8 and 3.9.
    """
    _check_fraction("gamma", gamma)
    _check_no_gap(mask)
    return _discounted_sum(rewards, mask, gamma)


def td_errors(
    rewards: Float[Tensor, "*runs batch time"],
    values: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    gamma: float = 1.0,
) -> Float[Tensor, "*runs batch time"]:
    """δ_t = r_t + γ V(s_{t+1}) − V(s_t), and 0 at masked places.

    V is 0 after a row's last token. A response cut off at the length limit counts as ended, like any other.

    Raises ValueError if gamma is outside [0, 1] or a row of the mask has a gap.

    Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation
    (2016), section 3.
    """
    _check_fraction("gamma", gamma)
    _check_no_gap(mask)
    values = torch.where(mask, values, 0)
    next_values = pad(values[..., 1:], (0, 1))
    return torch.where(mask, rewards + gamma * next_values - values, 0)


def gae(
    rewards: Float[Tensor, "*runs batch time"],
    values: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    gamma: float = 1.0,
    lam: float = 0.95,
) -> Float[Tensor, "*runs batch time"]:
    """Generalised advantage estimate: Â_t = δ_t + γλ Â_{t+1} = Σ_l (γλ)^l δ_{t+l}, and 0 at masked places.

    λ = 0 gives the TD errors, λ = 1 the returns minus the values. A row without a token gets zeros.

    Raises ValueError if gamma or lam is outside [0, 1] or a row of the mask has a gap.

    Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation
    (2016), eq. 16; λ = 0 is its eq. 17 and λ = 1 its eq. 18.
    """
    _check_fraction("lam", lam)
    return _discounted_sum(td_errors(rewards, values, mask, gamma), mask, gamma * lam)


def whiten(
    x: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
) -> Float[Tensor, "*runs batch time"]:
    """(x − mean) / √(variance + 1e-8) over the mask of each run, and 0 at masked places.

    The variance is the biased one, divided by the number of tokens. A constant becomes exactly 0.

    Raises ValueError if the mask of a run is empty.
    """
    # The mean of a constant can be off by a rounding error, which the small root would blow up. An offset
    # changes nothing here, so the lowest value goes first: of a constant that leaves exactly 0.
    lowest = torch.where(mask, x, torch.inf).amin(dim=(-2, -1), keepdim=True)
    x = torch.where(mask, x - lowest, 0)
    centred = x - masked_mean(x, mask)[..., None, None]
    variance = masked_mean(centred**2, mask)[..., None, None]
    return torch.where(mask, centred / (variance + 1e-8).sqrt(), 0)


def _discounted_sum(
    x: Float[Tensor, "*runs batch time"],
    mask: Bool[Tensor, "*runs batch time"],
    discount: float,
) -> Float[Tensor, "*runs batch time"]:
    """y_t = x_t + discount · y_{t+1}, from the last column to the first, all rows at once."""
    x = torch.where(mask, x, 0)
    y = torch.zeros_like(x)
    after = x.new_zeros(x.shape[:-1])
    for t in reversed(range(x.shape[-1])):
        after = x[..., t] + discount * after
        y[..., t] = after
    return torch.where(mask, y, 0)


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value}")


def _check_no_gap(mask: Bool[Tensor, "*runs batch time"]) -> None:
    starts = mask & ~pad(mask[..., :-1], (1, 0))
    if (starts.sum(dim=-1) > 1).any():
        raise ValueError("mask has a gap: the tokens of a response must stand side by side in its row")
