"""The share of an update's time that is spent inside model forward and backward passes and the optimiser.

    python benchmarks/ppo_share.py

Every call into one of the four models, every backward pass and every optimiser step is timed where it happens; the rest
of the update (sampling from the distribution, GAE, minibatches, the critic, metrics) is what is left over.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

import torch

from lessons.gpt.ppo import PPOConfig, Trainer

UPDATES = 8


def main() -> None:
    torch.set_num_threads(2)
    trainer = Trainer(PPOConfig())
    inside = {"forward": 0.0, "backward": 0.0, "optimiser": 0.0}
    depth = 0

    @contextmanager
    def timed(what: str):
        nonlocal depth
        depth += 1
        start = time.perf_counter()
        yield
        depth -= 1
        if depth == 0:
            inside[what] += time.perf_counter() - start

    def wrap(owner, name: str, what: str) -> None:
        method = getattr(owner, name)

        def timed_method(*args, **kwargs):
            with timed(what):
                return method(*args, **kwargs)

        setattr(owner, name, timed_method)

    for model in trainer.models.values():
        wrap(model, "forward", "forward")
        wrap(model.transformer, "forward", "forward")
    wrap(trainer.accelerator, "backward", "backward")
    wrap(trainer.accelerator, "clip_grad_norm_", "optimiser")
    for optimizer in (trainer.policy_optimizer, trainer.value_optimizer):
        wrap(optimizer, "step", "optimiser")
        wrap(optimizer, "zero_grad", "optimiser")

    trainer.step()  # warm-up
    inside.update(dict.fromkeys(inside, 0.0))
    phases: dict[str, float] = {}
    start = time.perf_counter()
    for _ in range(UPDATES):
        for name, seconds in trainer.step()[0]["seconds"].items():
            phases[name] = phases.get(name, 0.0) + seconds
    total = time.perf_counter() - start
    print(f"{UPDATES} updates, {total / UPDATES:.2f} s each; " + ", ".join(f"{n} {s / total:.1%}" for n, s in phases.items()))
    print(", ".join(f"{name} {seconds / total:.1%}" for name, seconds in inside.items()), f"= {sum(inside.values()) / total:.1%}")


if __name__ == "__main__":
    main()
