"""The command `lessons`, called as a function, and as a process where a signal or an import is looked at."""

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lessons import doctor
from lessons.claims import CLAIMS
from lessons.cli import main

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOWS = "from lessons.claims import at_least, shows\nshows('B1', 'it holds', 1, at_least(0))"
PICTURE = f"""from IPython.display import display
display({{"image/png": {PNG!r}, "text/plain": "A curve < 1 that rises."}}, raw=True)"""
BAR = """from ipywidgets import FloatProgress
FloatProgress()"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the commands run in, with an empty one for notebooks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    return tmp_path


@pytest.fixture
def notebook(folder):
    """Writes a notebook of code cells into the folder."""

    def write(name, *sources):
        cells = [new_markdown_cell(f"A line before.\n\n# Lesson {name} & more"), *map(new_code_cell, sources)]
        path = folder / "notebooks" / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=cells), path)
        return path

    return write


class TestHelp:
    def test_answers_without_loading_what_is_slow(self):
        slow = {"torch", "transformers", "matplotlib", "nbconvert", "nbclient", "IPython"}
        code = f"""import sys
from lessons.cli import main
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0
assert not {slow} & set(sys.modules), {slow} & set(sys.modules)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert all(name in done.stdout for name in ("run", "ppo", "claims", "doctor"))

    def test_shows_defaults(self, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["run", "--help"])
        assert stop.value.code == 0
        help = capsys.readouterr().out
        assert "(default: all)" in help
        assert "(default: build)" in help

    @pytest.mark.parametrize("args", [[], ["nosuch"], ["run", "--nosuch"]])
    def test_wrong_arguments_end_with_status_2(self, args, capsys):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 2
        assert "--help" in capsys.readouterr().err


