"""Tiny models and materials. No test sees the real cache or trains a real preset."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from lessons.gpt import materials as materials_module
from lessons.gpt.corpus import review_corpus
from lessons.gpt.models import NO_DROPOUT, PRESETS, Preset, reward_from, value_from
from lessons.gpt.ppo import PPOConfig, Trainer
from lessons.gpt.rollout import Rollout

TINY = Preset(
    layers=1, width=16, heads=2, context=64, epochs=4, batch=16, learning_rate=1e-2,
    pairs=48, reward_epochs=2, reward_batch=8, reward_learning_rate=3e-3,
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_world(tmp_path, monkeypatch):
    """A cache of this test's own, and the tiny preset wherever `pocket` is asked for."""
    monkeypatch.setenv("LESSONS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(PRESETS, "pocket", TINY)
    monkeypatch.setattr(materials_module, "HELD_OUT_PAIRS", 32)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A corpus of 80 short documents, two to four words of prompt before as many of body."""
    path = tmp_path_factory.mktemp("corpus") / "documents.txt"
    openings = ["the film was", "this new film is", "my film", "we saw a"]
    judgements = ["good", "bad", "great fun", "boring", "not good", "very bad", "so great it hurts", "dull"]
    ends = ["", " overall", " to me", " in the end"]
    lines = [f"{a} {b}{c}" for a in openings for b in judgements for c in ends]
    path.write_text("\n".join(lines[:80]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_materials(tmp_path_factory, text_file):
    """The materials of the text file, made once and shared: nothing may change them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LESSONS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(PRESETS, "pocket", TINY)
        patch.setattr(materials_module, "HELD_OUT_PAIRS", 32)
        return materials_module.prepare(corpus=text_file, limit=6, progress=False)


@pytest.fixture
def make_config(text_file, tmp_path):
    """A configuration for the text file: a few small updates, no early stop."""

    def make(**changes) -> PPOConfig:
        small = PPOConfig(
            corpus=text_file, out=tmp_path / "run", updates=2, batch=16, max_tokens=6, passes=2,
            minibatches=2, lr=1e-3, value_lr=1e-3, kl_stop=None,
        )  # fmt: skip
        return replace(small, **changes)

    return make


@pytest.fixture
def make_trainer(make_config, tiny_materials):
    """A trainer on the shared materials, of a class to choose."""

    def make(cls=Trainer, materials=None, scorer=None, **changes) -> Trainer:
        return cls(make_config(**changes), materials or tiny_materials, scorer)

    return make


@pytest.fixture(scope="session")
def make_gpt2():
    """A small random GPT-2, far from uniform, that ends its responses (EOS is 0) at any length."""

    def make(vocab=5, seed=1, layers=2, context=32, **settings) -> GPT2LMHeadModel:
        config = GPT2Config(
            vocab_size=vocab, n_layer=layers, n_embd=16, n_head=2, n_positions=context, initializer_range=0.3,
            bos_token_id=0, eos_token_id=0, **{**NO_DROPOUT, **settings},
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return GPT2LMHeadModel(config).eval()

    return make


@pytest.fixture(scope="session")
def make_four(make_gpt2):
    """Policy, reference, reward and value model, small and all different in their trunks but the last two."""

    def make(**settings):
        reward = reward_from(make_gpt2(seed=2, **settings), seed=3).eval()
        reward.config.score_mean, reward.config.score_std = 0.7, 2.5
        return make_gpt2(seed=1, **settings), make_gpt2(seed=0, **settings), reward, value_from(reward).eval()

    return make


@pytest.fixture(scope="session")
def make_rollout():
    """A rollout from token ids: left-padded prompts, right-padded responses, old log-probs 0 if not given."""

    def make(prompts, responses, pad_id=0, **tensors) -> Rollout:
        before, time = max(map(len, prompts)), max(map(len, responses))
        tokens = torch.full((len(prompts), before + time), pad_id)
        attention = torch.zeros_like(tokens)
        for i, (prompt, response) in enumerate(zip(prompts, responses)):
            real = slice(before - len(prompt), before + len(response))
            tokens[i, real], attention[i, real] = torch.tensor([*prompt, *response]), 1
        mask = attention[:, before:].bool()
        tensors.setdefault("old_log_probs", torch.zeros(mask.shape))
        return Rollout(tokens=tokens, attention_mask=attention, mask=mask, **tensors)

    return make


@pytest.fixture(scope="session")
def bpe():
    """A byte-level BPE like GPT-2's, small, that knows the words of the reviews."""
    texts = [f"{prompt} {body}" for prompt, body in review_corpus(200, seed=1).documents]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    return bpe


@pytest.fixture
def checkpoint(tmp_path, make_gpt2, bpe):
    """A folder as GPT-2 is published: dropout, vocab.json and merges.txt, eos <|endoftext|>, no pad token."""
    folder = tmp_path / "checkpoint"
    dropout = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    make_gpt2(vocab=bpe.get_vocab_size(), context=48, **dropout).save_pretrained(folder)
    bpe.save_model(str(folder))
    config = json.loads((folder / "config.json").read_text())
    del config["classifier_dropout"]  # GPT-2's own configuration does not name it
    (folder / "config.json").write_text(json.dumps(config))
    return folder
