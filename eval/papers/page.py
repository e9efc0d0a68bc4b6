"""A reproduction: measured cells beside the printed ones, and the papers' claims, as JSON, Markdown and a page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import Field

from rag_train.eval.matrix.estimate import CellEstimate
from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.papers.claims import CountedClaim, counted
from rag_train.eval.papers.measured import PERCENT, Measurements
from rag_train.eval.papers.printed import Column, PublishedTable, Row, chosen_tables, papers
from rag_train.eval.papers.sources import CheckpointSource
from rag_train.jobs.files import write_text
from rag_train.progress import console
from rag_train.provenance import code_version, machine
from rag_train.schema import Record
from rag_train.table import NOTHING, Table
from rag_train.templates import inline, template

Chosen = Sequence[tuple[str, str, PublishedTable]]
"""Tables with their papers and ids."""


class Cell(Record):
    """A cell of a table: what the paper prints, and what was measured. Shares are in percent."""

    paper: str
    table: str
    row: str
    column: str
    metric: str
    printed: dict[str, float]
    """Printed values by the group of the row, usually the paper's model."""
    model: str | None = None
    """The model that was measured."""
    strategy: str | None = None
    questions: list[str] = Field(default_factory=list)
    """The question sets that were measured."""
    interval: Interval | None = None
    why: str = ""
    """Why nothing was measured."""


class Reproduction(Record):
    """The results of a reproduction, as ``reproduction.json`` holds them."""

    code_version: str
    machine: dict[str, str]
    settings: dict[str, Any]
    about: list[str]
    cells: list[Cell]
    claims: list[CountedClaim]


def reproduce(paper: str | None, id: str | None, source: CheckpointSource, output: Path) -> list[CountedClaim]:
    """Measure one table, all tables of a paper, or all papers; write ``reproduction.{html,md,json}`` to ``output``.

    Raises UserError for an unknown paper or table.
    """
    chosen, measurements = chosen_tables(paper, id), Measurements(source)
    asyncio.run(measurements.run(_with_compared(chosen)))
    names = dict.fromkeys(name for name, _, _ in chosen)
    found = Reproduction(
        code_version=code_version(),
        machine=machine(),
        settings=source.settings(),
        about=[*source.about(), *measurements.refusals()],
        cells=[cell for name, id, published in chosen for cell in cells(name, id, published, measurements)],
        claims=[
            claim
            for name in names
            for claim in counted(measurements, name, papers()[name], [i for n, i, _ in chosen if n == name])
        ],
    )
    tables = [claims_table(found.claims), *tables_of(found.cells)]
    style, style_hash = inline("pages/base.css")
    page = template("eval/papers/page.html.jinja").render(
        about=found.about, tables=[Markup(table.html()) for table in tables], style=style, style_hash=style_hash
    )
    text = "\n".join([*(f"{line}\n" for line in found.about), *(table.markdown() for table in tables)])
    write_text(output / "reproduction.json", found.model_dump_json(indent=1) + "\n")
    write_text(output / "reproduction.md", text)
    write_text(output / "reproduction.html", page)
    for table in tables if id else tables[:1]:
        console.print(table)
    console.print(f"wrote {output / 'reproduction.html'}")
    return found.claims


async def estimate(paper: str | None, id: str | None, source: CheckpointSource) -> dict[str, list[CellEstimate]]:
    """Return, by model, what the missing answers of the chosen tables would take.

    Raises UserError for an unknown paper or table.
    """
    wanted = Measurements(source).wanted(_with_compared(chosen_tables(paper, id)))
    by_model: dict[str, list[CellEstimate]] = {}
    for request, found in (await source.estimate(wanted)).items():
        by_model.setdefault(request.model, []).append(found)
    return by_model


