"""The page of the demo: a self-contained HTML file with claims, tables, plots, trajectories and provenance.

The page uses no network and no script. The template escapes all texts, in particular documents and model output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rag_train.answers import exact_match
from rag_train.eval.demo.claims import ALWAYS, OURS, Claim, Placed
from rag_train.eval.demo.results import Curve, ReportData
from rag_train.eval.matrix.tables import cause_table, cost_table, decision_table, main_table, parts_table
from rag_train.eval.metrics.boundary import decision_is_right, known_facts
from rag_train.eval.metrics.summary import RunSummary, pool
from rag_train.eval.report.plots import Drawn, drawn
from rag_train.jobs.files import write_text
from rag_train.pages.plots import color, draw, line_color
from rag_train.schema import Decision, Step
from rag_train.table import duration
from rag_train.templates import inline, template

STYLES = ("pages/base.css", "pages/plots.css", "eval/demo/page.css")


def write_report(path: Path, results: ReportData) -> None:
    """Write the page of ``results`` to ``path``, creating its folder."""
    runs = pool(results.runs)
    first, *plots = drawn(runs, results.runs)
    tables = [make(runs) for make in (main_table, decision_table, parts_table, cause_table, cost_table)]
    style, style_hash = inline(*STYLES)
    page = template("eval/demo/page.html.jinja").render(
        data=results,
        colors={run.name: f"c{i % 8}" for i, run in enumerate(runs)},
        tables=[Markup(table.html()) for table in tables if table.rows],
        headlines=headlines(runs, results.claims),
        placed=any(claim.placed for claim in results.claims),
        strip=strip,
        first=first,
        plots=plots,
        training=[*map(curve, results.curves), *timings(results)],
        badge=badge,
        exact_match=exact_match,
        facts=lambda example: known_facts([example.question]) | example.known,
        style=style,
        style_hash=style_hash,
    )
    write_text(path, page)


def headlines(runs: Sequence[RunSummary], claims: Sequence[Claim]) -> list[tuple[str, str]]:
    """Return the numbers that say what happened, each with its meaning; ``runs`` are pooled."""
    by_name = {run.name: run for run in runs}
    ours, always = by_name.get(OURS), by_name.get(ALWAYS)
    where = "over the reference seeds" if any(claim.placed for claim in claims) else "stated before the run"
    held = f"{sum(claim.verdict == 'holds' for claim in claims)} of {len(claims)}", f"claims hold, {where}"
    if not ours or not always:
        return [held]
    best = max((run for run in runs if run is not ours), key=lambda run: run.em.mean)
    right = f"of the questions answered right; {always.em.mean:.1%} if the same model always retrieves"
    if best is not always:
        right += f", {best.em.mean:.1%} in the best other run ({best.name})"
    retrieved = f"retrievals a question; {always.retrievals.mean:.2f} if the same model always retrieves"
    return [(f"{ours.em.mean:.1%}", right), (f"{ours.retrievals.mean:.2f}", retrieved), held]


def strip(found: Placed) -> Markup:
    """Draw a claim's difference in this run among those of the reference seeds."""

    def plot(figure: Any) -> None:
        axes = figure.subplots()
        axes.barh(0, found.expected[1] - found.expected[0], left=found.expected[0], height=0.5, color=color("rule"))
        axes.plot([found.across.lo, found.across.hi], [0, 0], color=color("ink"), linewidth=3)
        axes.plot(found.seeds, [0] * len(found.seeds), "|", color=color("soft"), markersize=12)
        axes.plot(found.here, 0, "o", color=color("link"), markersize=8)
        axes.axvline(0, color=color("rule"), zorder=0)
        axes.set(yticks=[], xticks=[0], ylim=(-0.5, 0.5))
        axes.spines[:].set_visible(False)

    across = found.across
    title = f"This run {found.here:+.3f}; reference seeds {across.text(3, sign='+')}"
    return draw(title, (5.2, 0.5), plot)


def curve(of: Curve) -> Drawn:
    """Draw the course of a training."""

    def plot(figure: Any) -> None:
        axes = figure.subplots()
        for i, series in enumerate(of.series):
            axes.plot(series.x, series.y, color=line_color(i), label=series.name)
        axes.set(xlabel=of.x_label, ylabel=of.y_label)
        if len(of.series) > 1:
            figure.legend(loc="outside lower left", ncols=2)

    return Drawn(of.title, "", draw(of.title, (5.2, 3.2), plot), wide=False)


def timings(results: ReportData) -> list[Drawn]:
    """Draw how long each part took."""
    parts = results.timings[::-1]  # bars are drawn from the bottom

    def plot(figure: Any) -> None:
        axes = figure.subplots()
        bars = axes.barh([timing.part for timing in parts], [timing.seconds for timing in parts], color=color("s3"))
        axes.bar_label(bars, [duration(timing.seconds) for timing in parts], padding=4, color=color("soft"))
        axes.margins(x=0.25)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=color("ink"))

    peak = "" if results.peak_gib is None else f", with {results.peak_gib:.1f} GiB of memory at the peak"
    caption = f"{duration(sum(timing.seconds for timing in parts))} in total{peak}."
    title = "Duration of each part"
    return [Drawn(title, caption, draw(title, (5.2, 0.4 + 0.3 * len(parts)), plot), wide=False)] if parts else []


def badge(step: Step, known: dict[str, bool]) -> tuple[str, str]:
    """Return the CSS class and text of a step's decision, with a verdict if ``known`` has its fact."""
    right = decision_is_right(step, known)
    action = "retrieved" if step.decision is Decision.RETRIEVE else "parametric"
    if right is None:
        return "open", action
    fact = "known" if (step.decision is Decision.PARAMETRIC) == right else "unknown"
    return ("right", f"✓ {action}, fact {fact}") if right else ("wrong", f"✗ {action}, fact {fact}")
