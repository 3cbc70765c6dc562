import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons.gpt.corpus import (
    BPE_TOKENS,
    EOS,
    FEWEST_DOCUMENTS,
    Corpus,
    encode_body,
    encode_prompt,
    file_corpus,
    load_corpus,
    review_corpus,
    train_tokenizer,
)
from lessons.gpt.critic import ReviewCritic, VaderCritic


@pytest.fixture
def write(tmp_path):
    """Writes lines, or bytes, into a file."""

    def write(content):
        path = tmp_path / "documents.txt"
        path.write_bytes(content if isinstance(content, bytes) else "\n".join(content).encode())
        return path

    return write


@pytest.fixture(scope="module")
def reviews():
    return review_corpus(300, seed=1)


@pytest.fixture(scope="module")
def many_words():
    """More different words than get a token each."""
    texts = tuple((f"film{i} was", f"very good{i} indeed") for i in range(1000))
    return Corpus(texts, VaderCritic())


@pytest.fixture(scope="module")
def bpe(many_words):
    return train_tokenizer(many_words)


class TestReviewCorpus:
    def test_is_the_same_for_the_same_seed(self, reviews):
        assert review_corpus(300, seed=1) == reviews
        assert review_corpus(300, seed=2) != reviews
        assert isinstance(reviews.critic, ReviewCritic)

    def test_prompts_are_the_different_ones_in_order(self):
        corpus = Corpus((("b", "x"), ("a", "y"), ("b", "z")), ReviewCritic())
        assert corpus.prompts == ("b", "a")

    def test_is_what_stands_in_for_a_file_that_is_not_named(self, monkeypatch, reviews, text_file):
        monkeypatch.setattr("lessons.gpt.corpus.review_corpus", lambda: reviews)
        assert load_corpus(None) is reviews
        assert load_corpus(text_file) == file_corpus(text_file)


class TestFingerprint:
    def test_changes_with_a_text_and_with_the_critic(self):
        same = [Corpus((("a", "b"), ("c", "d")), ReviewCritic()).fingerprint for _ in range(2)]
        others = [
            Corpus((("a", "b"), ("c", "e")), ReviewCritic()).fingerprint,
            Corpus((("a", "b"),), ReviewCritic()).fingerprint,
            Corpus((("a b", ""), ("c", "d")), ReviewCritic()).fingerprint,
            Corpus((("a", "b"), ("c", "d")), ReviewCritic(scale=0.123)).fingerprint,
            Corpus((("a", "b"), ("c", "d")), VaderCritic()).fingerprint,
        ]
        assert len({*same}) == 1
        assert len({*same, *others}) == 6

    def test_and_token_ids_do_not_depend_on_the_hashing_of_a_process(self, text_file):
        code = f"""import json
from pathlib import Path
from lessons.gpt.corpus import *
reviews, texts = review_corpus(300, 1), file_corpus(Path({str(text_file)!r}))
print(json.dumps([reviews.fingerprint, texts.fingerprint, train_tokenizer(reviews).get_vocab()]))"""
        printed = []
        for hash_seed in "12":
            environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
            output = subprocess.check_output([sys.executable, "-c", code], env=environment)
            printed.append(json.loads(output))
        assert printed[0] == printed[1]
        assert printed[0][1] == file_corpus(text_file).fingerprint


