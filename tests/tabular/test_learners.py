"""The settings of a learner."""

import pytest

from lessons.tabular import Learner, five_learners


def test_the_five_learners_are_the_articles():
    reinforce, no_offset, baseline, four_passes, ppo = five_learners(lr=0.03)
    assert [learner.offset for learner in five_learners()] == [10, 0, 10, 10, 10]
    assert [learner.baseline for learner in five_learners()] == [None, None, "mean", "mean", "mean"]
    assert [learner.passes for learner in five_learners()] == [1, 1, 1, 4, 4]
    assert (ppo.epsilon, ppo.ratio) == (0.2, "sequence")
    assert all(learner.epsilon is None for learner in (reinforce, no_offset, baseline, four_passes))
    assert {learner.lr for learner in five_learners(lr=0.03)} == {0.03}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"value_lr": -1.0}, "value_lr must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 0.0}, "delta must be positive"),
        ({"beta": -0.1}, "beta must be at least 0"),
        ({"penalty": -0.1}, "penalty must be at least 0"),
        ({"entropy": -0.1}, "entropy must be at least 0"),
        ({"lam": 1.1}, "lam must be between 0 and 1"),
        ({"passes": 0}, "passes must be at least 1"),
        ({"epsilon": 0.2, "penalty": 1.0}, "give one"),
        ({"epsilon": 0.2, "delta": 0.01}, "give one"),
        ({"penalty_target": 0.01}, "penalty above 0 to start from"),
        ({"penalty": 0.0, "penalty_target": 0.01}, "penalty above 0 to start from"),
        ({"delta": 0.01, "passes": 2}, "TRPO takes one step"),
        ({"delta": 0.01, "entropy": 0.1}, "no entropy bonus"),
        ({"ratio": "sequence", "to_go": True}, "one weight a sequence"),
        ({"ratio": "sequence", "baseline": "learned"}, "one weight a sequence"),
    ],
)
def test_settings_that_make_no_learner_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(**settings)
