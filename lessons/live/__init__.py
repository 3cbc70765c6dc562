"""What the lessons' pictures have in common: one style, one way to show a figure, one to redraw it."""

from lessons.live.figure import LiveFigure, show

__all__ = ["LiveFigure", "show"]
