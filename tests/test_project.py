"""What holds for the project as a whole: directions of imports, dependencies, set-up files, no pickles."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "lessons").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEEDED = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(line) for line in lines] for extra, lines in PROJECT["optional-dependencies"].items()
}

PINS = [
    line
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]

# notebooks → panels → live, tabular, gpt → rl. What each part of the package may import of the others.
MAY_IMPORT = {
    "rl": set(),
    "live": set(),
    "tabular": {"rl"},
    "gpt": {"rl"},
    "panels": {"live", "tabular", "gpt", "rl"},
    "claims": set(),
    "doctor": {"gpt"},
    "runner": {"claims"},
    "cli": {"rl", "tabular", "gpt", "live", "panels", "claims", "doctor", "runner"},
    "__init__": set(),
}


def imports(source: str, package: str) -> Iterator[str]:
    """The full names of the modules that a module of `package` imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "lessons":  # `from lessons import rl` names the part only after the import
                yield from (f"lessons.{alias.name}" for alias in node.names)
            else:
                yield module


def wrong_imports(source: str, package: str, part: str) -> list[str]:
    """The imports of a module in `part` that go upwards or sideways."""
    ours = [name for name in imports(source, package) if name.split(".")[0] == "lessons"]
    return [name for name in ours if (name.split(".") + [""])[1] not in MAY_IMPORT[part] | {part}]


def part_of(path: Path) -> tuple[str, str]:
    """The package of a source file, and the part it belongs to."""
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1]), names[1]


class TestDirectionOfImports:
    @pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
    def test_nothing_imports_upwards_or_sideways(self, path):
        assert wrong_imports(path.read_text(encoding="utf-8"), *part_of(path)) == []

    @pytest.mark.parametrize(
        ("part", "line", "wrong"),
        [
            ("rl", "import torch", False),
            ("rl", "from lessons.rl.kl import k1", False),
            ("rl", "from . import kl", False),
            ("gpt", "from lessons.rl import kl", False),
            ("panels", "import lessons.tabular.exact", False),
            ("rl", "from lessons.gpt import ppo", True),
            ("gpt", "import lessons.tabular.exact", True),
            ("gpt", "from lessons import tabular", True),
            ("gpt", "from ..tabular import exact", True),
            ("gpt", "from .. import tabular", True),
            ("tabular", "def f():\n    from lessons.gpt.ppo import run", True),
            ("live", "from lessons.rl.kl import k1", True),
            ("gpt", "from lessons.claims import shows", True),
            ("panels", "from lessons.cli import main", True),
        ],
    )
    def test_a_wrong_one_is_seen(self, part, line, wrong):
        assert bool(wrong_imports(line, f"lessons.{part}", part)) == wrong


def names_pickle(source: str) -> list[str]:
    """The lines of a module that read or write pickles: loading one runs whatever code it holds."""
    modules = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    calls = {"torch.load", "torch.save", "accelerator.save_state", "accelerator.load_state"}
    found = [name for name in imports(source, "lessons") if name.split(".")[0] in modules]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            call = ".".join(ast.unparse(node).split(".")[-2:])  # of self.accelerator.save_state the last two
            if call in calls or node.attr in {"to_pickle", "read_pickle"}:
                found.append(call)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
    return found


class TestPickles:
    @pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
    def test_are_not_used(self, path):
        assert names_pickle(path.read_text(encoding="utf-8")) == []

    @pytest.mark.parametrize(
        "line",
        ["import pickle", "from joblib import dump", "torch.save(x, f)", "self.accelerator.save_state(f)",
         "np.load(f, allow_pickle=True)", "table.to_pickle(f)"],
    )  # fmt: skip
    def test_would_be_seen(self, line):
        assert names_pickle(line)


class TestDependencies:
    def test_everything_that_is_imported_is_declared(self):
        packages = {"IPython": "ipython"}
        imported = {
            name.split(".")[0]
            for path in SOURCES
            for name in imports(path.read_text(encoding="utf-8"), part_of(path)[0])
        }
        outside = {packages.get(name, name) for name in imported - sys.stdlib_module_names - {"lessons"}}
        assert outside <= {requirement.name for requirement in NEEDED}

    def test_readme_says_what_each_is_for(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        table = readme.split("## What it depends on")[1].split("\n## ")[0]
        rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
        named = [name for first, *_ in rows for name in re.findall(r"`([^`]+)`", first)]
        assert sorted(named) == sorted(each.name for each in [*NEEDED, *EXTRAS["dev"], *EXTRAS["classroom"]])
        assert all(len(reason.split()) >= 3 for _, reason, *_ in rows)


class TestRequirements:
    def test_pin_every_dependency_to_a_version_that_the_project_takes(self):
        for needed in [*NEEDED, *EXTRAS["dev"]]:
            # Several, where another Python needs another version.
            pins = [pin for pin in map(Requirement, PINS) if pin.name == canonicalize_name(needed.name)]
            assert pins, f"{needed.name} is missing: `make lock`"
            for pin in pins:
                (version,) = pin.specifier
                assert needed.specifier.contains(version.version), (needed, pin)

    def test_hold_nothing_of_the_machine_that_made_them(self):
        # Every line is `name==version`, perhaps with a condition; so no address, no path, no local version.
        pattern = re.compile(r"[a-z0-9-]+==[0-9a-z.]+( ; [\w<>=!.'() ]+)?")
        assert [line for line in PINS if not pattern.fullmatch(line)] == []

    def test_leave_the_choice_of_gpu_libraries_to_torch(self):
        assert [line for line in PINS if re.match("nvidia|cuda|triton", line)] == []


class TestSetUp:
    def test_the_commands_that_the_readme_gives_are_there(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = re.findall(r"^(\w+):.*##", makefile, flags=re.MULTILINE)
        told = set(re.findall(r"(?:`|^    )make (\w+)", readme, flags=re.MULTILINE))
        assert {"lessons", "test", "lab"} <= told <= set(targets)

    def test_the_readme_links_every_notebook_that_there_is(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        links = re.findall(r"\]\((notebooks/\w+\.ipynb)\)", readme)
        assert links == [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("notebooks/*.ipynb"))]

    @pytest.mark.parametrize("file", [".ci/run", ".github/workflows/test.yml"])
    def test_every_check_is_the_command_of_the_readme(self, file):
        assert re.search(r"\bmake test$", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)

    def test_conda_installs_the_same_requirements(self):
        lines = [line.strip() for line in (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()]
        assert [line for line in lines if line.startswith("- ")][-4:] == [
            "- pip",
            "- pip:",
            "- -r requirements.txt",
            "- -e .",
        ]
