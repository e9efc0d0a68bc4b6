"""A reproduction: the measured cells of the papers' tables and the verdicts on their claims, as JSON and a page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.matrix.estimate import CellEstimate
from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.papers.judge import Comparison, JudgedClaim, Verdict, judge, label, measures
from rag_train.eval.papers.measured import PERCENT, Measurements, RowMeasure
from rag_train.eval.papers.printed import Column, PublishedTable, Row, chosen_tables, papers
from rag_train.eval.papers.protocol import PROTOCOL, committed_hash, load_protocol, logged
from rag_train.eval.papers.sources import Source
from rag_train.files import write_text
from rag_train.pages.scale import Scale, round_ends
from rag_train.progress import console
from rag_train.provenance import code_version, machine
from rag_train.schema import Record
from rag_train.table import Table
from rag_train.templates import template

SEEDS_FILE = "reproduction_seeds.json"
"""File of the test seeds' values, which other days and machines add to."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


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
    seeds: list[float] = Field(default_factory=list)
    """The value of each seed."""
    interval: Interval | None = None
    why: str = ""
    """Why nothing was measured."""


class Reproduction(Record):
    """The results of a reproduction, as ``reproduction.json`` holds them."""

    code_version: str
    machine: dict[str, str]
    protocol: str
    """Start of the SHA-256 of the protocol, if the seeds are its test seeds; else empty."""
    unit: Literal["seed", "question"]
    """What the intervals are over."""
    seeds: list[int]
    settings: dict[str, Any]
    level: float
    """Level of each one-sided test."""
    about: list[str]
    cells: list[Cell]
    claims: list[JudgedClaim]

    @property
    def counts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        counts = Counter(claim.verdict for claim in self.claims)
        return {verdict: counts[verdict] for verdict in VERDICTS}


def reproduce(paper: str | None, id: str | None, sources: Sequence[Source], output: Path) -> list[JudgedClaim]:
    """Measure one table, all tables of a paper, or all papers; write ``reproduction.{html,md,json}`` to ``output``.

    Runs on the protocol's test seeds are entered into the log. The values of each test seed are kept in ``output``,
    and nothing is judged before all test seeds have been measured, on this day or another.

    Returns the claims with their verdicts; none if test seeds are left.

    Raises UserError for an unknown paper or table, and for test seeds without a committed protocol.
    """
    chosen = chosen_tables(paper, id)
    seeds = [source.world_seed for source in sources if source.world_seed is not None]
    rules = load_protocol()
    if rules.are_test_seeds(seeds, sources[0].settings()):
        what = f"reproduce {paper or 'all'} {id or ''}".strip()
        with logged(what, seeds) as outcome:
            values = _values_by_seed(what, chosen, sources, output)
            if left := [seed for seed in rules.seeds.test if seed not in values]:
                outcome.text = f"measured; not judged before seeds {', '.join(map(str, left))}"
                console.print(f"{output / SEEDS_FILE}: {outcome.text}")
                return []
            measurements = Measurements(sources, list(values.values()))
            found = judged_tables(chosen, measurements, list(values), committed_hash(PROTOCOL))
            write(found, output)
            outcome.text = ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    else:
        found = judged_tables(chosen, _measured(chosen, sources), seeds, "")
        write(found, output)
    for table in tables_of(found).values() if id else []:
        console.print(table)
    console.print(claims_table(found))
    console.print(f"wrote {output / 'reproduction.html'}")
    return found.claims


def _measured(chosen: Sequence[tuple[str, str, PublishedTable]], sources: Sequence[Source]) -> Measurements:
    """Answer all requests of the tables and of those that claims compare them with."""
    measurements = Measurements(sources)
    asyncio.run(measurements.run(_with_compared(chosen)))
    return measurements


def _values_by_seed(
    what: str, chosen: Sequence[tuple[str, str, PublishedTable]], sources: Sequence[Source], output: Path
) -> dict[int, dict[str, float]]:
    """Measure each source's seed, and return the values of all seeds in ``output``."""
    by_seed = {source.world_seed: source for source in sources}

    def values(seed: int) -> dict[str, Any]:
        measurements = _measured(chosen, [by_seed[seed]])
        for measure in _measures(chosen, measurements):
            measurements.values(measure)
        return {"values": {key: None if isnan(value) else value for key, value in measurements.recorded[0].items()}}

    settings = {"what": what} | sources[0].settings()
    found = run_by_seed(output / SEEDS_FILE, settings, [seed for seed in by_seed if seed is not None], values)
    return {
        seed: {key: nan if value is None else value for key, value in found[seed]["values"].items()}
        for seed in sorted(found)
    }


