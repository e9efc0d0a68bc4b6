"""The page of a reproduction: every claim with its verdict, and every table with printed and measured numbers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import get_args

from rag_train.eval.matrix.estimate import CellEstimate
from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.miniworld.answers import Request
from rag_train.eval.papers.measured import Measurements
from rag_train.eval.papers.orderings import Ordering, OrderingVerdict, orderings
from rag_train.eval.papers.printed import PublishedTable, Row, chosen_tables, papers
from rag_train.eval.papers.sources import Source
from rag_train.files import write_text
from rag_train.progress import console
from rag_train.table import Table
from rag_train.templates import template

VERDICTS: tuple[OrderingVerdict, ...] = get_args(OrderingVerdict)
CLAIM_VERDICTS = ("holds", "holds in part", "fails", "cannot be told apart", "not run")
"""Verdicts on claims, as `ClaimSummary.verdict` gives them."""


@dataclass(frozen=True)
class ClaimSummary:
    """One claim and the verdicts on its orderings."""

    orderings: list[Ordering]

    @property
    def first(self) -> Ordering:
        return self.orderings[0]

    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(ordering.verdict for ordering in self.orderings)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def verdict(self) -> str:
        """The verdict on the claim.

        It is "holds" if all orderings that were run hold, "holds in part" if some hold, "fails" if none holds and
        any fails, "cannot be told apart" if all are open, and "not run" if none was run.
        """
        run = [o.verdict for o in self.orderings if o.verdict != "not run"]
        if not run:
            return "not run"
        if "fails" in run:
            return "fails" if "holds" not in run else "holds in part"
        return "holds" if set(run) == {"holds"} else "holds in part" if "holds" in run else "cannot be told apart"


def reproduce(paper: str | None, id: str | None, sources: Sequence[Source], output: Path) -> list[Ordering]:
    """Measure one table, all tables of a paper, or all papers; write ``reproduction.{html,md,json}`` to ``output``.

    Raises UserError for an unknown paper or table.
    """
    chosen = chosen_tables(paper, id)
    measurements = Measurements(sources)
    asyncio.run(measurements.run(_with_compared(chosen)))
    tables = {(name, id): measured_table(name, id, published, measurements) for name, id, published in chosen}
    verdicts = [
        ordering
        for name in dict.fromkeys(name for name, _, _ in chosen)
        for ordering in orderings(measurements, name, papers()[name], [tid for n, tid, _ in chosen if n == name])
    ]
    claims = claims_table(by_claim(verdicts))
    about = sources[0].about()
    text = "\n".join(f"{line}\n" for line in about)
    text += "\n" + "\n".join(table.markdown() for table in [claims, *tables.values()])
    dumped = json.dumps([ordering.model_dump(mode="json") for ordering in verdicts], indent=1)
    for suffix, content in (("md", text), ("json", dumped + "\n"), ("html", page(verdicts, tables, about))):
        write_text(output / f"reproduction.{suffix}", content)
    for table in tables.values() if id else []:
        console.print(table)
    console.print(claims)
    console.print(f"wrote {output / 'reproduction.html'}")
    return verdicts


async def estimate(paper: str | None, id: str | None, sources: Sequence[Source]) -> dict[str, list[CellEstimate]]:
    """Return, by model, what the missing answers of the chosen tables would take.

    Raises UserError for an unknown paper or table.
    """
    wanted = Measurements(sources).wanted(_with_compared(chosen_tables(paper, id)))
    by_model: dict[str, list[CellEstimate]] = {}
    for source in sources:
        for request, found in (await source.estimate(wanted)).items():
            by_model.setdefault(request.model, []).append(found)
    return by_model


def _with_compared(chosen: Sequence[tuple[str, str, PublishedTable]]) -> list[PublishedTable]:
    """Return the chosen tables and those that claims about them compare with."""
    compared = [
        papers()[name].tables[claim.worse_table]
        for name, table_id, _ in chosen
        for claim in papers()[name].claims
        if claim.table == table_id and claim.worse_table
    ]
    return [*(published for _, _, published in chosen), *compared]


def measured_table(name: str, id: str, published: PublishedTable, measurements: Measurements) -> Table:
    """Return a table of the printed numbers (means over backbone models) and the measured ones."""
    by_request: dict[tuple[str, Request | None], list[Row]] = {}
    for row in published.rows:  # rows that differ only in the paper's backbone model are the same here
        by_request.setdefault((row.name, measurements.request(row, published, "")), []).append(row)
    rows = []
    for (label, request), same in by_request.items():
        cells = []
        for i, column in enumerate(published.columns):
            numbers = [value for row in same if (value := row.values[i]) is not None]
            printed = f"{sum(numbers) / len(numbers):.4g}" if numbers else "-"
            cells.append(f"{printed} / {shown(measurements.value(same[0], column, published))}")
        rows.append([f"{label} (student)" if request and request.model == "student" else label, *cells])
    return Table(
        title=f"{name}, {id}",
        caption=f"{published.title} Printed (mean over backbone models) / measured, with its 95% interval.",
        columns=["", *(column.id for column in published.columns)],
        rows=rows,
        notes=[published.note] if published.note else [],
    )


def shown(interval: Interval | None) -> str:
    """Return an interval as text, three significant digits each."""
    if interval is None:
        return "-"
    return f"{interval.mean:.3g}" + ("" if isnan(interval.lo) else f" [{interval.lo:.3g}, {interval.hi:.3g}]")


def by_claim(verdicts: Sequence[Ordering]) -> list[ClaimSummary]:
    """Return the orderings grouped by claim, in their order."""
    groups: dict[str, list[Ordering]] = {}
    for ordering in verdicts:
        groups.setdefault(ordering.claim, []).append(ordering)
    return [ClaimSummary(group) for group in groups.values()]


def claims_table(claims: Sequence[ClaimSummary]) -> Table:
    """Return a table of the claims with the number of orderings (pairs of rows, by metric) per verdict."""
    total = Counter(claim.verdict for claim in claims)
    return Table(
        title="The papers' claims",
        caption="For each claim, the number of orderings that hold, fail, cannot be told apart, or were not run. "
        "An ordering holds if the 95% interval of the paired difference excludes 0.",
        columns=["Claim", *VERDICTS],
        rows=[
            [f"{c.first.paper}, {c.first.section}: {c.first.text}", *(str(c.counts.get(v, 0)) for v in VERDICTS)]
            for c in claims
        ],
        notes=[", ".join(f"{count} claims: {verdict}" for verdict, count in total.items())],
    )


def page(verdicts: Sequence[Ordering], tables: Mapping[tuple[str, str], Table], about: Sequence[str]) -> str:
    """Return the page as one HTML file that needs neither network nor script; ``tables`` are by paper and id."""
    claims = by_claim(verdicts)
    return template("eval/pages/reproduction.html.jinja").render(
        papers={
            name: [claim for claim in claims if claim.first.paper == name]
            for name in dict.fromkeys(name for name, _ in tables)
        },
        verdicts=CLAIM_VERDICTS,
        total=Counter(claim.verdict for claim in claims),
        about=about,
        tables=tables,
        shown=shown,
        tone={"holds": "right", "fails": "wrong"},
    )