class TestRun:
    def test_leaves_pages_an_index_and_a_report_and_goes_on_after_a_failure(self, notebook, folder, capsys):
        notebook("01_first", SHOWS, PICTURE, "import os; print(os.getcwd())", BAR)
        notebook("02_second", "x = 1", "", "1 / 0", "'not reached'")
        source = notebook("03_third", "x = bytearray(150_000_000); import time; time.sleep(0.5)", "len(x)")
        before = source.read_text(encoding="utf-8")

        assert main(["run"]) == 1

        out, err = capsys.readouterr()
        build = folder / "build"
        assert err.splitlines() == ["02_second, cell [2]: ZeroDivisionError: division by zero"]
        assert sorted(path.name for path in build.iterdir()) == [
            *(f"{name}.{end}" for name in ("01_first", "02_second", "03_third") for end in ("html", "ipynb")),
            "index.html",
            "report.json",
        ]

        report = json.loads((build / "report.json").read_text(encoding="utf-8"))
        assert [report[name]["status"] for name in report] == ["passed", "failed", "passed"]
        assert [report[name]["claims"] for name in report] == [["B1"], [], []]
        assert report["02_second"]["error"] == "cell [2]: ZeroDivisionError: division by zero"
        assert 0 < report["01_first"]["peak_memory"] < report["03_third"]["peak_memory"] - 100_000_000
        assert 0.5 < report["03_third"]["seconds"] < 60

        executed = nbformat.read(build / "03_third.ipynb", as_version=4)
        assert [cell.execution_count for cell in executed.cells[1:]] == [1, 2]
        assert executed.cells[2].outputs[0].data["text/plain"] == "150000000"
        assert source.read_text(encoding="utf-8") == before

        page = (build / "01_first.html").read_text(encoding="utf-8")
        assert 'alt="A curve &lt; 1 that rises."' in page
        assert str(folder / "notebooks") in page  # where the kernel ran
        assert "FloatProgress(value" not in page
        assert "ZeroDivisionError" in (build / "02_second.html").read_text(encoding="utf-8")

        index = (build / "index.html").read_text(encoding="utf-8")
        assert '<a href="01_first.html">Lesson 01_first &amp; more</a>' in index
        assert "failed, cell [2]: ZeroDivisionError" in index
        assert f'<abbr title="{CLAIMS["B1"]}">B1</abbr>' in index

        table = [line.split() for line in out.splitlines()]
        assert ["02_second", "failed"] in [row[:2] for row in table]
        assert out.rstrip().endswith(str(Path("build/index.html")))

    def test_takes_numbers_and_names_and_keeps_what_earlier_runs_left(self, notebook, folder, capsys):
        for name in ("01_first", "02_second", "cockpit"):
            notebook(name, f"print({name!r})")
        assert main(["run", "cockpit", "--out", "pages"]) == 0
        assert main(["run", "1", "01", "--out", "pages"]) == 0
        report = json.loads((folder / "pages" / "report.json").read_text(encoding="utf-8"))
        assert list(report) == ["01_first", "cockpit"]

    def test_reports_a_kernel_that_died(self, notebook, capsys):
        notebook("01_first", "import os", "os._exit(1)")
        assert main(["run"]) == 1
        assert capsys.readouterr().err.startswith("01_first, cell [2]: the kernel died")

    def test_stops_at_ctrl_c_and_keeps_what_is_finished(self, notebook, folder):
        notebook("01_first", SHOWS)
        notebook("02_second", "import time; time.sleep(600)")
        notebook("03_third", "x = 1")
        line = [sys.executable, "-m", "lessons.cli", "run"]
        running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        kernels = []
        deadline = time.monotonic() + 60
        while not ((folder / "build" / "index.html").exists() and kernels):
            assert time.monotonic() < deadline
            time.sleep(0.1)
            kernels = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)

        assert running.returncode == 130
        assert err == "lessons: stopped\n"
        assert "01_first" in out
        assert not any(kernel.is_running() for kernel in kernels)
        names = {path.name for path in (folder / "build").iterdir()}
        assert names == {"01_first.html", "01_first.ipynb", "index.html", "report.json"}

    def test_a_damaged_report_of_an_earlier_run_is_made_anew(self, notebook, folder):
        notebook("01_first", "x = 1")
        (folder / "build").mkdir()
        (folder / "build" / "report.json").write_text('{"01_first": 3}', encoding="utf-8")
        assert main(["run"]) == 0
        report = json.loads((folder / "build" / "report.json").read_text(encoding="utf-8"))
        assert report["01_first"]["status"] == "passed"

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["13"], "no notebook '13' in notebooks: there is 01_first"),
            (["first"], "no notebook 'first' in notebooks: there is 01_first"),
            (["--folder", "x"], "no notebooks in x: run this in the project's folder, or name theirs"),
        ],
    )
    def test_says_in_one_line_what_is_not_there(self, args, message, notebook, folder, capsys):
        notebook("01_first", "x = 1")
        assert main(["run", *args]) == 2
        assert capsys.readouterr().err == f"lessons: error: {message}\n"
        assert not (folder / "build").exists()

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{}], "metadata": {}, "nbformat": 4}'])
    def test_says_in_one_line_that_a_file_is_no_notebook(self, text, folder, capsys):
        (folder / "notebooks" / "01_first.ipynb").write_text(text, encoding="utf-8")
        assert main(["run"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"lessons: error: {Path('notebooks/01_first.ipynb')} is not a notebook: ")


class TestClaims:
    def test_lists_what_the_notebooks_show_and_where(self, notebook, capsys):
        notebook("01_first", "x = 1", SHOWS)
        assert main(["claims"]) == 0
        assert capsys.readouterr().out == f"B1  {CLAIMS['B1']}: 01_first [2]\n"

    def test_lists_what_is_missing(self, notebook, capsys):
        notebook("01_first", SHOWS)
        assert main(["claims", "--missing"]) == 0
        missing = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert missing == [id for id in CLAIMS if id != "B1"]

    def test_says_in_one_line_what_is_wrong(self, notebook, capsys):
        notebook("01_first", "shows('Z1')")
        assert main(["claims"]) == 2
        path = Path("notebooks/01_first.ipynb")
        assert capsys.readouterr().err == f"lessons: error: {path}, cell [1]: unknown claim 'Z1'\n"


@pytest.fixture
def configurations(monkeypatch):
    """Stands in for the module that trains; collects what it is asked to run."""

    @dataclass(frozen=True)
    class PPOConfig:
        beta: float = 0.05
        """Weight of the KL reward."""
        corpus: Path | None = None
        out: Path = Path("run")
        updates: int = 25

        def __post_init__(self):
            if self.beta < 0:
                raise ValueError(f"beta must not be negative,\n not {self.beta}")
            if self.corpus and not self.corpus.exists():
                raise FileNotFoundError(f"no file {self.corpus}")

    module, asked = ModuleType("lessons.gpt.ppo"), []
    module.PPOConfig, module.run = PPOConfig, lambda config, on_update: asked.append(config)
    monkeypatch.setitem(sys.modules, "lessons.gpt.ppo", module)
    return asked


class TestPpo:
    def test_runs_the_configuration_that_was_asked_for(self, configurations):
        assert main(["ppo", "--beta", "0.1"]) == 0
        assert [configuration.beta for configuration in configurations] == [0.1]

    def test_help_shows_the_options_of_the_configuration(self, configurations, capsys):
        with pytest.raises(SystemExit) as stop:
            main(["ppo", "--help"])
        assert stop.value.code == 0
        help = capsys.readouterr().out
        assert "Weight of the KL reward" in help
        assert "(default: 0.05)" in help

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--beta", "-1"], "beta must not be negative, not -1.0"),
            (["--corpus", "nowhere.txt"], "no file nowhere.txt"),
        ],
    )
    def test_a_wrong_configuration_is_one_line(self, args, message, configurations, capsys):
        assert main(["ppo", *args]) == 2
        assert capsys.readouterr().err == f"lessons: error: {message}\n"
        assert configurations == []


