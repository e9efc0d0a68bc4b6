"""Accuracy against retrievals in the demo: the picture of the front page and of README."""

from __future__ import annotations

from typing import Literal, NamedTuple

from generator.results import demo_groups, demo_mean

from figures.svg import Canvas, Colour


class Label(NamedTuple):
    """How a point is named: text, colour, and place of the text relative to the point."""

    text: str
    colour: Colour
    dx: float
    dy: float
    anchor: Literal["start", "middle", "end"] = "middle"


LABELS: dict[tuple[str, str], Label] = {
    ("direct", "base"): Label("direct answer", "muted", 14, -2, "start"),
    ("cot", "base"): Label("chain of thought", "muted", 14, 18, "start"),
    ("rag", "base"): Label("retrieve once", "muted", 16, -4, "start"),
    ("deeprag-parametric", "stage 2"): Label("Stage II, never retrieve", "memory", 14, 0, "start"),
    ("deeprag", "stage 1"): Label("DeepRAG, Stage I", "retrieve", -14, 22, "end"),
    ("deeprag", "stage 2"): Label("DeepRAG, Stage II", "good", -60, -32),
    ("deeprag-retrieve", "stage 2"): Label("Stage II, always retrieve", "memory", -24, 52),
    ("deeprag-retrieve", "base"): Label("base model, always retrieve", "muted", -30, -40),
}
"""The points, by strategy and model."""


def draw() -> Canvas:
    """Exact match against retrievals a question: the mean of three seeds, and each seed as a faint point."""
    width, height, left, right, top, bottom, size = 620, 440, 62, 22, 40, 64, 15.5
    canvas = Canvas(width, height, "Exact match against retrievals a question in the mini world")

    def x(retrievals: float) -> float:
        return left + (width - left - right) * retrievals / 3

    def y(share: float) -> float:
        return height - bottom - (height - top - bottom) * share / 0.7

    canvas.text(left, 22, "mini world, 2 to 4 hops; small points: single seeds", colour="muted", anchor="start")
    for tick in range(0, 8):
        canvas.line((left, y(tick / 10)), (width - right, y(tick / 10)), width=0.5 if tick else 1.5)
        canvas.text(left - 10, y(tick / 10) + 5, f"{tick * 10}", size=size, colour="muted", anchor="end")
    for tick in (0, 0.5, 1, 1.5, 2, 2.5, 3):
        canvas.text(x(tick), height - bottom + 22, f"{tick:g}", size=size, colour="muted")
    canvas.text((left + width - right) / 2, height - 12, "retrievals a question", size=size)
    canvas.text(20, (height - bottom + top) / 2, "exact match, %", size=size, rotate=-90)
    groups = demo_groups()
    for key, label in LABELS.items():
        for run in groups[key]:
            canvas.dot(x(run["retrievals"]["mean"]), y(run["em"]["mean"]), 3, label.colour, faint=True)
        px, py = x(demo_mean(*key, "retrievals")), y(demo_mean(*key, "em"))
        canvas.dot(px, py, 7, label.colour)
        bold = label.colour == "good"
        place = (px + label.dx, py + label.dy + 4)
        canvas.text(*place, label.text, size=size, colour=label.colour, anchor=label.anchor, bold=bold)
    (x0, y0), (x1, y1) = (
        (x(demo_mean(name, "stage 2", "retrievals")), y(demo_mean(name, "stage 2", "em")))
        for name in ("deeprag-retrieve", "deeprag")
    )
    canvas.arrow((x0 - 12, y0 - 1), (x1 + 12, y1 + 2), colour="good", dashed=True)
    return canvas
