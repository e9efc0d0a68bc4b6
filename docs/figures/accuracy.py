"""Accuracy against retrievals in the demos. That on a real model is the picture of the front page and of README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from generator.results import DEMO, demo_groups, demo_mean

from figures.axes import RETRIEVALS, SIZE, Axes
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
    canvas = Canvas(620, 440, f"Exact match against retrievals a question: {note}")
    axes = Axes(canvas=canvas, x=(0, 3), y=(0, 0.7), top=40)
    canvas.text(axes.left, 22, note, colour="muted", anchor="start")
    shares = {tick / 10: f"{tick * 10}" for tick in range(8)}
    axes.draw("retrievals a question", RETRIEVALS, "exact match, %", shares)
    groups = demo_groups(name)
    for key, label in labels.items():
        for run in groups[key]:
            canvas.dot(*axes.at(run["retrievals"]["mean"], run["em"]["mean"]), 3, label.colour, faint=True)
        px, py = axes.at(demo_mean(*key, "retrievals", name), demo_mean(*key, "em", name))
        canvas.dot(px, py, 7, label.colour)
        bold = label.colour == "good"
        place = (px + label.dx, py + label.dy + 4)
        canvas.text(*place, label.text, size=SIZE, colour=label.colour, anchor=label.anchor, bold=bold)
    return canvas
