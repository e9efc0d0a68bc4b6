"""Accuracy against retrievals in the demos. That on a real model is the picture of the front page and of README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from generator.results import DEMO, demo_groups, demo_mean

from figures.svg import Canvas, Colour


class Label(NamedTuple):
    """How a point is named: text, colour, and place of the text relative to the point."""

    text: str
    colour: Colour
    dx: float
    dy: float
    anchor: Literal["start", "middle", "end"] = "middle"


MINI_WORLD: dict[tuple[str, str], Label] = {
    ("direct", "cold start"): Label("direct answer", "muted", 14, -2, "start"),
    ("rag", "cold start"): Label("retrieve once", "muted", 16, -4, "start"),
    ("deeprag-parametric", "stage 2"): Label("Stage II, never retrieve", "memory", 14, 0, "start"),
    ("deeprag", "stage 1"): Label("DeepRAG, Stage I", "retrieve", 8, 42, "end"),
    ("deeprag", "stage 2"): Label("DeepRAG, Stage II", "good", -30, 0, "end"),
    ("deeprag-retrieve", "stage 2"): Label("Stage II, always retrieve", "memory", -30, -34),
    ("deeprag-retrieve", "cold start"): Label("cold start, always retrieve", "muted", -36, 42),
}
"""The points of the demo in the mini world, by strategy and model."""
ATLAS: dict[tuple[str, str], Label] = {
    ("direct", "cold start"): Label("direct answer", "muted", 14, -6, "start"),
    ("cot", "cold start"): Label("chain of thought", "muted", 14, 10, "start"),
    ("rag", "cold start"): Label("retrieve once", "muted", 0, 26),
    ("deeprag-parametric", "stage 2"): Label("Stage II, never retrieve", "memory", 14, 0, "start"),
    ("deeprag", "cold start"): Label("DeepRAG, cold start", "muted", -16, 8, "end"),
    ("deeprag", "stage 1"): Label("DeepRAG, Stage I", "retrieve", 30, -30),
    ("deeprag", "stage 2"): Label("DeepRAG, Stage II", "good", -22, -16, "end"),
    ("deeprag-retrieve", "stage 2"): Label("Stage II, always retrieve", "memory", 24, 48),
    ("deeprag-retrieve", "cold start"): Label("cold start,\nalways retrieve", "muted", 16, 8, "start"),
}
"""The points of the demo on a real model."""


def draw() -> Canvas:
    """Exact match against retrievals in the mini world's demo."""
    return _scatter(DEMO, MINI_WORLD, "mini world, 2 to 4 hops; small points: single seeds")


def draw_atlas() -> Canvas:
    """Exact match against retrievals in the demo on a real model."""
    return _scatter("atlas", ATLAS, "real facts, SmolLM2, 2 to 4 hops; small points: single seeds")


def _scatter(name: str, labels: Mapping[tuple[str, str], Label], note: str) -> Canvas:
    """Exact match against retrievals a question: the mean over seeds, and each seed as a faint point."""
    width, height, left, right, top, bottom, size = 620, 440, 62, 22, 40, 64, 15.5
    canvas = Canvas(width, height, f"Exact match against retrievals a question: {note}")

    def x(retrievals: float) -> float:
        return left + (width - left - right) * retrievals / 3

    def y(share: float) -> float:
        return height - bottom - (height - top - bottom) * share / 0.7

    canvas.text(left, 22, note, colour="muted", anchor="start")
    for tick in range(0, 8):
        canvas.line((left, y(tick / 10)), (width - right, y(tick / 10)), width=0.5 if tick else 1.5)
        canvas.text(left - 10, y(tick / 10) + 5, f"{tick * 10}", size=size, colour="muted", anchor="end")
    for tick in (0, 0.5, 1, 1.5, 2, 2.5, 3):
        canvas.text(x(tick), height - bottom + 22, f"{tick:g}", size=size, colour="muted")
    canvas.text((left + width - right) / 2, height - 12, "retrievals a question", size=size)
    canvas.text(20, (height - bottom + top) / 2, "exact match, %", size=size, rotate=-90)
    groups = demo_groups(name)
    for key, label in labels.items():
        for run in groups[key]:
            canvas.dot(x(run["retrievals"]["mean"]), y(run["em"]["mean"]), 3, label.colour, faint=True)
        px, py = x(demo_mean(*key, "retrievals", name)), y(demo_mean(*key, "em", name))
        canvas.dot(px, py, 7, label.colour)
        bold = label.colour == "good"
        place = (px + label.dx, py + label.dy + 4)
        canvas.text(*place, label.text, size=size, colour=label.colour, anchor=label.anchor, bold=bold)
    return canvas
