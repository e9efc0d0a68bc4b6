"""Stage III: accuracy against retrievals, beside the earlier models, and the rewards of a training."""

from __future__ import annotations

import math

from generator.stage3 import credit_curves, frontier_points

from figures.axes import RETRIEVALS, Axes
from figures.reliability import STAGES
from figures.svg import Canvas, Colour
from rag_train.eval.benchmarks.credit import PLAIN, TREE

COLOURS: dict[str, Colour] = {"cold start": "muted", "stage 1": "retrieve", "stage 2": "memory"}
ARMS: dict[str, Colour] = {TREE: "good", PLAIN: "memory"}


def draw_frontier(name: str) -> Canvas:
    """Exact match against retrievals, the mean over seeds: lines are thresholds, rings are Stage III's prices.

    ``name``: the results file of the benchmark.
    """
    earlier, later = frontier_points(name)
    canvas = Canvas(620, 440, "Exact match against retrievals: Stage III beside thresholds of earlier models")
    shares = [point.em for points in (*earlier.values(), *later.values()) for point in points]
    lowest, highest = math.floor(20 * min(shares)) / 20, math.ceil(20 * max(shares)) / 20
    axes = Axes(canvas=canvas, x=(0, 3), y=(lowest, highest), top=64)
    for i, model in enumerate(earlier):
        start = axes.left + 190 * i
        canvas.line((start, 18), (start + 24, 18), colour=COLOURS[model], width=2)
        canvas.text(start + 30, 23, f"{STAGES[model]}, thresholds", colour=COLOURS[model], anchor="start")
    for i, model in enumerate(later, start=1):
        start = axes.left + 190 * i
        canvas.dot(start + 12, 40, 6, COLOURS[model], hollow=True)
        canvas.text(start + 30, 45, f"{STAGES[model]}, then III", colour=COLOURS[model], anchor="start")
    ticks = {tick / 20: f"{5 * tick}" for tick in range(round(20 * lowest), round(20 * highest) + 1)}
    axes.draw("retrievals a question", RETRIEVALS, "exact match, %", ticks)
    for model, points in earlier.items():
        places = [axes.at(point.retrievals, point.em) for point in sorted(points)]
        canvas.line(*places, colour=COLOURS[model], width=2, dashed=model == "cold start")
        for place in places:
            canvas.dot(*place, 2.5, COLOURS[model])
    for model, points in later.items():
        for point in points:
            x, y = axes.at(point.retrievals, point.em)
            canvas.dot(x, y, 6, COLOURS[model], hollow=True)
            below = 34 if model == "stage 2" else 0  # the labels of both starts stay apart
            canvas.text(x, y - 12 + below, f"{point.setting:g}", size=12.5, colour=COLOURS[model], bold=True)
    return canvas


def draw_rewards(name: str) -> Canvas:
    """Mean reward of the sampled rollouts against the engine tokens so far, one line for each arm.

    A line is the mean over seeds, and its band the 95% interval of that mean, drawn from three seeds on. ``name``:
    the results file.
    """
    curves = {arm: credit_curves(name, arm) for arm in ARMS}
    canvas = Canvas(620, 400, "Reward of the sampled rollouts against engine tokens")
    drawn = [point for curve in curves.values() for point in curve]
    most = max(point.tokens for point in drawn)
    lowest = math.floor(10 * min(point.lo for point in drawn)) / 10
    highest = math.ceil(10 * max(point.hi for point in drawn)) / 10
    axes = Axes(canvas=canvas, x=(0, most), y=(lowest, highest), left=66, top=44)
    for i, (arm, colour) in enumerate(ARMS.items()):
        start = axes.left + 185 * i
        canvas.line((start, 18), (start + 24, 18), colour=colour, width=2.5)
        canvas.text(start + 30, 23, arm, colour=colour, anchor="start")
    tokens = {most * tenth / 10: f"{most * tenth / 10 / 1e6:.1f}" for tenth in range(0, 11, 2)}
    rewards = {tick / 10: f"{tick / 10:.1f}" for tick in range(round(10 * lowest), round(10 * highest) + 1)}
    axes.draw("engine tokens, millions", tokens, "mean reward", rewards)
    for arm, curve in curves.items():
        for edge in ("lo", "hi"):
            canvas.line(
                *(axes.at(point.tokens, getattr(point, edge)) for point in curve), colour=ARMS[arm], width=0.7
            )
        canvas.line(*(axes.at(point.tokens, point.mean) for point in curve), colour=ARMS[arm], width=2.5)
    return canvas
