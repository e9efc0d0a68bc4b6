"""The results of a sweep as a table, and as an HTML page with parallel coordinates that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rag_train.files import write_text
from rag_train.sweeps.file import Sweep
from rag_train.sweeps.study import Trial, best_of
from rag_train.table import NOTHING, Table
from rag_train.templates import template

STRIDE, TOP, BOTTOM = 170, 44, 330
"""Distance between axes, and the heights of their upper and lower ends, in SVG units."""


def trials_table(sweep: Sweep, trials: list[Trial]) -> Table:
    """Return a table of all trials, the best trial first and trials without a value last."""
    ranked = best_of(sweep, trials)
    rows = [
        [
            str(trial.number),
            *(_label(value) for value in trial.parameters.values()),
            NOTHING if trial.value is None else f"{trial.value:.6g}",
            f"{trial.seconds:.0f}",
            trial.state,
        ]
        for trial in [*ranked, *(trial for trial in trials if trial.value is None)]
    ]
    which = "on held-out examples, of the weights kept" if sweep.recipe.eval_data else "the value last logged"
    return Table(
        title=f"{sweep.path.stem}: {len(ranked)} of {len(trials)} trials finished",
        caption=f"By {sweep.metric}, {which}; {'higher' if sweep.maximize else 'lower'} is better.",
        columns=["trial", *sweep.space, sweep.metric, "seconds", "outcome"],
        rows=rows,
        notes=[f"Trial {trial.number}: {trial.error}" for trial in trials if trial.error],
        importance=[(n := len(sweep.space)) + 1, *range(1, n + 1), n + 3, n + 2],
    )


@dataclass(frozen=True)
class Axis:
    """A vertical axis; ``ticks`` are (height, label), ``at`` returns the height of a value."""

    name: str
    x: int
    ticks: list[tuple[float, str]]
    at: Callable[[Any], float]


@dataclass(frozen=True)
class Line:
    """A trial's line: its points, its shade from 1 to 5 (the best fifth), and its tooltip."""

    points: str
    shade: int
    best: bool
    tooltip: str


def write_page(path: Path, sweep: Sweep, trials: list[Trial]) -> None:
    """Write the page to ``path``. Its axes are the parameters that vary and the metric; its lines, the finished
    trials."""
    ranked = best_of(sweep, trials)
    varied = {name: d for name, d in sweep.space.items() if not d.single()}
    axes = [_parameter_axis(name, d, 70 + STRIDE * i) for i, (name, d) in enumerate(varied.items())]
    values = [trial.value for trial in ranked if trial.value is not None]
    axes.append(_number_axis(sweep.metric, 70 + STRIDE * len(axes), values, log=False))
    lines = []
    for rank, trial in enumerate(ranked):
        point = [*(trial.parameters[name] for name in varied), trial.value]
        lines.append(
            Line(
                points=" ".join(f"{axis.x},{axis.at(value)}" for axis, value in zip(axes, point, strict=True)),
                shade=5 - rank * 5 // len(ranked),
                best=rank == 0,
                tooltip=f"trial {trial.number}: "
                + ", ".join(f"{axis.name} {_label(value)}" for axis, value in zip(axes, point, strict=True)),
            )
        )
    page = template("sweeps/page.html.jinja").render(
        title=sweep.path.stem,
        sweep=sweep,
        axes=axes,
        lines=lines[::-1],  # drawn in this order, so that the best trial is on top
        table=Markup(trials_table(sweep, trials).html()),
        width=140 + STRIDE * (len(axes) - 1),
        top=TOP,
        bottom=BOTTOM,
    )
    write_text(path, page)


def _parameter_axis(name: str, distribution: BaseDistribution, x: int) -> Axis:
    if isinstance(distribution, CategoricalDistribution):
        numbers = [choice for choice in distribution.choices if isinstance(choice, int | float)]
        choices = sorted(numbers) if len(numbers) == len(distribution.choices) else list(distribution.choices)
        heights = [_between(i / (len(choices) - 1)) for i in range(len(choices))]
        ticks = [(height, _label(choice)) for height, choice in zip(heights, choices, strict=True)]
        return Axis(name, x, ticks, lambda value: heights[choices.index(value)])
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return _number_axis(name, x, [distribution.low, distribution.high], log=distribution.log)


def _number_axis(name: str, x: int, values: Sequence[float], *, log: bool) -> Axis:
    """Return an axis from the lowest to the highest of ``values``, with five ticks."""
    scale, back = (math.log, math.exp) if log else (float, float)
    low, high = (scale(f(values, default=0.0)) for f in (min, max))
    span = high - low or 1.0
    ticks = [(_between(i / 4), _label(back(low + i / 4 * span))) for i in range(5)]
    return Axis(name, x, ticks, lambda value: _between((scale(value) - low) / span))


def _between(share: float) -> float:
    return round(BOTTOM - share * (BOTTOM - TOP), 1)


def _label(value: Any) -> str:
    """Format a value: a float with four digits, text without quotes, any other value as JSON."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
