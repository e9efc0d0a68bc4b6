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
from scipy.special import stdtrit

from rag_train.answers import exact_match
from rag_train.errors import UserError
from rag_train.eval.matrix.tables import cause_table, cost_table, decision_table, hops_table, main_table
from rag_train.eval.metrics.boundary import decision_is_right, known_facts
from rag_train.eval.metrics.intervals import Effect, effect_across_seeds
from rag_train.eval.metrics.summary import RunSummary, pool
from rag_train.jobs.files import write_text
from rag_train.pages.scale import Scale, round_ends
from rag_train.schema import Decision, Question, Record, Step, Trajectory
from rag_train.templates import template

OURS, ALWAYS = "deeprag, stage 2", "deeprag-retrieve, stage 2"
"""Names of the trained model's run, and of the same model's when it always retrieves: the first numbers."""
WIDTH, HEIGHT = 460, 300
"""Size of a plot with two axes, in SVG units; a narrow page scales it down."""
WIDE, HIGH = 620, 400
"""Size of the first plot."""


class Placed(Record):
    """A claim's difference in a run of one seed, among those of the reference seeds."""

    here: float
    seeds: list[float]
    """The difference in each reference seed."""
    margin: float

    @property
    def effect(self) -> Effect:
        """The mean over the reference seeds."""
        return effect_across_seeds(self.seeds)

    @property
    def expected(self) -> tuple[float, float]:
        """The range that contains the difference of another seed with a probability of 95%."""
        n = len(self.seeds)
        half = float(stdtrit(n - 1, 0.975)) * self.effect.se * math.sqrt(n + 1)
        return self.effect.mean - half, self.effect.mean + half

    @property
    def outside(self) -> bool:
        """Whether this run lies outside that range."""
        lo, hi = self.expected
        return not lo <= self.here <= hi


class Claim(Record):
    """A statement made before the run, and its outcome."""

    text: str
    verdict: str
    """holds, fails, or cannot be told apart; of the reference seeds if the claim is placed among them."""
    evidence: str
    placed: Placed | None = None

    def line(self) -> str:
        """Return the claim, its verdict and its evidence in one line for the console."""
        if not (found := self.placed):
            return f"{self.verdict}: {self.text}: {self.evidence}"
        effect, outside = found.effect, ", which is outside of what they let expect" if found.outside else ""
        return (
            f"{self.verdict}: {self.text}; {len(found.seeds)} reference seeds: {effect.mean:+.3f} "
            f"[{effect.lo:+.3f}, {effect.hi:+.3f}]; this run: {found.here:+.3f}{outside}"
        )


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
    peak_gib: float | None = None
    """Peak memory of the run with its engines and trainings; None in older files."""
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
        headlines=headlines(runs, results.claims),
        placed=any(claim.placed for claim in results.claims),
        strip=strip,
        frontier=frontier(runs, results.runs),
        stepping=[run for run in runs if run.steps],
        bounded=[run for run in runs if run.fact_boundary and run.fact_boundary.total],
        forecasting=[run for run in runs if run.fact_calibration],
        unit=axes([0.0, 1.0], [0.0, 1.0], WIDTH, HEIGHT),
        curves=[(curve, *curve_axes(curve)) for curve in results.curves],
        most_seconds=max((timing.seconds for timing in results.timings), default=0) or 1,
        bands=bands,
        badge=badge,
        duration=duration,
        exact_match=exact_match,
        facts=lambda example: known_facts([example.question]) | example.known,
        width=WIDTH,
        height=HEIGHT,
        wide=WIDE,
        high=HIGH,
    )
    write_text(path, page)


def headlines(runs: Sequence[RunSummary], claims: Sequence[Claim]) -> list[tuple[str, str]]:
    """Return the numbers that say what happened, each with its meaning; ``runs`` are pooled."""
    by_name = {run.name: run for run in runs}
    ours, always = by_name.get(OURS), by_name.get(ALWAYS)
    where = (
        "hold over the reference seeds" if any(claim.placed for claim in claims) else "stated before the run hold"
    )
    held = (f"{sum(claim.verdict == 'holds' for claim in claims)} of {len(claims)}", f"claims {where}")
    if not ours or not always:
        return [held]
    best = max((run for run in runs if run is not ours), key=lambda run: run.em.mean)
    right = f"of the questions answered right; {always.em.mean:.1%} if the same model always retrieves"
    if best is not always:
        right += f", {best.em.mean:.1%} in the best other run ({best.name})"
    retrieved = f"retrievals a question; {always.retrievals.mean:.2f} if the same model always retrieves"
    return [(f"{ours.em.mean:.1%}", right), (f"{ours.retrievals.mean:.2f}", retrieved), held]


