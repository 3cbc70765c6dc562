"""Pictures as outputs of a notebook: one bundle of a PNG and a sentence for those who do not see it."""

from __future__ import annotations

import base64
import io

from IPython import get_ipython
from IPython.display import DisplayHandle, display
from matplotlib import pyplot
from matplotlib.figure import Figure

from lessons.live.style import applied

FEWEST_WORDS = 4  # of a sentence


@applied()
def png(figure: Figure, compression: int = 9) -> bytes:
    """The figure as a PNG. Compression 1 is for a frame that is soon replaced, 9 for one that is kept."""
    file = io.BytesIO()
    # Figure.savefig would take margins and resolution from the reader's settings.
    figure.canvas.print_png(file, pil_kwargs={"compress_level": compression})
    return file.getvalue()


def bundle(figure: Figure, alt: str, compression: int = 9) -> dict[str, str]:
    """The picture and its alternative text as Jupyter's media types.

    Raises ValueError if `alt` is not at least one full sentence.
    """
    alt = " ".join(alt.split())
    if len(alt.split()) < FEWEST_WORDS or alt[-1] not in ".!?":
        raise ValueError(
            f"alt must say in a full sentence what the picture shows, with its key numbers, not {alt!r}"
        )
    return {"image/png": base64.b64encode(png(figure, compression)).decode("ascii"), "text/plain": alt}


def show(figure: Figure, alt: str) -> None:
    """Show a figure with its alternative text, and close it. Without a notebook, print the text.

    Raises ValueError if `alt` is not at least one full sentence.
    """
    _show(bundle(figure, alt))
    pyplot.close(figure)  # if pyplot made it, the notebook would show it once more


class LiveFigure:
    """One output of a notebook whose picture changes while the cell runs; the last one stays.

        with LiveFigure(artists.figure) as live:
            for numbers in run:
                artists.draw(numbers)
                live.refresh(numbers.alt)

    Without a notebook nothing appears before the end, and then what `show` would print.
    """

    def __init__(self, figure: Figure) -> None:
        self.figure, self.alt = figure, None
        self.handle: DisplayHandle | None = None

    def refresh(self, alt: str) -> None:
        """Show the figure as it is now. Raises ValueError if `alt` is not at least one full sentence."""
        data = bundle(self.figure, alt, compression=1)
        self.alt = alt
        if not _in_notebook():
            return
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if self.alt is None:  # nothing was drawn
            return
        data = bundle(self.figure, self.alt)
        if self.handle is None:
            _show(data)
        else:
            self.handle.update(data, raw=True)
        pyplot.close(self.figure)


def _in_notebook() -> bool:
    return hasattr(get_ipython(), "kernel")


def _show(data: dict[str, str]) -> None:
    if _in_notebook():
        display(data, raw=True)
    else:
        print(data["text/plain"])