def _measures(
    chosen: Sequence[tuple[str, str, PublishedTable]], measurements: Measurements
) -> Iterator[RowMeasure]:
    """Yield all measures that the tables and their claims need, as far as there are answers."""
    for name, id, published in chosen:
        for row, column in product(published.rows, published.columns):
            measure = measurements.measure(row, column, published)
            if not measurements.lacks(row, measure):
                yield measure
        yield from measures(measurements, papers()[name], [id])


def judged_tables(
    chosen: Sequence[tuple[str, str, PublishedTable]], measurements: Measurements, seeds: list[int], protocol: str
) -> Reproduction:
    """Return the cells of tables, given as (paper, id, table), with the verdicts on the claims about them."""
    rules, first = load_protocol(), measurements.sources[0]
    return Reproduction(
        code_version=code_version(),
        machine=machine(),
        protocol=protocol,
        unit="seed" if len(measurements.recorded) > 1 else "question",
        seeds=seeds,
        settings=first.settings(),
        level=rules.level,
        about=first.about(),
        cells=[cell for name, id, published in chosen for cell in cells(name, id, published, measurements)],
        claims=[
            claim
            for name in dict.fromkeys(name for name, _, _ in chosen)
            for claim in judge(measurements, name, papers()[name], [i for n, i, _ in chosen if n == name], rules)
        ],
    )


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


def write(found: Reproduction, output: Path) -> None:
    """Write ``reproduction.{html,md,json}`` to ``output``."""
    tables = [claims_table(found), *tables_of(found).values()]
    text = "\n".join([*(f"{line}\n" for line in found.about), *(table.markdown() for table in tables)])
    write_text(output / "reproduction.json", found.model_dump_json(indent=1) + "\n")
    write_text(output / "reproduction.md", text)
    write_text(output / "reproduction.html", page(found))


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
        row=label(rows[0], measure),
        column=column.id,
        metric=column.metric,
        printed={row.group: scale * value for row in rows if (value := row.values[i]) is not None},
        model=request.model if request else None,
        strategy=rows[0].strategy,
        questions=[request.questions for request in measure.requests if request],
    )
    if why := measurements.lacks(rows[0], measure):
        return cell.model_copy(update={"why": why})
    interval = measurements.interval(measure)
    if isnan(interval.mean):
        return cell.model_copy(update={"why": "does not apply to these questions"})
    return cell.model_copy(update={"seeds": measurements.values(measure), "interval": interval})


def tables_of(found: Reproduction) -> dict[tuple[str, str], Table]:
    """Return the tables of printed and measured numbers by paper and id."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in found.cells:
        groups.setdefault((cell.paper, cell.table), []).append(cell)
    return {key: _table(*key, group) for key, group in groups.items()}


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
    return " · ".join(number(value) for value in cell.printed.values()) or "-"


def number(value: float) -> str:
    """Return a number with at most four decimals, without an exponent."""
    return f"{round(value, 4):,}".removesuffix(".0")


def shown(interval: Interval | None, sign: str = "") -> str:
    """Return an interval as text, three significant digits each."""
    if interval is None:
        return "-"
    ends = "" if isnan(interval.lo) else f" [{_digits(interval.lo, sign)}, {_digits(interval.hi, sign)}]"
    return f"{_digits(interval.mean, sign)}{ends}"


def _digits(value: float, sign: str) -> str:
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.3g}"


def claims_table(found: Reproduction) -> Table:
    """Return a table of the claims with the number of comparisons per outcome."""
    counts = {verdict: count for verdict, count in found.counts.items() if count}
    return Table(
        title="The papers' claims",
        caption="For each claim its verdict, and the number of comparisons (of two rows in a metric on a question "
        "set) that are as claimed, against the claim, undecided, or not run. "
        f"Intervals are over {found.unit}s.",
        columns=["Claim", "verdict", "as claimed", "against", "undecided", "not run"],
        rows=[
            [f"{claim.paper}, {claim.section}: {claim.text}", claim.verdict, *map(str, claim.counted(found.level))]
            for claim in found.claims
        ],
        notes=[", ".join(f"{count} claims: {verdict}" for verdict, count in counts.items())],
    )


WIDTH, HEIGHT = 260, 24
"""Size of an interval's drawing, in SVG units."""


