"""The pictures of the lesson on ratio and clip, and the rows that it adds to the estimator card."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons import rl
from lessons.live.figure import png
from lessons.panels.estimator_card import compute_card, old_sample_estimators
from lessons.panels.ratio_and_clip import (
    ClipCurvesArtists,
    Locking,
    LockingArtists,
    OldSamplesArtists,
    PushesArtists,
    SweepArtists,
    TableCurvesArtists,
    Wide,
    WorthArtists,
    clipped,
    compute_clip_curves,
    compute_locking,
    compute_old_samples,
    compute_pushes,
    compute_sweep,
    compute_table_curves,
    compute_worth,
    is_locked,
    locking_learners,
    mean_square_ratio,
    skilled,
)
from lessons.tabular import Learner, Policy, World, exact, random_policy, train
from lessons.tabular.table import ARTICLE, UPDATES, wilson

SMALL = World(vocab=3, length=2, target=(2, 0))
ENDED = World(vocab=3, length=3, end=2)
EIGHT = World(vocab=8, length=3)


def drawn_twice(artists, first, second, check_picture):
    """Draws both, checks both pictures, and says whether they differ."""
    pictures = []
    for numbers in (first, second):
        artists.draw(numbers)
        check_picture(artists.figure)
        pictures.append(png(artists.figure))
        assert numbers.alt.endswith(".") and "undefined" not in numbers.alt
    return pictures[0] != pictures[1]


class TestSkilled:
    def test_gives_the_right_token_its_probability_in_every_state(self):
        table = skilled(SMALL, 0.65).table
        assert table[0].tolist() == pytest.approx([0.175, 0.175, 0.65])
        assert table[1:, 0].tolist() == pytest.approx([0.65] * 3)

    @pytest.mark.parametrize("p", [0.0, 1.0, -1.0])
    def test_refuses_what_is_no_probability_inside(self, p):
        with pytest.raises(ValueError, match="between 0 and 1"):
            skilled(SMALL, p)


class TestEstimatorsOnOldSamples:
    @pytest.mark.parametrize("world", [SMALL, ENDED])
    def test_are_those_found_response_by_response(self, world):
        old, now = random_policy(world, seed=1), random_policy(world, seed=2, scale=0.5)
        V, mean = exact.values(world, old), torch.zeros(5, world.rows * world.vocab, dtype=torch.float64)
        for y in world.sequences:
            mask, R = world.mask(y), world.returns(y)
            before, after = old.log_probs(y).exp(), now.log_probs(y).exp()
            for t in range(int(mask.sum())):
                A = (R - V[world.states(y)[t]]).item()
                ratio = (after[t] / before[t]).item()
                held = (ratio > 1.2 and A > 0) or (ratio < 0.8 and A < 0)
                only_t = torch.zeros(world.length, dtype=torch.float64)
                only_t[t] = A
                score = now.score(y, only_t)
                whole = after[mask].prod() / before[mask].prod()
                factors = (whole, 1.0, whole, ratio, 0.0 if held else ratio)
                for row, factor in enumerate(factors):
                    mean[row] += before[mask].prod() * factor * score
        for row, one in zip(mean, old_sample_estimators(world, now, old)):
            assert one.exact_moments(world, now, 4).mean.tolist() == pytest.approx(row.tolist()), one.name

    @settings(max_examples=20)
    @given(seed=st.integers(0, 10_000))
    def test_with_the_ratio_of_the_response_have_no_bias(self, seed):
        old, now = random_policy(ENDED, seed), random_policy(ENDED, seed + 1)
        one = old_sample_estimators(ENDED, now, old)[2]
        mean = one.exact_moments(ENDED, now, 1).mean
        assert mean.tolist() == pytest.approx(exact.gradient(ENDED, now).tolist(), abs=1e-9)

    def test_on_samples_of_the_policy_itself_are_all_the_same(self):
        policy = random_policy(ENDED, seed=3)
        rows = [one.exact_moments(ENDED, policy, 4) for one in old_sample_estimators(ENDED, policy, policy)]
        for mean, variance in rows[1:]:
            assert mean.tolist() == pytest.approx(rows[0].mean.tolist())
            assert variance.item() == pytest.approx(rows[0].variance.item())

    @pytest.mark.parametrize("world", [SMALL, ENDED])
    def test_agree_with_what_is_sampled(self, world):
        old, now = random_policy(world, seed=1), random_policy(world, seed=2, scale=0.5)
        estimators = old_sample_estimators(world, now, old)
        card = compute_card(world, now, estimators, batch=3, batches=5000)
        assert (np.abs(card.sampled - card.along) <= 4 / 1.96 * card.half_width + 1e-9).all()
        y, g = old.sample((5000, 3), seed=7), exact.gradient(world, now)
        for one, variance in zip(estimators[1:], card.variance[1:]):
            mean = one.exact_moments(world, now, 3).mean
            distances = ((one.estimates(now, y) - mean) ** 2).sum(dim=-1) / (g @ g)
            assert abs(distances.mean() - variance) <= 4 * distances.std() / 5000**0.5, one.name


class TestOldSamples:
    def test_start_without_bias_and_end_as_the_card_says(self):
        numbers = compute_old_samples(SMALL, batch=4, highest=0.7)
        now, old = skilled(SMALL, 0.7), skilled(SMALL, 0.5)
        card = compute_card(SMALL, now, old_sample_estimators(SMALL, now, old)[:4], batch=4, batches=2)
        assert numbers.bias[:, 0] == pytest.approx(0, abs=1e-9)
        assert numbers.bias[:, -1] == pytest.approx(card.bias, abs=1e-9)
        assert numbers.noise[:, -1] ** 2 == pytest.approx(card.variance)

    def test_are_drawn(self, check_picture):
        artists = OldSamplesArtists()
        first, second = compute_old_samples(SMALL), compute_old_samples(SMALL, batch=1, highest=0.95)
        assert drawn_twice(artists, first, second, check_picture)
        assert [line.get_ydata().tolist() for line in artists.lines[0]] == second.bias.tolist()
        assert [line.get_ydata().tolist() for line in artists.lines[1]] == second.noise.tolist()


class TestWorth:
    @pytest.mark.parametrize("p", [0.55, 0.65, 0.9])
    def test_is_one_over_the_mean_square_of_the_ratio_over_all_responses(self, p):
        old, now, Y = skilled(EIGHT, 0.5), skilled(EIGHT, p), EIGHT.sequences
        rho = (now.log_probs(Y) - old.log_probs(Y)).sum(dim=-1).exp()
        mean_square = (exact.sequence_probs(old) @ rho**2).item()
        assert compute_worth((p,), longest=3).share[0, 3] == pytest.approx(1 / mean_square)
        assert mean_square_ratio(0.65) == pytest.approx(1.09)

    def test_is_drawn(self, check_picture):
        artists = WorthArtists(3)
        assert drawn_twice(artists, compute_worth(), compute_worth((0.5, 0.6, 0.9), longest=200), check_picture)


class TestClipCurves:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "value", "gradient"),
        [(1.3, 1.0, 1.2, 0.0), (1.3, -1.0, -1.3, -1.3), (0.7, 1.0, 0.7, 0.7), (0.7, -1.0, -0.8, 0.0)],
    )
    def test_hold_the_four_worked_cases(self, ratio, advantage, value, gradient):
        got = clipped(torch.tensor([ratio], dtype=torch.float64), advantage, 0.2)
        assert (got[0].item(), got[1].item()) == pytest.approx((value, gradient))

    def test_are_told_in_words(self):
        alt = compute_clip_curves().alt
        assert "ratio 1.3 and advantage +1: value 1.20, gradient 0.00" in alt
        assert "ratio 0.7 and advantage −1: value −0.80, gradient 0.00" in alt

    @pytest.mark.parametrize("epsilon", [0.05, 0.4])
    def test_are_drawn(self, epsilon, check_picture):
        artists = ClipCurvesArtists()
        second = compute_clip_curves(epsilon)
        assert drawn_twice(artists, compute_clip_curves(), second, check_picture)
        assert [line.get_ydata().tolist() for line in artists.lines] == second.value.tolist()
        hollow = artists.points[0][0].get_markerfacecolor() == "white"
        assert hollow == (epsilon < 0.3)  # the case stands at 1.3


class TestPushes:
    def test_first_step_is_the_one_found_by_hand(self):
        # ∂L/∂logits = ½ Σ ρ Â (one-hot − π) = ½ (e_0 − e_1) at the old policy: the π cancel.
        numbers = compute_pushes(lr=0.1, steps=1)
        logits = torch.zeros(8, dtype=torch.float64)
        logits[:2] = torch.tensor([0.05, -0.05])
        ratio = 8 * logits.softmax(dim=-1)[:2]
        for each in numbers.ratio[0]:  # the clip does nothing yet
            assert each[:, 1].tolist() == pytest.approx(ratio.tolist())
        assert numbers.ratio[:, :, :, 0].tolist() == [[[1, 1]] * 2, [pytest.approx([0.7, 1.3])] * 2]

    def test_stop_at_the_clip_and_come_back_from_the_wrong_side(self):
        (clip, free), (wrong, _) = compute_pushes(epsilon=0.1, steps=40).ratio
        assert clip[0, -1] == clip[0, -5] and clip[0, -1] == pytest.approx(1.1, abs=0.06)
        assert free[0, -1] > 3
        assert wrong[0, -1] > 1.1 and wrong[1, -1] < 0.9

    def test_are_drawn(self, check_picture):
        artists = PushesArtists()
        second = compute_pushes(epsilon=0.4, steps=30)
        assert drawn_twice(artists, compute_pushes(), second, check_picture)
        assert artists.lines[1][0].get_ydata().tolist() == second.ratio[1, 0, 0].tolist()
        assert artists.lines[1][3].get_ydata().tolist() == second.ratio[1, 1, 1].tolist()


def measured_like_the_article(seeds=200):
    """What `table` returns, as far as the picture reads it, with the article's figures a little raised."""

    def cell(x):
        return {"mean": x + 0.05, "low": x + 0.03, "high": x + 0.07, "article": x}

    rows = [(lr, name, x) for lr, learners in ARTICLE.items() for name, x in learners.items()]
    return {
        "seeds": seeds,
        "outside": {},
        "learners": [
            {"learner": name, "lr": lr, "matches": dict(zip(map(str, UPDATES), map(cell, x)))} for lr, name, x in rows
        ],
    }


