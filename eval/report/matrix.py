"""The page of an evaluation matrix: a self-contained HTML file with tables, plots, and examples to look through.

The page uses no network: its content security policy allows only its own style and scripts, by hash. Texts of
models and documents are data: tables and plots escape them; the examples are blocks that cannot end their element
(`rag_train.eval.report.packing`) and JSON with every ``<`` escaped, which the script inserts as text nodes only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rag_train.errors import UserError
from rag_train.eval.matrix.cell import MATRIX, Cell, load_matrix
from rag_train.eval.matrix.store import read_answers, read_questions
from rag_train.eval.matrix.tables import TABLES, result_sets
from rag_train.eval.metrics.boundary import known_facts, normalized_facts
from rag_train.eval.metrics.scores import Score
from rag_train.eval.report.packing import (
    EXAMPLES,
    PASSAGES,
    Blocks,
    Passages,
    pack_outcomes,
    pack_questions,
    pack_trajectory,
    to_json,
)
from rag_train.eval.report.plots import drawn
from rag_train.jobs.files import new_file
from rag_train.schema import Question, Trajectory
from rag_train.templates import inline, source_of, template

STYLES = ("pages/base.css", "pages/plots.css", "eval/report/matrix.css", "pages/plan.css")
SCRIPTS = (
    "pages/elements.js",
    "pages/plan.js",
    *(f"eval/report/{name}.js" for name in ("base", "examples", "main")),
)
ARRIVAL = 'document.dispatchEvent(new Event("arrived"))'
"""Script after the blocks of the example list: announces them to the page before the other blocks arrive."""


def write_matrix_report(path: Path, directory: Path) -> None:
    """Write the page of the matrix in ``directory`` to ``path``.

    Raises UserError, and leaves ``path`` unchanged, if a file of the matrix is missing, malformed or of another
    version, or if the ids of questions, trajectories and scores do not match.
    """
    cells = load_matrix(directory).cells
    if not cells:
        raise UserError(f"{directory / MATRIX}: no cells; run `rag-train eval` first")
    listed, opened, passages = Blocks(), Blocks(), Passages()
    sets: dict[str, list[Question]] = {}
    for number, cell in enumerate(cells):
        if cell.questions not in sets:
            asked = read_questions(directory / cell.questions)
            listed.add(f"questions-{len(sets)}", pack_questions(asked))
            sets[cell.questions] = asked
        answers, scores, trajectories = _pack_cell(directory, cell, sets[cell.questions], passages)
        listed.add(f"outcomes-{number}", pack_outcomes(answers, scores))
        opened.add_chunks(f"trajectories-{number}", trajectories, EXAMPLES)
    opened.add_chunks("passages", [to_json(passage) for passage in passages.numbers], PASSAGES)
    index = {
        "examples": EXAMPLES,
        "passages": PASSAGES,
        "cells": [
            {"id": cell.id, "name": name, "set": list(sets).index(cell.questions), "em": cell.summary.em.mean}
            for cell, name in zip(cells, _names(cells), strict=True)
        ],
    }
    with new_file(path) as file:
        file.writelines(itertools.chain(_page(cells, index, "".join(listed.html())), opened.html()))


def _names(cells: Sequence[Cell]) -> list[str]:
    """Name each cell by its strategy, and by what else differs between cells."""
    parts = ("strategy", "model", "retriever", "dataset", "seed")
    shown = [part for part in parts if part == "strategy" or len({getattr(cell, part) for cell in cells}) > 1]
    words = [[f"seed {cell.seed}" if part == "seed" else getattr(cell, part) for part in shown] for cell in cells]
    return [" · ".join(each) for each in words]


def _pack_cell(
    directory: Path, cell: Cell, asked: Sequence[Question], passages: Passages
) -> tuple[list[str | None], list[Score], list[str]]:
    """Read a cell's files: answers, scores and packed trajectories, since whole ones would not fit in memory."""

    known = normalized_facts(known_facts(asked))

    def pack(trajectory: Trajectory) -> tuple[str | None, str]:
        return trajectory.answer, pack_trajectory(trajectory, passages, known)

    scores = read_answers(directory / cell.scores, Score, asked, lambda score: score)
    packed = read_answers(directory / cell.trajectories, Trajectory, asked, pack)
    return [answer for answer, _ in packed], scores, [text for _, text in packed]


def _page(cells: Sequence[Cell], index: dict[str, Any], listed: str) -> Iterator[str]:
    """Yield the page up to the blocks of the examples; ``listed`` are the blocks of the example list."""
    style, style_source = inline(*STYLES)
    script, script_source = inline(*SCRIPTS)
    sets = [
        {
            "name": name,
            "tables": [Markup(table.html()) for make in TABLES if (table := make(runs)).rows],
            "plots": drawn(runs, seeds),
        }
        for name, runs, seeds in result_sets(cells)
    ]
    return template("eval/report/matrix.html.jinja").generate(
        style=style,
        script=script,
        style_hash=style_source,
        script_hash=script_source,
        arrival=Markup(ARRIVAL),
        arrival_hash=source_of(ARRIVAL),
        about=_about(cells),
        sets=sets,
        index=Markup(to_json(index).replace("<", "\\u003c")),
        listed=Markup(listed),
    )


def _about(cells: Sequence[Cell]) -> str:
    nouns = {"strategy": "strategies"} | {noun: f"{noun}s" for noun in ("model", "dataset", "retriever", "seed")}
    counts = {noun: len({getattr(cell, noun) for cell in cells}) for noun in nouns}
    return ", ".join(f"{count} {noun if count == 1 else nouns[noun]}" for noun, count in counts.items()) + "."
