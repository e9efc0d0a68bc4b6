"""Verdicts on the papers' claims, from the measured differences between rows, by the rules of the protocol.

In the mini world, numbers cannot be compared with the printed ones, but orderings can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, isnan
from typing import Literal

from pydantic import Field

from rag_train.eval.metrics.intervals import Effect, at_least, holm
from rag_train.eval.papers.measured import PERCENT, UNMEASURED, Measurements, RowMeasure
from rag_train.eval.papers.printed import Column, Paper, PaperClaim, Row
from rag_train.eval.papers.protocol import Protocol
from rag_train.schema import Record

Verdict = Literal["holds", "fails", "cannot be told apart", "not run"]
Kind = Literal["higher", "lower", "at least", "within"]


class Printed(Record):
    """A difference in the paper."""

    group: str
    """Heading of the rows' group, usually the model that answers."""
    column: str
    """Column id; empty for a mean over columns."""
    difference: float


class Comparison(Record):
    """A pair of rows that a claim compares: the better row's value minus the worse row's."""

    better: str
    worse: str
    metrics: list[str]
    """The metric. Several if they have the same values here, such as EM and F1 of answers of one word."""
    questions: list[str] = Field(default_factory=list)
    """The question sets that the rows were measured on."""
    printed: list[Printed] = Field(default_factory=list)
    effect: Effect | None = None
    """In points for shares, else in the metric's unit."""
    seeds: list[float] = Field(default_factory=list)
    """The difference of each seed."""
    margin: float = 0.0
    """Largest difference that counts as none, for claims that rows are equally good."""
    holds: float | None = None
    """p-value of the claim: small if the difference is as claimed."""
    fails: float | None = None
    """p-value of the contrary: small if the difference contradicts the claim."""
    why: str = ""
    """Why the comparison was not run."""


class JudgedClaim(Record):
    """A claim with its verdict."""

    paper: str
    claim: str
    text: str
    section: str
    table: str
    kind: Kind
    over: Literal["each", "many", "mean"]
    comparisons: list[Comparison]
    holds: float | None = None
    """p-value of the claim, after Holm's correction over the paper's claims; None if nothing was run."""
    fails: float | None = None
    """p-value of the contrary, corrected in the same way."""
    verdict: Verdict = "not run"

    @property
    def run(self) -> list[Comparison]:
        """The comparisons that were run."""
        return [comparison for comparison in self.comparisons if comparison.effect]

    @property
    def needed(self) -> int:
        """How many comparisons must be as claimed."""
        return ceil(len(self.run) / 2) if self.over == "many" else len(self.run)

    def p_values(self) -> tuple[float, float]:
        """Return the p-values of the claim and of its contrary, without correction."""
        holds, fails = [c.holds or 0.0 for c in self.run], [c.fails or 0.0 for c in self.run]
        return at_least(self.needed, holds), at_least(len(self.run) - self.needed + 1, fails)

    @property
    def deciding(self) -> Comparison | None:
        """The comparison that decides: if the claim fails, the clearest contradiction, else the weakest support."""
        if not self.run:
            return None
        if self.verdict == "fails":
            return sorted(self.run, key=lambda c: c.fails or 0.0)[len(self.run) - self.needed]
        return sorted(self.run, key=lambda c: c.holds or 0.0)[self.needed - 1]

    def counted(self, level: float) -> tuple[int, int, int, int]:
        """Count the comparisons as claimed, against the claim, undecided, and not run; each without correction."""
        held = sum(c.holds is not None and c.holds <= level for c in self.comparisons)
        against = sum(c.fails is not None and c.fails <= level for c in self.comparisons)
        return held, against, len(self.run) - held - against, len(self.comparisons) - len(self.run)


def judged(claims: Sequence[JudgedClaim], family: int, level: float) -> list[JudgedClaim]:
    """Return one paper's claims with their verdicts; ``family`` is the number of all claims of the paper.

    A claim about each comparison needs all of them, and one contradiction refutes it. Holm's correction is over the
    claims of the paper, so that the chance of any false "holds" in a paper is at most ``level``; likewise "fails".
    """
    run = [claim for claim in claims if claim.run]
    p_values = [claim.p_values() for claim in run]
    holds, fails = (holm([pair[side] for pair in p_values], family) for side in (0, 1))
    found: dict[str, JudgedClaim] = {}
    for claim, held, failed in zip(run, holds, fails, strict=True):
        verdict: Verdict = "holds" if held <= level else "fails" if failed <= level else "cannot be told apart"
        found[claim.claim] = claim.model_copy(update={"holds": held, "fails": failed, "verdict": verdict})
    return [found.get(claim.claim, claim) for claim in claims]


def evidence(kind: Kind, effect: Effect, margin: float) -> tuple[float, float]:
    """Return the p-values of a claimed relation and of its contrary."""
    match kind:
        case "within":
            above, below = effect.p_above(margin), effect.p_below(-margin)
            return max(effect.p_above(-margin), effect.p_below(margin)), min(1.0, 2 * min(above, below))
        case "at least":
            return effect.p_above(-margin), effect.p_below(-margin)
        case "lower":
            return effect.p_below(0), effect.p_above(0)
        case "higher":
            return effect.p_above(0), effect.p_below(0)


