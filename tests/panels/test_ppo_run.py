"""The pictures of a PPO run: their numbers, what they draw, what they say."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch

from lessons.gpt.memory import predicted_bytes
from lessons.gpt.preferences import RewardReport
from lessons.live.figure import LiveFigure, png
from lessons.panels.ppo_run import (
    ComparisonArtists,
    Curves,
    CurvesArtists,
    LiveRun,
    PhasesArtists,
    WeightsArtists,
    compare_runs,
    compute_comparison,
    compute_curves,
    compute_phases,
    compute_weights,
    curves_of,
    four_models,
    read_run,
    run_curves,
    table_rows,
    time_by_phase,
)

PHASES = ("prompts", "rollout", "score", "kl_reward", "advantages", "update_policy", "update_value")
REPORT = RewardReport(
    held_out_pairs=100, accuracy=0.7, gold_accuracy=0.9, ceiling=0.9, gold_correlation=0.6,
    gold_mean=-0.5, gold_std=2.0,
)  # fmt: skip


def make_metrics(updates: int, seed: int = 0) -> list[dict]:
    """Lines as in metrics.jsonl; what no picture shows is left out."""
    rng = np.random.default_rng(seed)
    names = ("score", "gold", "kl", "entropy", "response_length", "eos_rate", "distinct")
    return [
        {
            "update": update,
            **{name: float(x) for name, x in zip(names, rng.uniform(0.2, 1.0, len(names)))},
            "seconds": {name: float(x) for name, x in zip(PHASES, rng.uniform(0, 1, len(PHASES)))},
        }
        for update in range(1, updates + 1)
    ]


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the two files that the pictures read."""
    lines = [json.dumps(line) for line in make_metrics(5)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "reward_report.json").write_text(json.dumps(REPORT.as_dict()), encoding="utf-8")
    return tmp_path


class TestReadRun:
    def test_gives_what_was_written(self, run_folder):
        assert read_run(run_folder) == (make_metrics(5), REPORT)
        assert curves_of(run_folder).gold.tolist() == compute_curves(make_metrics(5), REPORT).gold.tolist()

    @pytest.mark.parametrize("name", ["metrics.jsonl", "reward_report.json"])
    def test_says_which_file_is_missing_or_damaged(self, name, run_folder):
        (run_folder / name).write_text('{"pairs":', encoding="utf-8")
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            read_run(run_folder)
        (run_folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"no run in .*: {name} is missing"):
            read_run(run_folder)


class TestCurves:
    def test_are_the_metrics_with_gold_in_deviations_of_the_references_samples(self):
        metrics = make_metrics(7)
        curves = compute_curves(metrics, REPORT)
        assert curves.update.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert curves.gold.tolist() == [(line["gold"] + 0.5) / 2 for line in metrics]
        assert curves.score.tolist() == [line["score"] for line in metrics]
        assert curves.length.tolist() == [line["response_length"] for line in metrics]
        for name in ("kl", "entropy", "eos_rate", "distinct"):
            assert getattr(curves, name).tolist() == [line[name] for line in metrics]

    def test_need_an_update(self):
        with pytest.raises(ValueError, match="not finished an update"):
            compute_curves([], REPORT)

    def test_have_no_gold_where_the_references_samples_all_have_the_same(self, check_picture):
        constant = RewardReport(**{**REPORT.as_dict(), "gold_std": 0.0})
        figure, alt = run_curves(make_metrics(3), constant)
        assert "gold from undefined to undefined" in alt
        check_picture(figure)

    def test_are_told_with_their_first_and_last_values(self):
        metrics = [
            {"update": 1, "score": 0, "gold": -0.5, "kl": 0, "entropy": 2.5, "response_length": 20},
            {"update": 2, "score": 2.04, "gold": 3.3, "kl": 7.5, "entropy": 1.5, "response_length": 15},
        ]
        metrics = [dict(line, eos_rate=0.97, distinct=0.5) for line in metrics]
        alt = compute_curves(metrics, REPORT).alt
        for part in (
            "over 2 updates", "score goes from 0.0 to 2.0", "gold from 0.0 to 1.9",
            "from 0.0 to 7.5 nats a response", "from 2.5 to 1.5 nats a token", "97 % of the responses end",
            "50 % are different", "15.0 tokens long, 75 %",
        ):  # fmt: skip
            assert part in alt

    def test_are_drawn_and_drawn_again(self, check_picture):
        artists = CurvesArtists(30)
        pictures = []
        for updates in (1, 2, 30):
            curves = compute_curves(make_metrics(updates), REPORT)
            artists.draw(curves)
            assert artists.gold.get_xydata().tolist() == np.stack([curves.update, curves.gold], 1).tolist()
            assert artists.kl.get_ydata().tolist() == curves.kl.tolist()
            assert artists.shares[1].get_ydata().tolist() == (100 * curves.distinct).tolist()
            assert artists.score.get_label() == f"score {curves.score[-1]:.1f}"
            check_picture(artists.figure)
            pictures.append(png(artists.figure))
        assert len(set(pictures)) == 3

    def test_of_long_and_large_runs_fit_their_picture(self, check_picture):
        metrics = [
            dict(line, score=-12.3, gold=-80.0, kl=1234.5, eos_rate=1.0, distinct=1.0)
            for line in make_metrics(500)
        ]
        check_picture(run_curves(metrics, REPORT)[0])

    def test_as_a_table_have_a_row_an_update(self):
        metrics = make_metrics(12)
        metrics[-1] |= {"score": -1.234, "gold": 0.5, "kl": 10.0, "entropy": 2.0, "response_length": 20.06}
        metrics[-1] |= {"eos_rate": 0.994, "distinct": 1.0}
        header, *rows = table_rows(compute_curves(metrics, REPORT))
        assert header.split()[:8] == "update score gold KL entropy length ended different".split()
        assert header.splitlines()[1].split() == ["std", "std", "nats", "nats/token", "tokens", "%", "%"]
        assert len(rows) == 12
        assert rows[-1].split() == ["12", "−1.23", "0.50", "10.00", "2.00", "20.1", "99", "100"]
        assert len({len(line) for line in [*header.splitlines(), *rows]}) == 1


