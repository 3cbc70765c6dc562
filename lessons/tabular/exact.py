"""Exact values in the tabular world: no sampling, every response counts with its probability.

Sums over responses are taken level by level over the tree of prefixes: values from the last token back, the
probabilities of states from the first token on. Everything can be differentiated, for autograd to check.
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
    return policy.log_probs(_responses(policy)).sum(dim=-1).exp()


def J(world: World, policy: Policy) -> Float[Tensor, "*runs"]:
    """J(θ) = Σ_y π(y) R(y), the expected return."""
    world.check_same_tree(policy.world)
    return sequence_probs(policy) @ world.returns(world.sequences)


def gradient(world: World, policy: Policy) -> Float[Tensor, "*runs params"]:
    """∇J = Σ_s d(s) Σ_a π(a|s) A(s, a) ∇ log π(a|s); its entry for s and a is d(s) π(a|s) A(s, a).

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
    """V(s) = Σ_a π(a|s) Q(s, a), the expected sum of the rewards still to come; 0 in states never reached."""
    return (policy.table * q_values(world, policy)).sum(dim=-1)


def q_values(world: World, policy: Policy) -> Float[Tensor, "*runs rows vocab"]:
    """Q(s, a) = r(s, a) + V(s with a behind it), and V = 0 after the last token."""

    def value(q, level):
        return (policy.table[..., level, :] * q).sum(dim=-1)

    return _backward(world, policy, value)


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
    """π* ∝ π_ref exp(R/β), the policy with the highest E[R] − β KL(π‖π_ref).

    Token by token π*(a|s) ∝ π_ref(a|s) exp(Q*(s, a)/β), where Q*(s, a) = r(s, a) + V*(s with a behind it) and
    V*(s) = β log Σ_a π_ref(a|s) exp(Q*(s, a)/β).

    Raises ValueError if beta is not positive.

    Source: Rafailov et al., Direct Preference Optimization (2023), eq. 4.
    """
    if not beta > 0:
        raise ValueError(f"beta must be positive, not {beta}: without a leash there is no single optimum")

    def value(q, level):
        return beta * (ref.log_table[..., level, :] + q / beta).logsumexp(dim=-1)

    return Policy(ref.world, ref.log_table + _backward(world, ref, value) / beta)


def fisher(policy: Policy) -> Float[Tensor, "*runs rows vocab vocab"]:
    """F = E[∇ log π(y) ∇ log π(y)ᵀ], one block a state: d(s) (diag π(·|s) − π(·|s) π(·|s)ᵀ).

    Outside the blocks F is 0: whatever came before a token, its score has mean 0. F is the curvature of the
    KL: KL(π_θ‖π_{θ+x}) = ½ xᵀFx up to third order in x.
    """
    pi = policy.table
    return visits(policy)[..., None, None] * (torch.diag_embed(pi) - pi[..., :, None] * pi[..., None, :])


def natural_gradient(policy: Policy, gradient: Float[Tensor, "*runs params"]) -> Float[Tensor, "*runs params"]:
    """x = F⁺ g: of all x with F x = g the shortest. g must be a policy gradient, exact or from samples.

    F has a null space, directions that change no response's probability: one number added to all logits of a
    state, and any change where no response comes by. F⁺ leaves them alone. Elsewhere F x = g is solved state
    by state: d(s) π(a|s) (x_a − Σ_b π(b|s) x_b) = g_a holds for x_a = g_a / (d(s) π(a|s)), because a policy
    gradient sums to 0 over the tokens of a state. Taking off the mean over the tokens makes x the shortest.

    For g = ∇J, x is A(s, a) less its mean over the tokens.

    Source: Kakade, A Natural Policy Gradient (2001), section 2.
    """
    share = visits(policy)[..., None] * policy.table
    x = torch.where(share > 0, gradient.view(share.shape) / share, 0)
    return (x - x.mean(dim=-1, keepdim=True)).flatten(-2)


class Moments(NamedTuple):
    """Mean of a gradient estimate, and its variance: the expected squared distance from that mean."""

    mean: Float[Tensor, "*runs params"]
    variance: Float[Tensor, "*runs"]


