import hashlib
import json
import os
import re
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons.gpt.corpus import REVIEWS
from lessons.gpt.reviews import (
    ASPECTS,
    BLAME,
    CLAUSES,
    COLOURED,
    JUDGING_SLOTS,
    PRAISE,
    SENTENCES,
    SLOTS,
    VERBS_OF_BLAME,
    VERBS_OF_PRAISE,
    Clause,
    parse,
    ratings,
    write_corpus,
    write_prompt,
    write_review,
)

JUDGING = {*PRAISE, *BLAME, *VERBS_OF_PRAISE, *VERBS_OF_BLAME}
seeds = st.integers(0, 2**48)


def corpus_of_another_process(size, seed, hash_seed):
    """`write_corpus(size, seed)` of a fresh process, without the type checks that make it slow here."""
    code = f"import json, lessons.gpt.reviews as r; print(json.dumps(r.write_corpus({size}, {seed})))"
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment)
    return [tuple(review) for review in json.loads(output)]


@pytest.fixture(scope="module")
def corpus():
    """As many reviews as the project trains on."""
    return corpus_of_another_process(REVIEWS, 0, hash_seed=1)


def factor(slot, word):
    return SLOTS[slot][word]


def first(slot):
    """A word of a slot that weighs nothing."""
    return next(word for word, weight in SLOTS[slot].items() if weight == 1)


def sentence_weights(joint):
    """The weights of the two clauses around a comma and a joining word."""
    return next(weights for _, template, weights in SENTENCES if f", {joint} " in template)


# For every clause template, by its place: texts with each of its optional slots empty and filled.
EXAMPLES = {
    0: [
        ("the acting is good", "acting", "good", 1.0),
        ("its plot was very dull", "plot", "dull", factor("degree", "very")),
    ],
    1: [
        ("the story is not good", "story", "good", factor("negation", "not")),
        ("its cast is far from bad", "cast", "bad", factor("negation", "far from")),
        ("the plot is not very dull", "plot", "dull", factor("negation", "not") * factor("degree", "very")),
    ],
    2: [
        ("i loved the story", "story", "loved", 1.0),
        ("i never hated its ending", "ending", "hated", factor("manner", "never")),
    ],
    3: [
        ("nothing about the script is good", "script", "good", factor("quantity", "nothing")),
        (
            "little about its dialogue felt rather bad", "dialogue", "bad",
            factor("quantity", "little") * factor("degree", "rather"),
        ),
    ],
    4: [
        (f"the clever script {first('predicate')}", "script", "clever", 1.0),
        (
            f"its extremely silly story {first('predicate')}", "story", "silly",
            factor("degree", "extremely"),
        ),
    ],
}  # fmt: skip


class TestParse:
    def test_every_clause_template_has_an_example(self):
        assert EXAMPLES.keys() == set(range(len(CLAUSES)))

    @pytest.mark.parametrize("text, aspect, word, weight", [e for group in EXAMPLES.values() for e in group])
    def test_weight_of_each_template_by_hand(self, text, aspect, word, weight):
        read = parse(f"{text} .")
        assert read.clauses == (Clause(aspect, word, weight),)
        assert read.stray_words == 0

    @pytest.mark.parametrize("joint", ["and", "but", "though"])
    def test_weights_of_joined_clauses_by_hand(self, joint):
        first, second = sentence_weights(joint)
        read = parse(f"the acting is good , {joint} i never liked the plot .")
        assert read.clauses == (
            Clause("acting", "good", first), Clause("plot", "liked", second * factor("manner", "never")),
        )  # fmt: skip
        assert read.stray_words == 0

    @pytest.mark.parametrize("text", ["the acting is good .", "i loved the plot , and its cast was dull ."])
    def test_what_opens_a_sentence_weighs_nothing(self, text):
        for opening in SLOTS["mood"]:
            assert parse(f"{opening} {text}") == parse(text)

    def test_negation_turns_degree_scales_and_the_conclusion_outweighs_the_concession(self):
        def weight(text):
            return parse(f"{text} .").clauses[0].weight

        assert weight("the acting is not good") < 0 < weight("the acting is good")
        assert weight("i hardly liked the acting") < 0 < weight("i liked the acting")
        assert weight("nothing about the acting is good") < 0 < weight("everything about the acting is good")
        degrees = ["slightly ", "fairly ", "", "very ", "utterly "]
        by_degree = [weight(f"the acting is {degree}good") for degree in degrees]
        assert by_degree == sorted(set(by_degree))
        (but_first, but_second), (though_first, though_second) = map(sentence_weights, ("but", "though"))
        assert 0 < but_first < but_second
        assert though_first > though_second > 0

    @pytest.mark.parametrize(
        "text, clauses, stray",
        [
            ("", 0, 0),
            (".", 0, 1),
            ("the acting is good", 0, 4),  # no full stop
            ("the acting is good . .", 1, 1),
            ("good the acting is good .", 1, 1),
            ("the acting is good . banana", 1, 1),
            ("the acting is good . the acting is good .", 2, 0),
            ("the acting is banana .", 0, 5),
            ("the acting is good , and .", 0, 7),
            ("the acting is very very good .", 0, 7),
            ("good good good", 0, 3),
            ("the acting is goods .", 0, 5),
            ("the  acting\nis good . ", 1, 0),  # white space of any kind
        ],
    )
    def test_words_outside_the_grammar_are_counted_one_by_one(self, text, clauses, stray):
        read = parse(text)
        assert (len(read.clauses), read.stray_words) == (clauses, stray)

    @given(st.lists(st.sampled_from("the its acting plot is not very good i loved , . and but".split())))
    def test_any_words_are_read_and_no_more_are_stray_than_there_are(self, words):
        read = parse(" ".join(words))
        assert 0 <= read.stray_words <= len(words)
        # The shortest sentence, "i loved the plot .", has five words and one clause.
        assert len(read.clauses) <= (len(words) - read.stray_words) / 5

    @given(st.text())
    def test_any_text_is_read(self, text):
        assert parse(text).stray_words == len(text.split())  # no sentence of the grammar comes out of noise

    @given(seeds, seeds)
    def test_reviews_one_after_another_are_read_one_after_another(self, seed, other):
        first, second = write_review(Random(seed)), write_review(Random(other))
        both = parse(f"{first} banana {second}")
        assert both.clauses == parse(first).clauses + parse(second).clauses
        assert both.stray_words == 1


