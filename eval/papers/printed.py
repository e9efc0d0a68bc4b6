"""The printed tables and claims of the five papers, read from the YAML files in this folder, one per paper.

Numbers are as printed, even where a paper contradicts itself; a `note` points out such places. Every table is
arranged so that a column is one metric on one dataset and a row is one way of answering.
"""

from __future__ import annotations

import difflib
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, FiniteFloat

from rag_train.errors import UserError
from rag_train.schema import Record

PAPERS = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")

PrintedMetric = Literal[
    "em", "f1", "accuracy", "compound", "judge", "rouge2", "rouge_l", "mean",  # answers; mean: of the other columns
    "success", "gold_precision", "gold_recall",  # passages that were retrieved
    "decision_f1", "decision_accuracy", "balanced_accuracy", "mcc",  # decisions (DeepRAG, appendix B.2)
    "retrievals", "retrievals_correct", "retrievals_incorrect", "steps", "rounds",  # counts per question
    "input_tokens", "output_tokens",
    "depth_share", "depth_count", "information_gain",  # plans: share and number by depth, and a judge's score
    "route_accuracy", "error_share",  # questions classified correctly by a router; errors of one kind
    "wh_words", "pronouns", "verbs", "conjunctions",  # words of a class in a subquery, on average
    "examples",  # training examples
]  # fmt: skip
"""Metric of a printed column."""
Training = Literal["none", "sft", "dpo", "classifier", "released"]
RetrieverKind = Literal["sparse", "dense", "web", "hybrid"]
Kind = Literal["higher", "lower", "at least", "at most", "within"]
"""Relations between rows that a claim may state; see `PaperClaim`."""


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
    over: Literal["each", "mean"] = "each"
    """Whether the claim is about each comparison, or about the mean of the differences."""
    note: str = ""


class Paper(Record):
    """One paper's tables and the claims of its text about them."""

    paper: str
    source: str
    tables: dict[str, PublishedTable]
    claims: list[PaperClaim]
    note: str = ""

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


@cache
def _load(name: str) -> Paper:
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    return Paper.model_validate(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def papers() -> dict[str, Paper]:
    """Return the five papers by the name that `rag-train reproduce` takes."""
    return {name: _load(name) for name in PAPERS}


def chosen_tables(paper: str | None, id: str | None) -> list[tuple[str, str, PublishedTable]]:
    """Return (paper, id, table) of one table, of all tables of a paper, or of all papers' tables.

    Raises UserError for an unknown paper or table.
    """
    if paper and paper not in PAPERS:
        raise UserError(f"unknown paper {paper!r}; {_suggestion(paper, PAPERS)}")
    if paper and id:
        tables = _load(paper).tables
        if id not in tables:
            raise UserError(f"unknown table {id!r} of {paper}; {_suggestion(id, tuple(tables))}")
        return [(paper, id, tables[id])]
    return [
        (name, table_id, published)
        for name in ([paper] if paper else PAPERS)
        for table_id, published in _load(name).tables.items()
    ]


def _suggestion(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
