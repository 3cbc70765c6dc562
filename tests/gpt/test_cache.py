import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from lessons.gpt import cache
from lessons.gpt.cache import MANIFEST, cache_folder, cached, damage

RECIPE = {"corpus": "abc", "seed": 0}


class Maker:
    """Fills an entry with two files, and counts how often it had to."""

    def __init__(self, text="weights"):
        self.calls, self.text = 0, text

    def __call__(self, folder: Path):
        self.calls += 1
        (folder / "model.bin").write_text(self.text)
        (folder / "inner").mkdir()
        (folder / "inner" / "config.json").write_text("{}")


@pytest.fixture
def make():
    return Maker()


class TestFolder:
    def test_is_the_one_named_in_the_environment(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LESSONS_CACHE", str(tmp_path / "mine"))
        assert cache_folder() == tmp_path / "mine"
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("LESSONS_CACHE", "~/mine")
        assert cache_folder() == tmp_path / "mine"

    @pytest.mark.parametrize("named", [None, ""])
    def test_is_the_users_where_none_is_named(self, monkeypatch, named):
        monkeypatch.setattr(cache, "user_cache_path", lambda name: Path("/home/caches") / name)
        monkeypatch.delenv("LESSONS_CACHE")
        if named is not None:
            monkeypatch.setenv("LESSONS_CACHE", named)
        assert cache_folder() == Path("/home/caches/lessons")


class TestCached:
    def test_makes_an_entry_once(self, make):
        first, second = cached("base", RECIPE, make), cached("base", RECIPE, make)
        assert first == second
        assert first.parent == cache_folder()
        assert make.calls == 1
        assert (first / "model.bin").read_text() == "weights"
        assert damage(first) is None

    def test_names_an_entry_by_its_kind_its_recipe_and_the_versions(self, make, monkeypatch):
        entries = [
            cached("base", RECIPE, make),
            cached("reward", RECIPE, make),
            cached("base", {**RECIPE, "seed": 1}, make),
            cached("base", {**RECIPE, "corpus": "abd"}, make),
            cached("base", {**RECIPE, "more": None}, make),
        ]
        monkeypatch.setattr(cache, "versions", lambda: {"torch": "0.0"})
        entries.append(cached("base", RECIPE, make))
        assert len(set(entries)) == make.calls == 6
        assert all(entry.name.startswith(("base-", "reward-")) for entry in entries)

    def test_takes_the_order_of_a_recipe_for_no_difference(self, make):
        assert cached("base", RECIPE, make) == cached("base", dict(reversed(RECIPE.items())), make)

    def test_keeps_its_recipe_and_versions_in_the_manifest(self, make):
        manifest = json.loads((cached("base", RECIPE, make) / MANIFEST).read_text())
        assert manifest["recipe"] == {**RECIPE, "versions": cache.versions()}
        assert manifest["recipe"]["versions"].keys() == {*cache.LIBRARIES}
        assert manifest["files"].keys() == {"model.bin", "inner/config.json"}

    @pytest.mark.parametrize(
        "harm, name",
        [
            (lambda entry: (entry / "model.bin").write_text("weightz"), "model.bin"),
            (lambda entry: (entry / "model.bin").unlink(), "model.bin"),
            (lambda entry: (entry / "inner" / "config.json").write_text(""), "inner/config.json"),
            (lambda entry: (entry / MANIFEST).unlink(), MANIFEST),
            (lambda entry: (entry / MANIFEST).write_text("{"), MANIFEST),
            (lambda entry: (entry / MANIFEST).write_bytes(b"\xff\xfe"), MANIFEST),
            (lambda entry: (entry / MANIFEST).write_text("[]"), MANIFEST),
            (lambda entry: (entry / MANIFEST).write_text('{"recipe": {}}'), MANIFEST),
        ],
        ids="changed missing inner no-manifest cut-manifest binary-manifest list-manifest part".split(),
    )
    def test_detects_reports_and_makes_again_a_damaged_entry(self, make, harm, name):
        entry = cached("base", RECIPE, make)
        harm(entry)
        with pytest.warns(UserWarning, match=rf"the cached base is damaged \({name}.*; it is made again"):
            again = cached("base", RECIPE, make)
        assert again == entry
        assert make.calls == 2
        assert damage(entry) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cached("base", RECIPE, make)
        assert make.calls == 2

    def test_a_file_that_a_desktop_leaves_in_an_entry_is_no_damage(self, make):
        (cached("base", RECIPE, make) / ".DS_Store").write_text("x")
        cached("base", RECIPE, make)
        assert make.calls == 1

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
    def test_leaves_nothing_of_a_make_that_was_stopped(self, make, stop):
        def stopped(folder):
            make(folder)
            raise stop

        with pytest.raises(stop):
            cached("base", RECIPE, stopped)
        assert [path.name for path in cache_folder().iterdir()] == ["locks"]
        assert damage(cached("base", RECIPE, make)) is None

    def test_leaves_no_entry_of_a_make_that_was_killed(self, make):
        code = f"""import os
from lessons.gpt.cache import cached
def killed(folder):
    (folder / "model.bin").write_text("half")
    os._exit(9)  # as if killed: nothing is cleaned up
cached("base", {RECIPE!r}, killed)"""
        done = subprocess.run([sys.executable, "-c", code], check=False)
        assert done.returncode == 9
        assert not list(cache_folder().glob("base-*"))
        entry = cached("base", RECIPE, make)
        assert make.calls == 1
        assert (entry / "model.bin").read_text() == "weights"

    def test_of_several_processes_one_makes_it_and_the_others_wait(self, tmp_path):
        code = f"""import time
from lessons.gpt.cache import cached
def make(folder):
    print("made", flush=True)
    time.sleep(0.5)
    (folder / "model.bin").write_text("weights")
print(cached("base", {RECIPE!r}, make).name)"""
        started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        printed = [process.communicate(timeout=60)[0].split() for process in started]
        assert sorted(map(len, printed)) == [1, 1, 2]
        assert len({lines[-1] for lines in printed}) == 1
