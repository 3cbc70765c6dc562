"""Every claim of lesson 9 against a known fault: the figure that the fault gives leaves the claim's bound."""

import ast
from functools import cache
from pathlib import Path

import pytest

from lessons import claims
from lessons.claims import ClaimFailed, shows
from lessons.gpt.corpus import review_corpus, train_tokenizer
from lessons.gpt.materials import Materials
from lessons.gpt.memory import measured_bytes, parameters, predicted_bytes
from lessons.gpt.models import Preset, new_base, reward_from
from lessons.gpt.ppo import PPOConfig, Trainer
from lessons.gpt.preferences import RewardReport
from lessons.panels.ppo_run import recorded_curves

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NOTEBOOK = NOTEBOOKS / "09_four_model_ppo.ipynb"
TINY = Preset(
    layers=1, width=16, heads=2, context=64, epochs=1, batch=8, learning_rate=1e-3,
    pairs=8, reward_epochs=1, reward_batch=8, reward_learning_rate=1e-3,
)  # fmt: skip


def bounds() -> dict[tuple[str, str], claims.Bound]:
    """The bound of each claim of the notebook, by its id and its text."""
    found = {}
    for source in claims.code_cells(NOTEBOOK):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "shows":
                id, text, _, bound = node.args
                found[id.value, text.value] = eval(ast.unparse(bound), vars(claims))
    return found


@cache
def materials() -> Materials:
    corpus = review_corpus(64)
    tokenizer = train_tokenizer(corpus)
    base = new_base(TINY, tokenizer, seed=0)
    report = RewardReport(
        held_out_pairs=8, accuracy=0.5, gold_accuracy=0.9, ceiling=0.9, gold_correlation=0.0, gold_mean=0.0, gold_std=1.0
    )
    return Materials(corpus, tokenizer, base, reward_from(base, seed=0), report)


def trainer(kind=Trainer) -> Trainer:
    return kind(PPOConfig(batch=8, minibatches=2, max_tokens=8, updates=1), materials())


class PolicyNeverUpdated(Trainer):
    """Line 6 is forgotten."""

    def update_policy(self, rollout):
        return {
            "clip_fraction": 0.0, "zero_gradient_fraction": 0.0, "approx_kl": 0.0, "first_ratio_error": 0.0,
            "passes_done": 0.0,
        }  # fmt: skip


class ReferenceIsThePolicy(Trainer):
    """The reference was never copied."""

    def __init__(self, *args):
        super().__init__(*args)
        self.reference = self.policy


class ValueFrozen(Trainer):
    """Line 7 is forgotten."""

    def update_value(self, rollout):
        return {"value_loss": 0.0}


def copies(model):
    return [weights.detach().clone() for weights in model.parameters()]


def distance(ours, theirs) -> float:
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs))


def changed(kind, *names) -> int:
    run = trainer(kind)
    before = {name: copies(run.models[name]) for name in names}
    run.step()
    return sum(distance(run.models[name].parameters(), before[name]) > 0 for name in names)


def seven_lines_without_the_sixth():
    whole, short = trainer(), trainer(PolicyNeverUpdated)
    whole.step()
    short.step()
    return distance(whole.models["policy"].parameters(), short.models["policy"].parameters())


def no_change_without_the_sixth():
    short = trainer(PolicyNeverUpdated)
    short.step()
    return distance(short.models["policy"].parameters(), short.reference.parameters())


def time_of_writing_over_itself():
    seconds = trainer().step()[0]["seconds"]
    return seconds["rollout"] / seconds["rollout"]


def frozen_models_with_optimisers():
    run = trainer()
    run.step()
    models = run.models
    measured = sum(measured_bytes(model) for model in models.values())
    measured += sum(measured_bytes(models[name], getattr(run, f"{name}_optimizer")) for name in ("policy", "value"))
    return measured / predicted_bytes(sum(parameters(model) for model in models.values()), 0, "float32")


@cache
def sweep():
    return recorded_curves(NOTEBOOKS / "data" / "beta_seeds.csv")


def gains(beta):
    return [run.gold[-5:].mean() - run.gold[0] for run in sweep()[beta]]


def with_the_leash(name):
    run = sweep()["β = 0.05"][0]
    return getattr(run, name)[-5:].mean() - getattr(run, name)[0]


FAULTS = {
    "largest difference between seven lines and step()": seven_lines_without_the_sixth,
    "largest change of a weight in that update": no_change_without_the_sixth,
    "models that changed: policy and value": lambda: changed(ValueFrozen, "policy", "value"),
    "models that changed: reference and reward": lambda: changed(ReferenceIsThePolicy, "reference", "reward"),
    "share of an update spent writing, at this size on this machine": time_of_writing_over_itself,
    "measured memory of the four models, over the predicted": frozen_models_with_optimisers,
    "memory of PPO over memory of fine-tuning": lambda: predicted_bytes(28e9, 0) / predicted_bytes(7e9, 0),
    "β = 0: the score ends above its start by, in standard deviations": lambda: -with_the_leash("score"),
    "β = 0: gold ends below its start by": lambda: -with_the_leash("gold"),
    "β = 0: share of words that belong to no sentence, minus that with the leash": lambda: 0.0,
    "the worst of five seeds with β = 0.05 gains gold": lambda: min(gains("β = 0")),
    "the best of five seeds with β = 0 loses gold": lambda: -max(gains("β = 0.05")),
}
BOUNDS = bounds()


def test_every_claim_has_its_fault():
    assert {text for _, text in BOUNDS} == FAULTS.keys()


@pytest.mark.parametrize("id, text", BOUNDS)
def test_a_known_fault_breaks_the_claim(id, text):
    with pytest.raises(ClaimFailed):
        shows(id, text, FAULTS[text](), BOUNDS[id, text])