class TestWide:
    def test_is_the_same_text_in_both_forms(self):
        wide = Wide("a < b\n  c  d")
        assert repr(wide) == "a < b\n  c  d"
        assert "white-space: pre;" in wide._repr_html_() and ">a &lt; b\n  c  d</pre>" in wide._repr_html_()


class TestTableCurves:
    def test_take_the_figures_where_they_stand(self):
        numbers = compute_table_curves(measured_like_the_article())
        row = numbers.names.index("PPO")
        assert numbers.article[row].tolist() == [0.79, 2.69, 2.69, 2.80, 2.90]
        assert numbers.mean - numbers.article == pytest.approx(0.05)
        assert numbers.high - numbers.low == pytest.approx(0.04)
        assert "PPO at 0.1: 2.74 and 2.95, the article 2.69 and 2.90" in numbers.alt

    def test_need_intervals(self):
        with pytest.raises(ValueError, match="more than 10 seeds"):
            compute_table_curves(measured_like_the_article() | {"outside": None})

    def test_are_drawn(self, check_picture):
        first = compute_table_curves(measured_like_the_article())
        second = replace(first, mean=first.mean / 2)
        artists = TableCurvesArtists(first.names, first.lr)
        assert drawn_twice(artists, first, second, check_picture)
        assert [line.get_ydata().tolist() for line in artists.lines] == second.mean.tolist()
        assert [dots.get_ydata().tolist() for dots in artists.circles] == second.article.tolist()


