"""Executes the notebooks, each in a kernel of its own, and leaves pages with an index and a report."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from tqdm import tqdm

from lessons.claims import CLAIMS, printed

WATCH_SECONDS = 0.1


@dataclass(frozen=True)
class Result:
    """What came of executing one notebook."""

    title: str
    status: str
    """passed or failed"""
    seconds: float
    peak_memory: int
    """Bytes: the highest sum of resident memory of the kernel and its children, looked at every 0.1 s."""
    claims: list[str]
    """The claims that it printed."""
    error: str | None = None


def choose(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """The notebooks of a folder in order: all of them, or those wanted by number (9, 09) or name.

    Raises FileNotFoundError if there is no notebook, ValueError if one that is wanted is not there.
    """
    notebooks = sorted(folder.glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(f"no notebooks in {folder}: run this in the project's folder, or name theirs")
    chosen = set()
    for want in wanted:
        name = want.removesuffix(".ipynb")
        number = want.zfill(2) + "_" if want.isdigit() else None
        matches = {path for path in notebooks if path.stem == name or number and path.stem.startswith(number)}
        if not matches:
            there = ", ".join(path.stem for path in notebooks)
            raise ValueError(f"no notebook {want!r} in {folder}: there is {there}")
        chosen |= matches
    return [path for path in notebooks if not wanted or path in chosen]


def read(path: Path) -> NotebookNode:
    """A notebook without its outputs, so that what it shows after a run is of that run.

    Raises ValueError if the file is not a notebook.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        raise ValueError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from error
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def title_of(notebook: NotebookNode, name: str) -> str:
    """The notebook's first heading, or else its name."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.search(r"^#\s+(.+)$", text, flags=re.MULTILINE)
    return heading[1].strip() if heading else name


def resident_memory(pid: int) -> int:
    """Bytes of memory that a process and its children hold now; 0 if it is gone."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


def _execute(client: NotebookClient, watch: Callable[[], None]) -> None:
    """Execute in a thread while this one calls `watch`; Ctrl-C ends the kernel before it is raised here.

    In the main thread nbclient would take the signal for itself and report a dead kernel.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(client.async_execute())
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(loop.run_until_complete, task)
        try:
            while wait([future], timeout=WATCH_SECONDS).not_done:
                watch()
        except KeyboardInterrupt:
            client.shutdown_kernel = "immediate"
            loop.call_soon_threadsafe(task.cancel)
            raise
    loop.close()
    future.result()


def execute(notebook: NotebookNode, folder: Path, name: str) -> Result:
    """Execute a notebook in place, in a new kernel started in `folder`, with a progress bar over cells."""
    peak, cell = 0, 0
    cells = sum(one.cell_type == "code" and bool(one.source.strip()) for one in notebook.cells)
    form = "{desc} {bar} cell {n_fmt} of {total_fmt}, {elapsed}"
    with tqdm(total=cells, desc=name, bar_format=form, disable=None) as bar:

        def on_cell_execute(**_):
            nonlocal cell
            cell += 1

        def watch():
            nonlocal peak
            provisioner = getattr(client.km, "provisioner", None)
            if provisioner is not None and provisioner.pid is not None:
                peak = max(peak, resident_memory(provisioner.pid))
            bar.refresh()

        client = NotebookClient(
            notebook,
            timeout=None,
            kernel_name="python3",
            extra_arguments=["--log-level=ERROR"],  # no warning that the loopback connection is not encrypted
            store_widget_state=False,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
            on_cell_execute=on_cell_execute,
            on_cell_executed=lambda **_: bar.update(),
        )
        start, error = time.perf_counter(), None
        try:
            _execute(client, watch)
        except CellExecutionError as failure:
            error = f"cell [{cell}]: " + f"{failure.ename}: {failure.evalue}".splitlines()[0]
        except DeadKernelError:
            error = f"cell [{cell}]: the kernel died, perhaps for lack of memory"
    return Result(
        title=title_of(notebook, name),
        status="failed" if error else "passed",
        seconds=round(time.perf_counter() - start, 1),
        peak_memory=peak,
        claims=printed(_printed_text(notebook)),
        error=error,
    )


def _printed_text(notebook: NotebookNode) -> str:
    outputs = (output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    return "\n".join(output.text for output in outputs if output.output_type == "stream")


def page(notebook: NotebookNode, title: str) -> str:
    """The notebook as one HTML file.

    A page has no kernel: a picture stands there with its text as alternative text, and what is only a
    widget, such as a progress bar, is left out.
    """
    notebook = deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if not _only_a_widget(output.get("data", {}))]
        for data in (output.data for output in cell.outputs if "image/png" in output.get("data", {})):
            png, text = data["image/png"].strip(), data.get("text/plain", "")
            data["text/html"] = f'<img alt="{escape(text)}" src="data:image/png;base64,{png}">'
            del data["image/png"]
    html, _ = HTMLExporter().from_notebook_node(notebook, {"metadata": {"name": title}})
    return html


def _only_a_widget(data: dict) -> bool:
    return "application/vnd.jupyter.widget-view+json" in data and not any(
        kind.startswith("image/") or kind == "text/html" for kind in data
    )


INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Lessons</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
  table {{ border-collapse: collapse; width: 100%; }}
  th, td {{ text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; }}
  tr {{ border-bottom: 1px solid #ccc; }}
</style>
<h1>Lessons</h1>
<table>
<tr><th>Lesson</th><th>Status</th><th>Minutes</th><th>Claims shown</th></tr>
{rows}
</table>
</html>
"""
ROW = """<tr><td><a href="{name}.html">{title}</a> (<a href="{name}.ipynb">notebook</a>)</td>
<td>{status}</td><td>{minutes:.1f}</td><td>{claims}</td></tr>"""


