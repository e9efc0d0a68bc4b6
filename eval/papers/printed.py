"""The printed tables and claims of the five papers, read from the YAML files in this folder, one per paper.

Numbers are as printed, even where a paper contradicts itself; a `note` points out such places. Every table is
arranged so that a column is one metric on one dataset and a row is one way of answering.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, Self

import yaml
from pydantic import Field, FiniteFloat, model_validator

from rag_train.errors import UserError
from rag_train.schema import Record

PAPERS = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")

AnswerMetric = Literal["em", "f1", "accuracy", "compound", "judge", "rouge2", "rouge_l", "mean"]
"""Metrics of answers, as in `rag_train.eval.metrics.scores`; mean: the mean of the table's other columns."""
RetrievalMetric = Literal["success", "gold_precision", "gold_recall"]
DecisionMetric = Literal["decision_f1", "decision_accuracy", "balanced_accuracy", "mcc"]
"""Metrics of retrieval decisions, judged by what the model knows (DeepRAG, appendix B.2)."""
RetrievalCount = Literal["retrievals", "retrievals_correct", "retrievals_incorrect"]
Cost = Literal["steps", "rounds", "input_tokens", "output_tokens"]
"""Costs per question. A round is a cycle of retrieval and generation, with any number of queries."""
PlanMetric = Literal["depth_share", "depth_count", "information_gain"]
"""Questions whose plan has a given depth, in percent and in number; a judge's score from 1 to 10."""
ModuleMetric = Literal["route_accuracy", "error_share"]
"""Share of the questions that a router classifies correctly; share of the errors that are of one kind."""
WordCount = Literal["wh_words", "nouns", "verbs", "conjunctions"]
"""Average number of words of a class in a subquery."""
PrintedMetric = Literal[
    AnswerMetric,
    RetrievalMetric,
    DecisionMetric,
    RetrievalCount,
    Cost,
    PlanMetric,
    ModuleMetric,
    WordCount,
    "examples",
]
"""Metric of a printed column; examples: number of training examples."""
Training = Literal["none", "sft", "dpo", "classifier", "released"]
RetrieverKind = Literal["sparse", "dense", "web", "hybrid"]


Kind = Literal["higher", "lower", "at least", "at most", "within"]
"""Relations between rows that a claim may state; see `PaperClaim`."""
AS_GOOD = ("within", "at least", "at most")
"""Kinds of claims that rows are equally good, or nearly; see `rag_train.eval.papers.judge`."""


class Column(Record):
    """One metric on one dataset."""

    id: str
    dataset: str | None = None
    """Name of the dataset; names joined by ``+`` for the mean over several; None for all datasets of the table."""
    metric: PrintedMetric
    depths: list[int] | None = None
    """Depths of the plans that are counted, if the columns differ in them; 4 means 4 or more."""


class Row(Record):
    """One way of answering."""

    name: str
    """Name as printed, without the citation; unique within its group."""
    group: str = ""
    """Heading of the row's group as printed, usually the model that answers."""
    strategy: str | None = None
    """Value for `rag-train eval --strategy`; None if rag-train has no such strategy."""
    trained: Training = "none"
    """Training of the model. ``classifier``: only a small model that decides is trained; ``released``: trained and
    released by the method's authors."""
    training: str = ""
    """Variant of the training: a recipe's setting, or the modules that were trained."""
    retriever: RetrieverKind | None = None
    """Kind of retriever, if the rows of the table differ in it."""
    depths: list[int] | None = None
    """Depths of the plans that are counted, if the rows differ in them; 4 means 4 or more."""
    model: str = ""
    """Model that answers, if it is another one than that of the rows which claims compare this row with. No model
    here stands for it, so the row is not measured."""
    values: list[FiniteFloat | None]
    """Printed values in the order of the columns; None if not reported."""
    note: str = ""


