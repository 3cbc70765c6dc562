"""Every notebook as it stands in the repository: executed, tidy, small, and readable without a kernel.

That it runs is checked by executing it: `make test` does, under nbval, and so does `make lessons`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from lessons.claims import CLAIMS, carried

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000
MOST_LINES = 25
# A folder at the root of a file system, or a drive: something of one machine.
MACHINE_PATH = re.compile(r"(?<![\w./:-])/(?:home|root|Users|tmp|var|opt|mnt|usr|work|private)/|\b[A-Z]:\\\w")


def outputs(cell: dict) -> Iterator[dict[str, str]]:
    """Each output of a code cell as text by media type; what was printed is text/plain."""
    for output in cell.outputs:
        data = {"text/plain": output.text} if output.output_type == "stream" else output.get("data", {})
        yield {kind: value if isinstance(value, str) else json.dumps(value) for kind, value in data.items()}


def is_sentence(text: str) -> bool:
    """Words that could be read in place of a picture, and no `<Figure size 640x480 with 1 Axes>`."""
    return len(text.split()) >= 4 and not text.lstrip().startswith("<")


def faults(notebook: dict) -> list[str]:
    """What is wrong with a notebook, a line for each thing."""
    found = []
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel is not python3")
    if "widgets" in notebook.metadata:
        found.append("metadata.widgets is there: GitHub then shows no output")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"not executed once, from top to bottom, without an empty cell: {counts}")
    for number, cell in enumerate(code, start=1):
        if len(cell.source.splitlines()) > MOST_LINES:
            found.append(f"cell [{number}] has more than {MOST_LINES} lines")
        if any(output.output_type == "error" for output in cell.outputs):
            found.append(f"cell [{number}] failed")
        for data in outputs(cell):
            if any(MACHINE_PATH.search(text) for kind, text in data.items() if not kind.startswith("image/")):
                found.append(f"cell [{number}] shows a path of the machine it ran on")
            picture = any(kind.startswith("image/") for kind in data)
            if picture and not is_sentence(data.get("text/plain", "")):
                found.append(f"cell [{number}] has a picture without a sentence for those who do not see it")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestEveryNotebook:
    def test_is_in_order(self, path):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert faults(notebook) == []

    def test_is_small(self, path):
        assert path.stat().st_size <= MOST_BYTES


def test_the_claims_of_the_notebooks_are_known():
    assert carried(ROOT / "notebooks").keys() <= CLAIMS.keys()


def good() -> dict:
    printed = new_output("stream", text="loss 0.5, see https://example.org/home/page and data/tmp/x\n")
    picture = {"image/png": "iVBORw0KGgo=", "text/plain": "Two curves that cross at 3."}
    cells = [
        new_markdown_cell("# A title"),
        new_code_cell("x = 1\n" * MOST_LINES, execution_count=1, outputs=[printed]),
        new_code_cell("x", execution_count=2, outputs=[new_output("display_data", picture)]),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def prints(text):
    return lambda nb: nb.cells[1].outputs[0].update(text=text)


def counts(count):
    return lambda nb: nb.cells[2].update(execution_count=count)


def describes(text):
    return lambda nb: nb.cells[2].outputs[0].data.update({"text/plain": text})


# How to break a good notebook, and the fault that is then found.
FAULTS = [
    (lambda nb: nb.metadata.kernelspec.update(name="lessons"), "the kernel is not python3"),
    (lambda nb: nb.metadata.update(widgets={}), "metadata.widgets is there"),
    (counts(None), "not executed once, from top to bottom, without an empty cell: [1, None]"),
    (counts(3), "not executed once, from top to bottom, without an empty cell: [1, 3]"),
    (lambda nb: nb.cells.reverse(), "not executed once, from top to bottom, without an empty cell: [2, 1]"),
    (lambda nb: nb.cells[1].update(source="x = 1\n" * (MOST_LINES + 1)), "cell [1] has more than 25 lines"),
    (lambda nb: nb.cells[2].outputs.append(new_output("error")), "cell [2] failed"),
    (lambda nb: nb.cells[2].outputs[0].data.pop("text/plain"), "cell [2] has a picture without a sentence"),
    (describes("<Figure size 640x480 with 1 Axes>"), "cell [2] has a picture without a sentence"),
    (describes("a picture"), "cell [2] has a picture without a sentence"),
    (describes("A curve that was saved in /home/someone/x.png"), "cell [2] shows a path"),
    (prints("/tmp/ipykernel_12/3.py:1: UserWarning"), "cell [1] shows a path"),
    (prints("see '/Users/someone/lessons'"), "cell [1] shows a path"),
    (prints("C:\\Users\\someone"), "cell [1] shows a path"),
]


class TestFaults:
    def test_a_good_notebook_has_none(self):
        nbformat.validate(good())
        assert faults(good()) == []

    @pytest.mark.parametrize(("spoil", "fault"), FAULTS)
    def test_each_is_found(self, spoil, fault):
        notebook = good()
        spoil(notebook)
        (found,) = faults(notebook)
        assert found.startswith(fault)


class TestSanitizer:
    @pytest.fixture
    def sanitize(self):
        patterns = get_sanitize_patterns((ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8"))

        def replace(text):
            for pattern, replacement in patterns:
                text = re.sub(pattern, replacement, text)
            return text

        return replace

    @pytest.mark.parametrize(
        ("output", "clean"),
        [
            ("trained in 12.3 s, 4 ms each", "trained in DURATION, DURATION each"),
            ("PPO:  40%|████      | 24/60 [00:31<00:46]", "BAR"),
            ("<World at 0x7f1b6b189710>", "<World at ADDRESS>"),
            ("gold 1.52 over 5 seeds and 60 updates", "gold 1.52 over 5 seeds and 60 updates"),
        ],
    )
    def test_takes_out_only_what_differs_from_run_to_run(self, output, clean, sanitize):
        assert sanitize(output) == clean
