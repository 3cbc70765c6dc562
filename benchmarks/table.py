"""The article's table of 100 runs: its loop, one run after the other, against `lessons.tabular`, all at once.

    python benchmarks/table.py                    # the loop on one seed a learner and learning rate, times 10
    python benchmarks/table.py --loop-seeds 10    # the loop on all 100 runs
    python benchmarks/table.py --compare 200      # and whether the two agree, figure by figure: 10 minutes

Both are timed in turn, so that whatever else the machine does slows both.
"""

import argparse
import time

import torch

from lessons.tabular import World, five_learners, train
from lessons.tabular.table import SOLVED, UPDATES, WINDOW, normal, wilson

RATES, SEEDS = (0.1, 0.03), 10
WORLD = World(vocab=8, length=3)
V, TARGET, N = WORLD.vocab, WORLD.target, 16
METHODS = [learner.name for learner in five_learners()]
ONE_PASS = METHODS[:3]


def sample(logits, g):
    row, tokens = torch.zeros(N, dtype=torch.long), []
    for _ in TARGET:
        probs = torch.softmax(logits[row], dim=-1)
        token = torch.multinomial(probs, 1, generator=g)[:, 0]
        tokens.append(token)
        row = V * row + 1 + token
    return torch.stack(tokens, dim=1).tolist()


def logprob(logits, seqs):
    tokens = torch.tensor(seqs)
    row, total = torch.zeros(N, dtype=torch.long), 0
    for token in tokens.unbind(dim=1):
        total = total + torch.log_softmax(logits[row], dim=-1).gather(1, token[:, None])[:, 0]
        row = V * row + 1 + token
    return total


def loop(method, seed, updates=UPDATES[-1], lr=0.1):
    """One run, as the article lists it; `sample` and `logprob` are not listed there."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.zeros(1 + V + V * V, V, requires_grad=True)
    opt = torch.optim.Adam([logits], lr=lr)
    curve, clipped = [], []
    for _ in range(updates):
        seqs = sample(logits.detach(), g)
        R = torch.tensor([10.0 + sum(a == b for a, b in zip(s, TARGET, strict=True)) for s in seqs])
        curve.append(R.mean().item() - 10)
        adv = {"REINFORCE": R, "REINFORCE, no offset": R - 10}.get(method, R - R.mean())
        old = logprob(logits, seqs).detach()
        for epoch in range(1 if method in ONE_PASS else 4):
            lp = logprob(logits, seqs)
            if method == "PPO":
                ratio = (lp - old).exp()
                if epoch > 0:
                    clipped.append(((ratio < 0.8) | (ratio > 1.2)).float().mean().item())
                loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            else:
                loss = -(adv * lp).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    return torch.tensor(curve, dtype=torch.float64)


def our_scores(seeds, updates=UPDATES[-1]):
    """Scores (learner, seed, update), learners at the first learning rate first."""
    return train(WORLD, [learner for lr in RATES for learner in five_learners(lr)], seeds, updates).scores


def seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def compare_times(loop_seeds):
    loop("PPO", 0, updates=2), our_scores([0], updates=2)  # what happens only once is not timed
    loops, ours = [], []
    for seed in range(loop_seeds):
        for lr in RATES:
            for method in METHODS:
                loops.append(seconds(loop, method, seed, UPDATES[-1], lr))
                if seed == 0:
                    ours.append(seconds(our_scores, range(SEEDS)))
    runs = len(RATES) * len(METHODS) * SEEDS
    loop_seconds, our_seconds = sum(loops) * runs / len(loops), sum(ours) / len(ours)
    print(f"{runs} runs of {UPDATES[-1]} updates, one thread")
    print(f"  the article's loop  {loop_seconds:6.1f} s, from {len(loops)} of the runs")
    print(f"  lessons.tabular     {our_seconds:6.2f} s, all runs at once, mean of {len(ours)}")
    print(f"  ratio               {loop_seconds / our_seconds:6.1f}")


def figures(scores):
    """Intervals of the ten learners' seven figures, as in the table."""
    for by_update in scores:
        windows = [by_update[:, update - WINDOW : update].mean(dim=-1) for update in UPDATES]
        solved = [(x >= SOLVED).double() for x in (windows[-1], by_update[:, -1])]
        yield [normal(x) for x in windows] + [wilson(x) for x in solved]


def compare_figures(seeds):
    loops = [torch.stack([loop(method, seed, lr=lr) for seed in range(seeds)]) for lr in RATES for method in METHODS]
    theirs, ours = figures(loops), figures(our_scores(range(seeds)))
    names = [f"{name}, {lr}" for lr in RATES for name in METHODS]
    overlaps = []
    print(f"95 % intervals with {seeds} seeds, the loop's above ours; x: they do not overlap")
    for name, loop_row, our_row in zip(names, theirs, ours, strict=True):
        marks = [a[0] <= b[1] and b[0] <= a[1] for a, b in zip(loop_row, our_row, strict=True)]
        overlaps += marks
        for title, row in ((name, loop_row), ("", our_row)):
            cells = (f"{low:.3f}-{high:.3f}{' ' if ok else 'x'}" for (low, high), ok in zip(row, marks, strict=True))
            print(title.ljust(28) + " ".join(cells))
    print(f"{sum(overlaps)} of {len(overlaps)} figures overlap")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop-seeds", type=int, default=1, help="seeds to time the article's loop on (1)")
    parser.add_argument("--compare", type=int, metavar="SEEDS", help="compare figures with so many seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)  # these tensors are small: more threads only wait for each other
    compare_times(options.loop_seeds)
    if options.compare:
        compare_figures(options.compare)
