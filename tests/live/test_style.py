"""The style: colours can be told apart and read, labels keep apart, nothing outside a picture changes."""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot

from lessons.live.figure import png
from lessons.live.style import (
    COLOURS,
    DIVERGING,
    SERIES,
    SMALL,
    WIDTH,
    EndLabels,
    band,
    contrast,
    fit,
    heading,
    ink,
    luminance,
    number,
    over_updates,
    panels,
    spread,
    text_on,
    text_width,
)
from lessons.tabular import five_learners


class TestColours:
    @pytest.mark.parametrize(
        "together",
        [
            [learner.name for learner in five_learners()],
            ["policy", "reference", "reward", "value"],
            ["score", "gold", "reference"],
            ["KL", "score", "value", "advantage"],
            ["estimate", "exact"],
        ],
    )
    def test_of_what_stands_in_one_chart_differ(self, together):
        assert len({COLOURS[name] for name in together}) == len(together)

    def test_are_those_of_okabe_and_ito_and_a_grey(self):
        okabe_ito = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
        assert {*COLOURS.values(), *SERIES} <= okabe_ito | {COLOURS["reference"]}
        assert len(set(SERIES)) == len(SERIES)

    def test_luminance_and_contrast_by_hand(self):
        assert [luminance(c) for c in ("white", "black", "lime")] == pytest.approx([1, 0, 0.7152])
        assert luminance((0.5, 0.5, 0.5)) == pytest.approx(0.2140, abs=1e-4)
        assert contrast("white", "black") == contrast("black", "white") == pytest.approx(21)

    @pytest.mark.parametrize("colour", sorted({*COLOURS.values(), *SERIES}))
    def test_as_text_can_be_read_on_white(self, colour):
        assert contrast(ink(colour), "#FFFFFF") >= 4.5

    def test_that_can_be_read_stay_as_they_are(self):
        assert ink(COLOURS["policy"]) == COLOURS["policy"].lower()

    @given(st.tuples(*[st.floats(0, 1)] * 3))
    def test_text_on_any_background_can_be_read(self, background):
        assert contrast(text_on(background), background) >= 3.9  # the best there is on a middle grey

    def test_zero_is_white_on_the_diverging_map_and_the_signs_differ(self):
        assert DIVERGING(0.5)[:3] == (1, 1, 1)
        assert DIVERGING(0.0)[0] > DIVERGING(0.0)[2]
        assert DIVERGING(1.0)[0] < DIVERGING(1.0)[2]


@pytest.mark.parametrize(
    ("x", "digits", "text"),
    [
        (1.2, 2, "1.20"),
        (-0.351, 2, "−0.35"),
        (-0.001, 2, "0.00"),
        (-0.0, 1, "0.0"),
        (99.6, 0, "100"),
        (float("nan"), 2, "undefined"),
        (float("-inf"), 2, "undefined"),
    ],
)
def test_numbers_are_set_as_in_print(x, digits, text):
    assert number(x, digits) == text


class TestSpread:
    @pytest.mark.parametrize(
        ("at", "sizes", "bounds", "placed"),
        [
            ([0.0, 0.0], 2, (), [-1, 1]),
            ([0.0, 1.0, 10.0], 2, (), [-0.5, 1.5, 10]),
            ([10.0, 0.0, 1.0], 2, (), [10, -0.5, 1.5]),
            ([3.0, 7.0], 2, (), [3, 7]),
            ([0.0, 0.0], [2, 4], (), [-1.5, 1.5]),
            ([9.5, 10.0], 2, (0, 10), [7, 9]),
            ([0.0], 2, (0, 10), [1]),
            ([], 2, (), []),
        ],
    )
    def test_by_hand(self, at, sizes, bounds, placed):
        assert spread(at, sizes, *bounds) == pytest.approx(placed)

    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.floats(0.1, 50))
    def test_keeps_the_order_and_leaves_no_overlap(self, at, size):
        placed = spread(at, size)
        order = np.argsort(at, kind="stable")
        assert (np.diff(placed[order]) >= size - 1e-6).all()

    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8))
    def test_stays_within_bounds_that_have_room(self, at):
        placed = spread(at, 10, 0, 100)
        assert placed.min() >= 5 - 1e-6
        assert placed.max() <= 95 + 1e-6

    @given(st.integers(0, 2**32 - 1))
    def test_no_other_placement_in_that_order_is_nearer(self, seed):
        at = np.sort(np.random.default_rng(seed).normal(scale=10, size=5))
        placed = spread(at, 5.0)
        rng = np.random.default_rng(seed)
        other = np.cumsum(np.concatenate([[placed[0] + rng.normal()], 5 + rng.exponential(3, len(at) - 1)]))
        assert ((placed - at) ** 2).sum() <= ((other - at) ** 2).sum() + 1e-6


