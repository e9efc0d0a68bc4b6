"""Every strategy on a real model: what tuning is worth, and exact match of all."""

from __future__ import annotations

import math
from collections.abc import Callable

from generator.results import paired_gains, real_runs

from figures.svg import Canvas, Colour

SYSTEMS = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")
"""The strategies of the five papers, which are drawn in colour."""
LEFT, RIGHT, ROW, TOP = 190, 200, 24, 58


def draw_gains(name: str, questions: str = "atlas") -> Canvas:
    """Exact match of the untuned and the tuned model, joined by a line, and the difference with its interval."""
    rows = sorted(paired_gains(name, questions).rows, key=lambda row: -float(row[3]))
    canvas, x = _frame("Exact match of the untuned and the tuned model", len(rows), "difference")
    canvas.dot(LEFT, 20, 6, "ink", hollow=True)
    canvas.text(LEFT + 14, 25, "untuned", anchor="start")
    canvas.dot(LEFT + 96, 20, 6, "ink")
    canvas.text(LEFT + 110, 25, "tuned", anchor="start")
    for place, (strategy, _, untuned, tuned, difference, *_) in enumerate(rows):
        y, colour = TOP + ROW * (place + 0.5), _colour(strategy)
        canvas.text(LEFT - 14, y + 5, strategy, colour=colour, anchor="end", mono=True, size=13)
        start, end = x(float(untuned)), x(float(tuned))
        if abs(end - start) > 6:  # the line begins at the ring's edge
            canvas.line((start + math.copysign(6, end - start), y), (end, y), colour=colour, width=2.5)
        canvas.dot(start, y, 6, colour, hollow=True)
        canvas.dot(end, y, 6, colour)
        canvas.text(canvas.width - 8, y + 5, difference, colour="muted", anchor="end", size=13)
    return canvas


def draw_strategies(name: str, questions: str = "atlas") -> Canvas:
    """Exact match of every strategy with the tuned model, with its 95% interval, and its retrievals."""
    runs = [run for run in real_runs(name, questions) if run.stage == "tuned"]
    canvas, x = _frame("Exact match of every strategy with the tuned model", len(runs), "retrievals")
    canvas.text(LEFT, 25, "tuned model, 95% intervals", colour="muted", anchor="start")
    for place, run in enumerate(runs):
        y, colour = TOP + ROW * (place + 0.5), _colour(run.strategy)
        canvas.text(LEFT - 14, y + 5, run.strategy, colour=colour, anchor="end", mono=True, size=13)
        canvas.line((x(100 * run.em.lo), y), (x(100 * run.em.hi), y), colour=colour, width=2.5)
        canvas.dot(x(100 * run.em.mean), y, 5, colour)
        canvas.text(canvas.width - 8, y + 5, f"{run.retrievals.mean:.2f}", colour="muted", anchor="end", size=13)
    return canvas


def _frame(title: str, rows: int, last: str) -> tuple[Canvas, Callable[[float], float]]:
    """Return a canvas with an axis of percent above ``rows`` rows, and the function from percent to its place."""
    canvas = Canvas(760, TOP + ROW * rows + 12, title)
    width = canvas.width - LEFT - RIGHT

    def x(percent: float) -> float:
        return LEFT + width * percent / 100

    for tick in range(0, 101, 20):
        canvas.line((x(tick), TOP - 4), (x(tick), TOP + ROW * rows + 4), width=0.5 if tick else 1.5)
        canvas.text(x(tick), TOP - 10, f"{tick}", colour="muted", size=13)
    canvas.text(LEFT - 14, TOP - 10, "exact match, %", colour="muted", anchor="end", size=13)
    canvas.text(canvas.width - 8, TOP - 10, last, colour="muted", anchor="end", size=13)
    return canvas, x


def _colour(strategy: str) -> Colour:
    return "retrieve" if strategy.partition("-")[0] in SYSTEMS else "muted"