class TestWriteReview:
    @given(seeds)
    def test_is_parsed_without_a_stray_word_into_the_clauses_it_holds(self, seed):
        text = write_review(Random(seed))
        read = parse(text)
        assert read.stray_words == 0
        assert [c.aspect for c in read.clauses] == [word for word in text.split() if word in ASPECTS]
        assert [c.word for c in read.clauses] == [word for word in text.split() if word in JUDGING]

    @given(seeds)
    def test_says_nothing_twice(self, seed):
        clauses = parse(write_review(Random(seed))).clauses
        assert 1 <= len(clauses) <= 6
        assert len({c.aspect for c in clauses}) == len({c.word for c in clauses}) == len(clauses)

    @given(seeds)
    def test_values_lie_on_a_grid_of_1_over_256(self, seed):
        assert all((c.weight * 256).is_integer() for c in parse(write_review(Random(seed))).clauses)

    @given(seeds)
    def test_and_joins_two_judgements_of_one_mind_and_but_two_of_opposite_minds(self, seed):
        def praises(clause):
            return (clause.word in {*PRAISE, *VERBS_OF_PRAISE}) == (clause.weight > 0)

        for sentence in re.findall(r"[^.]+\.", write_review(Random(seed))):
            if joint := re.search(", (and|but|though) ", sentence):
                first, second = parse(sentence).clauses
                assert (praises(first) == praises(second)) == (joint[1] == "and")

    @given(seeds)
    def test_coloured_words_never_stand_beside_their_opposite(self, seed):
        for sentence in re.findall(r"[^.]+(?= \.)", write_review(Random(seed))):
            for part in re.split(" , (?:and|but|though) ", sentence.strip()):
                (clause,) = parse(f"{part} .").clauses
                of_word = 1 if clause.word in {*PRAISE, *VERBS_OF_PRAISE} else -1
                of_clause = of_word if clause.weight > 0 else -of_word
                for words, colour in COLOURED.items():
                    if part.startswith(f"{words} "):  # it opens the sentence and goes with what that says
                        assert colour == of_clause
                    elif re.search(rf"\b{words}\b", part):
                        assert colour == of_word

    @given(seeds)
    def test_prompts_hold_no_judgement(self, seed):
        prompt = write_prompt(Random(seed))
        assert JUDGING.isdisjoint(prompt.split())
        assert parse(prompt).clauses == ()
        assert "{" not in prompt


class TestLexicon:
    def test_every_judging_word_has_ten_ratings_and_stands_in_one_list(self):
        words = [word for slot in JUDGING_SLOTS.values() for side in slot for word in side]
        assert len(words) == len(set(words))
        for word in words:
            assert len(ratings()[word]) == 10
            assert all(-4 <= rating <= 4 for rating in ratings()[word])

    def test_ratings_are_those_of_the_lexicon(self):
        assert ratings()["superb"] == (3, 4, 2, 4, 3, 1, 3, 3, 4, 4)
        assert np.mean(ratings()["superb"]) == 3.1
        assert np.mean(ratings()["dull"]) == -1.7


class TestWriteCorpus:
    def test_same_seed_same_corpus_another_seed_another(self):
        assert write_corpus(50, 3) == write_corpus(50, 3)
        assert write_corpus(50, 3) != write_corpus(50, 4)

    def test_does_not_depend_on_the_hashing_of_a_process(self, corpus):
        def fingerprint(reviews):
            return hashlib.sha256(json.dumps(reviews).encode()).hexdigest()

        assert fingerprint(corpus_of_another_process(REVIEWS, 0, hash_seed=2)) == fingerprint(corpus)
        assert write_corpus(200, 0) == corpus[:200]

    def test_holds_20_000_different_reviews(self, corpus):
        assert len(corpus) == len(set(corpus)) == REVIEWS
        assert len({body for _, body in corpus}) >= 20_000

    def test_has_a_vocabulary_of_several_hundred_words_that_are_all_written(self, corpus):
        written = {word for review in corpus for text in review for word in text.split()}
        entries = [*JUDGING, *(entry for slot in SLOTS.values() for entry in slot)]
        assert {word for entry in entries for word in entry.split()} <= written
        assert len(written) >= 200

    def test_words_alone_do_not_decide(self, corpus):
        clauses = [clause for _, body in corpus[:1000] for clause in parse(body).clauses]
        assert sum(clause.weight < 0 for clause in clauses) / len(clauses) > 0.1

    @pytest.mark.parametrize("size", [0, -1])
    def test_refuses_an_empty_corpus(self, size):
        with pytest.raises(ValueError, match=rf"at least one review, not {size}"):
            write_corpus(size, 0)