def stand_in(ends_with=None):
    """In place of a run: 25 updates of made-up metrics, in the files and calls of a real one."""
    report = {"held_out_pairs": 9, "accuracy": 0.7, "gold_accuracy": 0.9, "ceiling": 0.9, "gold_correlation": 0.5}

    def run(config, on_update):
        config.out.mkdir()
        report_file = config.out / "reward_report.json"
        report_file.write_text(json.dumps({**report, "gold_mean": -1.0, "gold_std": 2.0}), encoding="utf-8")
        with open(config.out / "metrics.jsonl", "w", encoding="utf-8") as lines:
            for update in range(1, 26):
                metrics = {
                    "update": update, "score": update / 10, "gold": update / 5 - 1, "kl": update / 4,
                    "entropy": 2.0, "response_length": 20.0, "eos_rate": 1.0, "distinct": 0.9,
                }  # fmt: skip
                print(json.dumps(metrics), file=lines, flush=True)
                on_update(metrics, None)
                if ends_with and update == 12:
                    raise ends_with

    return run


class TestPpoRun:
    def test_prints_every_tenth_update_and_leaves_a_picture(
        self, configurations, folder, monkeypatch, capsys
    ):
        monkeypatch.setattr(sys.modules["lessons.gpt.ppo"], "run", stand_in())
        assert main(["ppo"]) == 0
        out = capsys.readouterr().out
        names, units, *rows = [line.split() for line in out.split("\n\n")[0].splitlines()]
        assert names == ["update", "score", "gold", "KL", "entropy", "length", "ended", "different"]
        assert units == ["std", "std", "nats", "nats/token", "tokens", "%", "%"]
        assert rows == [
            ["1", "0.10", "0.10", "0.25", "2.00", "20.0", "100", "90"],
            ["10", "1.00", "1.00", "2.50", "2.00", "20.0", "100", "90"],
            ["20", "2.00", "2.00", "5.00", "2.00", "20.0", "100", "90"],
            ["25", "2.50", "2.50", "6.25", "2.00", "20.0", "100", "90"],
        ]
        assert all(
            name in out for name in ("run holds", "curves.png", "metrics.jsonl", "samples.jsonl", "policy")
        )
        assert (folder / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")

    def test_leaves_a_picture_of_a_run_that_was_stopped(self, configurations, folder, monkeypatch, capsys):
        monkeypatch.setattr(sys.modules["lessons.gpt.ppo"], "run", stand_in(ends_with=KeyboardInterrupt()))
        assert main(["ppo"]) == 130
        out, err = capsys.readouterr()
        assert "curves.png" in out
        assert err == "lessons: stopped\n"
        assert (folder / "run" / "curves.png").exists()

    def test_draws_nothing_where_a_run_is_refused(self, configurations, folder, monkeypatch, capsys):
        def refuse(config, on_update):
            raise ValueError("run already holds a run")

        monkeypatch.setattr(sys.modules["lessons.gpt.ppo"], "run", refuse)
        assert main(["ppo"]) == 2
        assert capsys.readouterr() == ("", "lessons: error: run already holds a run\n")
        assert not (folder / "run").exists()


class TestDoctor:
    def test_looks_at_everything_and_never_fails(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("LESSONS_CACHE", str(tmp_path / "cache"))
        assert main(["doctor"]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert list(lines) == ["python", "packages", "device", "memory", "cache", "model"]
        assert "torch 2." in lines["packages"]
        assert "pytest" not in lines["packages"]  # a tool of ours, nothing a reader needs
        assert lines["cache"].startswith(str(tmp_path / "cache"))
        assert "127.0.0.1:1 does not answer" in lines["model"]
        assert not any("unknown" in line for line in lines.values())

    def test_a_check_that_fails_leaves_the_others(self):
        def broken():
            raise OSError("no such library")

        lines = list(doctor.report({"device": broken, "memory": lambda: "enough"}))
        assert lines == ["device     unknown (OSError: no such library)", "memory     enough"]

    def test_measures_the_cache_folder(self, tmp_path):
        (tmp_path / "entry").mkdir()
        (tmp_path / "entry" / "weights").write_bytes(b"x" * 1_500_000)
        assert doctor.folder(tmp_path).startswith(f"{tmp_path}, 1.5 MB used, ")
        assert doctor.folder(tmp_path).endswith("free, writable")
        assert "0.0 MB used" in doctor.folder(tmp_path / "not" / "yet" / "there")
        assert not (tmp_path / "not").exists()
        assert doctor.folder(tmp_path / "entry" / "weights" / "in a file").endswith("NOT writable")

    @pytest.mark.parametrize(("status", "answer"), [(200, "answers"), (404, "answers")])
    def test_a_hub_that_answers(self, status, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}"
            assert doctor.hub(url) == f"{url} {answer}"

    def test_a_hub_that_keeps_silent_is_given_up_in_time(self):
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
            start = time.monotonic()
            assert "does not answer" in doctor.hub(f"http://127.0.0.1:{server.server_port}", seconds=0.2)
            assert time.monotonic() - start < 2
