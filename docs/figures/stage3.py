"""Stage III: accuracy against retrievals, beside the earlier models, and the rewards of a training."""

from __future__ import annotations

import math

from generator.stage3 import credit_curves, frontier_points

from figures.svg import Canvas, Colour

COLOURS: dict[str, Colour] = {"cold start": "muted", "stage 1": "retrieve", "stage 2": "memory"}
NAMES = {"cold start": "cold start", "stage 1": "Stage I", "stage 2": "Stage II"}
ARMS: dict[str, tuple[str, Colour]] = {
    "tree credit": ("tree credit", "good"),
    "plain GRPO": ("plain GRPO", "memory"),
}


def draw_frontier(name: str) -> Canvas:
    """Exact match against retrievals, the mean over seeds: lines are thresholds, rings are Stage III's prices.

    ``name``: the results file of the benchmark.
    """
    earlier, later = frontier_points(name)
    width, height, left, right, top, bottom, size = 620, 440, 62, 22, 64, 64, 15.5
    canvas = Canvas(width, height, "Exact match against retrievals: Stage III beside thresholds of earlier models")
    shares = [point.em for points in (*earlier.values(), *later.values()) for point in points]
    lowest, highest = math.floor(20 * min(shares)) / 20, math.ceil(20 * max(shares)) / 20

    def at(retrievals: float, em: float) -> tuple[float, float]:
        x = left + (width - left - right) * retrievals / 3
        return x, height - bottom - (height - top - bottom) * (em - lowest) / (highest - lowest)

    for i, model in enumerate(earlier):
        canvas.line((left + 190 * i, 18), (left + 190 * i + 24, 18), colour=COLOURS[model], width=2)
        canvas.text(left + 190 * i + 30, 23, f"{NAMES[model]}, thresholds", colour=COLOURS[model], anchor="start")
    for i, start in enumerate(later):
        canvas.dot(left + 190 * (i + 1) + 12, 40, 6, COLOURS[start], hollow=True)
        label = f"{NAMES[start]}, then III"
        canvas.text(left + 190 * (i + 1) + 30, 45, label, colour=COLOURS[start], anchor="start")
    for tick in range(round(20 * lowest), round(20 * highest) + 1):
        canvas.line(at(0, tick / 20), at(3, tick / 20), width=0.5 if tick > 20 * lowest else 1.5)
        canvas.text(left - 10, at(0, tick / 20)[1] + 5, f"{5 * tick}", size=size, colour="muted", anchor="end")
    for half in range(7):
        canvas.text(at(half / 2, 0)[0], height - bottom + 22, f"{half / 2:g}", size=size, colour="muted")
    canvas.text((left + width - right) / 2, height - 12, "retrievals a question", size=size)
    canvas.text(20, (height - bottom + top) / 2, "exact match, %", size=size, rotate=-90)
    for model, points in earlier.items():
        places = [at(point.retrievals, point.em) for point in sorted(points)]
        canvas.line(*places, colour=COLOURS[model], width=2, dashed=model == "cold start")
        for place in places:
            canvas.dot(*place, 2.5, COLOURS[model])
    for start, points in later.items():
        for point in points:
            x, y = at(point.retrievals, point.em)
            canvas.dot(x, y, 6, COLOURS[start], hollow=True)
            below = 34 if start == "stage 2" else 0  # the labels of both starts stay apart
            canvas.text(x, y - 12 + below, f"{point.setting:g}", size=12.5, colour=COLOURS[start], bold=True)
    return canvas


def draw_rewards(name: str) -> Canvas:
    """Mean reward of the sampled rollouts against the engine tokens so far, one line for each arm.

    A line is the mean over seeds, and its band the 95% interval of that mean. ``name``: the results file.
    """
    curves = {arm: credit_curves(name, arm) for arm in ARMS}
    width, height, left, right, top, bottom, size = 620, 400, 66, 22, 44, 64, 15.5
    canvas = Canvas(width, height, "Reward of the sampled rollouts against engine tokens")
    drawn = [point for curve in curves.values() for point in curve]
    most = max(point.tokens for point in drawn)
    lowest = math.floor(10 * min(point.lo for point in drawn)) / 10
    highest = math.ceil(10 * max(point.hi for point in drawn)) / 10

    def at(tokens: float, reward: float) -> tuple[float, float]:
        x = left + (width - left - right) * tokens / most
        return x, height - bottom - (height - top - bottom) * (reward - lowest) / (highest - lowest)

    for i, (label, colour) in enumerate(ARMS.values()):
        canvas.line((left + 185 * i, 18), (left + 185 * i + 24, 18), colour=colour, width=2.5)
        canvas.text(left + 185 * i + 30, 23, label, colour=colour, anchor="start")
    for tick in range(round(10 * lowest), round(10 * highest) + 1):
        canvas.line(at(0, tick / 10), at(most, tick / 10), width=0.5 if tick > 10 * lowest else 1.5)
        canvas.text(left - 10, at(0, tick / 10)[1] + 5, f"{tick / 10:.1f}", size=size, colour="muted", anchor="end")
    for tenth in range(0, 11, 2):
        tokens = most * tenth / 10
        canvas.text(at(tokens, 0)[0], height - bottom + 22, f"{tokens / 1e6:.1f}", size=size, colour="muted")
    canvas.text((left + width - right) / 2, height - 12, "engine tokens, millions", size=size)
    canvas.text(20, (height - bottom + top) / 2, "mean reward", size=size, rotate=-90)
    for arm, curve in curves.items():
        colour = ARMS[arm][1]
        for edge in ("lo", "hi"):
            canvas.line(*(at(point.tokens, getattr(point, edge)) for point in curve), colour=colour, width=0.7)
        canvas.line(*(at(point.tokens, point.mean) for point in curve), colour=colour, width=2.5)
    return canvas
