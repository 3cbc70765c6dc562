import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from lessons.gpt import critic as critic_module
from lessons.gpt.critic import ReviewCritic, VaderCritic
from lessons.gpt.reviews import SLOTS, parse, ratings, write_review

CRITIC = ReviewCritic(scale=0.5, repeat_cost=1.0, stray_cost=0.25)
VERY, NOT = SLOTS["degree"]["very"], SLOTS["negation"]["not"]
seeds = st.integers(0, 2**48)


def mean(word):
    return float(np.mean(ratings()[word]))


def enumerated_readings(critic, text):
    """Every reading of a text, all equally likely, with each clause's rating chosen in turn."""

    class Chosen(Random):
        def choice(self, options):
            return options[next(self.places)]

    rng, places = Chosen(), range(10)
    readings = []
    for combination in itertools.product(places, repeat=len(parse(text).clauses)):
        rng.places = iter(combination)
        readings.append(critic.reading(text, rng))
    return np.array(readings)


def enumerated_win_probability(critic, text, other):
    ours, theirs = enumerated_readings(critic, text), enumerated_readings(critic, other)
    difference = ours[:, None] - theirs
    return (difference > 0).mean() + (difference == 0).mean() / 2


class TestGold:
    @pytest.mark.parametrize(
        "text, gold",
        [
            ("the acting is good .", mean("good") / 2),
            ("the acting is not very good .", NOT * VERY * mean("good") / 2),
            ("the acting is good . i hated the plot .", (mean("good") + mean("hated")) / 2),
            # a repeat: an aspect judged again, in whatever words; only the first judgement counts
            ("the acting is good . the acting is dull .", mean("good") / 2 - 1),
            ("the acting is good . the acting is good .", mean("good") / 2 - 1),
            ("the acting is good . " * 3, mean("good") / 2 - 2),
            # the same word about something else is new
            ("the acting is good . the plot is not good .", (1 + NOT) * mean("good") / 2),
            # stray words
            ("the acting is good . banana", mean("good") / 2 - 0.25),
            ("the acting is good", -1 - 4 * 0.25),
            # a text that says nothing costs one repeat
            ("", -1),
            ("banana", -1.25),
        ],
    )
    def test_by_hand(self, text, gold):
        assert CRITIC.gold(text) == approx(gold, abs=1e-12)

    def test_costs_are_what_the_critic_was_built_with(self):
        text = "the acting is good . the acting is good . banana"
        assert ReviewCritic(scale=2, repeat_cost=3, stray_cost=5).gold(text) == approx(2 * mean("good") - 8)

    @given(seeds)
    def test_of_a_written_review_is_the_scaled_sum_of_its_clauses(self, seed):
        text = write_review(Random(seed))
        assert CRITIC.gold(text) == approx(sum(c.weight * mean(c.word) for c in parse(text).clauses) / 2)

    @given(seeds)
    def test_saying_it_all_again_only_costs(self, seed):
        text = write_review(Random(seed))
        assert CRITIC.gold(f"{text} {text}") == approx(CRITIC.gold(text) - len(parse(text).clauses))


class TestReading:
    def test_of_one_clause_is_one_of_the_ten_ratings_each_as_likely(self):
        rng = Random(0)
        readings = [CRITIC.reading("the acting is not silly .", rng) for _ in range(4000)]
        values, counts = np.unique(readings, return_counts=True)
        expected_values, expected = np.unique(NOT * np.array(ratings()["silly"]) / 2, return_counts=True)
        assert values == approx(expected_values)
        p = expected / 10
        assert np.all(np.abs(counts / 4000 - p) < 4 * np.sqrt(p * (1 - p) / 4000))

    @pytest.mark.parametrize("text", ["the acting is silly , but i never liked the plot .", "banana", ""])
    def test_averages_to_the_gold_reward(self, text):
        assert enumerated_readings(CRITIC, text).mean() == approx(CRITIC.gold(text))

    @given(seeds, seeds)
    def test_follows_its_random_numbers_only(self, seed, draw):
        text = write_review(Random(seed))
        assert CRITIC.reading(text, Random(draw)) == CRITIC.reading(text, Random(draw))


