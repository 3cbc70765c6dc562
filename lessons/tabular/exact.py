"""Exact values in the tabular world: no sampling, every response counts with its probability.

Values, advantages and policies over the tree of prefixes are found level by level: values from the last token back,
probabilities of states from the first token on. Everything can be differentiated, so that autograd can check it.
Gradients are with respect to θ, one vector of rows × vocab numbers. KL and entropy are in nats a response.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons.tabular.policy import Policy
from lessons.tabular.world import World


def sequence_probs(policy: Policy) -> Float[Tensor, "*runs responses"]:
    """π(y) = Π_t π(a_t|s_t) of every response, in the order of `world.sequences`."""
    return policy.log_probs(_all_responses(policy)).sum(dim=-1).exp()


def J(world: World, policy: Policy) -> Float[Tensor, "*runs"]:  # noqa: N802
    """J(θ) = Σ_y π(y) R(y), the expected return."""
    return sequence_probs(policy) @ world.returns(world.sequences)


def gradient(world: World, policy: Policy) -> Float[Tensor, "*runs params"]:
    """∇J = Σ_s d(s) Σ_a π(a|s) A(s, a) ∇ log π(a|s), whose entry for state s and token a is d(s) π(a|s) A(s, a).

    Source: Sutton and Barto, Reinforcement Learning (2nd ed., 2018), eq. 13.5, the policy gradient theorem.
    """
    return (visits(policy)[..., None] * policy.table * advantages(world, policy)).flatten(-2)


def visits(policy: Policy) -> Float[Tensor, "*runs rows"]:
    """d(s): the probability that a response comes by state s."""
    levels = [torch.ones_like(policy.table[..., :1, 0])]
    for level in policy.world.levels[:-1]:
        onward = levels[-1][..., None] * policy.table[..., level, :]
        if policy.world.end is not None:
            onward = onward.index_fill(-1, torch.tensor(policy.world.end), 0.0)
        levels.append(onward.flatten(-2))
    return torch.cat(levels, dim=-1)


def values(world: World, policy: Policy) -> Float[Tensor, "*runs rows"]:
    """V(s) = Σ_a π(a|s) Q(s, a): the expected sum of the rewards still to come; 0 where no response comes by."""
    return (policy.table * q_values(world, policy)).sum(dim=-1)


def q_values(world: World, policy: Policy) -> Float[Tensor, "*runs rows vocab"]:
    """Q(s, a) = r(s, a) + V(s with a added), and V = 0 after the last token."""
    return _backward(policy, world.reward_table, lambda q, level: (policy.table[..., level, :] * q).sum(dim=-1))


def advantages(world: World, policy: Policy) -> Float[Tensor, "*runs rows vocab"]:
    """A(s, a) = Q(s, a) − V(s)."""
    q = q_values(world, policy)
    return q - (policy.table * q).sum(dim=-1, keepdim=True)


def kl(p: Policy, q: Policy) -> Float[Tensor, "*runs"]:
    """KL(p‖q) = Σ_y p(y) log(p(y) / q(y)) = Σ_s d_p(s) Σ_a p(a|s) log(p(a|s) / q(a|s))."""
    return (visits(p) * (p.table * (p.log_table - q.log_table)).sum(dim=-1)).sum(dim=-1)


def entropy(policy: Policy) -> Float[Tensor, "*runs"]:
    """−Σ_y π(y) log π(y) = −Σ_s d(s) Σ_a π(a|s) log π(a|s)."""
    return -(visits(policy) * (policy.table * policy.log_table).sum(dim=-1)).sum(dim=-1)


def tilted(world: World, ref: Policy, beta: float) -> Policy:
    """π* ∝ π_ref exp(R/β), the policy that maximises E[R] − β KL(π‖π_ref).

    Token by token π*(a|s) ∝ π_ref(a|s) exp(Q*(s, a)/β), with Q*(s, a) = r(s, a) + V*(s with a added) and
    V*(s) = β log Σ_a π_ref(a|s) exp(Q*(s, a)/β).

    Raises ValueError if beta is not positive.

    Source: Korbak et al., On Reinforcement Learning and Distribution Matching (2022), eq. 5.
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, not {beta}: without a leash there is no single optimum")

    def soft_value(q, level):
        return beta * (ref.log_table[..., level, :] + q / beta).logsumexp(dim=-1)

    return Policy(world, ref.log_table + _backward(ref, world.reward_table, soft_value) / beta)


def fisher(policy: Policy) -> Float[Tensor, "*runs rows vocab vocab"]:
    """F = E[∇ log π(y) ∇ log π(y)ᵀ], as one block a state: d(s) (diag π(·|s) − π(·|s) π(·|s)ᵀ).

    Everything outside the blocks is 0: the score of a token has mean 0 whatever came before it. F is the curvature of
    the KL: KL(π_θ‖π_{θ+x}) = ½ xᵀFx up to third order in x.
    """
    pi = policy.table
    return visits(policy)[..., None, None] * (torch.diag_embed(pi) - pi[..., :, None] * pi[..., None, :])


