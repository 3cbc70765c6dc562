"""The seeded corpus of short film reviews: one grammar that both writes a review and reads it.

A grammar is a handful of templates whose slots hold words. Each word carries a weight: a judging word its ratings by
ten people, a word of degree or negation a factor, every other word 1. The generator fills the slots; the parser turns
the same templates into one regular expression a sentence and gets the weights back. So the critic (`lessons.gpt.critic`)
reads exactly what the generator can write, and nothing in the grammar stands twice.

Ratings come from the VADER lexicon (Hutto and Gilbert, 2014), where ten people rated each word from -4 to 4.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import vaderSentiment

# Common words first: the generator draws the word of rank k in proportion to 1 / (k + 3), for word frequencies fall like that in
# any language.
PRAISE = (
    "good great funny fine wonderful fun beautiful strong excellent nice clever perfect solid superb lovely charming smart "
    "fresh brilliant entertaining interesting honest warm powerful amazing original impressive engaging sweet enjoyable "
    "delightful exciting compelling fascinating gentle rich thoughtful stunning terrific bold amusing fantastic hilarious "
    "remarkable splendid"
).split()
BLAME = (
    "bad boring dull weak poor silly terrible awful stupid lazy sad confusing horrible empty annoying strange ridiculous "
    "messy odd ugly disappointing lame flawed weird awkward crazy painful serious pathetic depressing useless dumb harsh "
    "grim tired bitter nasty foolish gloomy fake cruel tense tragic dreadful worthless"
).split()
VERBS_OF_PRAISE = "liked loved enjoyed admired adored appreciated respected praised".split()
VERBS_OF_BLAME = "hated disliked regretted loathed despised blamed mocked feared".split()
# Words that go with praise (1) or blame (−1) and judge nothing by themselves. The generator never puts one beside its opposite; a
# reader of single words may take them for praise or blame, and a model can learn from them which words are alike.
COLOURED = dict.fromkeys(
    ["happily", "thankfully", "to my delight", "wonderfully", "delightfully", "stands out", "carries the film", "stays with me"],
    1,
) | dict.fromkeys(
    ["sadly", "alas", "to my regret", "painfully", "dreadfully", "falls flat", "sinks the film", "drags on"],
    -1,
)  # fmt: skip
ASPECTS = (
    "acting story plot script dialogue ending opening cast score music editing pacing direction setting premise finale "
    "soundtrack narrator tone mood style theme climax scenery lighting sound ensemble makeup animation choreography banter "
    "twist prologue epilogue atmosphere camera casting writing staging rhythm"
).split()


def _words(text: str, weight: float = 1.0) -> dict[str, float]:
    """The words of `text`, each with the same weight; `_` stands for a space inside one entry."""
    return {word.replace("_", " "): weight for word in text.split()}


# Slots: each word with the factor it puts on the judgement. Factors are multiples of 1/4, so that every value of a review
# lies on a grid and the distribution over readers can be computed exactly. Their sizes follow VADER's rules.
SLOTS: dict[str, dict[str, float]] = {
    "determiner": _words("the its"),
    "aspect": _words(" ".join(ASPECTS)),
    "copula": _words("is was felt seemed looked sounded stayed remained"),
    "degree": _words("very really so delightfully dreadfully", 1.25)
    | _words("extremely utterly wonderfully painfully", 1.5)
    | _words("rather fairly quite", 0.75)
    | _words("slightly somewhat mildly", 0.5),
    "negation": _words("not never", -0.75) | _words("hardly", -0.5) | _words("anything_but far_from", -1.0),
    "quantity": _words("nothing", -0.75) | _words("little", -0.5) | _words("much", 1.0) | _words("everything", 1.25),
    "manner": _words("really truly", 1.25) | _words("never", -0.75) | _words("hardly", -0.5) | _words("quite", 0.75),
    "predicate": _words("stands_out carries_the_film stays_with_me falls_flat sinks_the_film drags_on fills_every_scene"),
    "mood": _words("happily thankfully to_my_delight sadly alas to_my_regret overall again this_time"),
}
JUDGING_SLOTS = {"adjective": (PRAISE, BLAME), "verb": (VERBS_OF_PRAISE, VERBS_OF_BLAME)}

# `degree?` may be left empty. The weight before a template is how often the generator takes it.
CLAUSES = (
    (5, "{determiner} {aspect} {copula} {degree?} {adjective}"),
    (2, "{determiner} {aspect} {copula} {negation} {degree?} {adjective}"),
    (2, "i {manner?} {verb} {determiner} {aspect}"),
    (1, "{quantity} about {determiner} {aspect} {copula} {degree?} {adjective}"),
    (3, "{determiner} {degree?} {adjective} {aspect} {predicate}"),
)
# A sentence's clauses with the weight of each: what follows "but" counts more than what it concedes, as in VADER.
SENTENCES = (
    (6, "{mood?} {clause} .", (1.0,)),
    (2, "{mood?} {clause} , and {clause} .", (1.0, 1.0)),
    (2, "{clause} , but {mood?} {clause} .", (0.5, 1.5)),
    (1, "{mood?} {clause} , though {clause} .", (1.5, 0.5)),
)
PROMPTS = (
    "{when} i saw this {genre} .",
    "this {genre} came out {when} .",
    "{people} told me about this {genre} .",
    "a few words on this {genre} :",
    "my notes on this {kind} {genre} :",
    "{people} took me to this {kind} {genre} {when} .",
    "this is a review of the {kind} {genre} everyone talks about .",
)
PROMPT_SLOTS = {
    "when": "yesterday|last night|last week|on sunday|this morning|in june|years ago|on the train",
    "genre": "drama|comedy|western|musical|thriller|mystery|sequel|remake|debut|biopic|documentary|cartoon|epic|film",
    "people": "my sister|my brother|a friend|our teacher|the critics|two colleagues|everyone|nobody",
    "kind": "new|old|short|long|french|italian|silent|small|late|early",
}


@cache
def ratings() -> dict[str, tuple[int, ...]]:
    """The ten human ratings, -4 to 4, of every word in the VADER lexicon, in the file's order."""
    path = Path(vaderSentiment.__file__).parent / "vader_lexicon.txt"
    table = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _mean, _deviation, drawn = line.split("\t")
        table[word] = tuple(int(rating) for rating in drawn.strip("[]").split(","))
    return table


