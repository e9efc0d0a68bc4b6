"""Verdicts on the papers' claims, from the measured differences between rows, by the rules of the protocol.

In the mini world, numbers cannot be compared with the printed ones, but orderings can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, isnan
from typing import Literal, NamedTuple

from pydantic import Field

from rag_train.eval.metrics.intervals import Effect, at_least, holm
from rag_train.eval.papers.measured import PERCENT, Measurements, RowMeasure
from rag_train.eval.papers.printed import Column, Kind, Paper, PaperClaim, Row
from rag_train.eval.papers.protocol import Protocol
from rag_train.schema import Record

Verdict = Literal["holds", "fails", "cannot be told apart", "not run"]


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
    """The question sets that the rows were measured on; for two sets, the better row's against the worse row's."""
    printed: list[Printed] = Field(default_factory=list)
    effect: Effect | None = None
    """In points for shares, else in the metric's unit."""
    seeds: list[float | None] = Field(default_factory=list)
    """The difference of each seed; None where the metric applies to no question."""
    margin: float = 0.0
    """Largest difference that counts as none, for claims that rows are equally good."""
    holds: float | None = None
    """p-value of the claim: small if the difference is as claimed."""
    fails: float | None = None
    """p-value of the contrary: small if the difference contradicts the claim."""
    why: str = ""
    """Why the comparison was not run, or why it decides nothing."""


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
        return [comparison for comparison in self.comparisons if comparison.holds is not None]

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
    """Return one paper's claims with their verdicts; ``family`` is the number of its claims that can be run.

    A claim about each comparison needs all of them, and one contradiction refutes it. Holm's correction is over the
    family, so that the chance of any false "holds" in a paper is at most ``level``; likewise "fails".
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
        case "at most":
            return effect.p_below(margin), effect.p_above(margin)
        case "lower":
            return effect.p_below(0), effect.p_above(0)
        case "higher":
            return effect.p_above(0), effect.p_below(0)


def judge(
    measurements: Measurements, name: str, paper: Paper, tables: Sequence[str], protocol: Protocol
) -> list[JudgedClaim]:
    """Return a paper's claims about ``tables`` with their verdicts.

    Claims that are left out do not count for Holm's correction: no result can make them hold or fail. A claim
    without values does count, because it was the data that gave none.
    """
    left_out = measurements.sources[0].left_out()
    claims = [
        _with_comparisons(measurements, name, paper, claim, protocol.margins.get(claim.id, 0.0))
        for claim in paper.claims
        if claim.table in tables
    ]
    return judged(claims, sum(claim.id not in left_out for claim in paper.claims), protocol.level)


def measures(measurements: Measurements, paper: Paper, tables: Sequence[str]) -> Iterator[RowMeasure]:
    """Yield what the claims about ``tables`` compare, as far as there are values."""
    for claim in paper.claims:
        if claim.table in tables:
            for pair in _pairs(measurements, paper, claim):
                if not _not_run(measurements, claim, pair):
                    yield from pair.measures


Columns = list[tuple[Column, Column]]
"""Columns of one metric that are compared: of the better rows, of the worse rows."""


class _Pair(NamedTuple):
    """Two rows that a claim compares, better first, the columns, and what is measured."""

    rows: tuple[Row, Row]
    columns: Columns
    measures: tuple[RowMeasure, RowMeasure]


def _pairs(measurements: Measurements, paper: Paper, claim: PaperClaim) -> Iterator[_Pair]:
    tables = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
    for rows, columns in product(paper.pairs(claim), _columns(paper, claim)):
        first, second = (
            RowMeasure.over([measurements.measure(row, column, table) for column in its])
            for row, table, its in zip(rows, tables, zip(*columns, strict=True), strict=True)
        )
        yield _Pair(rows, columns, (first, second))


def _columns(paper: Paper, claim: PaperClaim) -> list[Columns]:
    """Return the columns of each comparison: one column, or all of one metric for a claim about the mean.

    What a paper says of all datasets is refuted by a single one. Over pooled questions, a difference can also come
    from the datasets alone: one is more difficult, and takes more retrievals.
    """
    better, worse = (
        {column.id: column for column in paper.tables[id].columns}
        for id in (claim.table, claim.worse_table or claim.table)
    )
    pairs = [(better[a], worse[b]) for a, b in paper.columns(claim)]
    if claim.over != "mean":
        return [[pair] for pair in pairs]
    out: dict[tuple[str, str], Columns] = {}
    for a, b in pairs:
        out.setdefault((a.metric, b.metric), []).append((a, b))
    return list(out.values())


def _with_comparisons(
    measurements: Measurements, name: str, paper: Paper, claim: PaperClaim, margin: float
) -> JudgedClaim:
    """Return a claim with its comparisons, each once."""
    found: dict[tuple[str, ...], Comparison] = {}
    for pair in _pairs(measurements, paper, claim):
        comparison = _measured(measurements, claim, pair, margin)
        # Rows that differ only in the paper's backbone model are the same here; so may be two metrics, or datasets.
        where = comparison.questions if comparison.holds is not None else []
        same = (comparison.better, comparison.worse, comparison.why, str(comparison.effect), *where)
        before = found.get(same, comparison)
        found[same] = before.model_copy(
            update={
                "metrics": list(dict.fromkeys([*before.metrics, *comparison.metrics])),
                "questions": list(dict.fromkeys([*before.questions, *comparison.questions])),
                "printed": before.printed + _printed(paper, claim, pair),
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


def _printed(paper: Paper, claim: PaperClaim, pair: _Pair) -> list[Printed]:
    used = {"", *(column.id for column, _ in pair.columns)}
    in_points = paper.tables[claim.table].unit == "fraction" and pair.columns[0][0].metric in PERCENT
    scale = 100 if in_points else 1
    return [
        Printed(group=d.better.group, column=d.column, difference=round(scale * d.difference, 6))
        for d in paper.differences(claim)
        if (d.better, d.worse) == pair.rows and d.column in used
    ]


def _measured(measurements: Measurements, claim: PaperClaim, pair: _Pair, margin: float) -> Comparison:
    """Compare two rows in one metric."""
    first, second = pair.measures
    metric = " against ".join(dict.fromkeys((first.metric, second.metric)))
    asked, others = ([request.questions for request in each.requests if request] for each in pair.measures)
    differ = asked and others and asked != others
    comparison = Comparison(
        better=label(pair.rows[0], first),
        worse=label(pair.rows[1], second),
        metrics=[metric],
        questions=[f"{', '.join(asked)} against {', '.join(others)}"] if differ else asked,
    )
    if why := _not_run(measurements, claim, pair):
        return comparison.model_copy(update={"why": why})
    differences = measurements.differences(first, second)
    seeds = [None if isnan(difference) else difference for difference in differences]
    if lacking := seeds.count(None):
        if lacking == len(seeds):
            return comparison.model_copy(update={"why": f"{metric} does not apply to these questions"})
        # Without this comparison, the claim would be easier to support.
        why = f"{metric} does not apply in {lacking} of {len(seeds)} seeds, which supports and refutes nothing"
        return comparison.model_copy(update={"seeds": seeds, "why": why, "holds": 1.0, "fails": 1.0})
    effect = measurements.effect(first, second, differences)
    if first.metric not in PERCENT:
        margin *= measurements.mean(second)
    holds, fails = evidence(claim.kind, effect, margin)
    return comparison.model_copy(
        update={"effect": effect, "seeds": seeds, "margin": margin, "holds": holds, "fails": fails}
    )


def _not_run(measurements: Measurements, claim: PaperClaim, pair: _Pair) -> str:
    """Return why two rows cannot be compared; empty if they can."""
    if why := measurements.sources[0].left_out().get(claim.id):
        return why
    for row, measure in zip(pair.rows, pair.measures, strict=True):
        if why := measurements.lacks(row, measure):
            return why
    first, second = pair.measures
    return "both rows are the same model and strategy here" if first == second else ""


def label(row: Row, measure: RowMeasure) -> str:
    """Return the row's name, with a mark if the mini world's student represents the smaller of two models."""
    small = any(request and request.model == "student" for request in measure.requests)
    return f"{row.name} (student)" if small else row.name
