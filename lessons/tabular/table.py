"""The article's table of five learners at two learning rates, measured here on as many seeds as one likes."""

import json
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons.tabular.learners import Learner, five_learners
from lessons.tabular.runs import train
from lessons.tabular.world import World

UPDATES = (10, 50, 100, 200, 300)
WINDOW = 10  # updates that a figure is the mean of
SOLVED = 2.9  # matches at the end
GROUP = 10  # the article's seeds

# "Reinforcement Learning for Language Models: From Policy Gradient to PPO" prints mean matches at those
# updates, and how many of 10 seeds were solved at the end.
ARTICLE = {
    0.1: {
        "REINFORCE": (0.37, 0.38, 0.53, 1.07, 1.51, 0),
        "REINFORCE, no offset": (0.46, 1.76, 2.48, 2.64, 2.78, 8),
        "REINFORCE + baseline": (0.47, 2.28, 2.97, 2.99, 2.99, 10),
        "baseline, 4 passes": (1.11, 2.63, 2.70, 2.70, 2.70, 7),
        "PPO": (0.79, 2.69, 2.69, 2.80, 2.90, 9),
    },
    0.03: {
        "REINFORCE": (0.36, 0.37, 0.41, 0.49, 0.66, 0),
        "REINFORCE, no offset": (0.38, 0.78, 1.50, 2.63, 2.89, 5),
        "REINFORCE + baseline": (0.38, 0.86, 1.92, 2.91, 2.95, 10),
        "baseline, 4 passes": (0.51, 2.69, 2.97, 2.99, 2.99, 10),
        "PPO": (0.48, 2.57, 2.96, 2.99, 2.99, 10),
    },
}
ARTICLE_CLIPPED = {0.1: 0.03, 0.03: 0.02}


@dataclass(frozen=True)
class TableConfig:
    """Print the article's table of five learners at two learning rates.

    Raises ValueError for less than one seed.
    """

    seeds: int = 10
    """Seeds a learner. The article has 10; with more, figures get 95 % intervals."""
    json: bool = False
    """Print it for programs."""

    def __post_init__(self):
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, not {self.seeds}")


def run(config: TableConfig) -> None:
    """Prints the table."""
    torch.set_num_threads(1)  # on tensors this small a second thread is mostly waited for
    measured = table(config)
    print(json.dumps(measured, indent=1) if config.json else as_text(measured))


def table(config: TableConfig) -> dict:
    """The table as numbers, ready for JSON.

    `learners` has an entry for each learner at each learning rate: `matches`, means over the 10 updates up to
    each of UPDATES; `solved`, shares of seeds that end at 2.9 or more, by the mean of the last 10 updates and
    by the last update alone; and what the clip did, None for a learner without one.

    Every figure stands beside the article's. With more than 10 seeds it has its 95 % interval (`low`, `high`;
    Wilson's for shares) and the range that holds the same figure of 95 of 100 groups of 10 seeds
    (`group_low`, `group_high`); `within` says whether the article's figure, as it is rounded, lies in that
    range. `outside` counts those that do not, and the share of groups of 10 seeds that have as many: learners
    share their seeds' samples, so that their figures rise and fall together.
    """
    learners = [learner for lr in ARTICLE for learner in five_learners(lr)]
    trained = train(World(vocab=8, length=3), learners, range(config.seeds), updates=UPDATES[-1])
    windows = [trained.scores[..., update - WINDOW : update].mean(dim=-1) for update in UPDATES]
    solved = [scores >= SOLVED for scores in (windows[-1], trained.scores[..., -1])]
    figures = torch.stack([*windows, *solved], dim=-1)
    article = torch.tensor([_article(learner) for learner in learners], dtype=torch.float64)
    groups = _Groups(figures, article) if config.seeds > GROUP else None

    entries = []
    for i, learner in enumerate(learners):
        cells = [
            {"mean": figures[i, :, j].mean().item(), "article": article[i, j].item()} | (groups.compare(i, j) if groups else {})
            for j in range(figures.shape[-1])
        ]
        clipping = trained.clip_fraction[i].mean().item(), trained.zero_gradient_fraction[i].mean().item()
        has_clip = learner.epsilon is not None
        entries.append(
            {
                "learner": learner.name,
                "lr": learner.lr,
                "matches": dict(zip(map(str, UPDATES), cells[:-2], strict=True)),
                "solved": {"last_10_updates": cells[-2], "last_update": cells[-1]},
                "clip_fraction": clipping[0] if has_clip else None,
                "zero_gradient_fraction": clipping[1] if has_clip else None,
                "article_clip_fraction": ARTICLE_CLIPPED[learner.lr] if has_clip else None,
            }
        )
    outside = groups.outside() if groups else None
    return {"seeds": config.seeds, "updates": UPDATES[-1], "learners": entries, "outside": outside}


def _article(learner: Learner) -> list[float]:
    *matches, solved = ARTICLE[learner.lr][learner.name]
    return [*matches, solved / GROUP, solved / GROUP]


