"""The gold reward, and how people disagree about it.

A critic knows two things about a text: its `gold` reward, and one `reading` of it, the reward as one reader would give
it who feels each judging word a little differently. Preferences between texts are drawn from readings, so labels disagree
as people do.

`ReviewCritic` reads reviews of `lessons.gpt.reviews` exactly, by their grammar. `VaderCritic` takes any text, by the compound
score of VADER (Hutto and Gilbert, 2014).
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from lessons.gpt.reviews import Clause, parse, ratings


@runtime_checkable
class Critic(Protocol):
    """What the rest of the language-model world needs to know of a critic."""

    def gold(self, text: str) -> float:
        """The true reward of a text."""

    def reading(self, text: str, rng: random.Random) -> float:
        """The reward one reader gives it, whose rating of each judging word is one of the ten in the lexicon."""


@dataclass(frozen=True)
class ReviewCritic:
    """Gold = `scale` · Σ weight · rating  −  `repeat_cost` · repeats  −  `stray_cost` · stray words.

    The sum runs over the clauses that say something new; the rating of a judging word is the mean of its ten human ratings.
    A clause about an aspect that was judged before counts as a repeat instead. A stray word belongs to no sentence of the
    grammar. A text without any clause costs one repeat.
    """

    scale: float = 0.5
    repeat_cost: float = 1.0
    stray_cost: float = 0.25

    def _judge(self, text: str) -> tuple[list[Clause], float]:
        """The clauses that count, and what is taken off."""
        read = parse(text)
        counted: list[Clause] = []
        seen: set[str] = set()
        for clause in read.clauses:
            if clause.aspect not in seen:
                counted.append(clause)
            seen.add(clause.aspect)
        repeats = len(read.clauses) - len(counted) if read.clauses else 1
        return counted, self.repeat_cost * repeats + self.stray_cost * read.stray_words

    def gold(self, text: str) -> float:
        """The true reward: every judging word at its mean human rating."""
        counted, cost = self._judge(text)
        return self.scale * sum(c.weight * float(np.mean(ratings()[c.word])) for c in counted) - cost

    def reading(self, text: str, rng: random.Random) -> float:
        """One reader's reward: for every judging word one of its ten ratings is drawn."""
        counted, cost = self._judge(text)
        return self.scale * sum(c.weight * rng.choice(ratings()[c.word]) for c in counted) - cost

    def win_probability(self, text: str, other: str) -> float:
        """P(reading of `text` > reading of `other`) + ½ P(equal), by exact convolution over all ratings.

        Weights are products of a few multiples of 1/4, so every reading lies on a grid of 1/256 before scaling.
        """
        grid = 256
        # The difference of two readings is one sum: the clauses of one with weight +, of the other with weight −.
        (ours, our_cost), (theirs, their_cost) = self._judge(text), self._judge(other)
        distribution, lowest = np.ones(1), 0
        for clause, sign in [(c, 1) for c in ours] + [(c, -1) for c in theirs]:
            steps = [round(sign * clause.weight * rating * grid) for rating in ratings()[clause.word]]
            one = np.bincount(np.array(steps) - min(steps)) / len(steps)
            distribution, lowest = np.convolve(distribution, one), lowest + min(steps)
        difference = (lowest + np.arange(len(distribution))) / grid * self.scale - (our_cost - their_cost)
        return float(distribution[difference > 1e-9].sum() + distribution[np.abs(difference) <= 1e-9].sum() / 2)


@dataclass(frozen=True)
class VaderCritic:
    """Gold = VADER's compound score, from −1 to 1; a reading replaces each rating in the lexicon by one of its ten."""

    @cached_property
    def _analyzer(self) -> SentimentIntensityAnalyzer:
        return SentimentIntensityAnalyzer()

    def gold(self, text: str) -> float:
        """VADER's compound score."""
        return self._analyzer.polarity_scores(text)["compound"]

    def reading(self, text: str, rng: random.Random) -> float:
        """The compound score as one reader would have it: each word of the text at one of its ten ratings."""
        means = self._analyzer.lexicon
        words = {word for token in text.lower().split() for word in (token, token.strip(string.punctuation))} & means.keys()
        self._analyzer.lexicon = {word: rng.choice(ratings()[word]) for word in sorted(words)}
        try:
            return self.gold(text)
        finally:
            self._analyzer.lexicon = means
