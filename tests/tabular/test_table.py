"""The article's table: its figures, its intervals, and what it prints."""

import json

import pytest
import torch

from lessons.tabular import World, five_learners, train
from lessons.tabular.table import ARTICLE, TableConfig, normal, run, table, wilson


@pytest.fixture(scope="module")
def measured():
    return table(TableConfig(seeds=12))


def test_every_figure_stands_beside_the_articles(measured):
    assert [(entry["learner"], entry["lr"]) for entry in measured["learners"]] == [
        (name, lr) for lr, learners in ARTICLE.items() for name in learners
    ]
    for entry in measured["learners"]:
        *matches, solved = ARTICLE[entry["lr"]][entry["learner"]]
        assert [cell["article"] for cell in entry["matches"].values()] == matches
        assert [cell["article"] for cell in entry["solved"].values()] == [solved / 10] * 2
        assert (entry["clip_fraction"] is None) == (entry["learner"] != "PPO")


def test_figures_are_means_of_ten_updates_and_shares_of_seeds(measured):
    scores = train(World(vocab=8, length=3), five_learners(0.03), range(12)).scores
    for i, entry in enumerate(measured["learners"][5:]):
        for update, cell in entry["matches"].items():
            expected = scores[i, :, int(update) - 10 : int(update)].mean()
            assert cell["mean"] == pytest.approx(expected.item(), abs=1e-9)
        by_ten, by_last = scores[i, :, -10:].mean(dim=-1) >= 2.9, scores[i, :, -1] >= 2.9
        assert entry["solved"]["last_10_updates"]["mean"] == pytest.approx(by_ten.double().mean().item())
        assert entry["solved"]["last_update"]["mean"] == pytest.approx(by_last.double().mean().item())


def test_intervals_hold_their_figures_and_a_star_is_a_figure_out_of_range(measured):
    cells = [
        cell
        for entry in measured["learners"]
        for cell in [*entry["matches"].values(), *entry["solved"].values()]
    ]
    assert all(cell["low"] - 1e-9 <= cell["mean"] <= cell["high"] + 1e-9 for cell in cells)
    for cell in cells:
        clearly_out = not cell["group_low"] - 0.006 <= cell["article"] <= cell["group_high"] + 0.006
        clearly_in = cell["group_low"] <= cell["article"] <= cell["group_high"]
        assert cell["within"] == clearly_in or not (clearly_out or clearly_in)
    assert measured["outside"]["figures"] == sum(not cell["within"] for cell in cells)
    assert measured["outside"]["of"] == len(cells) == 70


def test_learners_come_out_as_in_the_article(measured):
    final = {(x["learner"], x["lr"]): x["matches"]["300"]["mean"] for x in measured["learners"]}
    for lr in ARTICLE:
        assert final["REINFORCE", lr] < 2.2
        assert final["REINFORCE + baseline", lr] > 2.9
    early = {x["learner"]: x["matches"]["50"]["mean"] for x in measured["learners"] if x["lr"] == 0.03}
    assert early["PPO"] > 2.4
    assert early["REINFORCE + baseline"] < 1.2


def test_ten_seeds_give_the_articles_table_without_intervals(capsys):
    run(TableConfig())
    printed = capsys.readouterr().out
    assert "10 seeds a learner" in printed
    assert printed.count("  article") == 10
    assert "±0" not in printed
    assert "*" not in printed


def test_json_can_be_read_back_and_more_seeds_print_intervals(measured, capsys, monkeypatch):
    monkeypatch.setattr("lessons.tabular.table.table", lambda config: measured)
    run(TableConfig(seeds=12, json=True))
    assert json.loads(capsys.readouterr().out) == measured
    run(TableConfig(seeds=12))
    printed = capsys.readouterr().out
    assert "95 % intervals" in printed
    assert printed.count("*") == measured["outside"]["figures"] + 1


def test_wilson_interval_by_hand():
    # 8 of 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416 = 0.71674, half width 0.22665
    low, high = wilson(torch.tensor([1.0] * 8 + [0.0] * 2, dtype=torch.float64))
    assert (low, high) == (pytest.approx(0.49016, abs=1e-5), pytest.approx(0.94332, abs=1e-5))
    assert wilson(torch.ones(10, dtype=torch.float64))[1] == pytest.approx(1.0)


def test_normal_interval_by_hand():
    low, high = normal(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    half = 1.96 * (5 / 3) ** 0.5 / 2
    assert (low, high) == (pytest.approx(2.5 - half), pytest.approx(2.5 + half))


def test_no_seed_is_refused():
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        TableConfig(seeds=0)
