"""The command `lessons`: run, ppo, table, claims, doctor.

What is slow to import is imported by the command that needs it, so that `lessons --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Run:
    """Execute notebooks and leave them, with an index, as pages."""

    notebooks: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="[NN ...]", help_behavior_hint="(default: all)"),
    ] = ()
    """Which ones, by number or name."""
    folder: Path = Path("notebooks")
    """Where they are."""
    out: Path = Path("build")
    """Where to leave what was executed."""

    def __call__(self) -> int:
        from lessons.runner import run

        return run(self.folder, self.out, self.notebooks)


@dataclass(frozen=True)
class Table:
    """Print the article's table: five learners at two learning rates, in the exact world."""

    seeds: int = 10
    """Seeds a learner. The article has 10; with more, figures get 95 % intervals."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print it for programs."""

    def __call__(self) -> int:
        from lessons.tabular.table import TableConfig, run

        run(TableConfig(seeds=self.seeds, json=self.json))
        return 0


@dataclass(frozen=True)
class Claims:
    """List the claims that the notebooks show, and where."""

    missing: tyro.conf.FlagCreatePairsOff[bool] = False
    """List those that none of them shows yet."""
    folder: Path = Path("notebooks")
    """Where the notebooks are."""

    def __call__(self) -> int:
        from lessons.claims import CLAIMS, carried

        places = carried(self.folder)
        for id, title in CLAIMS.items():
            if self.missing and id not in places:
                print(f"{id:3} {title}")
            elif not self.missing and id in places:
                print(f"{id:3} {title}: {', '.join(map(str, places[id]))}")
        return 0


@dataclass(frozen=True)
class Doctor:
    """Show versions, device, memory, cache folder and network."""

    def __call__(self) -> int:
        from lessons.doctor import report

        for line in report():
            print(line, flush=True)
        return 0


@dataclass(frozen=True)
class Ppo:
    """Train a policy with PPO against a reward model learned from preferences."""


LEFT_BEHIND = """
{out} holds
  curves.png                        what this run did
  metrics.jsonl                     every number of it, a line an update
  samples.jsonl                     texts with score, gold and KL
  config.json, reward_report.json   its settings, and how good its reward model is
  policy, reference, reward, value  the four models, each a folder for from_pretrained"""


def train(config) -> int:
    """Run PPO with a table of every tenth update, and leave a picture of its curves in the run's folder.

    A run that was stopped gets its picture, too.
    """
    from tqdm import tqdm

    from lessons.gpt.ppo import run
    from lessons.live.figure import png
    from lessons.panels.ppo_run import curves_of, read_run, run_curves, table_rows

    out, done = Path(config.out), 0

    def on_update(metrics, rollout):
        nonlocal done
        done = metrics["update"]
        if done == 1 or done % 10 == 0 or done == config.updates:
            header, *rows = table_rows(curves_of(out))
            text = f"{header}\n{rows[-1]}" if done == 1 else rows[-1]
            tqdm.write(text)  # above the progress bar

    try:
        run(config, on_update)
    finally:
        if done:
            figure, _ = run_curves(*read_run(out))
            (out / "curves.png").write_bytes(png(figure))
            print(LEFT_BEHIND.format(out=out))
    return 0


def parse(args: Sequence[str]) -> object:
    """The command that the arguments ask for: a frozen dataclass to call.

    The options of `ppo` are those of its configuration, whose module loads torch: the others do without.
    """
    ppo = Ppo
    if args[:1] == ["ppo"]:
        from lessons.gpt.ppo import PPOConfig

        # Of a class's ValueError tyro makes a box of several lines; a partial's comes through as it is.
        ppo = partial(PPOConfig)

    return tyro.extras.subcommand_cli_from_dict(
        {"run": Run, "ppo": ppo, "table": Table, "claims": Claims, "doctor": Doctor},
        prog="lessons",
        description="How language models are trained from scores: the lessons, and the run they lead to.",
        args=args,
    )


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. 2 for wrong input, which is said in one line, and 130 for Ctrl-C.

    Bad input raises ValueError or FileNotFoundError everywhere in this package. In Python's development mode
    (`PYTHONDEVMODE=1 lessons ...`) the traceback stays.
    """
    args = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters gets question marks, not an error
    try:
        command = parse(args)
        if args[0] == "ppo":
            return train(command)
        return command()
    except (ValueError, OSError) as error:
        if sys.flags.dev_mode:
            raise
        print(f"lessons: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"lessons: stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lessons: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
