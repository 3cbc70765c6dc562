"""What every picture of the lessons must be."""

import io
from itertools import combinations

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.image import imread
from matplotlib.text import Text

from lessons.live.figure import png


@pytest.fixture(autouse=True)
def nothing_else_changed():
    """No picture touches matplotlib's settings or pyplot's open figures."""
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def outside(axis):
    """The labels of ticks beyond the ends of an axis: matplotlib keeps them and does not draw them."""
    low, high = axis.get_view_interval()
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


@pytest.fixture(scope="session")
def check_picture():
    """Draws a figure and checks that it is not blank, and that no text is cut off or lies on another one."""

    def check(figure):
        image = imread(io.BytesIO(png(figure, compression=1)))
        assert image[..., :3].std() > 0.05
        hidden = {
            label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in outside(axis)
        }
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        texts = [text for text in texts if text not in hidden]
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
        for text, box in boxes:
            assert 0 <= box.x0 and box.x1 <= figure.bbox.x1, text
            assert 0 <= box.y0 and box.y1 <= figure.bbox.y1, text
        for (one, first), (other, second) in combinations(boxes, 2):
            wide = min(first.x1, second.x1) - max(first.x0, second.x0)
            high = min(first.y1, second.y1) - max(first.y0, second.y0)
            assert wide < 1 or high < 2, (one, other)  # a box is a little larger than its letters

    return check