def moments(policy: Policy, weights: Float[Tensor, "*runs responses time"], batch: int = 1) -> Moments:
    """Of ĝ = (1/N) Σ_i Σ_t w_t(y_i) ∇ log π(a_it|s_it), over all batches of N = `batch` sampled responses.

    `weights` holds w_t(y) for every response of `world.sequences`: returns, less a baseline or not, or
    advantages. They must not depend on the rest of the batch: its N terms are then independent, and the
    variance is that of one term divided by N.

    Raises ValueError if the batch is empty.
    """
    _check_batch(batch, least=1)
    y, probs = _responses(policy), sequence_probs(policy)
    weights = weights.expand(y.shape)
    mean = policy.score_sum(y, probs[..., None] * weights)
    mean_square = (probs * _squared_norm(policy, y, weights)).sum(dim=-1)
    return Moments(mean, (mean_square - (mean**2).sum(dim=-1)) / batch)


def leave_one_out_moments(world: World, policy: Policy, batch: int) -> Moments:
    """Of ĝ = (1/N) Σ_i (R_i − b_i) ∇ log π(y_i), b_i the mean return of the N − 1 others of the batch.

    ĝ is the mean of ½ (R_i − R_j) (∇ log π(y_i) − ∇ log π(y_j)) over all pairs of the batch. The variance of
    a mean over pairs is (4 (N − 2) ζ₁ + 2 ζ₂) / (N (N − 1)): ζ₂ is the variance of the term of one pair, and
    ζ₁ that of its expectation given y_i, which is ½ ((R_i − J) ∇ log π(y_i) + ∇J).

    Raises ValueError if a batch has fewer than 2 responses.

    Source: Hoeffding, A Class of Statistics with Asymptotically Normal Distribution (1948), eq. 5.13.
    """
    _check_batch(batch, least=2)
    world.check_same_tree(policy.world)
    y, probs, R = _responses(policy), sequence_probs(policy), world.returns(world.sequences)

    def mean(x):
        return (probs * x).sum(dim=-1)

    centred = R - mean(R)[..., None]
    squared_score = _squared_norm(policy, y, torch.ones(y.shape, dtype=probs.dtype))
    g = policy.score_sum(y, (probs * centred)[..., None].expand(y.shape))
    zeta_1 = (mean(centred**2 * squared_score) - (g**2).sum(dim=-1)) / 4
    # ¼ E[(R_i − R_j)² |score_i − score_j|²] − |∇J|², multiplied out; what holds one score alone has mean 0.
    zeta_2 = (mean(centred**2 * squared_score) + mean(centred**2) * mean(squared_score)) / 2
    return Moments(g, (4 * (batch - 2) * zeta_1 + 2 * zeta_2) / (batch * (batch - 1)))


def batch_mean_moments(world: World, policy: Policy, batch: int) -> Moments:
    """Of ĝ = (1/N) Σ_i (R_i − R̄) ∇ log π(y_i), R̄ the mean return of the batch, R_i included.

    R_i − R̄ is (N − 1)/N times R_i less the mean of the others, so ĝ is (N − 1)/N times leave-one-out.

    Raises ValueError if a batch has fewer than 2 responses.
    """
    mean, variance = leave_one_out_moments(world, policy, batch)
    scale = (batch - 1) / batch
    return Moments(scale * mean, scale**2 * variance)


def _responses(policy: Policy) -> Int[Tensor, "*runs responses time"]:
    y = policy.world.sequences
    return y.expand(*policy.runs, *y.shape)


def _squared_norm(policy: Policy, y: Tensor, weights: Tensor) -> Tensor:
    """|Σ_t w_t ∇ log π(a_t|s_t)|² = Σ_t w_t² |one-hot(a_t) − π(·|s_t)|²: each token has a row of its own."""
    weights = torch.where(policy.world.mask(y), weights, 0)
    states = policy.world.states(y)
    collision = (policy.table**2).sum(dim=-1).gather(-1, states.flatten(-2)).view(states.shape)
    return (weights**2 * (1 - 2 * policy.log_probs(y).exp() + collision)).sum(dim=-1)


def _backward(world: World, policy: Policy, value: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Q(s, a) = r(s, a) + the value of the state behind, which `value` finds from the Q of its level.

    Behind an end token there is no reward on any way, and so the values there come out as 0.
    """
    world.check_same_tree(policy.world)
    rewards = world.reward_table.expand(policy.logits.shape)
    q = [rewards[..., world.levels[-1], :]]
    for level, next_level in zip(world.levels[-2::-1], world.levels[:0:-1], strict=True):
        q.append(rewards[..., level, :] + value(q[-1], next_level).unflatten(-1, (-1, world.vocab)))
    return torch.cat(q[::-1], dim=-2)


def _check_batch(batch: int, least: int) -> None:
    if batch < least:
        raise ValueError(f"a batch needs at least {least} responses here, not {batch}")