@dataclass(frozen=True)
class Bar:
    """A comparison drawn as an interval, with the means of its claim's other comparisons; x positions."""

    zero: float
    lo: float
    hi: float
    mean: float
    margin: tuple[float, float] | None
    others: list[float]
    ticks: list[tuple[float, str]]


def bar(claim: JudgedClaim, comparison: Comparison, most: float) -> Bar | None:
    """Return the drawing of a comparison; ``most`` is the axis's end for points, the same on the whole page."""
    effect = comparison.effect
    if effect is None:
        return None
    alike = [c.effect for c in claim.run if c.effect and in_points(c) == in_points(comparison)]
    if not in_points(comparison):
        most = max(abs(x) for e in alike for x in (e.lo, e.hi, comparison.margin)) or 1.0
    end = round_ends([0.0, most])[1]
    x = Scale(-end, end, 6, WIDTH - 6)
    return Bar(
        zero=x(0),
        lo=x(min(end, max(-end, effect.lo))),
        hi=x(max(-end, min(end, effect.hi))),
        mean=x(max(-end, min(end, effect.mean))),
        margin=(x(max(-end, -comparison.margin)), x(min(end, comparison.margin))) if comparison.margin else None,
        others=sorted({x(e.mean) for e in alike if e is not effect and abs(e.mean) <= end}),
        ticks=[(x(-end), f"{-end:,g}"), (x(end), f"+{end:,g}")],
    )


def in_points(comparison: Comparison) -> bool:
    """Whether a comparison's difference is in percentage points."""
    return all(metric in PERCENT for metric in comparison.metrics)


def measured_in(comparison: Comparison) -> str:
    """Return the metric of a comparison and its questions, in words."""
    return " on ".join(filter(None, [" = ".join(comparison.metrics), ", ".join(comparison.questions)]))


def reason(claim: JudgedClaim, level: float) -> str:
    """Return why a claim has its verdict, in a few words."""
    held, against, undecided, missing = claim.counted(level)
    if claim.verdict == "not run":
        return "; ".join(dict.fromkeys(comparison.why for comparison in claim.comparisons))
    counted = [(held, "as claimed"), (against, "against"), (undecided, "undecided"), (missing, "not run")]
    text = ", ".join(f"{count} {what}" for count, what in counted if count)
    return f"{text}; at least half are needed" if claim.over == "many" else text


def page(found: Reproduction) -> str:
    """Return the page as one HTML file that needs neither network nor script."""
    deciding = [claim.deciding for claim in found.claims if claim.deciding]
    points = [comparison.effect for comparison in deciding if comparison.effect and in_points(comparison)]
    ends = sorted(max(abs(effect.lo), abs(effect.hi)) for effect in points) or [1.0]
    most = ends[9 * (len(ends) - 1) // 10]  # the few largest are drawn at the axis's end
    names = dict.fromkeys([*(claim.paper for claim in found.claims), *(cell.paper for cell in found.cells)])
    return template("eval/pages/reproduction.html.jinja").render(
        data=found,
        titles={name: papers()[name].paper for name in names},
        papers={name: [claim for claim in found.claims if claim.paper == name] for name in names},
        contradicted=_contradicted(found),
        verdicts=VERDICTS,
        tables=tables_of(found),
        bar=lambda claim, comparison: bar(claim, comparison, most),
        reason=lambda claim: reason(claim, found.level),
        shown=shown,
        measured_in=measured_in,
        in_points=in_points,
        width=WIDTH,
        height=HEIGHT,
        tone={"holds": "right", "fails": "wrong"},
    )


def _contradicted(found: Reproduction) -> Mapping[str, list[str]]:
    """Return, by claim, how the paper's own numbers contradict it."""
    wanted = {claim.claim for claim in found.claims}
    checks = ((claim.id, paper.check(claim)) for paper in papers().values() for claim in paper.claims)
    return {id: check.against for id, check in checks if id in wanted and check.holds is False}