def judge(
    measurements: Measurements, name: str, paper: Paper, tables: Sequence[str], protocol: Protocol
) -> list[JudgedClaim]:
    """Return a paper's claims about ``tables`` with their verdicts."""

    def measure(better: Row, worse: Row, claim: PaperClaim, columns: Columns) -> Comparison:
        return _measured(measurements, paper, claim, (better, worse), columns, protocol.margins.get(claim.id, 0.0))

    claims = [with_comparisons(name, paper, claim, measure) for claim in paper.claims if claim.table in tables]
    return judged(claims, len(paper.claims), protocol.level)


Columns = list[tuple[Column, Column]]
"""Columns of one metric that are compared: of the better rows, of the worse rows."""


def with_comparisons(
    name: str, paper: Paper, claim: PaperClaim, measure: Callable[[Row, Row, PaperClaim, Columns], Comparison]
) -> JudgedClaim:
    """Return a claim with each comparison that ``measure`` makes, once."""
    found: dict[tuple[str, ...], Comparison] = {}
    for (better, worse), columns in product(paper.pairs(claim), _by_metric(paper, claim)):
        comparison = measure(better, worse, claim, columns)
        same = comparison.better, comparison.worse, str(comparison.effect or comparison.metrics)
        # Rows that differ only in the paper's backbone model are the same here, and so may be two metrics.
        before = found.get(same, comparison)
        found[same] = before.model_copy(
            update={
                "metrics": list(dict.fromkeys([*before.metrics, *comparison.metrics])),
                "printed": before.printed + _printed(paper, claim, better, worse, columns),
            }
        )
    return JudgedClaim(
        paper=name,
        claim=claim.id,
        text=claim.text,
        section=claim.section,
        table=claim.table,
        kind=claim.kind,
        over=claim.over,
        comparisons=list(found.values()),
    )


def _printed(paper: Paper, claim: PaperClaim, better: Row, worse: Row, columns: Columns) -> list[Printed]:
    used = {"", *(column.id for column, _ in columns)}
    in_points = paper.tables[claim.table].unit == "fraction" and columns[0][0].metric in PERCENT
    scale = 100 if in_points else 1
    return [
        Printed(group=better.group, column=d.column, difference=round(scale * d.difference, 6))
        for d in paper.differences(claim)
        if (d.better, d.worse) == (better, worse) and d.column in used
    ]


def _measured(
    measurements: Measurements,
    paper: Paper,
    claim: PaperClaim,
    rows: tuple[Row, Row],
    columns: Columns,
    margin: float,
) -> Comparison:
    """Compare two rows in one metric."""
    tables = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
    first, second = (
        RowMeasure.over([measurements.measure(row, column, table) for column in its])
        for row, table, its in zip(rows, tables, zip(*columns, strict=True), strict=True)
    )
    comparison = Comparison(
        better=label(rows[0], first),
        worse=label(rows[1], second),
        metrics=[" against ".join(dict.fromkeys((first.metric, second.metric)))],
        questions=list(dict.fromkeys(request.questions for request in first.requests if request)),
    )
    if why := _not_run(measurements, rows, (first, second)):
        return comparison.model_copy(update={"why": why})
    effect, seeds = measurements.difference(first, second)
    if isnan(effect.mean):
        return comparison.model_copy(update={"why": f"{comparison.metrics[0]} does not apply to these questions"})
    if first.metric not in PERCENT:
        margin *= measurements.mean(second)
    holds, fails = evidence(claim.kind, effect, margin)
    return comparison.model_copy(
        update={"effect": effect, "seeds": seeds, "margin": margin, "holds": holds, "fails": fails}
    )


def _not_run(measurements: Measurements, rows: tuple[Row, Row], measures: tuple[RowMeasure, RowMeasure]) -> str:
    """Return why two rows cannot be compared; empty if they can."""
    for measure in measures:
        if measure.metric in UNMEASURED:
            return f"{measure.metric} needs {UNMEASURED[measure.metric]}"
    for row, measure in zip(rows, measures, strict=True):
        if not measurements.answered(measure):
            return f"no answers for {row.name!r}"
    return "both rows are the same model and strategy here" if measures[0] == measures[1] else ""


def _by_metric(paper: Paper, claim: PaperClaim) -> list[Columns]:
    """Return the pairs of columns that are compared, grouped by metric."""
    better, worse = (
        {column.id: column for column in paper.tables[id].columns}
        for id in (claim.table, claim.worse_table or claim.table)
    )
    out: dict[tuple[str, str], Columns] = {}
    for a, b in paper.columns(claim):
        out.setdefault((better[a].metric, worse[b].metric), []).append((better[a], worse[b]))
    return list(out.values())


def label(row: Row, measure: RowMeasure) -> str:
    """Return the row's name, with a mark if the mini world's student represents the smaller of two models."""
    small = any(request and request.model == "student" for request in measure.requests)
    return f"{row.name} (student)" if small else row.name