class TestWinProbability:
    @pytest.mark.parametrize(
        "text, other",
        [
            ("the acting is silly .", "the acting is odd ."),
            ("the acting is not silly .", "the plot is very silly ."),
            ("the acting is good , but the plot is dull .", "i liked the acting ."),
            ("nothing about the acting is good .", "i hardly liked the acting , though the plot is bad ."),
            ("the acting is good . the acting is good .", "the acting is silly ."),  # a repeat
            ("the acting is silly . banana", "the acting is silly ."),  # a stray word
            ("the acting is silly .", ""),
            ("", "banana banana"),
            ("banana", "banana"),
        ],
    )
    def test_equals_the_enumeration_of_all_ratings(self, text, other):
        expected = enumerated_win_probability(CRITIC, text, other)
        assert CRITIC.win_probability(text, other) == approx(expected, abs=1e-12)

    @pytest.mark.parametrize("scale", [0.3, 1.0])
    def test_equals_the_enumeration_at_another_scale(self, scale):
        critic = ReviewCritic(scale=scale)
        text, other = "the acting is not silly .", "the acting is very odd ."
        expected = enumerated_win_probability(critic, text, other)
        assert critic.win_probability(text, other) == approx(expected, abs=1e-12)

    @pytest.mark.parametrize("seed", range(3))
    def test_agrees_with_draws_within_four_standard_errors(self, seed):
        text, other = write_review(Random(2 * seed)), write_review(Random(2 * seed + 1))
        exact, draws, rng = CRITIC.win_probability(text, other), 2000, Random(seed)
        wins = 0.0
        for _ in range(draws):
            one, two = CRITIC.reading(text, rng), CRITIC.reading(other, rng)
            wins += (one > two) + (one == two) / 2
        assert abs(wins / draws - exact) <= 4 * math.sqrt(exact * (1 - exact) / draws)

    @given(seeds, seeds)
    def test_of_two_texts_adds_to_one(self, seed, other):
        text, other = write_review(Random(seed)), write_review(Random(other))
        assert CRITIC.win_probability(text, other) + CRITIC.win_probability(other, text) == approx(1)
        assert CRITIC.win_probability(text, text) == approx(0.5)


class TestVader:
    def test_gold_is_the_published_compound_score(self):
        # The example of VADER's own documentation.
        assert VaderCritic().gold("VADER is smart, handsome, and funny.") == 0.8316
        assert VaderCritic().gold("Today SUX!") == -0.5461
        assert VaderCritic().gold("") == 0

    @pytest.mark.parametrize(
        "text",
        [
            "VADER is smart, handsome, and funny!",
            'it is not good ; "great" , but (dull) .',
            "*good* -dull- great/ #superb [awful]",
            "GOOD :) and :( the worst...",
            "kind of the least good, without doubt no joy",
        ],
    )
    def test_a_reading_in_which_all_ten_ratings_are_the_mean_is_the_gold_reward(self, text, monkeypatch):
        critic = VaderCritic()
        means = {word: (mean,) * 10 for word, mean in critic._analyzer.lexicon.items()}
        monkeypatch.setattr(critic_module, "ratings", lambda: means)
        assert critic.reading(text, Random(0)) == critic.gold(text) != 0

    def test_readings_are_drawn_word_by_word_and_leave_the_critic_as_it_was(self):
        critic, text = VaderCritic(), "a silly but superb film"
        gold = critic.gold(text)
        readings = {critic.reading(text, Random(seed)) for seed in range(40)}
        assert len(readings) > 5
        assert min(readings) < gold < max(readings)
        assert critic.reading(text, Random(3)) == critic.reading(text, Random(3))
        assert critic.gold(text) == gold

    def test_one_reader_rates_a_word_the_same_wherever_it_stands(self, monkeypatch):
        critic = VaderCritic()
        monkeypatch.setattr(critic_module, "ratings", lambda: {"silly": (-2, 2) * 5})
        readings = {critic.reading("silly silly", Random(seed)) for seed in range(20)}
        assert len(readings) == 2  # twice 2 or twice -2, never one of each
        assert sum(readings) == 0
