"""The default run over several PPO seeds, with and without the leash, and with other reward models: one CSV line an update.

    python sweeps/ppo_seeds.py                  the sweep that lesson 9 shows (about 15 minutes on 2 cores)
    python sweeps/ppo_seeds.py --reward-seeds 1 2 --betas 0.05 --out runs/other_reward_models.csv

At the end of each run its policy answers 256 prompts, and so does the reference; what it prints is about those.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from lessons.gpt.ppo import PPOConfig, Trainer, response_kl

COLUMNS = ("update", "score", "gold", "kl", "entropy", "response_length", "eos_rate", "distinct")
ANSWERS = 256


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
    """The table to write, whole when the last run is done; until then it grows under the same name with .part behind it."""
    threads: int = 2
    """Of torch."""


def answers(trainer: Trainer, policy) -> tuple:
    """A rollout of 256 responses by a policy, judged."""
    other = Trainer(PPOConfig(batch=ANSWERS, seed=10_000), trainer.materials)
    other.policy = policy
    rollout = other.kl_reward(other.score(other.rollout(other.prompts())))
    responses = [response for _, response in rollout.texts(other.tokenizer)]
    ended = rollout.ended(other.tokenizer.eos_token_id).float().mean().item()
    return rollout, ended, len(set(responses)) / ANSWERS


def main(sweep: Sweep) -> None:
    torch.set_num_threads(sweep.threads)
    sweep.out.parent.mkdir(parents=True, exist_ok=True)
    part = sweep.out.with_name(sweep.out.name + ".part")
    with open(part, "w", encoding="utf-8", newline="") as file:
        print(f"# python sweeps/ppo_seeds.py {' '.join(sys.argv[1:])}".rstrip(), file=file)
        writer = csv.writer(file)
        writer.writerow(["reward_seed", "beta", "seed", *COLUMNS])
        for reward_seed in sweep.reward_seeds:
            materials = PPOConfig(reward_seed=reward_seed).materials()
            mean, std = materials.report.gold_mean, materials.report.gold_std
            print(f"reward model {reward_seed}: {materials.report}", flush=True)
            for beta in sweep.betas:
                for seed in sweep.seeds:
                    updates = PPOConfig.updates if beta else 40
                    trainer = Trainer(PPOConfig(beta=beta, seed=seed, reward_seed=reward_seed, updates=updates), materials)
                    for _ in range(updates):
                        line = trainer.step()[0]
                        line["gold"] = (line["gold"] - mean) / std
                        numbers = [x if isinstance(x, int) else round(x, 5) for x in (line[c] for c in COLUMNS)]
                        writer.writerow([reward_seed, beta, seed, *numbers])
                    file.flush()
                    start, _, _ = answers(trainer, trainer.reference)
                    end, ended, distinct = answers(trainer, trainer.policy)
                    gain = (end.gold.mean() - start.gold.mean()).item() / std
                    print(
                        f"  β {beta:<5} seed {seed}: score {end.scores.mean() - start.scores.mean():+.2f}  gold {gain:+.2f} std  "
                        f"KL {response_kl(end).mean():5.1f} nats  EOS {ended:.1%}  different {distinct:.1%}  "
                        f"length {end.lengths.float().mean() / start.lengths.float().mean():.0%}  (policy against reference)",
                        flush=True,
                    )
    os.replace(part, sweep.out)


if __name__ == "__main__":
    main(tyro.cli(Sweep))
