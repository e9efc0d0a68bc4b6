"""The page of a reproduction: every claim with what became of it, and every table beside its printed numbers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from markupsafe import Markup

from eval.metrics import Interval
from eval.miniature import Cell
from eval.published import Row, papers
from eval.published import Table as Published
from eval.report import template
from eval.reproduce import Ordering, Reproduction, Source, Verdict, chosen_tables
from eval.tables import Table
from rag_train.files import write_text
from rag_train.progress import console

VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "cannot be told apart", "not run")


@dataclass(frozen=True)
class Claimed:
    """One claim, and what became of its orderings."""

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
        """holds, if every ordering that was run does; fails, if one does not; else what most of them say."""
        run = [o.verdict for o in self.orderings if o.verdict != "not run"]
        if not run:
            return "not run"
        if "fails" in run:
            return "fails" if "holds" not in run else "holds in part"
        return "holds" if set(run) == {"holds"} else "holds in part" if "holds" in run else "cannot be told apart"


def reproduce(paper: str | None, id: str | None, sources: Sequence[Source], output: Path) -> list[Ordering]:
    """Measure one table, all of a paper's, or all of all; write ``reproduction.{html,md,json}`` to ``output``.

    Raises UserError for an unknown paper or table.
    """
    tables = chosen_tables(paper, id)
    reproduction = Reproduction(sources)
    compared = [  # what claims about these tables compare with
        papers()[name].tables[claim.worse_table]
        for name, tid, _ in tables
        for claim in papers()[name].claims
        if claim.table == tid and claim.worse_table
    ]
    asyncio.run(reproduction.run([*(one for _, _, one in tables), *compared]))
    pages = [beside(name, tid, one, reproduction) for name, tid, one in tables]
    orderings = [
        ordering
        for name in dict.fromkeys(name for name, _, _ in tables)
        for ordering in reproduction.orderings(name, papers()[name], [tid for n, tid, _ in tables if n == name])
    ]
    claims = claims_table(claimed(orderings))
    about = sources[0].about()
    text = "\n".join([*(f"{line}\n" for line in about), *(page.markdown() for page in [claims, *pages])])
    dumped = json.dumps([ordering.model_dump(mode="json") for ordering in orderings], indent=1)
    for suffix, content in (("md", text), ("json", dumped + "\n"), ("html", page_of(orderings, pages, about))):
        write_text(output / f"reproduction.{suffix}", content)
    for page in pages if id else []:
        console.print(page.rich())
    console.print(claims.rich())
    console.print(output / "reproduction.html")
    return orderings


def beside(name: str, id: str, one: Published, reproduction: Reproduction) -> Table:
    """A table with each printed number (the mean over backbone models) and ours."""
    rows = []
    by_cell: dict[tuple[str, Cell | None], list[Row]] = {}
    for row in one.rows:  # those of other backbone models are one here
        by_cell.setdefault((row.name, reproduction.cell(row, one, "")), []).append(row)
    for (called, cell), same in by_cell.items():
        cells = []
        for i, column in enumerate(one.columns):
            numbers = [value for row in same if (value := row.values[i]) is not None]
            theirs = f"{sum(numbers) / len(numbers):.4g}" if numbers else "-"
            cells.append(f"{theirs} / {shown(reproduction.measured(same[0], column, one))}")
        rows.append([f"{called} (student)" if cell and cell.model == "student" else called, *cells])
    return Table(
        title=f"{name}, {id}",
        caption=f"{one.title} Printed (mean over backbone models) / measured, with its 95% interval.",
        columns=["", *(column.id for column in one.columns)],
        rows=rows,
        notes=[one.note] if one.note else [],
    )


def shown(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.mean:.3g}" + ("" if isnan(interval.lo) else f" [{interval.lo:.3g}, {interval.hi:.3g}]")


def claimed(orderings: Sequence[Ordering]) -> list[Claimed]:
    by_claim: dict[str, list[Ordering]] = {}
    for ordering in orderings:
        by_claim.setdefault(ordering.claim, []).append(ordering)
    return [Claimed(some) for some in by_claim.values()]


def claims_table(claims: Sequence[Claimed]) -> Table:
    """A line a claim: how many of its orderings (pairs of rows, by metric) hold."""
    total = Counter(claim.verdict for claim in claims)
    return Table(
        title="What the papers claim",
        caption="Of each claim, how many orderings hold, fail, cannot be told apart, or were not run. An ordering "
        "holds if the 95% interval of the paired difference excludes 0.",
        columns=["Claim", *VERDICTS],
        rows=[
            [f"{c.first.paper}, {c.first.section}: {c.first.text}", *(str(c.counts.get(v, 0)) for v in VERDICTS)]
            for c in claims
        ],
        notes=[", ".join(f"{count} claims: {verdict}" for verdict, count in total.items())],
    )


def page_of(orderings: Sequence[Ordering], tables: Sequence[Table], about: Sequence[str]) -> str:
    """One HTML file that needs no network."""
    claims = claimed(orderings)
    return template("reproduction.html.jinja").render(
        papers={
            name: [claim for claim in claims if claim.first.paper == name]
            for name in dict.fromkeys(claim.first.paper for claim in claims)
        },
        total=Counter(claim.verdict for claim in claims),
        about=about,
        tables=[Markup(table.html()) for table in tables],
        shown=shown,
        tone={"holds": "right", "fails": "wrong"},
    )
