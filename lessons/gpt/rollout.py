"""Sample responses, score them again, and the record that carries them through an update.

Shapes: `tokens` holds left-padded prompts followed by right-padded responses; everything else is about response tokens only
and has shape (batch, time), with `mask` True where a token counts (EOS included).
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, GPT2LMHeadModel, PreTrainedTokenizerBase

from lessons.gpt.models import logits_at, pad_left, positions
from lessons.rl import entropy


@dataclass(frozen=True)
class Rollout:
    """One batch of responses and all that an update computes about them; what is not computed yet is None."""

    # sampled
    tokens: Int[Tensor, "batch width"]  # prompt and response
    attention_mask: Int[Tensor, "batch width"]  # 1 on real tokens
    mask: Bool[Tensor, "batch time"]  # True on response tokens, EOS included
    old_log_probs: Float[Tensor, "batch time"]  # under the policy that sampled, stored while sampling
    entropies: Float[Tensor, "batch time"] | None = None  # of the distributions that the tokens were drawn from, nats
    # judged
    ref_log_probs: Float[Tensor, "batch time"] | None = None
    values: Float[Tensor, "batch time"] | None = None  # V(s_t): before token t is chosen
    scores: Float[Tensor, " batch"] | None = None  # the scorer's number for each response
    gold: Float[Tensor, " batch"] | None = None  # the critic's
    # derived
    rewards: Float[Tensor, "batch time"] | None = None
    advantages: Float[Tensor, "batch time"] | None = None
    returns: Float[Tensor, "batch time"] | None = None

    @property
    def prompt_width(self) -> int:
        """Columns of `tokens` before the first response token."""
        return self.tokens.shape[1] - self.mask.shape[1]

    @property
    def response_tokens(self) -> Int[Tensor, "batch time"]:
        """The sampled ids."""
        return self.tokens[:, self.prompt_width :]

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """Response tokens of each row, EOS included."""
        return self.mask.sum(-1)

    def ended(self, eos_id: int) -> Bool[Tensor, " batch"]:
        """True where the response ends in EOS, False where it was cut off at the limit."""
        last = self.response_tokens.gather(1, (self.lengths - 1).unsqueeze(1)).squeeze(1)
        return last == eos_id

    def rows(self, index: Tensor) -> Rollout:
        """The same record for some rows only, trimmed to the longest response among them."""
        chosen = {f.name: None if (x := getattr(self, f.name)) is None else x[index] for f in fields(self)}
        spare = self.mask.shape[1] - int(chosen["mask"].sum(-1).max())
        if spare:
            for name, x in chosen.items():
                if x is not None and x.ndim == 2:
                    chosen[name] = x[:, :-spare]
        return Rollout(**chosen)

    def texts(self, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
        """(prompt, response) of every row, without its end token. Any other special token shows: a critic should see it."""
        written = self.mask & (self.response_tokens != tokenizer.eos_token_id)
        return list(zip(
            decode(tokenizer, self.tokens[:, : self.prompt_width], self.attention_mask[:, : self.prompt_width].bool()),
            decode(tokenizer, self.response_tokens, written),
        ))  # fmt: skip

    def save(self, path: Path, **notes) -> None:
        """Write the record as one safetensors file, whole or not at all; `notes` go into its header as JSON."""
        tensors = {f.name: x.contiguous().cpu() for f in fields(self) if (x := getattr(self, f.name)) is not None}
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as temporary:
            draft = os.path.join(temporary, "rollout")
            save_file(tensors, draft, metadata={"notes": json.dumps(notes)})
            os.replace(draft, path)

    @classmethod
    def load(cls, path: Path) -> tuple[Rollout, dict]:
        """The record and its notes. Raises FileNotFoundError or ValueError if it cannot be read."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"no stored rollout at {path}")
        try:
            with safe_open(path, framework="pt") as file:
                record = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
                return cls(**record), json.loads(file.metadata()["notes"])
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a stored rollout: {error}") from None


def decode(tokenizer, tokens: Int[Tensor, "batch width"], mask: Bool[Tensor, "batch width"]) -> list[str]:
    """The text of the masked tokens of every row."""
    rows = [row[keep].tolist() for row, keep in zip(tokens.cpu(), mask.cpu())]
    return [text.strip() for text in tokenizer.batch_decode(rows, clean_up_tokenization_spaces=False)]


