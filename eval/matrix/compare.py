"""Paired comparisons of the cells of an evaluation matrix.

Differences have intervals by bootstrap over pairs of answers (Efron and Tibshirani 1993, section 16.4), with
questions about the same subject resampled together. McNemar's exact test compares the numbers of exact matches,
corrected for the number of comparisons (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from rag_train.errors import UserError
from rag_train.eval.matrix.cell import Cell, load_matrix
from rag_train.eval.matrix.store import read_cell
from rag_train.eval.metrics.intervals import Interval, holm, mcnemar, paired_bootstrap
from rag_train.eval.metrics.scores import METRICS, Metric, pair_scores
from rag_train.schema import Question, Record
from rag_train.table import Table


class Comparison(Record):
    """Differences between two cells over the same questions."""

    first: str
    second: str
    questions: int
    clusters: int
    """Number of groups of questions that were resampled together."""
    differences: dict[Metric, Interval]
    """Second minus first, by metric."""
    only_first: int
    """Number of questions that only the first cell answers exactly."""
    only_second: int
    """Number of questions that only the second cell answers exactly."""
    p: float
    """McNemar's exact two-sided p-value."""
    p_corrected: float
    """The p-value after Holm's correction for all comparisons made together."""
    left_out: list[str] = Field(default_factory=list)
    """Ids of the matrix's cells that were not compared because they answer other questions."""


def compare_cells(directory: Path, first: str | None = None, second: str | None = None) -> list[Comparison]:
    """Compare the cell with the id ``first``, by default the matrix's first, with ``second``.

    Without ``second``, it is compared with all cells that have the same questions. Raises UserError if a cell does
    not exist, no other cell has the same questions, or the questions of the two cells differ.
    """
    cells = {cell.id: cell for cell in load_matrix(directory).cells}
    for id in (first, second):
        if id is not None and id not in cells:
            raise UserError(f"{directory}: no cell {id!r}; give one of {', '.join(cells)}")
    base = cells[first] if first else next(iter(cells.values()), None)
    if base is None:
        raise UserError(f"{directory}: no cells; run `rag-train eval` first")
    same_questions = [cell for cell in cells.values() if cell.questions == base.questions and cell != base]
    others = [cells[second]] if second else same_questions
    if not others:
        raise UserError(f"{directory}: no other cell has the questions of {base.id}; give two cells with --cell")
    left_out = [] if second else [cell.id for cell in cells.values() if cell.questions != base.questions]
    comparisons = [_compare(directory, base, other) for other in others]
    corrected = holm([comparison.p for comparison in comparisons])
    return [
        c.model_copy(update={"p_corrected": p, "left_out": left_out})
        for c, p in zip(comparisons, corrected, strict=True)
    ]


def cluster_of(question: Question) -> str:
    """Return a question's subject: its ``metadata["cluster"]``, else the entity of its first hop, else its id."""
    subject = question.metadata.get("cluster") or (question.decomposition and question.decomposition[0].entity)
    return str(subject or question.id)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table with a row per comparison."""

    left_out = ", ".join(comparisons[0].left_out)
    return Table(
        title=f"Compared with {comparisons[0].first}",
        caption=f"Differences from {comparisons[0].first} over {comparisons[0].questions:,} questions; EM, F1 and "
        f"accuracy in percentage points. A: questions that only {comparisons[0].first} answers exactly; B: "
        "questions that only the row's cell answers exactly.",
        columns=["Cell", "EM", "F1", "Accuracy", "Retrievals", "LLM calls", "A", "B", "p", "p (Holm)"],
        rows=[
            [
                c.second,
                *(c.differences[name].text(1, 100, "+") for name in ("em", "f1", "accuracy")),
                *(c.differences[name].text(2, sign="+") for name in ("retrievals", "llm_calls")),
                f"{c.only_first:,}",
                f"{c.only_second:,}",
                f"{c.p:.3g}",
                f"{c.p_corrected:.3g}",
            ]
            for c in comparisons
        ],
        notes=[
            f"In brackets: 95% interval, bootstrapped over {comparisons[0].clusters:,} groups of questions about "
            "the same subject. p: McNemar's exact test.",
            *(
                [f"Not compared, because they answer other questions (choose with --cell): {left_out}."]
                * bool(left_out)
            ),
        ],
        importance=[1, 9, 2, 3, 8, 4, 5, 6, 7],
    )


def _compare(directory: Path, first: Cell, second: Cell) -> Comparison:
    questions, _, first_scores = read_cell(directory, first)
    _, _, second_scores = read_cell(directory, second)
    pairs = pair_scores(first_scores, second_scores)
    clusters = [cluster_of(question) for question in questions]
    p = mcnemar(first_scores, second_scores)
    return Comparison(
        first=first.id,
        second=second.id,
        questions=len(questions),
        clusters=len(set(clusters)),
        differences={metric: paired_bootstrap(first_scores, second_scores, metric, clusters) for metric in METRICS},
        only_first=sum(a.em > b.em for a, b in pairs),
        only_second=sum(a.em < b.em for a, b in pairs),
        p=p,
        p_corrected=p,
    )
