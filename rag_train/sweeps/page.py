"""The results of a sweep as a table, and as an HTML page with plots that needs no network."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from rag_train.jobs.files import write_text
from rag_train.pages.plots import color, draw, label_points, logarithmic, ticks
from rag_train.sweeps.file import Sweep
from rag_train.sweeps.study import Trial, best_of, front_of
from rag_train.table import NOTHING, Table
from rag_train.templates import inline, template
from rag_train.training.result import RESULT

NAMED = 10
"""Number of the best trials that a plot names."""
FIFTHS = ("first", "second", "third", "fourth", "last")
FRONT = "The line is the Pareto front: no other trial is as good with fewer trained parameters."
PLOT, LONG = (5.2, 3.4), (7.6, 3.6)
"""Sizes of plots in inches."""


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
            *map(_label, trial.parameters.values()),
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


def write_page(path: Path, sweep: Sweep, trials: list[Trial]) -> None:
    """Write the page to ``path``, in the directory of the sweep.

    It has the best trial's command; the finished trials in parallel coordinates, whose axes are the parameters that
    vary and the metric; the metric against each parameter and, if they differ, against the trained parameters, with
    the Pareto front; and its course during the trainings.
    """
    ranked = best_of(sweep, trials)
    style, _ = inline("pages/base.css", "pages/plots.css")
    page = template("sweeps/page.html.jinja").render(
        title=sweep.path.stem,
        sweep=sweep,
        best=ranked[0] if ranked else None,
        value=_label(ranked[0].value) if ranked else "",
        command=shlex.join(sweep.command(ranked[0].parameters, "report_to=none")) if ranked else "",
        plots=_Plots(path.parent, sweep, ranked).drawn() if ranked else [],
        table=Markup(trials_table(sweep, trials).html()),
        style=style,
    )
    write_text(path, page)


class _Plots:
    """The plots of the finished trials, the best one first; lighter colours are lower ranks."""

    def __init__(self, directory: Path, sweep: Sweep, ranked: list[Trial]):
        self.metric, self.front = sweep.metric, front_of(sweep, ranked)
        self.axes = {name: _axis(each) for name, each in sweep.space.items() if not each.single()}
        shades = [color("c1"), *(color(f"s{5 - rank * 5 // len(ranked)}") for rank in range(1, len(ranked)))]
        self.trials = list(zip(ranked, shades, strict=True))[::-1]  # drawn in this order: the best trial is on top
        curves = [_curve(directory / f"{trial.number:04d}" / RESULT, self.metric) for trial, _ in self.trials]
        self.curves = [(curve, shade) for curve, (_, shade) in zip(curves, self.trials, strict=True) if curve]

    def drawn(self) -> list[tuple[str, str, Markup, bool]]:
        """Return title, caption, plot and whether it is wide, of each plot."""
        wide = (2.4 + 2.0 * len(self.axes), 4.0)
        plots = [("All parameters", "", draw("A line for every finished trial", wide, self.coordinates), True)]
        for name in self.axes:
            title = f"{self.metric} against {name}"
            plots.append((title, "", draw(title, PLOT, partial(self.against, name)), False))
        if self.front:
            title = f"{self.metric} against trained parameters"
            plots.append((title, FRONT, draw(title, LONG, self.sizes), True))
        if self.curves:
            title = f"{self.metric} during training"
            plots.append((title, "", draw(title, LONG, self.course), True))
        return plots

    def coordinates(self, figure: Any) -> None:
        """Draw parallel coordinates."""
        plot, right = figure.subplots(), len(self.axes)
        values = [trial.value or 0.0 for trial, _ in self.trials]
        low, span = min(values), (max(values) - min(values)) or 1.0
        plot.set(xlim=(0, right + 0.2), ylim=(-0.03, 1.03), xticks=range(right + 1), yticks=[])
        plot.set_xticklabels([*self.axes, self.metric])
        plot.spines["left"].set_visible(False)
        names = []
        for trial, shade in self.trials:
            places = [place(trial.parameters[name]) for name, (place, _) in self.axes.items()]
            places.append(((trial.value or 0.0) - low) / span)
            plot.plot(places, color=shade)
            names.append((f"{_label(trial.value)}, trial {trial.number}", right, places[-1], shade))
        for at, (place, values) in enumerate(self.axes.values()):
            for value in values:
                plot.annotate(_label(value), (at, place(value)), (4, 0), textcoords="offset points", va="center")
        for name, shade in [("best", "c1"), *((f"{each} fifth", f"s{5 - i}") for i, each in enumerate(FIFTHS))]:
            plot.plot([], [], color=color(shade), label=name)
        label_points(plot, names[-NAMED:])
        figure.legend(loc="outside lower left", ncols=6)

    def against(self, name: str, figure: Any) -> None:
        """Draw the metric against a parameter."""
        plot, (place, values) = figure.subplots(), self.axes[name]
        for trial, shade in self.trials:
            plot.plot(place(trial.parameters[name]), trial.value, "o", color=shade)
        plot.set(xlabel=name, ylabel=self.metric, xlim=(-0.05, 1.05))
        plot.set_xticks([place(value) for value in values], [_label(value) for value in values])

    def sizes(self, figure: Any) -> None:
        """Draw the metric against the trained parameters."""
        plot = figure.subplots()
        plot.set_xscale("log")
        logarithmic(plot.xaxis)
        sized = [(trial.size / 1e6, trial.value, shade) for trial, shade in self.trials if trial.size]
        front = [((trial.size or 0) / 1e6, trial.value) for trial in self.front]
        front.append((max(size for size, _, _ in sized), front[-1][1]))
        plot.step(*zip(*front, strict=True), where="post", color=color("c1"))
        for size, value, shade in sized:
            plot.plot(size, value, "o", color=shade)
        plot.set(xlabel="trained parameters, millions", ylabel=self.metric)

    def course(self, figure: Any) -> None:
        """Draw the metric during the trainings."""
        plot = figure.subplots()
        for points, shade in self.curves:
            plot.plot(*zip(*points, strict=True), color=shade)
        plot.set(xlabel="step", ylabel=self.metric)


def _curve(result: Path, metric: str) -> list[tuple[float, float]]:
    """Return steps and values of a metric during a training; nothing without its result."""
    if not result.exists():
        return []
    training = json.loads(result.read_text())
    entries = training["validation" if metric.startswith("eval_") else "losses"]
    return [(entry["step"], entry[metric]) for entry in entries if metric in entry]


def _axis(distribution: BaseDistribution) -> tuple[Callable[[Any], float], list[Any]]:
    """Return a function from a parameter's values to places on an axis from 0 to 1, and the values of ticks."""
    if isinstance(distribution, CategoricalDistribution):
        choices: list[Any] = list(distribution.choices)
        if all(isinstance(choice, int | float) for choice in choices):
            choices.sort()
        return lambda value: (choices.index(value) + 0.5) / len(choices), choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high = distribution.low, distribution.high
    warp: Callable[[float], float] = math.log if distribution.log else float
    whole = isinstance(distribution, IntDistribution)
    values = [int(tick) if whole else tick for tick in ticks(low, high, distribution.log, whole)]
    return lambda value: (warp(value) - warp(low)) / (warp(high) - warp(low)), values


def _label(value: Any) -> str:
    """Format a value: a float with four digits, text without quotes, any other value as JSON."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
