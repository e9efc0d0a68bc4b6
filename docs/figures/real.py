"""Every strategy on a real model: what tuning is worth, and exact match of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from generator.results import paired_gains, real_runs

from figures.svg import Canvas, Colour

SYSTEMS = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")
"""The strategies of the five papers, which are drawn in colour."""
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 200, 24, 58


def draw_gains(name: str, questions: str | None = "atlas") -> Canvas:
    """Exact match of the untuned and the tuned model, joined by a line, and the difference with its interval.

    ``questions``: name of the set; None for all sets together.
    """
    rows = sorted(paired_gains(name, questions).rows, key=lambda row: -float(row[3]))
    last = {strategy: difference for strategy, _, _, _, difference, *_ in rows}
    canvas = _frame("Exact match of the untuned and the tuned model", "difference", last)
    canvas.dot(LEFT, 20, 6, "ink", hollow=True)
    canvas.text(LEFT + 14, 25, "untuned", anchor="start")
    canvas.dot(LEFT + 96, 20, 6, "ink")
    canvas.text(LEFT + 110, 25, "tuned", anchor="start")
    for (_, _, untuned, tuned, *_), (y, colour) in zip(rows, _places(last), strict=True):
        start, end = _x(float(untuned)), _x(float(tuned))
        if abs(end - start) > 6:  # the line begins at the ring's edge
            canvas.line((start + math.copysign(6, end - start), y), (end, y), colour=colour, width=2.5)
        canvas.dot(start, y, 6, colour, hollow=True)
        canvas.dot(end, y, 6, colour)
    return canvas


def draw_strategies(name: str, questions: str = "atlas") -> Canvas:
    """Exact match of every strategy with the tuned model, with its 95% interval, and its retrievals."""
    runs = [run for run in real_runs(name, questions) if run.stage == "tuned"]
    last = {run.strategy: f"{run.retrievals.mean:.2f}" for run in runs}
    canvas = _frame("Exact match of every strategy with the tuned model", "retrievals", last)
    canvas.text(LEFT, 25, "tuned model, 95% intervals", colour="muted", anchor="start")
    for run, (y, colour) in zip(runs, _places(last), strict=True):
        canvas.line((_x(100 * run.em.lo), y), (_x(100 * run.em.hi), y), colour=colour, width=2.5)
        canvas.dot(_x(100 * run.em.mean), y, 5, colour)
    return canvas


def _frame(title: str, head: str, last: Mapping[str, str]) -> Canvas:
    """Return a canvas with an axis of percent and a row for each strategy; ``last`` has the text at its end."""
    bottom = TOP + ROW * len(last)
    canvas = Canvas(WIDTH, bottom + 12, title)
    for tick in range(0, 101, 20):
        canvas.line((_x(tick), TOP - 4), (_x(tick), bottom + 4), width=0.5 if tick else 1.5)
        canvas.text(_x(tick), TOP - 10, f"{tick}", colour="muted", size=13)
    canvas.text(LEFT - 14, TOP - 10, "exact match, %", colour="muted", anchor="end", size=13)
    canvas.text(WIDTH - 8, TOP - 10, head, colour="muted", anchor="end", size=13)
    for (strategy, text), (y, colour) in zip(last.items(), _places(last), strict=True):
        canvas.text(LEFT - 14, y + 5, strategy, colour=colour, anchor="end", mono=True, size=13)
        canvas.text(WIDTH - 8, y + 5, text, colour="muted", anchor="end", size=13)
    return canvas


def _x(percent: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * percent / 100


def _places(strategies: Mapping[str, str]) -> Iterator[tuple[float, Colour]]:
    """Yield the height and the colour of each strategy's row."""
    for place, strategy in enumerate(strategies):
        yield TOP + ROW * (place + 0.5), "retrieve" if strategy.partition("-")[0] in SYSTEMS else "muted"
