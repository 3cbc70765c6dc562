"""The texts a run is made of, cut into prompt and body, with the critic that judges them and the tokenizer made for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lessons.gpt.critic import Critic, ReviewCritic, VaderCritic
from lessons.gpt.reviews import write_corpus

EOS, PAD, UNKNOWN = "<|endoftext|>", "<|pad|>", "<|unknown|>"
REVIEWS = 24_000
PROMPT_WORDS = 4  # of a document in a file, its first words are the prompt
MOST_WORDS = 1_000  # up to so many different words, a token is a word
BPE_TOKENS = 2_000
FEWEST_DOCUMENTS = 32


@dataclass(frozen=True)
class Corpus:
    """Documents as (prompt, body) pairs, and the critic for bodies."""

    documents: tuple[tuple[str, str], ...]
    critic: Critic

    @cached_property
    def fingerprint(self) -> str:
        """A name for the content: equal texts and an equal critic give an equal name, on every machine."""
        content = json.dumps([repr(self.critic), self.documents])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """The different prompts, in the order of their first appearance."""
        return tuple(dict.fromkeys(prompt for prompt, _ in self.documents))


def review_corpus(size: int = REVIEWS, seed: int = 0) -> Corpus:
    """The generated film reviews with their exact critic."""
    return Corpus(tuple(write_corpus(size, seed)), ReviewCritic())


def file_corpus(path: Path) -> Corpus:
    """A UTF-8 text file with one document a line; its first words are the prompt, VADER's compound score is the critic.

    Lines of fewer than two words hold no prompt and body and are passed over. Raises FileNotFoundError if there is no such
    file, ValueError if it is not text or holds too few documents.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no corpus file at {path}: give a text file with one document a line")
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark is no part of the text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8 (byte {error.start})") from None
    if "\0" in text:
        raise ValueError(f"{path} is a binary file, not text with one document a line")
    documents = []
    for line in text.split("\n"):
        for token in (EOS, PAD, UNKNOWN):  # those are ours to add
            line = line.replace(token, " ")
        words = line.split()
        cut = min(PROMPT_WORDS, len(words) // 2)
        if cut:
            documents.append((" ".join(words[:cut]), " ".join(words[cut:])))
    if len(documents) < FEWEST_DOCUMENTS:
        raise ValueError(
            f"{path} holds {len(documents)} documents of two words or more; at least {FEWEST_DOCUMENTS} are needed, one a line"
        )
    return Corpus(tuple(documents), VaderCritic())


def load_corpus(path: Path | None) -> Corpus:
    """The corpus of a file, or the generated reviews where no file is named."""
    return review_corpus() if path is None else file_corpus(path)


def train_tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    """A tokenizer for the corpus: one token a word where its words are few, byte-level BPE otherwise."""
    texts = [f"{prompt} {body}" for prompt, body in corpus.documents]
    words = sorted({word for text in texts for word in text.split()})
    if len(words) <= MOST_WORDS:
        unknown = UNKNOWN
        vocabulary = {token: i for i, token in enumerate([EOS, PAD, unknown, *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        unknown = None
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=BPE_TOKENS, special_tokens=[EOS, PAD], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, bos_token=EOS, pad_token=PAD, unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )


def encode_prompt(tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt, without special tokens."""
    return tokenizer.encode(prompt, add_special_tokens=False)


def encode_body(tokenizer, body: str) -> list[int]:
    """Token ids of what follows a prompt, closed by EOS; the space between the two belongs to the body, as in GPT-2."""
    return [*tokenizer.encode(f" {body}", add_special_tokens=False), tokenizer.eos_token_id]
