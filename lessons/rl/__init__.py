"""The algorithms, as pure functions on tensors: the same code for the tabular world and for GPT-2.

Shapes are `*runs batch time`: any leading dimensions for runs, one row a response, one column a token. Losses
and statistics keep `*runs`.
"""

from lessons.rl.advantages import gae, masked_mean, returns, td_errors, whiten
from lessons.rl.kl import AdaptiveKL, FixedKL, PenaltyKL, k1, k2, k3, per_token_rewards
from lessons.rl.objectives import clipped_surrogate, entropy, kl_penalised, reinforce, value_loss

__all__ = [
    "AdaptiveKL",
    "FixedKL",
    "PenaltyKL",
    "clipped_surrogate",
    "entropy",
    "gae",
    "k1",
    "k2",
    "k3",
    "kl_penalised",
    "masked_mean",
    "per_token_rewards",
    "reinforce",
    "returns",
    "td_errors",
    "value_loss",
    "whiten",
]