class _Groups:
    """How the figures of groups of 10 seeds scatter, and where the article's stand among them.

    Groups are drawn from the seeds at hand: means of bounded, lopsided numbers are far from normal.
    """

    def __init__(self, figures: Float[Tensor, "learner seed figure"], article: Float[Tensor, "learner figure"]):
        self._figures, seeds = figures, figures.shape[1]
        stream = torch.Generator().manual_seed(0)
        drawn = torch.randint(seeds, (10_000, GROUP), generator=stream)
        counts = torch.zeros(len(drawn), seeds, dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        groups = counts @ figures / GROUP  # learner × group × figure
        self._low, self._high = groups.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=1)
        # The article's matches are rounded to two digits; a mean of ten numbers is off by rounding errors.
        self._slack = torch.tensor([0.005] * len(UPDATES) + [0.0, 0.0], dtype=torch.float64) + 1e-9
        self._within = self._holds(article[:, None])[:, 0]
        self._counts = (~self._holds(groups)).sum(dim=(0, 2))

    def _holds(self, figures: Float[Tensor, "learner group figure"]) -> Bool[Tensor, "learner group figure"]:
        low, high = self._low - self._slack, self._high + self._slack
        return (figures >= low[:, None]) & (figures <= high[:, None])

    def compare(self, learner: int, figure: int) -> dict:
        values = self._figures[learner, :, figure]
        low, high = wilson(values) if figure >= len(UPDATES) else normal(values)
        return {
            "low": low,
            "high": high,
            "group_low": self._low[learner, figure].item(),
            "group_high": self._high[learner, figure].item(),
            "within": self._within[learner, figure].item(),
        }

    def outside(self) -> dict:
        count = (~self._within).sum()
        share = (self._counts >= count).double().mean().item()
        return {"figures": count.item(), "of": self._within.numel(), "share_of_groups": share}


def normal(values: Float[Tensor, " seed"]) -> tuple[float, float]:
    """95 % interval of a mean of many seeds: mean ± 1.96 standard deviations / √n."""
    mean, half = values.mean().item(), 1.96 * values.std().item() / len(values) ** 0.5
    return mean - half, mean + half


def wilson(successes: Float[Tensor, " seed"]) -> tuple[float, float]:
    """95 % interval of a share: (p + z²/2n ± z √(p (1 − p)/n + z²/4n²)) / (1 + z²/n), with z = 1.96.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).
    """
    p, n, z = successes.mean().item(), len(successes), 1.96
    centre, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    return (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)


def as_text(measured: dict) -> str:
    """The table for people: below each learner the article's figures, those out of range with a star."""
    seeds, outside = measured["seeds"], measured["outside"]
    lines = [f"Mean matches of 3 over the last {WINDOW} updates, {seeds} seeds a learner; the article's below."]
    for lr in ARTICLE:
        heads = "".join(f"at {update}".rjust(12) for update in UPDATES)
        ends = "solved by these".rjust(17) + "by the last".rjust(17)
        lines += ["", f"learning rate {lr}".ljust(21) + heads + ends]
        entries = [entry for entry in measured["learners"] if entry["lr"] == lr]
        for entry in entries:
            lines += _two_lines(entry, with_interval=outside is not None)
        lines += [_clip_line(entry) for entry in entries if entry["clip_fraction"] is not None]
    if outside is not None:
        count, total, share = outside["figures"], outside["of"], outside["share_of_groups"]
        lines += [
            "",
            "± and in brackets: 95 % intervals.",
            f"* out of the range of 95 of 100 groups of {GROUP} seeds: {count} of {total} figures.",
            f"As many are out in {share:.1%} of the groups: learners share their seeds' samples.",
        ]
    return "\n".join(lines)


def _clip_line(entry: dict) -> str:
    clip, article, zero = (
        entry["clip_fraction"],
        entry["article_clip_fraction"],
        entry["zero_gradient_fraction"],
    )
    return (
        f"{entry['learner']}, passes 2 to 4: the ratio left 1 ± 0.2 in {clip:.1%} of responses "
        f"(article {article:.0%}), {zero:.1%} had no gradient"
    )


def _two_lines(entry: dict, with_interval: bool) -> tuple[str, str]:
    ours, theirs = entry["learner"].ljust(21), "  article".ljust(21)
    for cell in entry["matches"].values():
        interval = f" ±{cell['high'] - cell['mean']:.2f}" if with_interval else ""
        ours += f"{cell['mean']:.2f}{interval}".rjust(12)
        theirs += f"{cell['article']:.2f}{_star(cell)}".rjust(12)
    for cell in entry["solved"].values():
        interval = f" ({cell['low']:.0%}-{cell['high']:.0%})" if with_interval else ""
        ours += f"{cell['mean']:.0%}{interval}".rjust(17)
        theirs += f"{cell['article']:.0%}{_star(cell)}".rjust(17)
    return ours, theirs


def _star(cell: dict) -> str:
    return "" if cell.get("within", True) else "*"