class PublishedTable(Record):
    """A numbered table, a figure whose numbers or at least comparison the text gives, or numbers of the text."""

    title: str
    """Caption as printed; our own title if the text of the paper came without captions."""
    section: str
    unit: Literal["percent", "fraction", "count"]
    """Unit of scores and shares. Costs are always counts per question."""
    columns: list[Column] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    note: str = ""

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        ids = _distinct([column.id for column in self.columns])
        _distinct([f"{row.group} / {row.name}" for row in self.rows])
        for row in self.rows:
            if len(row.values) != len(ids):
                raise ValueError(f"{row.group} / {row.name}: {len(row.values)} values for {len(ids)} columns")
        return self

    def value(self, row: Row, column: str) -> float | None:
        """Return a row's value in the column with this id. Raises KeyError if there is no such column."""
        return dict(zip((c.id for c in self.columns), row.values, strict=True))[column]

    def find(self, name: str) -> list[Row]:
        """Return the rows called ``name``, in any group, or ``group / name``. Raises KeyError if no row is."""
        found = [row for row in self.rows if name in (row.name, f"{row.group} / {row.name}")]
        if not found:
            raise KeyError(name)
        return found


class PaperClaim(Record):
    """An ordering that a paper's text states: every ``better`` row against every ``worse`` row of the same group.

    Rows are named as in `PublishedTable.find`. Rows that are both named with their groups are also compared across
    groups.
    """

    id: str
    text: str
    """Short quotation of the claim."""
    section: str
    table: str
    better: list[str] = Field(min_length=1)
    worse: list[str] = Field(min_length=1)
    worse_table: str | None = None
    """Table of the worse rows, if it is not ``table``."""
    columns: list[str] | Literal["all"]
    worse_columns: list[str] | None = None
    """Columns of the worse rows, one for each of ``columns``, if they are not the same."""
    kind: Kind
    """Relation of the better rows' values to the worse rows'. ``within``: they differ by at most a margin.
    ``at least``, ``at most``: they may differ by more in one direction, upwards or downwards."""
    over: Literal["each", "many", "mean"] = "each"
    """Whether the claim is about each comparison, about at least half of them ("several methods", "often"), or
    about the mean of the differences."""
    margin: float | None = Field(None, ge=0)
    """Difference from the closest worse row as the text states it; for ``within`` the largest difference. None if
    the text states no number."""
    note: str = ""


class PrintedDifference(NamedTuple):
    """The difference between two printed values, or between means of values, that a claim compares."""

    better: Row
    worse: Row
    column: str
    """Column id; empty for a mean."""
    difference: float
    """The better row's value minus the worse row's, in the table's unit."""


class Consistency(Record):
    """Whether a claim agrees with the numbers of its own paper."""

    against: list[str]
    """Contradictions, one line each."""
    holds: bool | None
    """None if the paper prints nothing to compare, or does not say how close "close" is."""