class TestEndLabels:
    @pytest.fixture
    def axes(self):
        _, axes = panels(1, 1, height=200)
        over_updates(axes[0, 0], 10)
        axes[0, 0].set_ylim(0, 1)
        return axes[0, 0]

    def test_stand_at_the_last_finite_point_of_their_lines(self, axes):
        (line,) = axes.plot([1, 2, 3], [0.1, 0.5, np.nan], label="half")
        labels = EndLabels(axes, [line])
        labels.place()
        assert labels.texts[0].get_text() == "half"
        assert labels.texts[0].xy == pytest.approx((2, 0.5))

    def test_follow_a_line_that_grows_and_changes_its_name(self, axes):
        (line,) = axes.plot([1], [0.2], label="before")
        labels = EndLabels(axes, [line])
        labels.place()
        line.set_data([1, 7], [0.2, 0.8])
        line.set_label("after")
        labels.place()
        assert labels.texts[0].get_text() == "after"
        assert labels.texts[0].xy == pytest.approx((7, 0.8))

    def test_do_not_overlap_and_stay_beside_the_axes(self, axes):
        lines = [axes.plot([1, 10], [1, 1 - 0.001 * i], label=f"line {i}")[0] for i in range(4)]
        labels = EndLabels(axes, lines)
        labels.place()
        png(axes.figure)
        boxes = sorted((text.get_window_extent() for text in labels.texts), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
        assert boxes[-1].y1 <= axes.bbox.y1 + 1
        heights = [text.xy[1] for text in labels.texts]
        assert heights == sorted(heights, reverse=True)

    def test_of_a_line_without_a_point_are_hidden(self, axes):
        lines = [axes.plot([], [], label="nothing")[0], axes.plot([1], [np.nan], label="undefined")[0]]
        labels = EndLabels(axes, lines)
        labels.place()
        assert [text.get_visible() for text in labels.texts] == [False, False]


class TestPanels:
    def test_have_their_margins_in_pixels(self):
        figure, axes = panels(2, 2, height=400, left=40, right=60, top=30, bottom=20, foot=10)
        assert figure.bbox.bounds[2:] == pytest.approx((WIDTH, 400))
        assert axes[0, 0].bbox.extents == pytest.approx((40, 225, WIDTH / 2 - 60, 370))
        assert axes[1, 1].bbox.extents == pytest.approx((WIDTH / 2 + 40, 30, WIDTH - 60, 175))

    def test_limits_hold_every_finite_value(self):
        _, axes = panels(1, 1, height=200)
        fit(axes[0, 0], np.array([1.0, np.nan, 3.0]), include=[0])
        assert axes[0, 0].get_ylim() == pytest.approx((-0.18, 3.18))
        fit(axes[0, 0], np.array([np.nan]))
        assert axes[0, 0].get_ylim() == pytest.approx((-0.06, 1.06))
        fit(axes[0, 0], np.array([2.0, 2.0]))
        assert axes[0, 0].get_ylim() == pytest.approx((1.9, 2.1))

    def test_a_band_lies_between_its_bounds(self):
        _, axes = panels(1, 1, height=200)
        interval = band(axes[0, 0], COLOURS["KL"])
        interval.set_data([1, 2], [0, 1], [2, 5])
        box = interval.get_datalim(axes[0, 0].transData)
        assert box.extents == pytest.approx((1, 0, 2, 5))

    def test_text_is_measured_in_pixels(self):
        _, axes = panels(1, 1, height=200)
        heading(axes[0, 0], "Score", "nats a response")
        png(axes[0, 0].figure)
        drawn = axes[0, 0].texts[1].get_window_extent().width
        assert text_width("nats a response", SMALL) == pytest.approx(drawn, abs=1.5)


def small_picture():
    figure, axes = panels(1, 1, height=160)
    heading(axes[0, 0], "Score", "standard deviations")
    (line,) = axes[0, 0].plot([1, 2], [0, 1], label="score")
    over_updates(axes[0, 0], 2)
    EndLabels(axes[0, 0], [line]).place()
    return png(figure)


class TestSettings:
    def test_of_the_reader_stay_as_they_were(self):
        before = dict(matplotlib.rcParams)
        small_picture()
        assert dict(matplotlib.rcParams) == before
        assert pyplot.get_fignums() == []

    def test_of_the_reader_change_no_picture(self):
        expected = small_picture()
        with matplotlib.style.context("dark_background"), matplotlib.rc_context({"font.size": 30}):
            assert small_picture() == expected
