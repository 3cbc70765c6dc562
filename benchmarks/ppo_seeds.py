"""The default run over several PPO seeds, with and without the leash, and with other reward models: one CSV line an update.

    python benchmarks/ppo_seeds.py                  the sweep that lesson 9 shows (about 15 minutes on 2 cores)
    python benchmarks/ppo_seeds.py --reward-seeds 1 2 --betas 0.05 --out runs/other_reward_models.csv
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lessons.gpt.ppo import PPOConfig, Trainer

COLUMNS = ("update", "score", "gold", "kl", "entropy", "response_length", "eos_rate", "distinct")


@dataclass(frozen=True)
class Sweep:
    """Run PPO for every reward model, β and seed."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the PPO runs."""
    reward_seeds: tuple[int, ...] = (0,)
    """Seeds of the reward models."""
    betas: tuple[float, ...] = (PPOConfig.beta, 0.0)
    """β of the runs; a run with β = 0 has 40 updates."""
    out: Path = Path("notebooks/data/beta_seeds.csv")
    """The table to write; a summary goes to the terminal."""
    threads: int = 2
    """Of torch."""


def main(sweep: Sweep) -> None:
    torch.set_num_threads(sweep.threads)
    lines = []
    for reward_seed in sweep.reward_seeds:
        materials = PPOConfig(reward_seed=reward_seed).materials()
        mean, std = materials.report.gold_mean, materials.report.gold_std
        print(f"reward model {reward_seed}: {materials.report}", flush=True)
        for beta in sweep.betas:
            for seed in sweep.seeds:
                updates = PPOConfig.updates if beta else 40
                trainer = Trainer(PPOConfig(beta=beta, seed=seed, reward_seed=reward_seed, updates=updates), materials)
                metrics = [trainer.step()[0] for _ in range(updates)]
                for line in metrics:
                    gold = (line["gold"] - mean) / std
                    lines.append([reward_seed, beta, seed, *(gold if c == "gold" else line[c] for c in COLUMNS)])
                last = metrics[-5:]
                average = {c: sum(m[c] for m in last) / len(last) for c in COLUMNS}
                print(
                    f"  β {beta:<5} seed {seed}: score {average['score']:+.2f}  gold {(average['gold'] - mean) / std:+.2f} std  "
                    f"KL {average['kl']:5.1f}  EOS {average['eos_rate']:.1%}  distinct {average['distinct']:.1%}  "
                    f"length {average['response_length'] / metrics[0]['response_length']:.0%}  (means of the last 5 updates)",
                    flush=True,
                )
    sweep.out.parent.mkdir(parents=True, exist_ok=True)
    with open(sweep.out, "w", encoding="utf-8", newline="") as file:
        print(f"# python benchmarks/ppo_seeds.py {' '.join(sys.argv[1:])}".rstrip(), file=file)
        writer = csv.writer(file)
        writer.writerow(["reward_seed", "beta", "seed", *COLUMNS])
        writer.writerows([x if isinstance(x, int) else round(x, 5) for x in line] for line in lines)


if __name__ == "__main__":
    main(tyro.cli(Sweep))
