"""A policy as a table of logits, one row a state and one column a token; any number of them side by side."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons.tabular.world import World


@dataclass(frozen=True)
class Policy:
    """π(a|s) is the softmax of the logits in row s.

    Leading dimensions of `logits` are runs, policies that have nothing to do with each other. Responses y
    have the runs in front too, `*runs *batch time`, unless the policy has none. θ, the parameters of a run,
    are its logits as one vector of rows × vocab numbers, and so is every gradient.

    Raises ValueError if the logits do not fit the world.
    """

    world: World
    logits: Float[Tensor, "*runs rows vocab"]

    def __post_init__(self):
        fits, given = (self.world.rows, self.world.vocab), tuple(self.logits.shape[-2:])
        if given != fits:
            raise ValueError(f"logits must end in rows × vocab = {fits}, not {given}")

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[:-2])

    @cached_property
    def table(self) -> Float[Tensor, "*runs rows vocab"]:
        """π(a|s) of every state and token."""
        return softmax(self.logits)[0]

    @cached_property
    def log_table(self) -> Float[Tensor, "*runs rows vocab"]:
        """log π(a|s) of every state and token."""
        return softmax(self.logits)[1]

    def moved(self, step: Float[Tensor, "*runs params"]) -> "Policy":
        """The policy with parameters θ + step."""
        return Policy(self.world, self.logits + step.view(self.logits.shape))

    def sample(self, shape: tuple[int, ...], seed: int) -> Int[Tensor, "*runs_and_shape time"]:
        """Responses of that shape for every run, all from one stream of random numbers."""
        stream = torch.Generator().manual_seed(seed)
        size = (*self.runs, *shape, self.world.length)
        return self.sample_from(torch.rand(size, generator=stream, dtype=torch.float64))[0]

    def sample_from(
        self, uniforms: Float[Tensor, "*runs_and_shape time"]
    ) -> tuple[
        Int[Tensor, "*runs_and_shape time"],
        Float[Tensor, "*runs_and_shape time"],
        Float[Tensor, "*runs_and_shape time vocab"],
    ]:
        """Responses from one number in [0, 1) a token, their log-probs, and π(·|s_t) in their states.

        Token a is taken if the number falls in its share of [0, 1).
        """
        world, steps = self.world, []
        states = torch.zeros(uniforms.shape[:-1], dtype=torch.long)
        ended = torch.zeros_like(states, dtype=torch.bool)
        for t in range(world.length):
            pi, log_pi = softmax(self.logits_at(states))
            shares, number = pi.cumsum(dim=-1), uniforms[..., t, None].contiguous()
            token = torch.searchsorted(shares, number, right=True)[..., 0]
            token = token.clamp(max=world.vocab - 1)  # the shares end at 1 only up to rounding
            log_prob = pick(log_pi, token)
            if world.end is not None:
                token, log_prob = torch.where(ended, world.end, token), torch.where(ended, 0, log_prob)
                ended = token == world.end
            steps.append((token, log_prob, pi))
            states = world.vocab * states + 1 + token
        tokens, log_probs, pis = zip(*steps, strict=True)
        return torch.stack(tokens, dim=-1), torch.stack(log_probs, dim=-1), torch.stack(pis, dim=-2)

    def logits_at(self, states: Int[Tensor, "*runs_and_shape"]) -> Float[Tensor, "*runs_and_shape vocab"]:
        """The rows of logits of these states."""
        per_run = states.reshape(prod(self.runs), -1)
        rows = per_run + self.world.rows * torch.arange(len(per_run))[:, None]
        logits = self.logits.reshape(-1, self.world.vocab).index_select(0, rows.flatten())
        return logits.view(*states.shape, self.world.vocab)

    def log_probs(self, y: Int[Tensor, "*runs_and_batch time"]) -> Float[Tensor, "*runs_and_batch time"]:
        """log π(a_t|s_t) of each token, 0 behind the end token. Their sum over time is log π(y)."""
        log_pi = softmax(self.logits_at(self.world.states(y)))[1]
        return torch.where(self.world.mask(y), pick(log_pi, y), 0)

    def score(
        self,
        y: Int[Tensor, "*runs_and_batch time"],
        weights: Float[Tensor, "*runs_and_batch time"] | None = None,
    ) -> Float[Tensor, "*runs_and_batch params"]:
        """∇ log π(y), one vector a response; with weights Σ_t w_t ∇ log π(a_t|s_t).

        The gradient of log π(a|s) with respect to the logits of row s is the one-hot vector of a minus
        π(·|s), and 0 for every other row.
        """
        weights = self.logits.new_ones(y.shape) if weights is None else weights
        return self.score_sum(y[..., None, :], weights[..., None, :])

    def score_sum(
        self,
        y: Int[Tensor, "*runs_and_batches batch time"],
        weights: Float[Tensor, "*runs_and_batches batch time"],
    ) -> Float[Tensor, "*runs_and_batches params"]:
        """Σ_i Σ_t w_it ∇ log π(a_it|s_it) of each batch, without a vector for each of its responses."""
        states = self.world.states(y)
        weights = torch.where(self.world.mask(y), weights, 0)
        scores = weights[..., None] * log_prob_gradient(softmax(self.logits_at(states))[0], y)
        return scatter_rows(self.world, states.flatten(-2), scores.flatten(-3, -2)).flatten(-2)


def uniform_policy(world: World, runs: tuple[int, ...] = ()) -> Policy:
    """All logits 0: every token has probability 1/V."""
    return Policy(world, torch.zeros(*runs, world.rows, world.vocab, dtype=torch.float64))


def random_policy(world: World, seed: int, runs: tuple[int, ...] = (), scale: float = 1.0) -> Policy:
    """Normal logits with standard deviation `scale`."""
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(*runs, world.rows, world.vocab, generator=stream, dtype=torch.float64)
    return Policy(world, scale * logits)


def softmax(
    logits: Float[Tensor, "*shape vocab"],
) -> tuple[Float[Tensor, "*shape vocab"], Float[Tensor, "*shape vocab"]]:
    """π and log π, both from one exponential. On rows as short as these torch's own functions are slow."""
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total, shifted - total.log()


def log_prob_gradient(pi: Float[Tensor, "*shape vocab"], tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape vocab"]:
    """∂ log π(a|s) / ∂ logits of row s = one-hot(a) − π(·|s)."""
    return (-pi).scatter_add_(-1, tokens[..., None], torch.ones_like(pi[..., :1]))


def pick(table: Float[Tensor, "*shape vocab"], tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The entry of each token in its row."""
    return table.gather(-1, tokens[..., None])[..., 0]


def scatter_rows(
    world: World,
    states: Int[Tensor, "*runs tokens"],
    rows: Float[Tensor, "*runs tokens vocab"],
) -> Float[Tensor, "*runs rows vocab"]:
    """A table of zeros with each row added at its state."""
    table = rows.new_zeros(*states.shape[:-1], world.rows, world.vocab)
    return table.scatter_add_(-2, states[..., None].expand_as(rows), rows)
