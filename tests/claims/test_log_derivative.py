"""What lesson 1 claims fails when the thing it claims is done wrong, and its self-check knows its answers.

The notebook's code cells run once. Then each `shows(...)` of it is evaluated again, as it stands there, with
one figure replaced by what a known fault gives.
"""

import ast
import re
from pathlib import Path

import pytest
import torch

from lessons.claims import ClaimFailed, code_cells
from lessons.panels.log_derivative import Convergence
from lessons.rl import returns
from lessons.tabular import World, exact, random_policy, uniform_policy

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_log_derivative_trick.ipynb"
SOURCES = code_cells(NOTEBOOK)


def calls_of_shows() -> dict[str, str]:
    """The source of each call of `shows` by the text of its claim."""
    nodes = (node for source in SOURCES for node in ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "shows"]
    return {call.args[1].value: ast.unparse(call) for call in calls}


CALLS = calls_of_shows()


def run(source: str, names: dict) -> None:
    exec(compile(source, NOTEBOOK.name, "exec"), names)  # noqa: S102 - a cell of the notebook


@pytest.fixture(scope="module")
def lesson():
    """All names of the notebook after its last cell."""
    names = {}
    for source in SOURCES:
        run(source, names)
    return names


# Faults. Each takes the notebook's names and returns those that come out differently.


def rows_one_off(n):
    """A word's probability is read from the row of the word before it."""
    rows = torch.cat([n["s"][:1], n["s"][:-1]])
    return {"off_list": n["pi"][rows, n["y"]].prod() - n["listed"][n["text"](n["y"])]}


def score_on_every_token(n):
    return {"r": n["world"].returns(n["y"]).expand(3)}


def responses_cut_off_are_left_out(n):
    y, mask = n["ending"].sequences, n["ending"].mask(n["ending"].sequences)
    stopped = ((y == n["ending"].end) & mask).any(dim=-1)
    return {"ended": exact.sequence_probs(uniform_policy(n["ending"]))[stopped].sum()}


def a_discount(n):
    return {"kept": n["discounted"](n["late"], gamma=0.99)}


def no_discount(n):
    return {"left": n["discounted"](n["late"], gamma=1.0)}


def no_word_twice(n):
    return {"Y": n["Y"][[len(set(y)) == 3 for y in n["Y"].tolist()]]}


def every_response_weighs_the_same(n):
    return {"J": lambda theta: n["R"].mean()}


def deviation_for_standard_error(n):
    means = n["batches"].mean(dim=-1)
    return {"inside": ((means - n["J"](n["theta"])).abs() < 1.96 * n["batches"].std(dim=-1)).double().mean()}


def samples_of_another_policy(n):
    """The policy that is scored is not the one that sampled: here the uniform one wrote the responses."""
    return {"off_grad": ((n["R"][:, None] * n["grad_log_pi"]).mean(0) - n["grad_J"]).abs().max()}


def estimates(n, sampler, factor=1.0):
    """As compute_convergence, of `factor` times the estimate, from samples that `sampler` wrote."""
    policy, generator = n["policy"], torch.Generator().manual_seed(0)
    terms, length = n["R"][:, None] * policy.score(n["Y"]), n["grad_J"].norm()
    errors = []
    for N in n["closing"].N.tolist():
        shares = exact.sequence_probs(sampler).expand(20, -1)
        drawn = torch.multinomial(shares, N, replacement=True, generator=generator)
        counts = torch.zeros(20, 512, dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones(20, N, dtype=torch.float64))
        errors.append((factor * counts @ terms / N - n["grad_J"]).norm(dim=-1) / length)
    error = torch.stack(errors).numpy()
    closing = Convergence("x", n["closing"].N, error, 0.0, error, n["closing"].exact_error)
    return {"closing": closing, "ratio": closing.rms / closing.exact_error}


def estimates_from_another_policy(n):
    return estimates(n, uniform_policy(n["world"]))


def estimates_averaged_over_words(n):
    return estimates(n, n["policy"], factor=1 / 3)


def cross_entropy_averaged_over_words(n):
    return {"off_g": (-n["gradient"].flatten() / 3 - n["g"]).abs().max()}


def unweighted_samples_of_another_policy(n):
    return {"unweighted": n["grad_log_pi"].mean(0)}


def strings_one_word_late(n):
    hits = [sum(a == b for a, b in zip(n["text"](y).split()[1:], n["hidden"])) for y in n["y_i"]]
    wrong = torch.tensor(hits, dtype=torch.float64)
    difference = (n["by_formula"] - wrong)[:, None] * n["policy"].score(n["y_i"])
    return {"apart": difference.mean(0).abs().max()}


def the_other_scorer(n):
    slopes = (n["ahead"] - n["behind"]) / (2 * n["h"])
    return {"wrong": (slopes - n["u"] @ n["grad_J"]).abs().max() / (n["u"] @ n["grad_J"]).abs().max()}


def scores_without_their_sign(n):
    positive = World(reward=lambda y: n["black_box"](y).abs())
    return {"J_vader": torch.stack([exact.J(positive, policy) for policy in n["trained"]])}


