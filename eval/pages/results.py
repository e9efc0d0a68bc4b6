"""The page of the demo: a self-contained HTML file with claims, tables, plots, trajectories and provenance.

The page uses no network and no script. The template escapes all texts, in particular documents and model output. It
also draws the plots as SVG, which follow the reader's colour scheme; this module computes their coordinates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from pydantic import Field, FiniteFloat, NonNegativeFloat, ValidationError, model_validator

from rag_train.answers import exact_match
from rag_train.errors import UserError
from rag_train.eval.matrix.tables import cause_table, cost_table, decision_table, hops_table, main_table
from rag_train.eval.metrics.boundary import decision_is_right, known_facts
from rag_train.eval.metrics.summary import RunSummary, pool
from rag_train.files import write_text
from rag_train.schema import Decision, Question, Record, Step, Trajectory
from rag_train.templates import template

WIDTH, HEIGHT = 460, 300
"""Size of a plot with two axes, in SVG units; a narrow page scales it down."""


class Claim(Record):
    """A statement made before the run, and its outcome."""

    text: str
    held: bool
    evidence: str


class Series(Record):
    """A line of a plot: equally many finite x and y."""

    name: str
    x: list[FiniteFloat]
    y: list[FiniteFloat]

    @model_validator(mode="after")
    def _same_length(self) -> Series:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r} has {len(self.x)} x values and {len(self.y)} y values")
        return self


class Curve(Record):
    """A plot of training, with a line per series."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]


class Timing(Record):
    """Duration of a part of the run."""

    part: str
    seconds: NonNegativeFloat


class Example(Record):
    """A question with the trajectories of several runs."""

    question: Question
    trajectories: dict[str, Trajectory]
    """Trajectories by the name of the run (`RunSummary.name`)."""
    known: dict[str, bool] = Field(default_factory=dict)
    """Whether the model knows the fact, for subqueries that are not in the question's decomposition."""


class Provenance(Record):
    """Everything needed to reproduce the run."""

    machine: str
    code_version: str
    versions: dict[str, str]
    seeds: list[int]
    recipe: str


class ReportData(Record):
    """All data of the page; ``runs`` has a summary per strategy, stage and seed."""

    title: str
    summary: str
    claims: list[Claim]
    runs: list[RunSummary]
    curves: list[Curve]
    timings: list[Timing]
    examples: list[Example]
    provenance: Provenance


def save_results(path: Path, results: ReportData) -> None:
    """Write ``results`` to ``path`` as JSON."""
    write_text(path, results.model_dump_json(indent=1) + "\n")


def load_results(path: Path) -> ReportData:
    """Read a file of `save_results`. Raises UserError if it is missing or malformed."""
    try:
        return ReportData.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the demo.json that `rag-train demo` wrote") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"field {field!r}: {first['msg']}" if field else first["msg"]
        raise UserError(f"{path}: {problem}; run `rag-train demo` again") from error


def write_report(path: Path, results: ReportData) -> None:
    """Write the page of ``results`` to ``path``, creating its folder."""
    runs = pool(results.runs)
    tables = [make(runs) for make in (main_table, decision_table, hops_table, cause_table, cost_table)]
    page = template("eval/pages/results.html.jinja").render(
        data=results,
        runs=runs,
        color={run.name: i % 8 for i, run in enumerate(runs)},
        tables=[Markup(table.html()) for table in tables if table.rows],
        frontier=frontier(runs, results.runs),
        stepping=[run for run in runs if run.steps],
        bounded=[run for run in runs if run.fact_boundary and run.fact_boundary.total],
        curves=[(curve, *curve_axes(curve)) for curve in results.curves],
        most_seconds=max((timing.seconds for timing in results.timings), default=0) or 1,
        bands=bands,
        badge=badge,
        duration=duration,
        exact_match=exact_match,
        facts=lambda example: known_facts([example.question]) | example.known,
        width=WIDTH,
        height=HEIGHT,
    )
    write_text(path, page)


