"""The tabular world: so small that every estimate can be held against its exact value.

world = World(vocab=8, length=3)
policy = uniform_policy(world)
y = policy.sample((2_000, 16), seed=0)        # 2,000 batches of 16 responses
world.matches(y), policy.score(y)             # a return and ∇ log π(y) for each
exact.gradient(world, policy)                 # what their products average to
"""

from lessons.tabular import exact
from lessons.tabular.learners import Learner, five_learners
from lessons.tabular.policy import Policy, random_policy, uniform_policy
from lessons.tabular.runs import Runs, Trained, train, trust_region_step
from lessons.tabular.world import World

__all__ = [
    "Learner",
    "Policy",
    "Runs",
    "Trained",
    "World",
    "exact",
    "five_learners",
    "random_policy",
    "train",
    "trust_region_step",
    "uniform_policy",
]
