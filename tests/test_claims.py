"""`shows` and its bounds, and where the claims are found in notebooks."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons.claims import (
    CLAIMS,
    ClaimFailed,
    Place,
    about,
    at_least,
    at_most,
    between,
    carried,
    printed,
    shows,
)

TEXT = "without the offset a batch knows the direction"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


class TestShows:
    def test_prints_the_claim_with_its_figure_and_bound_in_one_line(self, capsys):
        shows("C4", TEXT, 0.40123, between(0.36, 0.44))
        assert capsys.readouterr().out == f"C4 ✓ {TEXT}: measured 0.4012 (bound 0.36 to 0.44)\n"

    def test_a_figure_that_leaves_its_bound_raises_and_prints_nothing(self, capsys):
        with pytest.raises(ClaimFailed) as failure:
            shows("C4", TEXT, 0.440001, between(0.36, 0.44))
        assert str(failure.value) == f"C4 ✗ {TEXT}: measured 0.440001 (bound 0.36 to 0.44)"
        assert isinstance(failure.value, AssertionError)
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        "figure", [3, 3.0, np.float32(3), np.array(3), torch.tensor(3), torch.tensor(3.0, requires_grad=True)]
    )
    def test_takes_one_number_of_any_kind(self, figure, capsys):
        shows("A2", "three is three", figure, about(3, 0.5))
        assert "measured 3 (" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("figure", "message"),
        [
            (True, "must be a number, not True"),
            (np.bool_(True), "must be a number, not True"),
            (torch.tensor(3.0) > 2, "must be a number, not True"),
            (float("nan"), "must be finite, not nan"),
            (torch.tensor(float("inf")), "must be finite, not inf"),
            (torch.tensor([0.4, 0.4]), r"one real number, not Tensor of shape \(2,\)"),
            (np.array([0.4]), r"one real number, not ndarray of shape \(1,\)"),
            ([0.4], "one real number, not list"),
            ("0.4", "one real number, not str"),
            (0.4 + 0j, "one real number, not complex"),
            (None, "one real number, not NoneType"),
        ],
    )
    def test_refuses_what_is_not_one_finite_number(self, figure, message):
        with pytest.raises(ValueError, match=f"C4: measured.*{message}"):
            shows("C4", TEXT, figure, at_least(0))

    @pytest.mark.parametrize("id", ["Z9", "C11", "c4", ""])
    def test_refuses_an_unknown_claim(self, id):
        with pytest.raises(ValueError, match=f"unknown claim '{id}'"):
            shows(id, TEXT, 1, at_least(0))

    @pytest.mark.parametrize("text", ["", " ", "two\nlines"])
    def test_refuses_a_text_that_is_not_one_line(self, text):
        with pytest.raises(ValueError, match="must be one line"):
            shows("C4", text, 1, at_least(0))

    @pytest.mark.parametrize("bound", [True, 0.4, (0.3, 0.5), range(3), at_least])
    def test_refuses_what_is_not_a_bound(self, bound):
        with pytest.raises(ValueError, match="the bound must be between, at_least, at_most or about"):
            shows("C4", TEXT, 1, bound)


class TestBounds:
    @pytest.mark.parametrize(
        ("bound", "inside", "outside", "words"),
        [
            (between(1, 2), [1, 1.5, 2], [0.999, 2.001], "1 to 2"),
            (at_least(0.9), [0.9, 1e9], [0.899, -1], "at least 0.9"),
            (at_most(1500), [1500, -3], [1501], "at most 1,500"),
            (about(0.5, 0.25), [0.25, 0.5, 0.75], [0.249, 0.751], "0.5 ± 0.25"),
            (between(torch.tensor(1.0), np.float32(2)), [1.5], [2.5], "1 to 2"),
        ],
    )
    def test_hold_what_they_say(self, bound, inside, outside, words):
        assert all(x in bound for x in inside)
        assert not any(x in bound for x in outside)
        assert str(bound) == words

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: between(2, 1), "lo < hi, not 2 and 1"),
            (lambda: between(1, 1), "lo < hi, not 1 and 1"),
            (lambda: between(0, float("inf")), r"hi of between\(\) must be finite"),
            (lambda: at_least(float("-inf")), r"lo of at_least\(\) must be finite"),
            (lambda: at_most(float("nan")), r"hi of at_most\(\) must be finite"),
            (lambda: at_least(True), r"lo of at_least\(\) must be a number, not True"),
            (lambda: about(1, 0), "tol > 0, not 0"),
            (lambda: about(1, -0.1), "tol > 0, not -0.1"),
        ],
    )
    def test_refuse_to_be_empty_or_to_hold_everything(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    @given(x=NUMBERS, limit=NUMBERS)
    def test_at_least_and_at_most_share_only_their_limit(self, x, limit):
        assert (x in at_least(limit) and x in at_most(limit)) == (x == limit)


class TestClaims:
    def test_are_all_there(self):
        last = {"A": 3, "B": 4, "C": 10, "D": 7, "E": 9, "F": 8, "G": 5, "H": 6}
        assert list(CLAIMS) == [f"{letter}{n}" for letter, count in last.items() for n in range(1, count + 1)]

    def test_have_short_titles_of_their_own(self):
        assert len(set(CLAIMS.values())) == len(CLAIMS)
        assert all(10 < len(title) <= 100 and "\n" not in title for title in CLAIMS.values())

    def test_are_found_in_what_was_printed(self, capsys):
        shows("B1", "the first", 1, at_least(0))
        shows("C10", "the second", 1, at_least(0))
        shows("B1", "the first again", 1, at_least(0))
        output = "before\n" + capsys.readouterr().out + "see B2 ✓ of lesson 1\nB3 ✗ fails"
        assert printed(output) == ["B1", "C10"]


@pytest.fixture
def notebook(tmp_path):
    """Writes a notebook of code cells; a list of lines is how Jupyter itself writes a cell."""

    def write(name, *sources):
        cells = [{"cell_type": "markdown", "metadata": {}, "source": 'shows("A3", in prose)'}]
        cells += [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources]
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")

    return write


class TestCarried:
    def test_finds_each_claim_where_it_is_shown_in_the_order_of_claims(self, notebook, tmp_path):
        notebook("02_baselines", 'shows("C4", "x", 1)\nshows("C4", "y", 2)', 'shows("B1")')
        notebook("01_first", "x = 1", "  ", '%matplotlib inline\n!ls\nif x: claims.shows("C4", "z")')
        assert carried(tmp_path) == {
            "B1": [Place("02_baselines", 2)],
            "C4": [Place("01_first", 2), Place("02_baselines", 1)],
        }
        assert str(carried(tmp_path)["B1"][0]) == "02_baselines [2]"

    def test_takes_only_calls_with_a_literal_id(self, notebook, tmp_path):
        notebook("01", '# shows("B1")\n"shows(\'B2\')"\nshows(id)\nshow("B3")\nshows()\nshows("B4")')
        assert list(carried(tmp_path)) == ["B4"]

    def test_names_the_cell_of_an_unknown_claim(self, notebook, tmp_path):
        notebook("01", "x = 1", 'shows("Z1", "x", 1, at_least(0))')
        with pytest.raises(ValueError, match=r"01\.ipynb, cell \[2\]: unknown claim 'Z1'"):
            carried(tmp_path)

    def test_names_the_cell_that_is_not_python(self, notebook, tmp_path):
        notebook("01", "x = 1", "x = = 1")
        with pytest.raises(ValueError, match=r"01\.ipynb, cell \[2\] is not Python: invalid syntax"):
            carried(tmp_path)

    @pytest.mark.parametrize("text", ["", "not JSON", "[]", "{}", '{"cells": 3}', '{"cells": [{}]}'])
    def test_says_in_one_line_that_a_file_is_no_notebook(self, text, tmp_path):
        (tmp_path / "01.ipynb").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"^[^\n]*01\.ipynb is not a notebook: [^\n]*$"):
            carried(tmp_path)

    def test_says_that_there_is_no_such_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no folder .*nowhere"):
            carried(tmp_path / "nowhere")