@pytest.fixture(scope="module")
def swept():
    return compute_sweep(SMALL, seeds=(3, 4, 5), passes=(1, 3), lr=(0.1, 1.0), updates=11)


class TestSweep:
    def test_is_what_separate_trainings_give(self, swept):
        both = []
        for j, limit in enumerate((0.2, None)):
            alone = Learner(lr=1.0, baseline="mean", passes=3, epsilon=limit, ratio="sequence")
            ends = train(SMALL, [alone], (3, 4, 5), updates=11).scores[0, :, -10:].mean(dim=-1)
            solved = (ends >= 2.9).double()
            assert swept.solved[j, 1, 1] == pytest.approx(solved.mean().item())
            assert (swept.low[j, 1, 1], swept.high[j, 1, 1]) == pytest.approx(wilson(solved))
            both.append(ends)
        gain = both[0] - both[1]
        assert swept.gain[1, 1] == pytest.approx(gain.mean().item())
        assert swept.half_width[1, 1] == pytest.approx(1.96 * gain.std().item() / 3**0.5)

    def test_of_one_pass_gains_nothing(self, swept):
        assert swept.gain[0] == pytest.approx(0, abs=1e-9)

    def test_needs_two_seeds(self):
        with pytest.raises(ValueError, match="at least 2 seeds, not 1"):
            compute_sweep(SMALL, seeds=(0,))

    def test_is_drawn(self, swept, check_picture):
        artists = SweepArtists(swept.passes)
        second = replace(swept, solved=np.random.default_rng(0).random(swept.solved.shape))
        assert drawn_twice(artists, swept, second, check_picture)
        assert artists.lines[1][0].get_ydata().tolist() == (100 * second.solved[0, 1]).tolist()


