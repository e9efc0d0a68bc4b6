"""Reliability of a demo's decisions, stage by stage."""

from __future__ import annotations

import math

from generator.results import demo_reliability

from figures.svg import Canvas

STAGES = {"cold start": "cold start", "stage 1": "Stage I", "stage 2": "Stage II"}


def draw_reliability(name: str) -> Canvas:
    """How often the starting model does not know a fact, against the probability that the controller retrieves it.

    One panel for each stage. The area of a point grows with the number of steps. ``name``: the demo's results file.
    """
    side, gap, left, top, size = 220, 44, 62, 46, 15
    canvas = Canvas(left + 3 * side + 2 * gap + 16, top + side + 64, "Reliability of the decision to retrieve")
    for panel, (stage, title) in enumerate(STAGES.items()):
        start = left + panel * (side + gap)
        found = demo_reliability(name, stage)

        def at(probability: float, frequency: float, start: float = start) -> tuple[float, float]:
            return start + side * probability, top + side * (1 - frequency)

        canvas.heading(start, 20, title)
        canvas.note(start, 37, f"{found.count:,} steps, calibration error {found.ece:.2f}")
        for tick in (0, 0.5, 1):
            canvas.line(at(0, tick), at(1, tick), width=0.5 if tick else 1.5)
            canvas.text(at(tick, 0)[0], top + side + 20, f"{tick:g}", size=size, colour="muted")
            if not panel:
                canvas.text(left - 10, at(0, tick)[1] + 5, f"{tick:g}", size=size, colour="muted", anchor="end")
        canvas.line(at(0, 0), at(1, 1), dashed=True)
        for point in found.bins:
            radius = 2 + 14 * math.sqrt(point.count / found.count)
            canvas.dot(*at(point.probability, point.frequency), radius, "good", faint=True)
            canvas.dot(*at(point.probability, point.frequency), 2, "good")
    middle = left + (3 * side + 2 * gap) / 2
    canvas.text(middle, top + side + 48, "probability of retrieving, as the controller gives it", size=size)
    canvas.text(18, top + side / 2, "share of facts not known", size=size, rotate=-90)
    return canvas