@dataclass(frozen=True)
class Clause:
    """One judgement: its value is `weight` times the rating of `word`, and it is about `aspect`."""

    aspect: str
    word: str
    weight: float


@dataclass(frozen=True)
class Parse:
    """A review as the grammar reads it: its clauses in order, and how many words belong to none of its sentences."""

    clauses: tuple[Clause, ...]
    stray_words: int


def _slot_words(slot: str) -> list[str]:
    return [word for words in JUDGING_SLOTS[slot] for word in words] if slot in JUDGING_SLOTS else list(SLOTS[slot])


def _clause_pattern(template: str) -> str:
    """A regular expression for one clause template, each slot a group; the space after an optional slot is optional too."""
    pattern = ""
    for part in re.findall(r"\{\w+\??\} ?|[^{]+", template):
        slot = re.match(r"\{(\w+)(\??)\}( ?)", part)
        if slot is None:
            pattern += re.escape(part)
            continue
        words = "|".join(map(re.escape, sorted(_slot_words(slot[1]), key=len, reverse=True)))
        pattern += f"(?:(?P<{slot[1]}>{words}){slot[3]}){slot[2]}"
    return pattern


@cache
def _readers() -> tuple[list[re.Pattern], list[tuple[re.Pattern, tuple[float, ...]]]]:
    """The compiled grammar: one pattern a clause template, one a sentence template (its clauses as plain groups)."""
    patterns = [_clause_pattern(template) for _, template in CLAUSES]
    any_clause = "(" + "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in patterns) + ")"
    moods = "(?:(?:" + "|".join(map(re.escape, SLOTS["mood"])) + ") )?"
    sentences = []
    for _, template, weights in SENTENCES:
        pattern = re.escape(template.replace("{clause}", "@")).replace("@", any_clause)
        pattern = pattern.replace(re.escape("{mood?} "), moods)
        sentences.append((re.compile(pattern + r"(?= |$)"), weights))
    return [re.compile(pattern) for pattern in patterns], sentences


