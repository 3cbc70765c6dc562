"""Says what the machine has: versions, device, memory, cache, network. It never fails for what is absent."""

from __future__ import annotations

import os
import platform
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import requires, version
from pathlib import Path

import psutil

HUB_SECONDS = 3.0


def packages() -> str:
    """The versions of what the package depends on."""
    named = (re.match(r"[\w.-]+", line)[0] for line in requires("lessons") or () if "extra ==" not in line)
    return ", ".join(f"{name} {version(name)}" for name in sorted(named, key=str.lower))


def device() -> str:
    """Where models run, as torch sees it."""
    import torch  # takes a second

    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return ", ".join(f"{gpu.name} with {gpu.total_memory / 2**30:.0f} GiB" for gpu in gpus)
    if torch.backends.mps.is_available():
        return "Apple GPU (mps)"
    return f"CPU, {torch.get_num_threads()} threads"


def memory() -> str:
    """Free and installed memory."""
    state = psutil.virtual_memory()
    return f"{state.available / 2**30:.1f} GiB free of {state.total / 2**30:.1f}"


def cache() -> str:
    """The folder that keeps trained models, its size, and whether more fits in."""
    from lessons.gpt.cache import cache_folder

    return folder(cache_folder())


def folder(path: Path) -> str:
    """Size of a folder, free space beside it, and whether it can be written, or made if there is none."""
    there = next(place for place in (path, *path.parents) if place.exists())
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    writable = "writable" if there.is_dir() and os.access(there, os.W_OK) else "NOT writable"
    free = psutil.disk_usage(str(there)).free
    return f"{path}, {size / 1e6:.1f} MB used, {free / 1e9:.1f} GB free, {writable}"


def hub(url: str | None = None, seconds: float = HUB_SECONDS) -> str:
    """Whether the model hub answers in time. Only checkpoints named by their hub name need it."""
    url = url or os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answers = threading.Event()

    def ask():
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answers.set()
        except urllib.error.HTTPError:
            answers.set()  # an answer all the same
        except (OSError, ValueError):
            pass

    # In a thread, as a slow name server keeps urlopen beyond its time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return f"{url} answers" if answers.is_set() else f"{url} does not answer: only `--base NAME` needs it"


CHECKS: dict[str, Callable[[], str]] = {
    "python": lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    "packages": packages,
    "device": device,
    "memory": memory,
    "cache": cache,
    "model hub": hub,
}


def report(checks: dict[str, Callable[[], str]] = CHECKS) -> Iterator[str]:
    """One line a check, in order; a check that fails says so in its line."""
    for name, check in checks.items():
        try:
            found = check()
        except Exception as error:  # noqa: BLE001 - whatever is broken, the other lines are still wanted
            found = f"unknown ({type(error).__name__}: {error})"
        yield f"{name:10} {found}"