def steps_down(n):
    *_, last = n["train"](n["judged"], n["start"], lr=-4.0)
    return {
        "J_vader": exact.J(n["judged"], last)[None],
        "gush": (exact.sequence_probs(last) @ n["twice"])[None],
    }


def bias(n, policy, world, weights):
    distance = exact.moments(policy, weights).mean - exact.gradient(world, policy)
    return (distance.norm() / exact.gradient(world, policy).norm()).item()


def own_reward_forgotten(n):
    """The rewards after a token, without its own."""
    r = n["paid"].rewards(n["Y"])
    return {"worst": bias(n, n["policy"], n["paid"], n["to_go"](r) - r)}


def own_reward_forgotten_elsewhere(n):
    world = World(vocab=4, length=3, pays="token")
    r = world.rewards(world.sequences)
    to_go = returns(r, world.mask(world.sequences)) - r
    return {"saved": type("Saved", (), {"bias": bias(n, random_policy(world, seed=0), world, to_go)})}


def whole_return_on_every_word(n):
    variance = exact.moments(n["policy"], n["R"][:, None], batch=16).variance
    return {"to_go_token": variance / n["variance"]["token", "R(y)"]}


def words_paid_at_once(n):
    return {"to_go_last": n["to_go_token"]}


def value_not_subtracted(n):
    return {"advantage_last": n["variance"]["last", "Q(s_t, a_t)"] / n["variance"]["last", "R(y)"]}


FAULTS = {
    "π of the three actions, multiplied, minus π(y) in a list of all": rows_one_off,
    "rewards of the episode, summed, minus the points of the text": score_on_every_token,
    "probability that such a response has ended after four tokens": responses_cut_off_are_left_out,
    "γ = 1: what is left of a point after 500 tokens": a_discount,
    "γ = 0.99: what is left of it": no_discount,
    "sequences in the sum": no_word_twice,
    "J as typed, minus J of lessons.tabular": every_response_weighs_the_same,
    "share of the 95 % intervals of a sample mean that hold J": deviation_for_standard_error,
    "step 3, E[R ∇ log π] over all 512: largest distance from ∇J": samples_of_another_policy,
    "slope of log error over log N; that of 1/√N is −0.5": estimates_from_another_policy,
    "error over the exact √(variance / N), lowest of ten N": estimates_averaged_over_words,
    "error over the exact √(variance / N), highest of ten N": estimates_from_another_policy,
    "error with the most samples, in lengths of ∇J": estimates_averaged_over_words,
    "−∇ of the weighted cross-entropy: largest distance from ĝ": cross_entropy_averaged_over_words,
    "all weights 1: length of the expected gradient": unweighted_samples_of_another_policy,
    "ĝ by a formula minus ĝ by comparing strings, largest entry": strings_one_word_late,
    "slope of J by VADER against the trick, worst of 20 directions, relative": the_other_scorer,
    "J by VADER at the start": scores_without_their_sign,
    "J by VADER after 100 updates, lowest of 20 runs": steps_down,
    "probability of two or more “superb”, lowest of 20 runs": steps_down,
    "four weights, paid in two ways: largest distance of a mean from ∇J": own_reward_forgotten,
    "paid word by word: reward-to-go leaves, of the variance": whole_return_on_every_word,
    "paid at the end: reward-to-go leaves, of the variance": words_paid_at_once,
    "paid at the end: the advantage leaves, of the variance": value_not_subtracted,
    "20 other policies, 5 lengths: largest bias, in lengths of ∇J": own_reward_forgotten_elsewhere,
}


def test_every_claim_has_its_fault():
    assert FAULTS.keys() == CALLS.keys()


@pytest.mark.parametrize("text", CALLS)
def test_a_claim_holds_as_it_stands_and_fails_on_its_fault(text, lesson):
    eval(CALLS[text], lesson)
    with pytest.raises(ClaimFailed):
        eval(CALLS[text], lesson | FAULTS[text](lesson))


class TestSelfCheck:
    CELLS = tuple(source for source in SOURCES if "\nanswer = ..." in source)

    @pytest.fixture
    def answers(self):
        (listed,) = re.findall(r"The five answers(.*?)</details>", NOTEBOOK.read_text(encoding="utf-8"), re.DOTALL)
        return re.findall(r"\b\d\. (\d+(?:\.\d+)?)\. ", listed)

    def test_takes_the_answers_that_the_notebook_gives(self, answers, lesson, capsys):
        assert len(answers) == len(self.CELLS) == 5
        for answer, cell in zip(answers, self.CELLS):
            run(cell.replace("answer = ...", f"answer = {answer}"), dict(lesson))
        printed = capsys.readouterr().out.splitlines()
        assert printed == [f"Right: {answer}." for answer in answers]

    def test_names_what_to_read_after_another_answer(self, answers, lesson, capsys):
        for answer, cell in zip(answers, self.CELLS):
            run(cell.replace("answer = ...", f"answer = {answer} + 0.1"), dict(lesson))
            assert re.fullmatch(
                rf"The code gives {re.escape(answer)}\. Read this first: .+\.\n", capsys.readouterr().out
            )

    def test_waits_for_an_answer(self, lesson, capsys):
        for cell in self.CELLS:
            run(cell, dict(lesson))
            assert capsys.readouterr().out.startswith("No answer yet")