class TestComparison:
    @pytest.fixture
    def runs(self):
        return {
            "β = 0.05": [compute_curves(make_metrics(6, seed), REPORT) for seed in range(3)],
            "β = 0": [compute_curves(make_metrics(4, 9), REPORT)],
        }

    def test_is_mean_and_range_over_seeds(self, runs):
        comparison = compute_comparison(runs)
        assert comparison.seeds == {"β = 0.05": 3, "β = 0": 1}
        for field in fields(Curves):
            values = np.array([getattr(one, field.name) for one in runs["β = 0.05"]])
            for part, expected in (("mean", values.mean(0)), ("low", values.min(0)), ("high", values.max(0))):
                got = getattr(getattr(comparison, part)["β = 0.05"], field.name)
                assert got == pytest.approx(expected, abs=1e-12)
            single = comparison.low["β = 0"], comparison.mean["β = 0"], comparison.high["β = 0"]
            assert len({getattr(one, field.name).tobytes() for one in single}) == 1

    def test_is_told_with_every_kind_of_run(self, runs):
        comparison = compute_comparison(runs)
        end = comparison.mean["β = 0.05"]
        assert comparison.alt.startswith("Curves of 2 kinds of runs")
        assert "β = 0.05, mean of 3 seeds after 6 updates: " in comparison.alt
        assert f"score {end.score[-1]:.1f} and gold {end.gold[-1]:.1f}" in comparison.alt
        assert "β = 0, mean of 1 seed after 4 updates: " in comparison.alt

    def test_is_drawn_with_one_colour_and_band_a_kind(self, runs, check_picture):
        artists = ComparisonArtists(list(runs), 6)
        comparison = compute_comparison(runs)
        artists.draw(comparison)
        for name in runs:
            assert artists.lines["kl", name].get_ydata().tolist() == comparison.mean[name].kl.tolist()
            assert artists.lines["kl", name].get_color() == artists.lines["gold", name].get_color()
        assert artists.lines["kl", "β = 0"].get_color() != artists.lines["kl", "β = 0.05"].get_color()
        vertices = artists.bands["gold", "β = 0.05"].get_paths()[0].vertices[:, 1]
        assert vertices.max() == comparison.high["β = 0.05"].gold.max()
        assert vertices.min() == comparison.low["β = 0.05"].gold.min()
        assert "β = 0.05: 3 seeds, β = 0: 1 seed" in artists.foot.get_text()
        check_picture(artists.figure)
        first = png(artists.figure)
        artists.draw(compute_comparison({name: curves[:1] for name, curves in runs.items()}))
        assert png(artists.figure) != first

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda runs: runs.clear(), "no runs"),
            (lambda runs: runs.update(empty=[]), r"empty: there must be a run, .* not \[\]"),
            (lambda runs: runs["β = 0"].append(runs["β = 0.05"][0]), r"β = 0: .* not \[4, 6\]"),
            (
                lambda runs: runs.update({f"run {i}": runs["β = 0"] for i in range(5)}),
                "at most 6 kinds of runs",
            ),
        ],
    )
    def test_refuses_what_it_cannot_compare(self, runs, change, message):
        change(runs)
        with pytest.raises(ValueError, match=message):
            compare_runs(runs)