class TestLocking:
    def test_is_a_wrong_response_with_nearly_all_probability(self):
        logits = torch.zeros(3, SMALL.rows, SMALL.vocab, dtype=torch.float64)
        logits[0, :, 1] = 9  # writes 1, 1: no match
        logits[1, 0, 2], logits[1, :, 0] = 20, 9  # writes 2, 0: the target
        logits[2, :, 1] = 1  # prefers 1, 1, not more
        assert is_locked(SMALL, Policy(SMALL, logits)).tolist() == [1, 0, 0]

    def test_is_counted_over_seeds(self):
        numbers = compute_locking(SMALL, seeds=range(3), learners=[Learner(lr=0.1), Learner(lr=2.0)], updates=10)
        trained = train(SMALL, [Learner(lr=0.1), Learner(lr=2.0)], range(3), updates=10)
        assert torch.equal(numbers.policy.logits, trained.policy.logits)
        locked = is_locked(SMALL, trained.policy)
        assert numbers.locked[1] == pytest.approx((locked[1].mean().item(), *wilson(locked[1])))
        assert numbers.J == pytest.approx(exact.J(SMALL, trained.policy).mean(dim=-1).numpy())

    def test_learners_differ_from_the_first_in_one_thing_each(self):
        plain, *others = locking_learners()
        changed = [[k for k, v in vars(one).items() if v != getattr(plain, k)] for one in others]
        assert changed == [["name", "epsilon", "ratio"], ["name", "entropy"], ["name", "beta"], ["name", "lr"]]

    def test_is_drawn(self, check_picture):
        names = tuple(learner.name for learner in locking_learners())
        shares = np.array([(0.15, 0.1, 0.25), (0.06, 0.02, 0.1), (0, 0, 0.05), (0, 0, 0.05), (0.02, 0, 0.08)])
        policy = skilled(SMALL, 0.5)
        first = Locking(names, 60, shares, np.ones(5), policy)
        second = Locking(names, 60, np.array([(0.0, 0.0, 0.06)] * 4 + [(1.0, 0.9, 1.0)]), np.ones(5), policy)
        artists = LockingArtists(names)
        assert drawn_twice(artists, first, second, check_picture)
        assert [dot.get_xdata()[0] for dot in artists.dots] == [0, 0, 0, 0, 100]


def test_the_clip_of_a_picture_is_that_of_the_package():
    ratio = torch.linspace(0.5, 1.5, 11, dtype=torch.float64)
    for sign in (1.0, -1.0):
        by_hand = torch.minimum(sign * ratio, sign * ratio.clamp(0.8, 1.2))
        assert clipped(ratio, sign, 0.2)[0].tolist() == pytest.approx(by_hand.tolist())
    one = torch.ones(11, 1, dtype=torch.float64)
    loss, _ = rl.clipped_surrogate(ratio.log()[:, None], 0 * one, one, one > 0, 0.2)
    assert -loss.item() == pytest.approx(clipped(ratio, 1.0, 0.2)[0].mean())
