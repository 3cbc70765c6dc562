"""The four models of PPO, as transformers knows them, and the supervised model they all start from.

    policy     GPT2LMHeadModel                  trained
    reference  GPT2LMHeadModel                  frozen, a copy of the policy before the first update
    reward     GPT2ForSequenceClassification    frozen, one output: the score of a whole response
    value      GPT2ForTokenClassification       trained, one output a token, starts as the reward model

No model has dropout: the policy that is scored must be the policy that sampled.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
)

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "summary_first_dropout": 0.0, "classifier_dropout": 0.0}


@dataclass(frozen=True)
class Preset:
    """The size of a base model, and how it and its reward model are trained."""

    layers: int
    width: int
    heads: int
    context: int
    epochs: float
    batch: int
    learning_rate: float
    pairs: int
    reward_epochs: float
    reward_batch: int
    reward_learning_rate: float


PRESETS = {
    "pocket": Preset(
        layers=3, width=96, heads=4, context=128, epochs=2.5, batch=32, learning_rate=3e-3,
        pairs=8_000, reward_epochs=2, reward_batch=32, reward_learning_rate=1e-3,
    ),
    "gpt2-small": Preset(
        layers=12, width=768, heads=12, context=1024, epochs=2.5, batch=32, learning_rate=6e-4,
        pairs=8_000, reward_epochs=1, reward_batch=32, reward_learning_rate=2e-5,
    ),
}  # fmt: skip


def fine_tuning(preset: Preset) -> Preset:
    """The same for a checkpoint that has been trained already: small steps, one time over the corpus."""
    return replace(preset, epochs=1, learning_rate=1e-4, reward_epochs=1, reward_learning_rate=2e-5)


def device() -> torch.device:
    """The GPU, if there is one. (Apple's has no float64, which sampling needs.)"""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def new_base(preset: Preset, tokenizer: PreTrainedTokenizerBase, seed: int) -> GPT2LMHeadModel:
    """An untrained GPT-2 of the preset's size for the tokenizer's vocabulary."""
    config = GPT2Config(
        vocab_size=len(tokenizer), n_layer=preset.layers, n_embd=preset.width, n_head=preset.heads, n_positions=preset.context,
        initializer_range=0.02 * math.sqrt(768 / preset.width),  # GPT-2's 0.02 belongs to its width; narrow models want more
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        **NO_DROPOUT,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


def load_base(name: str) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerBase]:
    """A GPT-2 checkpoint and its tokenizer, from a folder or by its name on a model hub; weights from safetensors only.

    Raises ValueError in one line if it cannot be read or is no GPT-2.
    """
    try:
        config = AutoConfig.from_pretrained(name)
        if config.model_type != "gpt2":
            raise ValueError(f"it is a {config.model_type} model")
        tokenizer = AutoTokenizer.from_pretrained(name)
        config.update(NO_DROPOUT)
        model, loading = GPT2LMHeadModel.from_pretrained(
            name, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
        missing = sorted(set(loading["missing_keys"]) - {"lm_head.weight"})  # tied to the embedding
        if missing:
            raise ValueError(f"its weights lack {missing[0]} and {len(missing) - 1} more")
    except Exception as error:  # noqa: BLE001 - a checkpoint is somebody's input, and can be wrong in any way
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"no GPT-2 checkpoint can be loaded from {name!r}: {reason}") from None
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {name!r} has no end-of-text token; a response could never end")
    if not 1 < len(tokenizer) <= config.vocab_size:
        raise ValueError(f"the tokenizer of {name!r} has {len(tokenizer)} tokens where its model has {config.vocab_size}")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # never read: masks decide what is padding
    return model, tokenizer


def freeze(model: nn.Module) -> nn.Module:
    """Stop gradients and dropout, in place."""
    return model.requires_grad_(False).eval()


def reward_from(base: GPT2LMHeadModel, seed: int) -> GPT2ForSequenceClassification:
    """A reward model: a copy of the base's trunk with one new output. Its normalisation (0, 1) stands in its config."""
    config = copy.deepcopy(base.config)
    config.num_labels, config.score_mean, config.score_std = 1, 0.0, 1.0
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2ForSequenceClassification(config)
    model.transformer.load_state_dict(base.transformer.state_dict())
    return model


def value_from(reward: GPT2ForSequenceClassification) -> GPT2ForTokenClassification:
    """A value model that starts as the reward model: its value at a response's last token is the normalised score.

    The normalisation (s − mean) / std is folded into the head's weight and bias.
    """
    config = copy.deepcopy(reward.config)
    with torch.random.fork_rng():  # its random head is overwritten: nobody's random numbers should move
        model = GPT2ForTokenClassification(config)
    model.transformer.load_state_dict(reward.transformer.state_dict())
    with torch.no_grad():
        model.classifier.weight.copy_(reward.score.weight / config.score_std)
        model.classifier.bias.fill_(-config.score_mean / config.score_std)
    return model


def reference_from(policy: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """A frozen copy of the policy that shares no storage with it."""
    return freeze(copy.deepcopy(policy))


def positions(attention_mask: Int[Tensor, "batch width"]) -> Int[Tensor, "batch width"]:
    """Position ids that count real tokens only, so that left padding moves nothing."""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def logits_at(
    model: GPT2LMHeadModel,
    tokens: Int[Tensor, "batch width"],
    attention_mask: Int[Tensor, "batch width"],
    keep: int | Int[Tensor, " time"],
) -> Float[Tensor, "batch time vocab"]:
    """Float32 logits at the positions `keep` only (an index tensor, or the last n)."""
    output = model(
        input_ids=tokens, attention_mask=attention_mask, position_ids=positions(attention_mask),
        logits_to_keep=keep, use_cache=False,
    )  # fmt: skip
    return output.logits.float()


def token_values(
    model: GPT2ForTokenClassification, tokens: Int[Tensor, "batch width"], attention_mask: Int[Tensor, "batch width"]
) -> Float[Tensor, "batch width"]:
    """V after reading each token, float32."""
    output = model(input_ids=tokens, attention_mask=attention_mask, position_ids=positions(attention_mask))
    return output.logits.squeeze(-1).float()


def raw_scores(
    model: GPT2ForSequenceClassification, tokens: Int[Tensor, "batch width"], attention_mask: Int[Tensor, "batch width"]
) -> Float[Tensor, " batch"]:
    """The reward model's output at each row's last real token, found by the mask: a pad id decides nothing.

    (GPT2ForSequenceClassification itself looks for the rightmost id that is not the pad id. With pad = EOS that is the token
    before EOS in every row.)
    """
    trunk = getattr(model, "module", model)
    hidden = trunk.transformer(
        input_ids=tokens, attention_mask=attention_mask, position_ids=positions(attention_mask), use_cache=False
    ).last_hidden_state
    last = last_token(attention_mask.bool())
    return trunk.score(hidden[torch.arange(len(last), device=last.device), last]).squeeze(-1).float()


def scores(
    model: GPT2ForSequenceClassification, tokens: Int[Tensor, "batch width"], attention_mask: Int[Tensor, "batch width"]
) -> Float[Tensor, " batch"]:
    """Normalised scores: mean 0 and deviation 1 over the reference's samples."""
    config = getattr(model, "module", model).config
    return (raw_scores(model, tokens, attention_mask) - config.score_mean) / config.score_std


def last_token(mask: Bool[Tensor, "batch width"]) -> Int[Tensor, " batch"]:
    """The index of each row's last True. Raises ValueError for a row without one."""
    if not mask.any(-1).all():
        raise ValueError("a row without a real token has no last token")
    return mask.shape[-1] - 1 - mask.int().flip(-1).argmax(-1)


def pad_right(rows: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one rectangle and its attention mask."""
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return tokens, mask


def pad_left(rows: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """As `pad_right`, with the padding before the tokens."""
    tokens, mask = pad_right([row[::-1] for row in rows], pad_id)
    return tokens.flip(-1), mask.flip(-1)


def minibatches_by_length(lengths: list[int], batch: int, generator: torch.Generator) -> list[list[int]]:
    """Row numbers in batches of similar length, in random order: little padding, every row once."""
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    pools = [shuffled[i : i + 50 * batch] for i in range(0, len(shuffled), 50 * batch)]
    batches = []
    for pool in pools:
        pool = sorted(pool, key=lengths.__getitem__)
        batches += [pool[i : i + batch] for i in range(0, len(pool), batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def warmup_cosine(step: int, steps: int, warmup: float = 0.05) -> float:
    """The factor on the learning rate: up in a straight line, then down along a cosine to 0."""
    ramp = max(1, round(warmup * steps))
    if step < ramp:
        return (step + 1) / ramp
    return 0.5 * (1 + math.cos(math.pi * (step - ramp) / max(1, steps - ramp)))


def fit(model, rows, loss_of, *, lengths, batch, epochs, learning_rate, seed, title, progress=True):
    """Minimise `loss_of(rows of one minibatch)` with AdamW, warm-up and a cosine; the one supervised loop of the project.

    `epochs` may be a fraction. Raises FloatingPointError if a loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    schedule = [b for _ in range(math.ceil(epochs)) for b in minibatches_by_length(lengths, batch, generator)]
    schedule = schedule[: max(1, round(len(schedule) * epochs / math.ceil(epochs)))]
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=learning_rate, betas=(0.9, 0.98)
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, len(schedule)))
    model.train()
    # In a notebook each refresh is several messages, and a reader that waits for the cell to end loses all beyond a thousand.
    bar = tqdm(schedule, desc=title, unit="batch", leave=False, disable=not progress, mininterval=2)
    for chosen in bar:
        loss = loss_of([rows[i] for i in chosen])
        if not torch.isfinite(loss):
            raise FloatingPointError(f"{title}: the loss is {loss.item()}; a smaller learning rate may help")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


def next_token_loss(model: GPT2LMHeadModel, rows: list[list[int]], pad_id: int) -> Float[Tensor, ""]:
    """The mean cross-entropy of every next token, padding left out."""
    tokens, mask = (t.to(model.device) for t in pad_right(rows, pad_id))
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    targets = tokens[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


def fine_tune(model, tokenizer, rows: list[list[int]], preset: Preset, seed: int, progress: bool = True) -> GPT2LMHeadModel:
    """Supervised training of a base model on whole documents (prompt, body, EOS), cut off at its context."""
    rows = [row[: model.config.n_positions] for row in rows]
    return fit(
        model, rows, lambda chosen: next_token_loss(model, chosen, tokenizer.pad_token_id), lengths=[len(r) for r in rows],
        batch=preset.batch, epochs=preset.epochs, learning_rate=preset.learning_rate, seed=seed, title="base model",
        progress=progress,
    )  # fmt: skip


def save(model: nn.Module, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Weights as safetensors and configuration as JSON, in a folder that `from_pretrained` loads."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