def index(results: dict[str, Result]) -> str:
    """The page that lists the executed notebooks."""
    rows = [
        ROW.format(
            name=escape(name),
            title=escape(result.title),
            status=escape(f"{result.status}, {result.error}" if result.error else result.status),
            minutes=result.seconds / 60,
            claims=" ".join(f'<abbr title="{escape(CLAIMS.get(id, id))}">{id}</abbr>' for id in result.claims),
        )
        for name, result in results.items()
    ]
    return INDEX.format(rows="\n".join(rows))


def table(results: dict[str, Result]) -> str:
    """The same for a terminal, with the peak memory."""
    width = max(map(len, results), default=0)
    lines = [f"{'notebook':{width}}  status  minutes  peak GB  claims"]
    for name, result in results.items():
        figures = f"{result.seconds / 60:7.1f}  {result.peak_memory / 1e9:7.2f}"
        lines.append(f"{name:{width}}  {result.status}  {figures}  {' '.join(result.claims)}".rstrip())
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def earlier(out: Path, names: Sequence[str]) -> dict[str, Result]:
    """The results of earlier runs into this folder, of the notebooks that there still are."""
    try:
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        return {name: Result(**result) for name, result in report.items() if name in names}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}  # none, or one of another version: it is made anew


def run(folder: Path, out: Path, wanted: Sequence[str] = ()) -> int:
    """Execute notebooks into `out`: a page and a notebook each, an index and a report. 0, or 1 if one failed.

    Raises FileNotFoundError or ValueError, before anything is executed, for one that is missing or damaged.
    """
    if out.resolve() == folder.resolve():
        raise ValueError(f"--out must be another folder than {folder}, which holds the notebooks themselves")
    chosen = {path.stem: read(path) for path in choose(folder, wanted)}
    out.mkdir(parents=True, exist_ok=True)
    results = earlier(out, [path.stem for path in folder.glob("*.ipynb")])
    done: dict[str, Result] = {}
    try:
        for name, notebook in chosen.items():
            done[name] = execute(notebook, folder, name)
            if done[name].error:
                print(f"{name}, {done[name].error}", file=sys.stderr)
            write(out / f"{name}.ipynb", nbformat.writes(notebook))
            write(out / f"{name}.html", page(notebook, done[name].title))
            results = dict(sorted({**results, name: done[name]}.items()))
            report = {name: asdict(result) for name, result in results.items()}
            write(out / "report.json", json.dumps(report, indent=1))
            write(out / "index.html", index(results))
    finally:
        if done:
            print(f"\n{table(done)}\n\n{out / 'index.html'}")
    return int(any(result.error for result in done.values()))
