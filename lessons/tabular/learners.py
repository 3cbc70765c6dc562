"""What a learner is: the settings that tell one from another, and the five of the article's table."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Learner:
    """How a policy learns from a batch. As it stands: REINFORCE, one step of Adam a batch, no baseline.

    name: what a table calls it.
    lr: learning rate of the logits.
    optimiser: "adam" or "sgd".
    offset: added to every return before the learner sees it.
    beta: β of −β (log π − log π_ref) in the reward of each token. The reference is the policy at the start.
    to_go: weigh a token by the return from it on, not by that of the whole response.
    baseline: None; "mean" of the batch; "leave-one-out", the mean of the others; "state", the exact V(s) of
        the returns; "learned", a table of values that learns by regression beside the policy, a critic.
    lam: λ of the GAE that the last two go through.
    value_lr: learning rate of the learned values, by Adam.
    passes: optimiser steps on each batch.
    epsilon: PPO's clip.
    penalty: PPO's β of −β KL(π_old‖π), which takes the clip's place.
    penalty_target: nats a token that the penalty steers to, by doubling and halving its β; None fixes β.
    delta: TRPO's bound on KL(π_old‖π), in nats a response. Its step takes the optimiser's place.
    ratio: one probability ratio for each "token", or for the whole "sequence"; of the clip and the penalty.
    entropy: bonus for each nat of entropy, as a mean over tokens.

    Without epsilon and penalty the loss is REINFORCE's, in the passes after the first too.

    Raises ValueError for a number out of range, and for settings that exclude each other.
    """

    name: str = "REINFORCE"
    lr: float = 0.1
    optimiser: Literal["adam", "sgd"] = "adam"
    offset: float = 0.0
    beta: float = 0.0
    to_go: bool = False
    baseline: Literal["mean", "leave-one-out", "state", "learned"] | None = None
    lam: float = 1.0
    value_lr: float = 0.1
    passes: int = 1
    epsilon: float | None = None
    penalty: float | None = None
    penalty_target: float | None = None
    delta: float | None = None
    ratio: Literal["token", "sequence"] = "token"
    entropy: float = 0.0

    def __post_init__(self):
        def need(condition, message):
            if not condition:
                raise ValueError(f"learner {self.name!r}: {message}")

        def one_of(field, *choices):
            value = getattr(self, field)
            need(value in choices, f"{field} must be one of {', '.join(map(repr, choices))}, not {value!r}")

        one_of("optimiser", "adam", "sgd")
        one_of("baseline", None, "mean", "leave-one-out", "state", "learned")
        one_of("ratio", "token", "sequence")
        for field in ("lr", "value_lr", "epsilon", "penalty_target", "delta"):
            value = getattr(self, field)
            need(value is None or value > 0, f"{field} must be positive, not {value}")
        for field in ("beta", "penalty", "entropy"):
            value = getattr(self, field)
            need(value is None or value >= 0, f"{field} must be at least 0, not {value}")
        need(0 <= self.lam <= 1, f"lam must be between 0 and 1, not {self.lam}")
        need(self.passes >= 1, f"passes must be at least 1, not {self.passes}")
        leashes = [x for x in (self.epsilon, self.penalty, self.delta) if x is not None]
        need(
            len(leashes) <= 1,
            "epsilon, penalty and delta are three ways to stay near the old policy: give one",
        )
        need(not self.penalty_target or self.penalty, "penalty_target needs a penalty above 0 to start from")
        need(
            not self.delta or (self.passes == 1 and not self.entropy),
            "TRPO takes one step, with no entropy bonus",
        )
        per_token = self.to_go or self.baseline in ("state", "learned")
        need(
            self.ratio == "token" or not per_token,
            "a ratio a sequence needs one weight a sequence, not one a token",
        )


def five_learners(lr: float = 0.1) -> tuple[Learner, ...]:
    """The learners of the article's table: returns of 10 to 13, but for one; PPO with a ratio a sequence."""
    reinforce = Learner("REINFORCE", lr=lr, offset=10.0)
    with_baseline = replace(reinforce, name="REINFORCE + baseline", baseline="mean")
    four_passes = replace(with_baseline, name="baseline, 4 passes", passes=4)
    return (
        reinforce,
        replace(reinforce, name="REINFORCE, no offset", offset=0.0),
        with_baseline,
        four_passes,
        replace(four_passes, name="PPO", epsilon=0.2, ratio="sequence"),
    )
