"""The plots of a report: of an evaluation, and of the demo.

A plot is a function with the decorator `plot`, which draws some of the runs. Nothing else has to be changed for
another one: the pages draw all of `PLOTS` that have runs to draw, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from markupsafe import Markup

from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.metrics.summary import RunSummary
from rag_train.pages.plots import SHADES, color, draw, label_points, line_color, logarithmic, short

Shaded = Sequence[tuple[RunSummary, str]]
"""Runs with their colours."""
Drawing = Callable[[Any, Shaded, Sequence[RunSummary]], None]
"""Draws on the axes; it gets the runs of all seeds together, and those of single seeds."""


class Plot(NamedTuple):
    """A plot: its title, its caption, the runs that it can show, its width and heights in inches."""

    title: str
    caption: str
    of: Callable[[RunSummary], object]
    width: float
    height: float
    row: float
    """Additional height for each run."""
    draw: Drawing


class Drawn(NamedTuple):
    """A plot that was drawn."""

    title: str
    caption: str
    svg: Markup
    wide: bool


PLOTS: list[Plot] = []


def plot(
    title: str,
    caption: str,
    of: Callable[[RunSummary], object] = lambda run: True,
    *,
    width: float = 5.2,
    height: float = 3.2,
    row: float = 0.0,
) -> Callable[[Drawing], Drawing]:
    """Return a decorator that adds a function to `PLOTS`; see `Plot` for the arguments."""

    def added(function: Drawing) -> Drawing:
        PLOTS.append(Plot(title, caption, of, width, height, row, function))
        return function

    return added


def drawn(runs: Sequence[RunSummary], seeds: Sequence[RunSummary] = ()) -> list[Drawn]:
    """Draw all plots of ``runs``, which are pooled; ``seeds`` are the runs of the single seeds."""
    several = {run.name for run in runs if len(run.seeds) > 1}
    found = []
    for title, caption, of, width, height, row, drawing in PLOTS:
        shown = [(run, line_color(i)) for i, run in enumerate(runs) if of(run)]
        single = [seed for seed in seeds if seed.name in several and of(seed)]
        if shown:
            on_axes = partial(_on_axes, drawing, shown, single)
            found.append(Drawn(title, caption, draw(title, (width, height + row * len(shown)), on_axes), width > 6))
    return found


def _on_axes(drawing: Drawing, runs: Shaded, seeds: Sequence[RunSummary], figure: Any) -> None:
    drawing(figure.subplots(), runs, seeds)


@plot(
    "Exact match and retrievals",
    "Exact match and mean retrievals per question with 95% intervals; small points are single seeds. Better is up "
    "and to the left.",
    width=8.0,
    height=4.4,
    row=0.03,
)
def exact_match_and_retrievals(axes: Any, runs: Shaded, seeds: Sequence[RunSummary]) -> None:
    _against(axes, runs, seeds, lambda run: run.retrievals)
    axes.set_xlabel("Mean retrievals per question")


@plot(
    "Exact match and tokens",
    "Exact match and mean tokens per question, read and written, with 95% intervals of exact match.",
    lambda run: run.tokens,
    width=8.0,
    height=4.4,
    row=0.03,
)
def exact_match_and_tokens(axes: Any, runs: Shaded, seeds: Sequence[RunSummary]) -> None:
    def tokens(run: RunSummary) -> Interval:
        mean = sum(use.prompt_tokens + use.completion_tokens for use in run.tokens.values())
        return Interval(mean=mean, lo=mean, hi=mean)

    costs = [tokens(run).mean for run, _ in runs]
    if min(costs) > 0 and max(costs) > 30 * min(costs):
        axes.set_xscale("log")
        logarithmic(axes.xaxis)
    _against(axes, runs, seeds, tokens)
    axes.set_xlabel("Mean tokens per question")


def _against(axes: Any, runs: Shaded, seeds: Sequence[RunSummary], cost: Callable[[RunSummary], Interval]) -> None:
    """Draw exact match in percent against a cost."""
    shades = {run.name: shade for run, shade in runs}
    for seed in seeds:
        axes.plot(cost(seed).mean, 100 * seed.em.mean, ".", color=shades[seed.name], alpha=0.45)
    points = []
    for run, shade in runs:
        x, y = cost(run), run.em.scaled(100)
        ends = (
            [[x.mean - max(0.0, x.lo)], [x.hi - x.mean]],
            [[y.mean - max(0.0, y.lo)], [min(100.0, y.hi) - y.mean]],
        )
        axes.errorbar(
            x.mean, y.mean, ends[1], ends[0], "o", color=shade, markersize=8, elinewidth=1.4, clip_on=False
        )
        points.append((run.name, x.mean, y.mean, shade))
    if axes.get_xscale() == "linear":
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    axes.set_ylabel("Exact match (%)")
    label_points(axes, points)


@plot(
    "Decisions by knowledge boundary",
    "Share of steps that retrieved: ○ if the model knows the fact (ideal 0%), ● if not (ideal 100%).",
    lambda run: run.fact_boundary and run.fact_boundary.total,
    height=0.5,
    row=0.3,
)
def decisions(axes: Any, runs: Shaded, seeds: Sequence[RunSummary]) -> None:
    for row, (run, shade) in enumerate(runs):
        assert run.fact_boundary
        known, unknown = 100 * run.fact_boundary.retrieved_known, 100 * run.fact_boundary.retrieved_unknown
        axes.plot([known, unknown], [row, row], color=shade)  # nothing if one of the two is NaN
        mark: dict[str, Any] = {"marker": "o", "markersize": 8, "color": shade, "clip_on": False}
        axes.plot([known], [row], markerfacecolor=color("paper"), **mark)
        axes.plot([unknown], [row], **mark)
    _rows(axes, runs)
    axes.set_xlim(-3, 103)


@plot(
    "Reliability of the decisions",
    "How often the model does not know the fact, by the probability with which it retrieves. On the dashed line "
    "the probabilities mean what they say; a line that rises ranks the facts well, which is what the decisions' "
    "MCC measures at one threshold. Larger points: more steps.",
    lambda run: run.fact_calibration,
    height=3.8,
)
def reliability(axes: Any, runs: Shaded, seeds: Sequence[RunSummary]) -> None:
    axes.plot([0, 1], [0, 1], "--", color=color("soft"), linewidth=1)
    for run, shade in runs:
        found = run.fact_calibration
        assert found
        xs, ys = [bin.probability for bin in found.bins], [bin.frequency for bin in found.bins]
        axes.plot(xs, ys, color=shade, label=f"{short(run.name)}: calibration error {found.ece:.2f}")
        axes.scatter(xs, ys, [12 + 150 * bin.count / found.count for bin in found.bins], color=shade)
    axes.set_xlabel("Probability of retrieving")
    axes.set_ylabel("Share of facts not known")
    axes.figure.legend(loc="outside lower left", ncols=1)


def stacked(counts: str, axes: Any, runs: Shaded, seeds: Sequence[RunSummary]) -> None:
    """Draw shares by count, a field of the runs, as stacked bars; the last shade is of its count and more."""
    most = SHADES - 1
    for row, (run, _) in enumerate(runs):
        shares = [0.0] * SHADES
        for count, share in getattr(run, counts).items():
            shares[min(count, most)] += 100 * share
        for count, end in enumerate(accumulate(shares)):
            label = f"{count}{'+' * (count == most)}" if row == 0 else None
            shade = color(f"s{count}")
            axes.barh(row, shares[count], left=end - shares[count], height=0.6, color=shade, label=label)
    _rows(axes, runs)
    axes.set_xlim(0, 100)
    axes.figure.legend(loc="outside lower left", ncols=SHADES)


for noun, field in (("subqueries", "subqueries"), ("retrievals", "retrieval_counts")):
    title, caption = f"{noun.capitalize()} per question", f"Share of questions by number of {noun}."
    plot(title, caption, lambda run: run.steps, height=1.0, row=0.3)(partial(stacked, field))


def _rows(axes: Any, runs: Shaded) -> None:
    """Name the rows of a plot in percent, the first run on top."""
    axes.set_yticks(range(len(runs)), [short(run.name) for run, _ in runs])
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelcolor=color("ink"))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