def _with_compared(chosen: Chosen) -> list[PublishedTable]:
    """Return the chosen tables and those that claims about them compare with."""
    compared = [
        papers()[name].tables[claim.worse_table]
        for name, table_id, _ in chosen
        for claim in papers()[name].claims
        if claim.table == table_id and claim.worse_table
    ]
    return [*(published for _, _, published in chosen), *compared]


def cells(name: str, id: str, published: PublishedTable, measurements: Measurements) -> list[Cell]:
    """Return the cells of a table. Rows that differ only in the paper's backbone model share their cells."""
    same: dict[tuple[str, Any], list[Row]] = {}
    for row in published.rows:
        same.setdefault((row.name, measurements.request(row, published, "")), []).append(row)
    return [
        _cell(name, id, published, rows, i, column, measurements)
        for rows in same.values()
        for i, column in enumerate(published.columns)
    ]


def _cell(
    name: str,
    id: str,
    published: PublishedTable,
    rows: list[Row],
    i: int,
    column: Column,
    measurements: Measurements,
) -> Cell:
    measure = measurements.measure(rows[0], column, published)
    request = measure.requests[0]
    scale = 100 if published.unit == "fraction" and column.metric in PERCENT else 1
    cell = Cell(
        paper=name,
        table=id,
        row=rows[0].name,
        column=column.id,
        metric=column.metric,
        printed={row.group: scale * value for row in rows if (value := row.values[i]) is not None},
        model=request.model if request else None,
        strategy=rows[0].strategy,
        questions=[request.questions for request in measure.requests if request],
    )
    if why := measurements.missing(rows[0]) or measurements.unmeasured(measure):
        return cell.model_copy(update={"why": why})
    interval = measurements.interval(measure)
    if isnan(interval.mean):
        return cell.model_copy(update={"why": "does not apply to these questions"})
    return cell.model_copy(update={"interval": interval})


def tables_of(found: Sequence[Cell]) -> list[Table]:
    """Return the tables of printed and measured numbers."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in found:
        groups.setdefault((cell.paper, cell.table), []).append(cell)
    return [_table(*key, group) for key, group in groups.items()]


def _table(name: str, id: str, group: Sequence[Cell]) -> Table:
    published = papers()[name].tables[id]
    rows: dict[str, list[str]] = {}
    for cell in group:
        rows.setdefault(cell.row, [cell.row]).append(f"{_printed(cell)} / {shown(cell.interval)}")
    reasons = {f"{cell.row}, {cell.column}: {cell.why}" for cell in group if cell.why}
    return Table(
        title=f"{name}, {id}",
        caption=f"{published.title} Printed (of each backbone model) / measured, with its 95% interval.",
        columns=["", *dict.fromkeys(cell.column for cell in group)],
        rows=list(rows.values()),
        notes=[*filter(None, [published.note]), *sorted(reasons)],
    )


def _printed(cell: Cell) -> str:
    return " · ".join(number(value) for value in cell.printed.values()) or NOTHING


def number(value: float) -> str:
    """Return a number with at most four decimals, without an exponent."""
    return f"{round(value, 4):,}".removesuffix(".0")


def shown(interval: Interval | None) -> str:
    """Return an interval as text, three significant digits each."""
    if interval is None:
        return NOTHING
    ends = "" if isnan(interval.lo) else f" [{_digits(interval.lo)}, {_digits(interval.hi)}]"
    return f"{_digits(interval.mean)}{ends}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def claims_table(claims: Sequence[CountedClaim]) -> Table:
    """Return a line for each claim, with the number of its comparisons by what they tell."""
    return Table(
        title="The papers' claims",
        caption="For each claim the comparisons (of two rows in a metric on a question set) that are as claimed, "
        "against the claim, undecided, or not run, by 95% intervals over the questions.",
        columns=["Claim", "as claimed", "against", "undecided", "not run"],
        rows=[
            [f"{claim.paper}, {claim.section}: {claim.text}", *(str(count) for count in claim.counts.values())]
            for claim in claims
        ],
    )