def strip(found: Placed) -> Scale:
    """Return the scale of a claim's plot."""
    values = [0.0, found.here, *found.expected, -found.margin]
    lo, hi = min(values), max(values)
    return Scale(lo, hi, 8, WIDTH - 8)


def axes(xs: Sequence[float], ys: Sequence[float], width: int, height: int) -> tuple[Scale, Scale]:
    """Return scales that contain all points, extended to the next ticks, and to zero if zero is near."""
    return Scale(*round_ends(xs), 52, width - 14), Scale(*round_ends(ys), height - 46, 14)


def curve_axes(curve: Curve) -> tuple[Scale, Scale]:
    """Return the scales of a plot of training."""
    xs = [x for series in curve.series for x in series.x]
    ys = [y for series in curve.series for y in series.y]
    return axes(xs, ys, WIDTH, HEIGHT)


@dataclass(frozen=True)
class Label:
    """A label of a point, in SVG units; ``line`` leads from the point to a label that is not next to it."""

    name: str
    x: float
    y: float
    anchor: str
    line: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Frontier:
    """The plot of EM against retrievals: its axes, the labels of the runs, and the single seeds."""

    x: Scale
    y: Scale
    labels: list[Label]
    seeds: list[RunSummary]


def frontier(runs: Sequence[RunSummary], seeds: Sequence[RunSummary]) -> Frontier:
    """Lay out the plot of EM in percent against mean retrievals per question.

    ``runs`` are pooled; ``seeds`` are single seeds, drawn for runs with several seeds.
    """
    several = {run.name for run in runs if len(run.seeds) > 1}
    x, y = axes(
        [end for run in runs for end in (max(0.0, run.retrievals.lo), run.retrievals.hi)],
        [100 * end for run in runs for end in (max(0.0, run.em.lo), min(1.0, run.em.hi))],
        WIDE,
        HIGH,
    )
    points = [(run.name, x(run.retrievals.mean), y(100 * run.em.mean)) for run in runs]
    return Frontier(x, y, place_labels(points), [seed for seed in seeds if seed.name in several])


SPOTS = [(11, 4, "start"), (-11, 4, "end"), (0, -12, "middle"), (0, 21, "middle")]
SPOTS += [
    (side, up, end) for up in (-9, 17, -24, 32, -39, 47, -54, 62) for side, end in ((10, "start"), (-10, "end"))
]
"""Places of a label relative to its point, with its text-anchor; the nearest first."""


def place_labels(points: Sequence[tuple[str, float, float]]) -> list[Label]:
    """Place each label as near to its point as is possible without overlaps and inside the plot."""
    marks = [(x - 6, y - 6, x + 6, y + 6) for _, x, y in points]
    boxes: list[Box] = []
    labels: list[Label] = []
    for _ in range(4):  # a label may move when the labels after it have found their places
        for i, (name, x, y) in enumerate(points):
            taken = [*marks, *(box for j, box in enumerate(boxes) if j != i)]
            spots = [
                Label(name, x + across, y + up, anchor, _line(x, y, across, up)) for across, up, anchor in SPOTS
            ]
            best = min(spots, key=lambda label: _clashes(_label_box(label), taken))
            labels[i : i + 1] = [best]
            boxes[i : i + 1] = [_label_box(best)]
    return labels


def _line(x: float, y: float, across: float, up: float) -> tuple[float, float, float, float] | None:
    """Return the ends of the line from a point at (x, y) to a label that is not next to it."""
    return None if -13 < up < 22 else (x, y, x + across, y + up - 4)


Box = tuple[float, float, float, float]
"""(left, top, right, bottom)"""


def _label_box(label: Label) -> Box:
    width = 7.4 * len(label.name)
    left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.y - 12, left + width, label.y + 4


def _clashes(box: Box, taken: Sequence[Box]) -> int:
    left, top, right, bottom = box
    outside = left < 54 or right > WIDE or top < 4 or bottom > HIGH - 46
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