def _read_clause(text: str, sentence_weight: float) -> Clause:
    slots = next(m for pattern in _readers()[0] if (m := pattern.fullmatch(text))).groupdict()
    weight = sentence_weight
    for slot, word in slots.items():
        if slot in SLOTS and word is not None:
            weight *= SLOTS[slot][word]
    return Clause(slots["aspect"], slots.get("adjective") or slots["verb"], weight)


def parse(text: str) -> Parse:
    """Read a review from left to right by the grammar.

    At each place the first sentence template that fits is taken; where none fits, one word is counted as stray and
    reading goes on at the next. Tokens are separated by single spaces, as the generator writes them.
    """
    text = " ".join(text.split())
    clauses, stray, at = [], 0, 0
    while at < len(text):
        for pattern, weights in _readers()[1]:
            if match := pattern.match(text, at):
                clauses += [_read_clause(c, w) for c, w in zip(match.groups(), weights)]
                at = match.end() + 1
                break
        else:
            stray += 1
            space = text.find(" ", at)
            at = len(text) if space < 0 else space + 1
    return Parse(tuple(clauses), stray)


def _keep_some(template: str, rng: random.Random) -> str:
    """Decide the optional slots of a template: each is kept two times in five."""
    return re.sub(r"\{(\w+)\?\} ", lambda m: f"{{{m[1]}}} " if rng.random() < 2 / 5 else "", template)


def _pick(weighted: tuple, rng: random.Random):
    """One entry of CLAUSES or SENTENCES, by the weight it starts with."""
    return rng.choices(weighted, [entry[0] for entry in weighted])[0]


def write_prompt(rng: random.Random) -> str:
    """One opening of a review, without a judgement in it."""
    return re.sub(r"\{(\w+)\}", lambda m: rng.choice(PROMPT_SLOTS[m[1]].split("|")), rng.choice(PROMPTS))


def write_review(rng: random.Random) -> str:
    """One body of a review: one to three sentences. No aspect is judged twice, and no judging word used twice.

    A review has a leaning, drawn once: how likely each of its sentences is to praise. "and" joins two clauses of one mind; before
    "but" and after "though" stands the opposite of what the sentence says. The judging word is chosen against the sign of
    the words around it ("not", "nothing"), so that the word alone does not decide.
    """
    leaning = rng.betavariate(2, 2)
    aspects = rng.sample(ASPECTS, 6)  # three sentences of two clauses at most
    used: set[str] = set()

    def choose(slot: str, praise: bool) -> str:
        words = list(SLOTS[slot])
        return rng.choices(words, [1 + COLOURED.get(word, 0) * (1 if praise else -1) for word in words])[0]

    def clause(praise: bool) -> str:
        template = _keep_some(_pick(CLAUSES, rng)[1], rng)
        slots = re.findall(r"\{(\w+)\}", template)
        words = {slot: choose(slot, praise) for slot in slots if slot in SLOTS} | {"aspect": aspects.pop()}
        praising_word = praise == (math.prod(SLOTS[slot][word] for slot, word in words.items()) > 0)
        words |= {slot: choose(slot, praising_word) for slot in ("degree", "predicate") if slot in slots}
        judging = next(slot for slot in slots if slot in JUDGING_SLOTS)
        fresh = [word for word in JUDGING_SLOTS[judging][0 if praising_word else 1] if word not in used]
        words[judging] = rng.choices(fresh, [1 / (rank + 3) for rank in range(len(fresh))])[0]
        used.add(words[judging])
        return template.format(**words)

    def sentence() -> str:
        _, template, weights = _pick(SENTENCES, rng)
        praise = rng.random() < leaning
        template = _keep_some(template, rng).replace("{mood}", choose("mood", praise))
        return template.replace("{clause}", "{}").format(*(clause(praise == (weight >= 1)) for weight in weights))

    return " ".join(sentence() for _ in range(rng.choice((1, 2, 2, 3))))


def write_corpus(size: int, seed: int) -> list[tuple[str, str]]:
    """`size` different reviews as (prompt, body), the same for the same seed on every machine.

    Raises ValueError if `size` is not positive.
    """
    if size < 1:
        raise ValueError(f"a corpus needs at least one review, not {size}")
    rng = random.Random(seed)
    reviews: dict[tuple[str, str], None] = {}
    while len(reviews) < size:
        reviews[write_prompt(rng), write_review(rng)] = None
    return list(reviews)
