"""The results of a sweep as a table, and as an HTML page with plots that needs no network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rag_train.jobs.files import write_text
from rag_train.pages.scale import Choices, Scale, label, round_ends
from rag_train.sweeps.file import Sweep
from rag_train.sweeps.study import Trial, best_of, front_of
from rag_train.table import NOTHING, Table
from rag_train.templates import template
from rag_train.training.result import RESULT

STRIDE, TOP, BOTTOM = 210, 44, 330
"""Distance between the axes of the parallel coordinates, and the heights of their ends, in SVG units."""
WIDTH, HEIGHT = 360, 260
"""Size of a plot of the metric, in SVG units."""
POINTS = 200
"""Maximum number of points of a training's curve."""


def trials_table(sweep: Sweep, trials: list[Trial]) -> Table:
    """Return a table of all trials, the best trial first and trials without a value last.

    If their sizes differ, it has the trained parameters in millions, and which trials are on the Pareto front.
    """
    ranked, front = best_of(sweep, trials), front_of(sweep, trials)

    def size(trial: Trial) -> list[str]:
        if not front:
            return []
        return [NOTHING if trial.size is None else f"{trial.size / 1e6:.4g}", "yes" if trial in front else ""]

    rows = [
        [
            str(trial.number),
            *(label(value) for value in trial.parameters.values()),
            NOTHING if trial.value is None else f"{trial.value:.6g}",
            *size(trial),
            f"{trial.seconds:.0f}",
            trial.state,
        ]
        for trial in [*ranked, *(trial for trial in trials if trial.value is None)]
    ]
    added = ["trained, M", "front"] if front else []
    which = "on held-out examples, of the weights kept" if sweep.recipe.eval_data else "the value last logged"
    return Table(
        title=f"{sweep.path.stem}: {len(ranked)} of {len(trials)} trials finished",
        caption=f"By {sweep.metric}, {which}; {'higher' if sweep.maximize else 'lower'} is better.",
        columns=["trial", *sweep.space, sweep.metric, *added, "seconds", "outcome"],
        rows=rows,
        notes=[f"Trial {trial.number}: {trial.error}" for trial in trials if trial.error],
        importance=[(n := len(sweep.space)) + 1, *range(1, n + 1), *range(n + 4, n + 4 + len(added)), n + 3, n + 2],
    )


@dataclass(frozen=True)
class Line:
    """A trial's lines: its class, which says its rank, its tooltip, and the curve of its training."""

    trial: Trial
    rank: str
    tooltip: str
    curve: list[tuple[float, float]]


def write_page(path: Path, sweep: Sweep, trials: list[Trial]) -> None:
    """Write the page to ``path``, in the directory of the sweep.

    It has the best trial's command; the finished trials in parallel coordinates, whose axes are the parameters that
    vary and the metric; the metric against each parameter and, if they differ, against the trained parameters, with
    the Pareto front; and its course during the trainings.
    """
    ranked, front = best_of(sweep, trials), front_of(sweep, trials)
    varied = {name: d for name, d in sweep.space.items() if not d.single()}
    values = [trial.value for trial in ranked if trial.value is not None]
    lines = [_line(path.parent, sweep, trial, rank, len(ranked)) for rank, trial in enumerate(ranked)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    metric = Scale(low, high if high > low else low + 1.0, BOTTOM, TOP)
    axes = [*((name, _scale(d, BOTTOM, TOP)) for name, d in varied.items()), (sweep.metric, metric)]
    page = template("sweeps/page.html.jinja").render(
        title=sweep.path.stem,
        sweep=sweep,
        best=ranked[0] if ranked else None,
        command=shlex.join(sweep.command(ranked[0].parameters, "report_to=none")) if ranked else "",
        axes=[(110 + STRIDE * i, name, scale) for i, (name, scale) in enumerate(axes)],
        lines=lines[::-1],  # drawn in this order, so that the best trial is on top
        y=Scale(*round_ends(values), HEIGHT - 46, 14),
        scatters=[(name, _scale(d, 62, WIDTH - 24)) for name, d in varied.items()],
        front=front,
        millions=Scale(*_ends(trials), 62, 2 * WIDTH - 24, log=True) if front else None,
        course=_course([point for line in lines for point in line.curve]),
        table=Markup(trials_table(sweep, trials).html()),
        label=label,
        size=(200 + STRIDE * (len(axes) - 1), TOP, BOTTOM, WIDTH, HEIGHT),
    )
    write_text(path, page)


def _line(directory: Path, sweep: Sweep, trial: Trial, rank: int, count: int) -> Line:
    values = {**trial.parameters, sweep.metric: trial.value}
    tooltip = f"trial {trial.number}: " + ", ".join(f"{name} {label(value)}" for name, value in values.items())
    curve = _curve(directory / f"{trial.number:04d}" / RESULT, sweep.metric)
    return Line(trial, f"s{5 - rank * 5 // count}" if rank else "best", tooltip, curve)


def _curve(result: Path, metric: str) -> list[tuple[float, float]]:
    """Return steps and values of a metric during a training, at most `POINTS`; nothing without its result."""
    if not result.exists():
        return []
    training = json.loads(result.read_text())
    entries = training["validation" if metric.startswith("eval_") else "losses"]
    points = [(entry["step"], entry[metric]) for entry in entries if metric in entry]
    return [points[i * len(points) // POINTS] for i in range(POINTS)] if len(points) > POINTS else points


def _ends(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the ends of an axis for the trials' trained parameters, in millions."""
    sizes = [trial.size / 1e6 for trial in trials if trial.size]
    return 0.9 * min(sizes), 1.1 * max(sizes)


def _course(points: Sequence[tuple[float, float]]) -> tuple[Scale, Scale] | None:
    """Return the axes of the trainings' curves, or None without any."""
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    return Scale(*round_ends(steps), 62, 2 * WIDTH - 24), Scale(*round_ends(values), HEIGHT - 46, 14)


def _scale(distribution: BaseDistribution, start: float, end: float) -> Scale | Choices:
    """Return the scale of a parameter."""
    if isinstance(distribution, CategoricalDistribution):
        choices: list[Any] = list(distribution.choices)
        numbers = all(isinstance(choice, int | float) for choice in choices)
        return Choices(sorted(choices) if numbers else choices, start, end)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return Scale(distribution.low, distribution.high, start, end, distribution.log)