class Paper(Record):
    """One paper's tables and the claims of its text about them."""

    paper: str
    source: str
    tables: dict[str, PublishedTable]
    claims: list[PaperClaim]
    note: str = ""

    @model_validator(mode="after")
    def _claims_name_what_exists(self) -> Self:
        _distinct([claim.id for claim in self.claims])
        for claim in self.claims:
            try:
                list(self.differences(claim))
            except KeyError as error:
                raise ValueError(f"claim {claim.id}: unknown table, row or column {error}") from error
            if not self.pairs(claim):
                raise ValueError(f"claim {claim.id}: no better and worse row belong to the same group")
        return self

    def columns(self, claim: PaperClaim) -> list[tuple[str, str]]:
        """Return pairs of column ids, for the better and the worse rows. Raises KeyError for an unknown table."""
        ids = [c.id for c in self.tables[claim.table].columns] if claim.columns == "all" else claim.columns
        return list(zip(ids, claim.worse_columns or ids, strict=True))

    def pairs(self, claim: PaperClaim) -> list[tuple[Row, Row]]:
        """Return the pairs of rows to compare, better first. Raises KeyError for an unknown table or row."""
        better, worse = self.tables[claim.table], self.tables[claim.worse_table or claim.table]
        return [
            (first, second)
            for a, b in product(claim.better, claim.worse)
            for first, second in product(better.find(a), worse.find(b))
            if first.group == second.group or (" / " in a and " / " in b)
        ]

    def differences(self, claim: PaperClaim) -> Iterator[PrintedDifference]:
        """Yield the differences between printed values that the claim compares, in the table's order."""
        better, worse = self.tables[claim.table], self.tables[claim.worse_table or claim.table]
        for first, second in self.pairs(claim):
            differences = []
            for a, b in self.columns(claim):
                x, y = better.value(first, a), worse.value(second, b)
                if x is not None and y is not None:
                    differences.append(PrintedDifference(first, second, a, round(x - y, 6)))
            if claim.over == "mean" and differences:
                mean = sum(d.difference for d in differences) / len(differences)
                differences = [PrintedDifference(first, second, "", round(mean, 6))]
            yield from differences

    def check(self, claim: PaperClaim) -> Consistency:
        """Check the claim against the paper's own numbers. A tie is not an improvement, but it is no loss."""
        differences = list(self.differences(claim))
        sign = -1 if claim.kind in ("lower", "at most") else 1
        losses = [d for d in differences if sign * d.difference < 0]
        unsaid = claim.margin is None and claim.kind in AS_GOOD and bool(losses or claim.kind == "within")
        if not differences or unsaid:
            return Consistency(against=[], holds=None)
        match claim.kind:
            case "within":
                most = (claim.margin or 0) + _last_place(claim.margin or 0) + 1e-9
                wrong = [d for d in differences if abs(d.difference) > most]
            case "at least" | "at most":
                wrong = losses
            case _:
                wrong = [d for d in differences if sign * d.difference <= 0]
        against = [
            f"{d.better.name} differs by {d.difference:+g} from {d.worse.name} in {d.column or 'the mean'}"
            f"{f' ({d.better.group})' if d.better.group else ''}"
            for d in wrong
        ]
        if claim.kind != "within" and claim.margin is not None:
            closest = min(sign * d.difference for d in differences)
            if abs(closest - claim.margin) > _last_place(claim.margin) + 1e-9:
                against.append(f"the difference is {closest:g}, not {claim.margin:g}")
        holds = 2 * len(wrong) <= len(differences) if claim.over == "many" else not against
        return Consistency(against=against, holds=holds)


def _distinct(names: list[str]) -> list[str]:
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"duplicate names: {', '.join(sorted(duplicates))}")
    return names


def _last_place(number: float) -> float:
    """Return one unit of the number's last printed place, the tolerance for rounding, truncation and "nearly"."""
    exponent = Decimal(str(number)).normalize().as_tuple().exponent
    return 10.0 ** min(0, int(exponent))


@cache
def _load(name: str) -> Paper:
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    return Paper.model_validate(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def papers() -> dict[str, Paper]:
    """Return the five papers by the name that `rag-train reproduce` takes."""
    return {name: _load(name) for name in PAPERS}


def table(paper: str, id: str) -> PublishedTable:
    """Return a table by its paper's name and its id ("table1", "figure6a").

    Raises UserError for an unknown paper or table.
    """
    if paper not in PAPERS:
        raise UserError(f"unknown paper {paper!r}; {_suggestion(paper, PAPERS)}")
    tables = _load(paper).tables
    if id not in tables:
        raise UserError(f"unknown table {id!r} of {paper}; {_suggestion(id, tuple(tables))}")
    return tables[id]


def chosen_tables(paper: str | None, id: str | None) -> list[tuple[str, str, PublishedTable]]:
    """Return (paper, id, table) of one table, of all tables of a paper, or of all papers' tables.

    Raises UserError for an unknown paper or table.
    """
    if paper and id:
        return [(paper, id, table(paper, id))]
    if paper and paper not in PAPERS:
        raise UserError(f"unknown paper {paper!r}; {_suggestion(paper, PAPERS)}")
    return [
        (name, table_id, published)
        for name in ([paper] if paper else PAPERS)
        for table_id, published in _load(name).tables.items()
    ]


def _suggestion(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
