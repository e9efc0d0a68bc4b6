"""The papers' claims, counted by the measured differences between rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import isnan
from typing import Literal

from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.papers.measured import PERCENT, Measurements, RowMeasure
from rag_train.eval.papers.printed import Column, Kind, Paper, PaperClaim
from rag_train.schema import Record

Told = Literal["as claimed", "against", "undecided", "not run"]
CLOSE, CLOSE_SHARE = 5.0, 0.25
"""How far apart rows that a paper calls equally good may be: in points, or as a share of the compared row."""


class CountedClaim(Record):
    """A claim, with the number of its comparisons (of two rows in a metric) by what they tell."""

    paper: str
    claim: str
    text: str
    section: str
    table: str
    counts: dict[Told, int]


def told(kind: Kind, difference: Interval, margin: float) -> Told:
    """Return what a difference tells of a claimed relation, by its 95% interval over the questions."""
    lo, hi = difference.lo, difference.hi
    match kind:
        case "within":
            held, contrary = -margin < lo and hi < margin, lo > margin or hi < -margin
        case "at least":
            held, contrary = lo > -margin, hi < -margin
        case "at most":
            held, contrary = hi < margin, lo > margin
        case "lower":
            held, contrary = hi < 0, lo > 0
        case "higher":
            held, contrary = lo > 0, hi < 0
    return "as claimed" if held else "against" if contrary else "undecided"


def counted(measurements: Measurements, name: str, paper: Paper, tables: Sequence[str]) -> list[CountedClaim]:
    """Return a paper's claims about ``tables`` with their counts."""
    found = []
    for claim in paper.claims:
        if claim.table in tables:
            counts: dict[Told, int] = {"as claimed": 0, "against": 0, "undecided": 0, "not run": 0}
            for pair in dict.fromkeys(pairs(measurements, paper, claim)):
                counts[_told(measurements, claim, *pair)] += 1
            found.append(
                CountedClaim(
                    paper=name,
                    claim=claim.id,
                    text=claim.text,
                    section=claim.section,
                    table=claim.table,
                    counts=counts,
                )
            )
    return found


def pairs(measurements: Measurements, paper: Paper, claim: PaperClaim) -> Iterator[tuple[RowMeasure, RowMeasure]]:
    """Yield what a claim compares: the better row's measure, and the worse row's."""
    tables = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
    for rows, columns in product(paper.pairs(claim), _columns(paper, claim)):
        first, second = (
            RowMeasure.over([measurements.measure(row, column, table) for column in its])
            for row, table, its in zip(rows, tables, zip(*columns, strict=True), strict=True)
        )
        if not any(measurements.missing(row) for row in rows):
            yield first, second


def _columns(paper: Paper, claim: PaperClaim) -> list[list[tuple[Column, Column]]]:
    """Return the columns of each comparison: one column, or all of one metric for a claim about the mean.

    What a paper says of all datasets is refuted by a single one. Over pooled questions, a difference can also come
    from the datasets alone: one is more difficult, and takes more retrievals.
    """
    better, worse = (
        {column.id: column for column in paper.tables[id].columns}
        for id in (claim.table, claim.worse_table or claim.table)
    )
    both = [(better[a], worse[b]) for a, b in paper.columns(claim)]
    if claim.over != "mean":
        return [[pair] for pair in both]
    out: dict[tuple[str, str], list[tuple[Column, Column]]] = {}
    for a, b in both:
        out.setdefault((a.metric, b.metric), []).append((a, b))
    return list(out.values())


def _told(measurements: Measurements, claim: PaperClaim, first: RowMeasure, second: RowMeasure) -> Told:
    if first == second or any(map(measurements.unmeasured, (first, second))):
        return "not run"
    difference = measurements.difference(first, second)
    if isnan(difference.mean):
        return "not run"
    share = first.metric in PERCENT
    margin = CLOSE if share else CLOSE_SHARE * abs(measurements.interval(second).mean)
    return told(claim.kind, difference, margin)
