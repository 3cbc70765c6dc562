"""What was trained once is kept: a folder for each thing, named by what made it, written whole or not at all.

An entry's name is its kind and a hash of its recipe: the corpus, the configuration, the code and the versions that made
it. A manifest inside holds the hash of every file; where one does not match, the entry is reported and made again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

MANIFEST = "manifest.json"
LIBRARIES = ("torch", "transformers", "tokenizers", "vaderSentiment")


def cache_folder() -> Path:
    """The folder of all entries: `LESSONS_CACHE` if set, else the user's cache folder for `lessons`."""
    named = os.environ.get("LESSONS_CACHE")
    return Path(named).expanduser() if named else user_cache_path("lessons")


def versions() -> dict[str, str]:
    """The versions of the libraries that shape what is trained."""
    return {name: version(name) for name in LIBRARIES}


def code_fingerprint(*modules: str) -> str:
    """A hash of the code of these modules of this package; comments and docstrings do not count."""
    texts = []
    for module in modules:
        tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        texts.append(ast.unparse(tree))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def damage(folder: Path) -> str | None:
    """What is wrong with an entry, in a few words, or None if every file is as it was written."""
    try:
        written = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} cannot be read"
    found = _hashes(folder)
    wrong = sorted(name for name in written if written[name] != found.get(name))
    return f"{', '.join(wrong)} changed or missing" if wrong else None


def cached(kind: str, recipe: dict, make: Callable[[Path], None]) -> Path:
    """The folder of the entry made by `recipe`; if there is none, or a damaged one, `make(folder)` fills a new one.

    `make` writes into a temporary folder beside the entry, which takes the entry's name only when it is complete. Of
    several processes that need the same entry, one makes it and the others wait.
    """
    recipe = {**recipe, "versions": versions()}
    name = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    entry = cache_folder() / f"{kind}-{name}"
    if entry.exists() and damage(entry) is None:
        return entry  # without a lock, so that a cache that cannot be written serves what it holds
    locks = cache_folder() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / entry.name):
        if entry.exists():
            wrong = damage(entry)
            if wrong is None:
                return entry
            warnings.warn(f"the cached {kind} is damaged ({wrong}); it is made again", stacklevel=2)
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=entry.parent) as temporary:
            draft = Path(temporary) / "entry"
            draft.mkdir()
            make(draft)
            manifest = {"recipe": recipe, "files": _hashes(draft)}
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            draft.rename(entry)
    return entry
