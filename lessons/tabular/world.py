"""The exact world: responses of a few tokens from a small vocabulary, so few that every one can be listed.

Two worlds come from one definition:

    World(vocab=8, length=3)           # three tokens of 8: 512 responses
    World(vocab=8, length=4, end=7)    # token 7 ends a response: 1 to 4 tokens, 2,801 responses

A state s_t is the prefix of tokens before t. States are numbered like a heap: the empty prefix is row 0, and
the prefix of row s with token a behind it is row V s + 1 + a. Three tokens of 8 have 1 + 8 + 64 = 73 states.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot


@dataclass(frozen=True)
class World:
    """Which responses there are, and what each of them is worth.

    The return R(y) of a response is its number of matches with `target`, one point for each token that stands
    where the target has it, or `reward(y)` if that is given; plus `offset`.

    vocab: V, the number of tokens.
    length: the greatest number of tokens in a response.
    end: the token that ends a response; without one every response has `length` tokens. Behind the end token
        a response is padded with more of them, and its mask is False.
    target: `length` tokens; None takes a fixed one.
    offset: added to every return.
    reward: any function from padded responses, `... time`, to one number each, the same whenever it is asked.
    pays: "last" pays the whole return on the last token, as a reward model does; "token" pays each match on
        its token, and the offset on the last.

    Raises ValueError if the numbers do not make a world.
    """

    vocab: int = 8
    length: int = 3
    end: int | None = None
    target: tuple[int, ...] | None = None
    offset: float = 0.0
    reward: Callable[[Tensor], Tensor] | None = None
    pays: Literal["last", "token"] = "last"

    def __post_init__(self):
        tokens = range(self.vocab)
        if self.vocab < 2 or self.length < 1:
            raise ValueError(f"a world needs vocab >= 2 and length >= 1, not {self.vocab} and {self.length}")
        if self.vocab**self.length > 1_000_000:
            raise ValueError(f"{self.vocab}^{self.length} responses are too many to list: at most a million")
        if self.end is not None and self.end not in tokens:
            raise ValueError(f"end must be a token from 0 to {self.vocab - 1}, or None, not {self.end}")
        if self.target is None:
            object.__setattr__(self, "target", self._fixed_target())
        if len(self.target) != self.length or not set(self.target) <= set(tokens):
            raise ValueError(f"target must be {self.length} tokens below {self.vocab}, not {self.target}")
        if self.pays not in ("last", "token"):
            raise ValueError(f'pays must be "last" or "token", not {self.pays!r}')
        if self.pays == "token" and self.reward is not None:
            raise ValueError('a reward of whole responses can only be paid on the last token: pays="last"')

    def _fixed_target(self) -> tuple[int, ...]:
        ordinary = [token for token in range(self.vocab) if token != self.end]
        target = [ordinary[(3 * t + 2) % len(ordinary)] for t in range(self.length)]
        return tuple(target if self.end is None else [*target[:-1], self.end])

    # The tree of prefixes.

    @cached_property
    def levels(self) -> list[slice]:
        """The rows of each time step: level t holds the V^t prefixes of t tokens."""
        starts = [sum(self.vocab**k for k in range(t)) for t in range(self.length + 1)]
        return [slice(first, after) for first, after in pairwise(starts)]

    @property
    def rows(self) -> int:
        """Number of states, 1 + V + … + V^(length − 1). With an end token some of them are never reached."""
        return self.levels[-1].stop

    @cached_property
    @torch.inference_mode(False)  # what is kept must serve autograd too, whoever asks first
    def sequences(self) -> Int[Tensor, "responses time"]:
        """Every response once."""
        y = torch.cartesian_prod(*[torch.arange(self.vocab)] * self.length).view(-1, self.length)
        return y if self.end is None else y[(self.mask(y) | (y == self.end)).all(dim=-1)]

    def states(self, y: Int[Tensor, "*shape time"]) -> Int[Tensor, "*shape time"]:
        """Row of the state s_t in which each token was chosen."""
        states = [torch.zeros_like(y[..., 0])]
        for t in range(self.length - 1):
            states.append(self.vocab * states[-1] + 1 + y[..., t])
        return torch.stack(states, dim=-1)

    def mask(self, y: Int[Tensor, "*shape time"]) -> Bool[Tensor, "*shape time"]:
        """True up to the end token, which is included."""
        if self.end is None:
            return torch.ones_like(y, dtype=torch.bool)
        ends = (y == self.end).long()
        return ends.cumsum(dim=-1) - ends == 0

    def check_same_tree(self, other: "World") -> None:
        """Raises ValueError if the other world has other responses, whatever they are worth there."""
        if (self.vocab, self.length, self.end) != (other.vocab, other.length, other.end):
            raise ValueError(f"a policy of {other} does not fit {self}: vocab, length and end must agree")

    # What a response is worth.

    def matches(self, y: Int[Tensor, "*shape time"]) -> Float[Tensor, "*shape"]:
        """Number of tokens that stand where the target has them."""
        return self._hits(y).sum(dim=-1)

    def returns(self, y: Int[Tensor, "*shape time"]) -> Float[Tensor, "*shape"]:
        """R(y): the matches, or `reward(y)`, plus the offset.

        Raises ValueError if the reward is not one number a response.
        """
        if self.reward is None:
            return self.matches(y) + self.offset
        reward = self.reward(y)
        if reward.shape != y.shape[:-1]:
            raise ValueError(f"reward must give one number a response, {tuple(y.shape[:-1])}, not {tuple(reward.shape)}")
        return reward.double() + self.offset

    def rewards(self, y: Int[Tensor, "*shape time"]) -> Float[Tensor, "*shape time"]:
        """R(y) as one reward a token, as `pays` says; 0 behind the end token."""
        last = one_hot(self.mask(y).sum(dim=-1) - 1, self.length).double()
        if self.pays == "token":
            return self._hits(y) + self.offset * last
        return self.returns(y)[..., None] * last

    @cached_property
    @torch.inference_mode(False)
    def reward_table(self) -> Float[Tensor, "rows vocab"]:
        """r(s, a): the reward for token a in state s; 0 where no response comes by."""
        y, mask = self.sequences, self.mask(self.sequences)
        table = torch.zeros(self.rows, self.vocab, dtype=torch.float64)
        table[self.states(y)[mask], y[mask]] = self.rewards(y)[mask]
        return table

    def _hits(self, y: Int[Tensor, "*shape time"]) -> Float[Tensor, "*shape time"]:
        return ((y == torch.tensor(self.target)) & self.mask(y)).double()