def natural_gradient(
    policy: Policy, gradient: Float[Tensor, "*runs params"]
) -> Float[Tensor, "*runs params"]:
    """x = F⁺ g, the shortest of the directions with F x = g, for a g that the policy can cause.

    F has a null space, directions in which the policy does not change: adding one number to all logits of a state
    changes no probability, and no logit of a state that is never reached changes any response. F⁺ leaves them alone.
    In the rest F is solved state by state: d(s) π(a|s) (x_a − Σ_b π_b x_b) = g_a holds for x_a = g_a / (d(s) π(a|s)),
    if g sums to 0 over the tokens of each state, as every policy gradient does. Taking off the mean over the tokens
    makes it the shortest. For g = ∇J this is A(s, a) less its mean over the tokens.

    Source: Kakade, A Natural Policy Gradient (2001), eq. 2 and 3.
    """
    weight = visits(policy)[..., None] * policy.table
    g = gradient.view_as(weight)
    x = torch.where(weight > 0, g / weight, 0)
    return (x - x.mean(dim=-1, keepdim=True)).flatten(-2)


class Moments(NamedTuple):
    """Mean of a gradient estimate, and its variance: the expected squared distance from the mean, over all of θ."""

    mean: Float[Tensor, "*runs params"]
    variance: Float[Tensor, "*runs"]


def moments(
    policy: Policy, weights: Float[Tensor, "*runs responses time"], batch: int = 1
) -> Moments:
    """Exact moments of ĝ = (1/N) Σ_i Σ_t w_t(y_i) ∇ log π(a_it|s_it), over all batches of N sampled responses.

    `weights` holds w_t(y) for every response of `world.sequences`: returns, less a baseline or not, or advantages. They
    must not depend on the other responses of a batch; then the N terms are independent, and the variance is that of
    one response divided by N.
    """
    _check_batch(batch, least=1)
    y, probs = _all_responses(policy), sequence_probs(policy)
    weights = weights.expand(y.shape)
    mean = policy.score_sum(y, probs[..., None] * weights)
    second = (probs * _squared_norm(policy, y, weights)).sum(dim=-1)
    return Moments(mean, (second - (mean**2).sum(dim=-1)) / batch)


def leave_one_out_moments(world: World, policy: Policy, batch: int) -> Moments:
    """Exact moments of ĝ = (1/N) Σ_i (R_i − b_i) ∇ log π(y_i), b_i the mean return of the other N − 1 responses.

    ĝ is the sample covariance of return and score, the mean of ½ (R_i − R_j)(∇ log π(y_i) − ∇ log π(y_j)) over all pairs.
    The variance of such a mean is (4 (N − 2) ζ₁ + 2 ζ₂) / (N (N − 1)), where ζ₂ is the variance of the term of one pair
    and ζ₁ that of its mean over the second response, ½ ((R − J) ∇ log π(y) + ∇J).

    Source: Hoeffding, A Class of Statistics with Asymptotically Normal Distribution (1948), eq. 5.13.
    """
    _check_batch(batch, least=2)
    y, probs = _all_responses(policy), sequence_probs(policy)
    R, squared_score = world.returns(world.sequences), _squared_norm(policy, y, torch.ones_like(y, dtype=probs.dtype))

    def mean(x):
        return (probs * x).sum(dim=-1)

    centred = R - mean(R)[..., None]
    g = policy.score_sum(y, (probs * centred)[..., None].expand(y.shape))
    zeta_1 = (mean(centred**2 * squared_score) - (g**2).sum(dim=-1)) / 4
    # E[(R_1 − R_2)² |score_1 − score_2|²] / 4 − |∇J|², multiplied out; whatever holds one score alone has mean 0.
    zeta_2 = (mean(centred**2 * squared_score) + mean(centred**2) * mean(squared_score)) / 2
    return Moments(g, (4 * (batch - 2) * zeta_1 + 2 * zeta_2) / (batch * (batch - 1)))


def batch_mean_moments(world: World, policy: Policy, batch: int) -> Moments:
    """Exact moments of ĝ = (1/N) Σ_i (R_i − R̄) ∇ log π(y_i), R̄ the mean return of the whole batch.

    R_i − R̄ is (N − 1)/N times the return less the mean of the others, so this is (N − 1)/N times leave-one-out.
    """
    scale = (batch - 1) / batch
    mean, variance = leave_one_out_moments(world, policy, batch)
    return Moments(scale * mean, scale**2 * variance)


def _all_responses(policy: Policy) -> Int[Tensor, "*runs responses time"]:
    y = policy.world.sequences
    return y.expand(*policy.runs, *y.shape)


def _squared_norm(policy: Policy, y: Tensor, weights: Tensor) -> Tensor:
    """|Σ_t w_t ∇ log π(a_t|s_t)|² = Σ_t w_t² |one-hot(a_t) − π(·|s_t)|²: the states of a response are different rows."""
    weights = torch.where(policy.world.mask(y), weights, 0)
    chosen = policy.log_probs(y).exp()
    collision = (policy.table**2).sum(dim=-1).gather(-1, policy.world.states(y).flatten(-2)).view(y.shape)
    return (weights**2 * (1 - 2 * chosen + collision)).sum(dim=-1)


def _backward(policy: Policy, rewards: Tensor, value: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Q(s, a) = r(s, a) + value of the state behind (s, a), from the last level to the first.

    A state behind an end token finds no reward on any way, so its value comes out as 0 without being asked for.
    """
    world = policy.world
    rewards = rewards.expand_as(policy.logits)
    q = [rewards[..., world.levels[-1], :]]
    for level, next_level in zip(world.levels[-2::-1], world.levels[:0:-1], strict=True):
        q.append(rewards[..., level, :] + value(q[-1], next_level).unflatten(-1, (-1, world.vocab)))
    return torch.cat(q[::-1], dim=-2)


def _check_batch(batch: int, least: int) -> None:
    if batch < least:
        raise ValueError(f"a batch needs at least {least} responses here, not {batch}")
