"""Axes of a plot: lines across it, numbers at its edges, and titles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from figures.svg import Canvas

RETRIEVALS = {half / 2: f"{half / 2:g}" for half in range(7)}
"""Numbers of an axis of retrievals a question."""
SIZE = 15.5
"""Size of the text at the axes."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Axes on a canvas; ``x`` and ``y`` are their ranges, the others the widths of the margins."""

    canvas: Canvas
    x: tuple[float, float]
    y: tuple[float, float]
    left: float = 62
    right: float = 22
    top: float
    bottom: float = 64

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point on the canvas."""
        width = self.canvas.width - self.left - self.right
        height = self.canvas.height - self.top - self.bottom
        return (
            self.left + width * (x - self.x[0]) / (self.x[1] - self.x[0]),
            self.canvas.height - self.bottom - height * (y - self.y[0]) / (self.y[1] - self.y[0]),
        )

    def draw(self, x_title: str, xs: Mapping[float, str], y_title: str, ys: Mapping[float, str]) -> None:
        """Draw a line across the plot for each of ``ys``, the numbers of both axes, and their titles."""
        canvas, floor = self.canvas, self.canvas.height - self.bottom
        for y, text in ys.items():
            canvas.line(self.at(self.x[0], y), self.at(self.x[1], y), width=1.5 if y == self.y[0] else 0.5)
            canvas.text(self.left - 10, self.at(self.x[0], y)[1] + 5, text, size=SIZE, colour="muted", anchor="end")
        for x, text in xs.items():
            canvas.text(self.at(x, self.y[0])[0], floor + 22, text, size=SIZE, colour="muted")
        canvas.text((self.left + canvas.width - self.right) / 2, canvas.height - 12, x_title, size=SIZE)
        canvas.text(20, (floor + self.top) / 2, y_title, size=SIZE, rotate=-90)