def inverse_cdf(log_probs: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """One token a row: the first at which the cumulative probability exceeds the row's uniform number in [0, 1).

    A token of probability 0 is never chosen, and one number a token is all the randomness there is.
    """
    cumulative = log_probs.double().exp().cumsum(-1)
    at = uniforms.double().unsqueeze(-1) * cumulative[:, -1:]  # rounding leaves the sum a little off 1
    return torch.searchsorted(cumulative, at, right=True).squeeze(-1).clamp(max=log_probs.shape[-1] - 1)


@torch.no_grad()
def sample(
    policy: GPT2LMHeadModel,
    prompts: list[list[int]],
    uniforms: Float[Tensor, "batch limit"],
    *,
    eos_id: int,
    pad_id: int,
    temperature: float = 1.0,
) -> Rollout:
    """Sample one response a prompt from softmax(logits / temperature), the plain distribution, with a key-value cache.

    A row ends with EOS or after `limit` tokens. Sampling stops when every row has ended, so the record is as wide as its longest
    response. Row i uses the numbers `uniforms[i]` and nothing else that is random.
    Raises ValueError if a prompt and its response would not fit into the policy's context.
    """
    limit, device = uniforms.shape[1], next(policy.parameters()).device
    context = policy.config.n_positions
    longest = max(map(len, prompts))
    if not all(prompts):
        raise ValueError("an empty prompt: there is no token to continue")
    if longest + limit > context:
        raise ValueError(
            f"a prompt of {longest} tokens and a response of up to {limit} do not fit into a context of {context}; "
            "shorten one of them"
        )
    policy.eval()
    tokens, attention = (t.to(device) for t in pad_left(prompts, pad_id))
    uniforms = uniforms.to(device)
    cache = DynamicCache(config=policy.config)
    open_rows = torch.ones(len(prompts), dtype=torch.bool, device=device)
    position, step_input = positions(attention), tokens
    drawn, log_probs, entropies, masks = [], [], [], []
    for t in range(limit):
        output = policy(
            input_ids=step_input, attention_mask=attention, position_ids=position, cache=cache, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        step_log_probs = (output.logits[:, -1].float() / temperature).log_softmax(-1)
        token = inverse_cdf(step_log_probs, uniforms[:, t])
        drawn.append(token.masked_fill(~open_rows, pad_id))
        log_probs.append(step_log_probs.gather(-1, token.unsqueeze(-1)).squeeze(-1).masked_fill(~open_rows, 0.0))
        entropies.append(entropy(step_log_probs.unsqueeze(1)).squeeze(1).masked_fill(~open_rows, 0.0))
        masks.append(open_rows)
        attention = torch.cat([attention, open_rows.long().unsqueeze(1)], dim=1)
        step_input, position = drawn[-1].unsqueeze(1), position[:, -1:] + 1
        open_rows = open_rows & (token != eos_id)
        if not open_rows.any():
            break
    return Rollout(
        tokens=torch.cat([tokens, torch.stack(drawn, 1)], dim=1),
        attention_mask=attention,
        mask=torch.stack(masks, 1),
        old_log_probs=torch.stack(log_probs, 1),
        entropies=torch.stack(entropies, 1),
    )


def response_logits(policy, rollout: Rollout, temperature: float = 1.0) -> Float[Tensor, "batch time vocab"]:
    """Logits / temperature that chose each response token: those one position before it, computed for no other position."""
    width, time = rollout.tokens.shape[1], rollout.mask.shape[1]
    before = torch.arange(width - time - 1, width - 1, device=rollout.tokens.device)
    return logits_at(policy, rollout.tokens, rollout.attention_mask, before) / temperature


def chosen_log_probs(
    logits: Float[Tensor, "batch time vocab"], tokens: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
) -> Float[Tensor, "batch time"]:
    """log π of the sampled tokens in nats, 0 on padding."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).masked_fill(~mask, 0.0)


def log_probs(policy, rollout: Rollout, temperature: float = 1.0) -> Float[Tensor, "batch time"]:
    """Score a rollout's own tokens again, by the same distribution that `sample` draws from."""
    return chosen_log_probs(response_logits(policy, rollout, temperature), rollout.response_tokens, rollout.mask)
