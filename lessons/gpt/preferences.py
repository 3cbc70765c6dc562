"""From disagreeing readers to a reward model: preference pairs, Bradley-Terry, and the best accuracy there can be."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from lessons.gpt.corpus import Corpus, encode_prompt
from lessons.gpt.critic import Critic
from lessons.gpt.models import Preset, fit, pad_right, raw_scores, reward_from
from lessons.gpt.rollout import Rollout, sample


@dataclass(frozen=True)
class Pair:
    """Two responses to one prompt; a reader preferred `chosen`. Token rows hold prompt, response and EOS if there was one."""

    prompt: str
    chosen: str
    rejected: str
    chosen_tokens: list[int]
    rejected_tokens: list[int]


@dataclass(frozen=True)
class RewardReport:
    """How good a reward model is, on held-out pairs and on the supervised model's samples."""

    held_out_pairs: int
    accuracy: float  # the model agrees with the drawn label
    gold_accuracy: float  # the gold reward agrees with it
    ceiling: float | None  # the best any judge can expect, exactly; None where the critic cannot compute it
    gold_correlation: float  # of score and gold over samples
    gold_mean: float
    gold_std: float

    as_dict = asdict


def row_tokens(rollout: Rollout) -> list[list[int]]:
    """Each row's real tokens, prompt and response, without padding."""
    keep = rollout.attention_mask.bool()
    return [row[k].tolist() for row, k in zip(rollout.tokens.cpu(), keep.cpu())]


def sample_texts(
    policy, tokenizer, prompts: list[str], limit: int, seed: int, batch: int = 1_000, title: str | None = None
) -> tuple[list[str], list[list[int]]]:
    """One response a prompt: its text, and the token row of prompt and response."""
    uniforms = torch.rand(len(prompts), limit, generator=torch.Generator().manual_seed(seed))
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    responses, rows = [], []
    for start in tqdm(range(0, len(prompts), batch), desc=title, unit="batch", leave=False, disable=title is None):
        part = slice(start, start + batch)
        rollout = sample(
            policy, encoded[part], uniforms[part], eos_id=tokenizer.eos_token_id, pad_id=tokenizer.pad_token_id
        )
        responses += [response for _, response in rollout.texts(tokenizer)]
        rows += row_tokens(rollout)
    return responses, rows


def prefer(critic: Critic, first: str, second: str, rng: random.Random) -> bool:
    """True if one reading puts `first` above `second`; a tie is decided by a coin."""
    one, other = critic.reading(first, rng), critic.reading(second, rng)
    return one > other or (one == other and rng.random() < 0.5)


def make_pairs(
    policy, tokenizer, corpus: Corpus, count: int, limit: int, seed: int, progress: bool = True
) -> list[Pair]:
    """`count` pairs of different responses that the supervised model gives to the same prompt, labelled by one reading each."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    for attempt in range(20):
        prompts = [prompt for prompt in rng.choices(corpus.prompts, k=count - len(pairs)) for _ in range(2)]
        texts, rows = sample_texts(
            policy, tokenizer, prompts, limit, rng.getrandbits(48), title="preference pairs" if progress else None
        )
        for i in range(0, len(prompts), 2):
            if texts[i] == texts[i + 1]:
                continue
            a, b = (i, i + 1) if prefer(corpus.critic, texts[i], texts[i + 1], rng) else (i + 1, i)
            pairs.append(Pair(prompts[i], texts[a], texts[b], rows[a], rows[b]))
        if len(pairs) == count:
            return pairs
    raise ValueError(f"the model too often gives one answer to a prompt: {len(pairs)} of {count} pairs in {attempt + 1} tries")


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """−log σ(r(chosen) − r(rejected)), mean over pairs (Stiennon et al. 2020, section 3.4)."""
    return -nn.functional.logsigmoid(chosen - rejected).mean()


def _pair_scores(model, pairs: list[Pair], pad_id: int) -> tuple[Tensor, Tensor]:
    rows = [pair.chosen_tokens for pair in pairs] + [pair.rejected_tokens for pair in pairs]
    tokens, mask = (t.to(model.device) for t in pad_right(rows, pad_id))
    chosen, rejected = raw_scores(model, tokens, mask).chunk(2)
    return chosen, rejected


def train_reward_model(base, tokenizer, pairs: list[Pair], preset: Preset, seed: int, progress: bool = True):
    """A reward model that starts from the supervised model and learns to put the preferred response of each pair higher."""
    model = reward_from(base, seed).to(base.device)
    return fit(
        model, pairs, lambda chosen: bradley_terry_loss(*_pair_scores(model, chosen, tokenizer.pad_token_id)),
        lengths=[len(pair.chosen_tokens) + len(pair.rejected_tokens) for pair in pairs], batch=preset.reward_batch,
        epochs=preset.reward_epochs, learning_rate=preset.reward_learning_rate, seed=seed, title="reward model",
        progress=progress,
    )  # fmt: skip


@torch.no_grad()
def accuracy(model, pairs: list[Pair], pad_id: int, batch: int = 500) -> float:
    """Share of pairs whose preferred response has the higher score, ties counted half."""
    wins = 0.0
    for start in range(0, len(pairs), batch):
        chosen, rejected = _pair_scores(model, pairs[start : start + batch], pad_id)
        wins += ((chosen > rejected).double() + (chosen == rejected).double() / 2).sum().item()
    return wins / len(pairs)


@torch.no_grad()
def row_scores(model, rows: list[list[int]], pad_id: int, batch: int = 500) -> Tensor:
    """The raw score of every token row."""
    parts = []
    for start in range(0, len(rows), batch):
        tokens, mask = (t.to(model.device) for t in pad_right(rows[start : start + batch], pad_id))
        parts.append(raw_scores(model, tokens, mask).cpu())
    return torch.cat(parts)


def normalise(
    model, base, tokenizer, corpus: Corpus, held_out: list[Pair], limit: int, seed: int, count: int = 1_000
) -> RewardReport:
    """Set the model's mean and deviation over the supervised model's samples, in its config, and report how good it is."""
    prompts = random.Random(seed).choices(corpus.prompts, k=count)
    texts, rows = sample_texts(base, tokenizer, prompts, limit, seed)
    raw = row_scores(model, rows, tokenizer.pad_token_id)
    gold = torch.tensor([corpus.critic.gold(text) for text in texts])
    if not raw.std() > 0:
        raise ValueError("the reward model gives every response the same score; more pairs or epochs are needed")
    model.config.score_mean, model.config.score_std = raw.mean().item(), raw.std(correction=0).item()
    gold_accuracy = math.fsum(
        0.5 if a == b else float(a > b)
        for a, b in ((corpus.critic.gold(p.chosen), corpus.critic.gold(p.rejected)) for p in held_out)
    ) / len(held_out)
    win = getattr(corpus.critic, "win_probability", None)
    ceiling = None
    if win is not None:
        ceiling = math.fsum(max(p, 1 - p) for pair in held_out for p in [win(pair.chosen, pair.rejected)]) / len(held_out)
    return RewardReport(
        held_out_pairs=len(held_out), accuracy=accuracy(model, held_out, tokenizer.pad_token_id), gold_accuracy=gold_accuracy,
        ceiling=ceiling, gold_correlation=torch.corrcoef(torch.stack([raw, gold.float()]))[0, 1].item(),
        gold_mean=gold.mean().item(), gold_std=gold.std(correction=0).item(),
    )  # fmt: skip
