"""The pictures take what a trainer gives: two updates of four tiny, untrained models."""

import json

import pytest

from lessons.gpt.corpus import load_corpus, train_tokenizer
from lessons.gpt.materials import Materials
from lessons.gpt.models import Preset, freeze, new_base, reward_from
from lessons.gpt.ppo import PPOConfig, Trainer, response_kl
from lessons.gpt.preferences import RewardReport
from lessons.panels.ppo_run import LiveRun, curves_of, four_models, time_by_phase
from lessons.panels.token_strip import compute_strip, token_strip

REPORT = RewardReport(
    held_out_pairs=9, accuracy=0.7, gold_accuracy=0.9, ceiling=0.9, gold_correlation=0.5, gold_mean=0.1, gold_std=0.5
)
SMALL = Preset(
    layers=1, width=16, heads=2, context=32, epochs=1, batch=8, learning_rate=1e-3,
    pairs=8, reward_epochs=1, reward_batch=8, reward_learning_rate=1e-3,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The trainer, the metrics and rollouts of its updates, and the folder of the run."""
    folder = tmp_path_factory.mktemp("run")
    lines = [
        f"the {noun} was {how}" for noun in "film plot cast end".split() for how in "a b c d e f g h".split()
    ]
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    corpus = load_corpus(folder / "corpus.txt")
    tokenizer = train_tokenizer(corpus)
    base = freeze(new_base(SMALL, tokenizer, seed=0))
    materials = Materials(corpus, tokenizer, base, freeze(reward_from(base, seed=1)), REPORT)
    config = PPOConfig(batch=8, minibatches=2, passes=2, max_tokens=6, updates=2)
    trainer = Trainer(config, materials)
    updates = [trainer.step() for _ in range(config.updates)]
    text = "".join(json.dumps(metrics) + "\n" for metrics, _ in updates)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    (folder / "reward_report.json").write_text(json.dumps(REPORT.as_dict()), encoding="utf-8")
    return trainer, updates, folder


def test_curves_and_live_chart(run, capsys):
    _, updates, folder = run
    curves = curves_of(folder)
    assert curves.kl.tolist() == [metrics["kl"] for metrics, _ in updates]
    with LiveRun(2, REPORT, every=1) as live:
        for metrics, rollout in updates:
            live(metrics, rollout)
    assert capsys.readouterr().out == f"{curves.alt}\n"


def test_time_by_phase(run, check_picture):
    figure, alt = time_by_phase([metrics for metrics, _ in run[1]])
    assert [label.split()[0] for label in alt.split("By phase: ")[1].split(", ")] == [
        "prompts", "rollout", "score", "KL", "advantages", "update", "update",
    ]  # fmt: skip
    check_picture(figure)


def test_four_models(run, check_picture):
    trainer, *_ = run
    figure, alt = four_models(trainer.models)
    parts = alt.split(": ", 1)[1].split("; ")
    assert [part.split()[0] for part in parts] == ["policy", "reference", "reward", "value"]
    assert ["trained" in part for part in parts] == [True, False, False, True]
    check_picture(figure)


def test_token_strip(run, check_picture):
    trainer, updates, _ = run
    rollout = updates[1][1]
    for row in range(len(rollout.mask)):
        strip = compute_strip(rollout, row, trainer.tokenizer)
        assert len(strip.words) == rollout.lengths[row]
        assert strip["KL"].sum() == pytest.approx(response_kl(rollout)[row].item(), abs=1e-5)
        ended = rollout.ended(trainer.tokenizer.eos_token_id)[row]
        final = rollout.scores[row] if ended else trainer.config.missing_eos_score
        assert strip["reward"].sum() == pytest.approx(float(final) - 0.05 * strip["KL"].sum(), abs=1e-5)
    check_picture(token_strip(rollout, 0, trainer.tokenizer)[0])
