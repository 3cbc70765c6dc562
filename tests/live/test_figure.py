"""Figures as outputs: one bundle with a sentence, in a kernel, and only the sentence without one."""

import base64
import io

import nbformat
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.image import imread
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from lessons.live import LiveFigure, show
from lessons.live.style import canvas

ALT = "A curve that rises from 0 to 1."


def picture(data: str | bytes) -> np.ndarray:
    return imread(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize(
    "alt", ["", "  \n", "a picture", "Rises.", "a curve that rises from 0 to 1", "<Figure size 640>"]
)
class TestAlternativeText:
    def test_must_be_a_full_sentence_in_show(self, alt):
        with pytest.raises(ValueError, match="full sentence"):
            show(canvas(50), alt)

    def test_must_be_a_full_sentence_in_a_live_figure(self, alt):
        with LiveFigure(canvas(50)) as live, pytest.raises(ValueError, match="full sentence"):
            live.refresh(alt)


class TestWithoutANotebook:
    def test_the_sentence_is_printed(self, capsys):
        show(canvas(50), "A curve\n   that rises from 0 to 1.")
        assert capsys.readouterr().out == f"{ALT}\n"

    def test_a_live_figure_prints_its_last_sentence(self, capsys):
        with LiveFigure(canvas(50)) as live:
            live.refresh("A curve that is flat so far.")
            live.refresh(ALT)
            assert capsys.readouterr().out == ""
        assert capsys.readouterr().out == f"{ALT}\n"

    def test_a_live_figure_that_was_never_drawn_prints_nothing(self, capsys):
        with LiveFigure(canvas(50)):
            pass
        assert capsys.readouterr().out == ""

    def test_a_figure_of_pyplot_is_closed(self, capsys):
        figure = pyplot.figure()
        show(figure, ALT)
        assert not pyplot.fignum_exists(figure.number)


SHOW = f"""from matplotlib import pyplot
from lessons.live import LiveFigure, show
figure = pyplot.figure(figsize=(2, 1), dpi=100)
pyplot.plot([0, 1])
show(figure, {ALT!r})"""
LIVE = """from lessons.live.style import canvas
figure = canvas(100, width=200)
with LiveFigure(figure) as live:
    for colour in ("red", "green", "blue"):
        figure.set_facecolor(colour)
        live.refresh(f"The whole picture is {colour}.")"""
FAILS = """with LiveFigure(figure) as live:
    live.refresh("The whole picture is still blue.")
    1 / 0"""


@pytest.fixture(scope="module")
def outputs():
    """What the three cells leave in a notebook."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in (SHOW, LIVE, FAILS)])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    nbformat.validate(notebook)
    return [cell.outputs for cell in notebook.cells]


class TestInANotebook:
    def test_a_figure_is_one_output_of_a_picture_and_a_sentence(self, outputs):
        (output,) = outputs[0]
        assert output.output_type == "display_data"
        assert output.data.keys() == {"image/png", "text/plain"}
        assert output.data["text/plain"] == ALT
        image = picture(output.data["image/png"])
        assert image.shape[:2] == (100, 200)
        assert image.std() > 0.05

    def test_a_live_figure_leaves_its_last_picture_only(self, outputs):
        (output,) = outputs[1]
        assert output.data.keys() == {"image/png", "text/plain"}
        assert output.data["text/plain"] == "The whole picture is blue."
        assert (picture(output.data["image/png"])[..., :3] == [0, 0, 1]).all()

    def test_a_live_figure_stays_when_the_cell_fails(self, outputs):
        shown, error = outputs[2]
        assert shown.data["text/plain"] == "The whole picture is still blue."
        assert error.ename == "ZeroDivisionError"