class TestFileCorpus:
    def test_cuts_each_line_into_a_prompt_of_four_words_or_half_of_a_short_line(self, write):
        lines = ["a b c d e f g h i", "a b c", "a b", "", "alone", "  a   b c d\te "]
        corpus = file_corpus(write(lines + ["x y"] * FEWEST_DOCUMENTS))
        assert corpus.documents[:4] == (("a b c d", "e f g h i"), ("a", "b c"), ("a", "b"), ("a b", "c d e"))
        assert isinstance(corpus.critic, VaderCritic)

    def test_reads_what_windows_writes(self, write):
        content = "\ufeffthe film\r\n".encode() + b"a film\r\n" * FEWEST_DOCUMENTS
        assert file_corpus(write(content)).documents[:2] == (("the", "film"), ("a", "film"))

    def test_takes_the_fewest_documents_and_not_one_less(self, write):
        assert len(file_corpus(write(["a film"] * FEWEST_DOCUMENTS)).documents) == FEWEST_DOCUMENTS
        too_few = FEWEST_DOCUMENTS - 1
        with pytest.raises(ValueError, match=rf"holds {too_few} documents .* at least {FEWEST_DOCUMENTS}"):
            file_corpus(write(["a film"] * too_few + ["alone"]))

    @pytest.mark.parametrize(
        "content, message",
        [
            (b"", "holds 0 documents"),
            (b"\n\n \n", "holds 0 documents"),
            (b"one line only", "holds 1 documents"),
            (b"a film\n" * 40 + b"\xff\xfe", r"not a text file in UTF-8 \(byte 280\)"),
            (b"a film\0\n" * 40, "binary file"),
        ],
        ids=["empty", "blank", "one line", "not UTF-8", "binary"],
    )
    def test_refuses_in_one_line_what_holds_no_documents(self, write, content, message):
        path = write(content)
        with pytest.raises(ValueError, match=message) as refusal:
            file_corpus(path)
        assert str(path) in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def test_refuses_a_missing_file_and_a_folder(self, tmp_path):
        for path in (tmp_path / "missing.txt", tmp_path):
            with pytest.raises(FileNotFoundError, match=r"no corpus file at .*: give a text file"):
                file_corpus(path)

    def test_an_end_token_written_out_in_a_file_is_left_to_the_tokenizer(self, write):
        corpus = file_corpus(write([f"a good film {EOS}"] * FEWEST_DOCUMENTS))
        assert corpus.documents[0] == ("a", "good film")
        tokenizer = train_tokenizer(corpus)
        ids = encode_prompt(tokenizer, "a") + encode_body(tokenizer, "good film")
        assert ids.count(tokenizer.eos_token_id) == 1
        assert max(ids) < len(tokenizer)


class TestTokenizer:
    def test_has_one_token_a_word_where_words_are_few(self, reviews):
        tokenizer = train_tokenizer(reviews)
        for prompt, body in reviews.documents[:50]:
            ids = encode_prompt(tokenizer, prompt) + encode_body(tokenizer, body)
            assert len(ids) == len(f"{prompt} {body}".split()) + 1
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == f"{prompt} {body}"

    def test_gives_an_unknown_word_the_unknown_token(self, reviews):
        tokenizer = train_tokenizer(reviews)
        (this,) = encode_prompt(tokenizer, "this")
        assert encode_prompt(tokenizer, "this banana") == [this, tokenizer.unk_token_id]

    def test_is_byte_level_bpe_where_words_are_many(self, many_words, bpe):
        assert bpe.unk_token is None
        assert 256 < len(bpe) <= BPE_TOKENS
        prompt, body = many_words.documents[7]
        ids = encode_prompt(bpe, prompt) + encode_body(bpe, body)
        assert bpe.decode(ids, skip_special_tokens=True) == f"{prompt} {body}"

    @given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    def test_bpe_loses_no_text(self, bpe, text):
        assert bpe.decode(encode_prompt(bpe, text)) == text

    @pytest.mark.parametrize("kind", ["reviews", "many_words"])
    def test_prompt_and_body_are_the_document_in_two_parts(self, kind, request):
        corpus = request.getfixturevalue(kind)
        tokenizer = train_tokenizer(corpus)
        for prompt, body in corpus.documents[:20]:
            whole = tokenizer.encode(f"{prompt} {body}", add_special_tokens=False)
            parts = encode_prompt(tokenizer, prompt), encode_body(tokenizer, body)
            assert parts[0] + parts[1] == [*whole, tokenizer.eos_token_id]

    @pytest.mark.parametrize("kind", ["reviews", "many_words"])
    def test_end_and_padding_are_two_tokens(self, kind, request):
        tokenizer = train_tokenizer(request.getfixturevalue(kind))
        assert tokenizer.eos_token == EOS
        assert tokenizer.eos_token_id != tokenizer.pad_token_id
