"""What PPO starts from: a corpus, a supervised model and a reward model, trained on first use and cached."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import AutoTokenizer, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedTokenizerBase

from lessons.gpt.cache import MANIFEST, cached, code_fingerprint
from lessons.gpt.corpus import Corpus, encode_body, encode_prompt, load_corpus, train_tokenizer
from lessons.gpt.models import PRESETS, Preset, device, fine_tune, fine_tuning, freeze, load_base, new_base, save
from lessons.gpt.preferences import RewardReport, make_pairs, normalise, train_reward_model

HELD_OUT_PAIRS = 1_000


@dataclass(frozen=True)
class Materials:
    """The supervised model, the reward model and all they were made with."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    base: GPT2LMHeadModel
    reward: GPT2ForSequenceClassification
    report: RewardReport


def _name_of(base: str | None) -> str | None:
    """What a checkpoint is called in a recipe: a folder by its content, a hub model by its name."""
    if base is None or not Path(base).is_dir():
        return base
    files = sorted(path for pattern in ("*.safetensors", "*.json", "*.txt") for path in Path(base).glob(pattern))
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def _check_room(tokenizer, context: int, corpus: Corpus, limit: int) -> None:
    """Raises ValueError if the longest prompt and a response of `limit` tokens do not fit into the context."""
    longest = max(len(encode_prompt(tokenizer, prompt)) for prompt in corpus.prompts)
    if longest + limit > context:
        raise ValueError(
            f"the longest prompt has {longest} tokens: with responses of up to {limit} it does not fit into the model's context "
            f"of {context}; lower max_tokens, or shorten the prompts"
        )


def _train_base(
    folder: Path, preset: Preset, base: str | None, corpus: Corpus, limit: int, seed: int, progress: bool
) -> None:
    if base is None:
        tokenizer = train_tokenizer(corpus)
        model = new_base(preset, tokenizer, seed)
    else:
        model, tokenizer = load_base(base)
    _check_room(tokenizer, model.config.n_positions, corpus, limit)
    rows = [encode_prompt(tokenizer, prompt) + encode_body(tokenizer, body) for prompt, body in corpus.documents]
    save(fine_tune(model.to(device()), tokenizer, rows, preset, seed, progress), folder, tokenizer)


def _train_reward(
    folder: Path, preset: Preset, base, tokenizer, corpus: Corpus, limit: int, seed: int, progress: bool
) -> None:
    base = base.to(device())
    draw = random.Random(f"reward {seed}")
    pairs = make_pairs(base, tokenizer, corpus, preset.pairs, limit, draw.getrandbits(48), progress)
    held_out = make_pairs(base, tokenizer, corpus, HELD_OUT_PAIRS, limit, draw.getrandbits(48), progress)
    model = train_reward_model(base, tokenizer, pairs, preset, seed, progress)
    report = normalise(model, base, tokenizer, corpus, held_out, limit, draw.getrandbits(48))
    save(model, folder, tokenizer)
    (folder / "report.json").write_text(json.dumps(report.as_dict(), indent=1), encoding="utf-8")


def prepare(
    preset: str = "pocket",
    base: str | None = None,
    corpus: Path | None = None,
    limit: int = 40,
    base_seed: int = 0,
    reward_seed: int = 0,
    progress: bool = True,
) -> Materials:
    """The materials of a run: from the cache, or trained now with progress bars (under two minutes for `pocket`).

    `limit` is the longest response in tokens. Raises ValueError or FileNotFoundError for what cannot be used.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    shape = PRESETS[preset] if base is None else fine_tuning(PRESETS[preset])
    texts = load_corpus(corpus)
    recipe = {
        "preset": asdict(shape), "base": _name_of(base), "corpus": texts.fingerprint, "seed": base_seed,
        "code": code_fingerprint("corpus", "reviews", "models", "materials"),
    }  # fmt: skip
    base_folder = cached(
        f"base-{preset}", recipe, lambda folder: _train_base(folder, shape, base, texts, limit, base_seed, progress)
    )
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    model = GPT2LMHeadModel.from_pretrained(base_folder, use_safetensors=True)
    _check_room(tokenizer, model.config.n_positions, texts, limit)
    recipe = {
        "base": json.loads((base_folder / MANIFEST).read_text(encoding="utf-8")), "limit": limit, "seed": reward_seed,
        "code": code_fingerprint("critic", "preferences", "rollout"),
    }  # fmt: skip
    reward_folder = cached(
        f"reward-{preset}",
        recipe,
        lambda folder: _train_reward(folder, shape, model, tokenizer, texts, limit, reward_seed, progress),
    )
    reward = GPT2ForSequenceClassification.from_pretrained(reward_folder, use_safetensors=True)
    report = RewardReport(**json.loads((reward_folder / "report.json").read_text(encoding="utf-8")))
    return Materials(texts, tokenizer, freeze(model.cpu()), freeze(reward), report)
