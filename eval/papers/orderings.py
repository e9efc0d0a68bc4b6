"""The orderings that the papers claim: pairs of rows in one metric, each with a verdict from the measured answers.

In the mini world, numbers cannot be compared with the printed ones, but orderings can.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import isnan
from typing import Literal

from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.papers.measured import PERCENT, UNMEASURED, Measurements, RowMeasure
from rag_train.eval.papers.printed import Column, Paper, PaperClaim, Row
from rag_train.schema import Record

OrderingVerdict = Literal["holds", "fails", "cannot be told apart", "not run"]


class Ordering(Record):
    """The verdict on a claim for one pair of rows in one metric."""

    paper: str
    claim: str
    text: str
    section: str
    table: str
    better: str
    worse: str
    metric: str
    difference: Interval | None
    """The better row's value minus the worse row's, paired over the questions of all seeds. Questions of one seed
    about one film or person are resampled together."""
    verdict: OrderingVerdict
    why: str
    """Why the ordering was not run."""
    printed: list[float]
    """The differences in the paper, one per column."""


def orderings(measurements: Measurements, name: str, paper: Paper, tables: Sequence[str]) -> list[Ordering]:
    """Return every ordering that the paper claims of ``tables``, one per pair of rows and metric."""
    out: dict[tuple[str, str, str, RowMeasure, RowMeasure], Ordering] = {}
    claims = [claim for claim in paper.claims if claim.table in tables]
    for claim in claims:
        first, second = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
        for (better, worse), columns in product(paper.pairs(claim), _by_metric(paper, claim)):
            a = RowMeasure.over([measurements.measure(better, column, first) for column, _ in columns])
            b = RowMeasure.over([measurements.measure(worse, column, second) for _, column in columns])
            key = claim.id, better.name, worse.name, a, b
            if key in out:  # rows that differ only in the paper's backbone model are the same here
                continue
            used = {"", *(column.id for column, _ in columns)}
            differences = [d for d in paper.differences(claim) if (d.better, d.worse) == (better, worse)]
            verdict, why, difference = _verdict(measurements, claim, (better, a), (worse, b))
            out[key] = Ordering(
                paper=name,
                claim=claim.id,
                text=claim.text,
                section=claim.section,
                table=claim.table,
                better=_label(better, a),
                worse=_label(worse, b),
                metric=" against ".join(dict.fromkeys((a.metric, b.metric))),
                difference=difference,
                verdict=verdict,
                why=why,
                printed=[d.difference for d in differences if d.column in used],
            )
    return list(out.values())


def _verdict(
    measurements: Measurements, claim: PaperClaim, better: tuple[Row, RowMeasure], worse: tuple[Row, RowMeasure]
) -> tuple[OrderingVerdict, str, Interval | None]:
    """Return the verdict on a pair of rows, why it was not run, and the measured difference."""
    first, second = better[1], worse[1]
    metrics = dict.fromkeys((first.metric, second.metric))
    for metric in metrics:
        if metric in UNMEASURED:
            return "not run", f"{metric} needs {UNMEASURED[metric]}", None
    for row, measure in (better, worse):
        if not measurements.answered(measure):
            return "not run", f"no answers for {row.name!r}", None
    if first == second:
        return "not run", "both rows are the same model and strategy here", None
    difference = measurements.difference(first, second)
    if isnan(difference.mean):
        return "not run", f"{' or '.join(metrics)} does not apply to these questions", None
    lo, hi = (difference.lo, difference.hi) if claim.kind != "lower" else (-difference.hi, -difference.lo)
    if claim.kind == "within":
        margin = (claim.margin or 0.0) / (100 if first.metric in PERCENT else 1)
        holds, fails = -margin <= lo and hi <= margin, lo > margin or hi < -margin
    else:
        holds, fails = lo > 0, hi < 0
    return "holds" if holds else "fails" if fails else "cannot be told apart", "", difference


def _by_metric(paper: Paper, claim: PaperClaim) -> list[list[tuple[Column, Column]]]:
    """Return the pairs of columns that are compared (of the better rows, of the worse rows), grouped by metric."""
    better, worse = (
        {column.id: column for column in paper.tables[id].columns}
        for id in (claim.table, claim.worse_table or claim.table)
    )
    out: dict[tuple[str, str], list[tuple[Column, Column]]] = {}
    for a, b in paper.columns(claim):
        out.setdefault((better[a].metric, worse[b].metric), []).append((better[a], worse[b]))
    return list(out.values())


def _label(row: Row, measure: RowMeasure) -> str:
    """Return the row's name, with a mark if the mini world's student represents the smaller of two models."""
    small = any(request and request.model == "student" for request in measure.requests)
    return f"{row.name} (student)" if small else row.name
