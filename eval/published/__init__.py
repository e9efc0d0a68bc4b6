"""What the five papers printed, as data: one YAML file a paper, beside this one.

Numbers stand as printed, also where a paper contradicts itself; `note`s say what is odd. Rows and columns are laid
out so that a column is one metric on one dataset and a row is one way of answering.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Literal, NamedTuple, Self

import yaml
from pydantic import Field, FiniteFloat, model_validator

from rag_train.errors import UserError
from rag_train.schema import Record

PAPERS = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")

Answers = Literal["em", "f1", "accuracy", "compound", "judge", "rouge2", "rouge_l", "mean"]
"""As in `eval.metrics`; mean: of the table's other columns, or of the paper's."""
Retrieval = Literal["success", "gold_precision", "gold_recall"]
Decisions = Literal["decision_f1", "decision_accuracy", "balanced_accuracy", "mcc"]
"""Against what the model knows (DeepRAG, appendix B.2)."""
Retrievals = Literal["retrievals", "retrievals_correct", "retrievals_incorrect"]
Costs = Literal["steps", "rounds", "input_tokens", "output_tokens"]
"""A question; a round is a cycle of retrieval and generation, however many queries it has."""
Plans = Literal["depth_share", "depth_count", "information_gain"]
"""Questions whose plan has this depth, in percent and in number; a judge's score from 1 to 10."""
Words = Literal["wh_words", "nouns", "verbs", "conjunctions"]
"""In a subquery, on average."""
Metric = Literal[Answers, Retrieval, Decisions, Retrievals, Costs, Plans, Words, "examples"]
"""examples: for training."""
Training = Literal["none", "sft", "dpo", "classifier", "released"]
Retriever = Literal["sparse", "dense", "web", "hybrid"]


class Column(Record):
    """One metric on one dataset."""

    id: str
    dataset: str | None = None
    """Key of `eval.datasets`, several joined by ``+`` where their mean is meant; None: all of the table's."""
    metric: Metric
    depth: int | None = None
    """Of plans, where columns differ in it; 4: or more."""


class Row(Record):
    """One way of answering."""

    name: str
    """As printed, without citation; unique within its group."""
    group: str = ""
    """What the rows around it share: the model that answers, as printed."""
    strategy: str | None = None
    """What `rag-train eval --strategy` takes; None where we have no such thing."""
    trained: Training = "none"
    """``classifier``: a small model that decides; ``released``: the checkpoint that the method's authors gave."""
    training: str = ""
    """What is particular about that training: a recipe's setting, or the modules that were trained."""
    retriever: Retriever | None = None
    """Where rows of one table differ in it."""
    depth: int | None = None
    """Of plans, where rows differ in it; 4: or more."""
    values: list[FiniteFloat | None]
    """In the order of the columns; None: not reported."""
    note: str = ""


class Table(Record):
    """A numbered table, or a figure whose numbers (or at least whose comparison) the text has."""

    title: str
    """The caption as printed; for papers that came without captions, what is shown."""
    section: str
    unit: Literal["percent", "fraction", "count"]
    """Of scores and shares; costs are counts a question in any table."""
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
        """One cell, by the column's id. Raises KeyError for an unknown one."""
        return dict(zip((c.id for c in self.columns), row.values, strict=True))[column]

    def find(self, name: str) -> list[Row]:
        """The rows that a claim names: ``name`` in every group, or ``group / name``. Raises KeyError if none is."""
        found = [row for row in self.rows if name in (row.name, f"{row.group} / {row.name}")]
        if not found:
            raise KeyError(name)
        return found


class Claim(Record):
    """An ordering that a paper's text states: every ``better`` row against every ``worse`` one, within a group.

    Rows are named as `Table.find` has it; two that are named with their groups are compared across groups.
    """

    id: str
    text: str
    """A short quotation."""
    section: str
    table: str
    better: list[str] = Field(min_length=1)
    worse: list[str] = Field(min_length=1)
    worse_table: str | None = None
    """Where the worse rows are, if not in ``table``."""
    columns: list[str] | Literal["all"]
    worse_columns: list[str] | None = None
    """What the worse rows are compared in, one for each of ``columns``, if it is not the same column."""
    kind: Literal["higher", "lower", "within"]
    """What the better rows' values are; ``within``: no further apart than ``margin``."""
    over: Literal["each", "mean"] = "each"
    """Whether it is claimed of each column, or of the mean of the differences."""
    margin: float | None = Field(None, ge=0)
    """The difference that the text states, from the closest of the worse rows; None: it names none."""
    mini: str | None = None
    """How the mini world can check it; None: it cannot."""
    note: str = ""