class TestPhases:
    def test_are_the_mean_seconds_and_their_shares(self):
        metrics = make_metrics(4)
        phases = compute_phases(metrics)
        assert phases.names == PHASES
        rollout = np.mean([line["seconds"]["rollout"] for line in metrics])
        whole = np.mean([sum(line["seconds"].values()) for line in metrics])
        assert phases.seconds[1] == pytest.approx(rollout)
        assert phases.shares[1] == pytest.approx(rollout / whole)
        assert phases.shares.sum() == pytest.approx(1)
        assert f"takes {whole:.2f} s" in phases.alt
        assert f"rollout {100 * rollout / whole:.0f} %" in phases.alt
        with pytest.raises(ValueError, match="not finished an update"):
            compute_phases([])

    @pytest.mark.parametrize(
        "seconds",
        [
            [0.0, 0.15, 0.09, 0.09, 0.09, 0.94, 0.96],  # as measured on a small model
            [0.0, 6.0, 0.5, 0.5, 0.5, 1.2, 1.2],  # as on a large one
            [0.0, 0.001, 0.001, 0.001, 0.001, 0.001, 50.0],
            [1.0] * 7,
        ],
    )
    def test_fill_the_bar_and_are_all_named(self, seconds, check_picture):
        line = {"seconds": dict(zip(PHASES, seconds))}
        figure, _ = time_by_phase([line])
        check_picture(figure)
        phases = compute_phases([line])
        artists = PhasesArtists(phases.names)
        artists.draw(phases)
        widths = np.array([bar.get_width() for bar in artists.bars])
        assert widths / widths.sum() == pytest.approx(phases.shares)
        assert [label.get_text()[0] for label in artists.labels] == list("1234567")

    def test_are_drawn_again(self):
        artists = PhasesArtists(PHASES)
        artists.draw(compute_phases(make_metrics(1, 0)))
        first = png(artists.figure)
        artists.draw(compute_phases(make_metrics(1, 1)))
        assert png(artists.figure) != first


class TestWeights:
    @pytest.fixture
    def models(self):
        """Two trained and two frozen ones, the first with tied weights."""
        tied = torch.nn.Sequential(
            torch.nn.Linear(100, 100, bias=False), torch.nn.Linear(100, 100, bias=False)
        )
        tied[1].weight = tied[0].weight
        other = torch.nn.Linear(30, 10)
        frozen = [torch.nn.Linear(100, 20).requires_grad_(False) for _ in range(2)]
        return {"policy": tied, "reference": frozen[0], "reward": frozen[1].half(), "value": other}

    def test_are_counted_and_predicted(self, models):
        weights = compute_weights(models)
        assert weights.parameters.tolist() == [10_000, 2_020, 2_020, 310]
        assert weights.trained.tolist() == [True, False, False, True]
        assert weights.bytes.sum(axis=1).tolist() == [160_000, 8_080, 4_040, 4_960]
        assert weights.bytes[0].tolist() == [40_000, 40_000, 80_000]
        in_float32 = weights.bytes[[0, 1, 3]].sum()
        assert in_float32 == predicted_bytes(trained=10_310, frozen=2_020, precision="float32")

    def test_are_told_and_drawn(self, models, check_picture):
        weights = compute_weights(models)
        assert "policy 10.0 k parameters, trained, 160 kB" in weights.alt
        assert "reward 2.02 k parameters, frozen, 4.04 kB" in weights.alt
        assert "Together 177 kB." in weights.alt
        artists = WeightsArtists(weights.names)
        artists.draw(weights)
        widths = np.array([[bar.get_width() for bar in bars] for bars in artists.bars])
        assert widths / widths.sum() == pytest.approx(weights.bytes / weights.bytes.sum())
        figure, alt = four_models(models)
        assert alt == weights.alt
        check_picture(figure)
        first = png(artists.figure)
        artists.draw(compute_weights({name: models["value"] for name in models}))
        assert png(artists.figure) != first

    @pytest.mark.parametrize(
        ("count", "text"),
        [
            (310, "310 B"), (999_400, "999 kB"), (999_600, "1.00 MB"), (9_996_000, "10.0 MB"),
            (99_960_000, "100 MB"), (25_000_000_000, "25.0 GB"),
        ],
    )  # fmt: skip
    def test_have_three_digits(self, count, text):
        model = torch.nn.Module()
        memory = torch.empty(count, dtype=torch.int8, device="meta")
        model.weight = torch.nn.Parameter(memory, requires_grad=False)
        assert compute_weights({"m": model}).alt.endswith(f"Together {text}.")


class TestLiveRun:
    def test_draws_after_every_nth_update_and_at_the_end(self, monkeypatch, capsys):
        metrics = make_metrics(7)
        drawn = []
        refresh = LiveFigure.refresh
        monkeypatch.setattr(LiveFigure, "refresh", lambda live, alt: (drawn.append(alt), refresh(live, alt)))
        with LiveRun(7, REPORT, every=3) as live:
            for line in metrics:
                live(line, None)
        ends = [compute_curves(metrics[:n], REPORT).alt for n in (3, 6, 7)]
        assert drawn == ends
        assert capsys.readouterr().out == f"{ends[-1]}\n"

    def test_of_a_run_without_an_update_shows_nothing(self, capsys):
        with LiveRun(7, REPORT):
            pass
        assert capsys.readouterr().out == ""

    def test_keeps_the_picture_of_a_run_that_fails(self, capsys):
        with pytest.raises(FloatingPointError), LiveRun(7, REPORT) as live:
            live(make_metrics(1)[0])
            raise FloatingPointError
        assert "over 1 update." in capsys.readouterr().out