@dataclass(frozen=True)
class Scale:
    """A linear map from [lo, hi] to [start, end], in SVG units, with round ticks."""

    lo: float
    hi: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.lo) / (self.hi - self.lo) * (self.end - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions and labels of four to nine ticks, at multiples of 1, 2 or 5 times a power of ten."""
        step = _round_step(self.hi - self.lo)
        first, last = math.ceil(self.lo / step - 1e-9), math.floor(self.hi / step + 1e-9)
        return [(self(i * step), f"{round(i * step, 10):,g}") for i in range(first, last + 1)]


def _round_step(span: float) -> float:
    power = 10 ** math.floor(math.log10(span / 4))
    return max(m * power for m in (1, 2, 5) if m * power <= span / 4 * (1 + 1e-9))


def axes(xs: Sequence[float], ys: Sequence[float]) -> tuple[Scale, Scale]:
    """Return scales that contain all points, extended to the next ticks, and to zero if zero is near."""
    return Scale(*_span(xs), 52, WIDTH - 14), Scale(*_span(ys), HEIGHT - 46, 14)


def curve_axes(curve: Curve) -> tuple[Scale, Scale]:
    """Return the scales of a plot of training."""
    return axes([x for series in curve.series for x in series.x], [y for series in curve.series for y in series.y])


def _span(values: Sequence[float]) -> tuple[float, float]:
    lo, hi = min(values, default=0.0), max(values, default=1.0)
    if 0 <= lo < 0.5 * hi:
        lo = 0.0
    if lo == hi:
        hi = lo + 1
    step = _round_step(hi - lo)
    return math.floor(lo / step + 1e-9) * step, math.ceil(hi / step - 1e-9) * step


@dataclass(frozen=True)
class Frontier:
    """The plot of EM against retrievals: its axes, the labels of the runs, and the single seeds."""

    x: Scale
    y: Scale
    labels: list[tuple[str, float, float, str]]
    """(name, x, y, text-anchor)"""
    seeds: list[RunSummary]


def frontier(runs: Sequence[RunSummary], seeds: Sequence[RunSummary]) -> Frontier:
    """Lay out the plot of EM in percent against mean retrievals per question.

    ``runs`` are pooled; ``seeds`` are single seeds, drawn for runs with several seeds.
    """
    several = {run.name for run in runs if len(run.seeds) > 1}
    x, y = axes(
        [end for run in runs for end in (max(0.0, run.retrievals.lo), run.retrievals.hi)],
        [100 * end for run in runs for end in (max(0.0, run.em.lo), min(1.0, run.em.hi))],
    )
    points = [(run.name, x(run.retrievals.mean), y(100 * run.em.mean)) for run in runs]
    return Frontier(x, y, place_labels(points), [seed for seed in seeds if seed.name in several])


def place_labels(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float, str]]:
    """Place each label next to its point; if possible, without overlaps and inside the plot."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for _, x, y in points]
    placed = []
    for name, x, y in points:
        spots = []
        for up in (-8, 16, 4, -20, 28, -32, 40):
            spots += [(x + 9, y + up, "start"), (x - 9, y + up, "end")]
        best = min(spots, key=lambda spot: _clashes(_label_box(name, *spot), taken))
        taken.append(_label_box(name, *best))
        placed.append((name, *best))
    return placed


Box = tuple[float, float, float, float]
"""(left, top, right, bottom)"""


def _label_box(name: str, x: float, y: float, anchor: str) -> Box:
    width = 7.0 * len(name)
    left = x - width if anchor == "end" else x
    return left, y - 11, left + width, y + 3


def _clashes(box: Box, taken: Sequence[Box]) -> int:
    left, top, right, bottom = box
    outside = left < 54 or right > WIDTH or top < 4 or bottom > HEIGHT - 46
    return 3 * outside + sum(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in taken)


def bands(shares: Mapping[int, float], most: int = 5) -> list[tuple[int, float, float]]:
    """Stack shares as (count, start, end) in [0, 1]; counts of ``most`` or more share a band."""
    merged = dict.fromkeys(range(most + 1), 0.0)
    for count, share in shares.items():
        merged[min(count, most)] += share
    ends = list(itertools.accumulate(merged.values()))
    return [(count, end - merged[count], end) for count, end in enumerate(ends) if merged[count]]


def badge(step: Step, known: Mapping[str, bool]) -> tuple[str, str]:
    """Return the CSS class and text of a step's decision, with a verdict if ``known`` has its fact."""
    right = decision_is_right(step, known)
    action = "retrieved" if step.decision is Decision.RETRIEVE else "parametric"
    if right is None:
        return "open", action
    fact = "known" if (step.decision is Decision.PARAMETRIC) == right else "unknown"
    return ("right", f"✓ {action}, fact {fact}") if right else ("wrong", f"✗ {action}, fact {fact}")


def duration(seconds: float) -> str:
    """Format a duration, such as 0.4 s, 42 s, 3 min 5 s or 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