class Comparison(NamedTuple):
    """Two cells, or means of cells, of a claim."""

    better: Row
    worse: Row
    column: str
    """Column ids; empty for a mean."""
    difference: float
    """Of the better row's value over the worse one's, in the table's unit."""


class Outcome(Record):
    """What the printed numbers say about a claim."""

    against: list[str]
    """What contradicts it, a line each."""
    holds: bool | None
    """None: nothing to compare is printed, or nothing says how close is close."""


class Paper(Record):
    """One paper's tables, and what its text says about them."""

    paper: str
    source: str
    tables: dict[str, Table]
    claims: list[Claim]
    note: str = ""

    @model_validator(mode="after")
    def _claims_name_what_exists(self) -> Self:
        _distinct([claim.id for claim in self.claims])
        for claim in self.claims:
            try:
                list(self.comparisons(claim))
            except KeyError as error:
                raise ValueError(f"claim {claim.id}: there is no {error}") from error
            if not self.pairs(claim):
                raise ValueError(f"claim {claim.id}: no two rows of one group to compare")
        return self

    def columns(self, claim: Claim) -> list[tuple[str, str]]:
        """Pairs of column ids, for the better rows and for the worse. Raises KeyError for an unknown table."""
        ids = [c.id for c in self.tables[claim.table].columns] if claim.columns == "all" else claim.columns
        return list(zip(ids, claim.worse_columns or ids, strict=True))

    def pairs(self, claim: Claim) -> list[tuple[Row, Row]]:
        """The rows to compare, better first. Raises KeyError for an unknown table or row."""
        better, worse = self.tables[claim.table], self.tables[claim.worse_table or claim.table]
        return [
            (first, second)
            for a, b in product(claim.better, claim.worse)
            for first, second in product(better.find(a), worse.find(b))
            if first.group == second.group or (" / " in a and " / " in b)
        ]

    def comparisons(self, claim: Claim) -> Iterator[Comparison]:
        """What the printed numbers allow to compare, in the table's order."""
        better, worse = self.tables[claim.table], self.tables[claim.worse_table or claim.table]
        for first, second in self.pairs(claim):
            found = []
            for a, b in self.columns(claim):
                x, y = better.value(first, a), worse.value(second, b)
                if x is not None and y is not None:
                    found.append(Comparison(first, second, a, round(x - y, 6)))
            if claim.over == "mean" and found:
                mean = sum(comparison.difference for comparison in found) / len(found)
                found = [Comparison(first, second, "", round(mean, 6))]
            yield from found

    def check(self, claim: Claim) -> Outcome:
        """Whether the claim holds in the paper's own numbers. A tie is no improvement."""
        found = list(self.comparisons(claim))
        if not found or (claim.kind == "within" and claim.margin is None):
            return Outcome(against=[], holds=None)
        sign = -1 if claim.kind == "lower" else 1
        if claim.kind == "within":
            wrong = [c for c in found if abs(c.difference) > (claim.margin or 0)]
        else:
            wrong = [c for c in found if sign * c.difference <= 0]
        against = [
            f"{c.better.name} is {c.difference:+g} from {c.worse.name} in {c.column or 'the mean'}"
            f"{f' ({c.better.group})' if c.better.group else ''}"
            for c in wrong
        ]
        if claim.kind != "within" and claim.margin is not None:
            closest = min(sign * c.difference for c in found)
            if abs(closest - claim.margin) > _last_place(claim.margin) + 1e-9:
                against.append(f"the difference is {closest:g}, not {claim.margin:g}")
        return Outcome(against=against, holds=not against)


def _distinct(names: list[str]) -> list[str]:
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"given twice: {', '.join(sorted(twice))}")
    return names


def _last_place(number: float) -> float:
    """One unit in the last printed place, for papers round, cut off and say "nearly"."""
    exponent = Decimal(str(number)).normalize().as_tuple().exponent
    return 10.0 ** min(0, int(exponent))


@cache
def _load(name: str) -> Paper:
    text = (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")
    return Paper.model_validate(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def papers() -> dict[str, Paper]:
    """The five papers by the name that `rag-train reproduce` takes."""
    return {name: _load(name) for name in PAPERS}


def table(paper: str, id: str) -> Table:
    """A table by its paper's name and its id ("table1", "figure6a"). Raises UserError for an unknown one."""
    if paper not in PAPERS:
        raise UserError(f"unknown paper {paper!r}; {_nearest(paper, PAPERS)}")
    tables = _load(paper).tables
    if id not in tables:
        raise UserError(f"{paper} has no {id!r}; {_nearest(id, tuple(tables))}")
    return tables[id]


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
