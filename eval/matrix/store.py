"""Reads and writes the files of an evaluation matrix.

Questions, trajectories and scores belong together by question id: each file of a cell has every question once, in
any order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rag_train.errors import UserError
from rag_train.eval.matrix.answers import digest
from rag_train.eval.matrix.cell import MATRIX, Cell, CellName, Matrix, file_name, load_matrix
from rag_train.eval.matrix.tables import matrix_csv, matrix_tables
from rag_train.eval.metrics.boundary import known_facts
from rag_train.eval.metrics.scores import Score, score
from rag_train.eval.metrics.summary import counted, grade_counts, measure_intervals, summarize
from rag_train.jobs.files import placed_records, write_records, write_text
from rag_train.schema import Question, Trajectory

REMEDY = "evaluate the cell again"
Answer = TypeVar("Answer", Score, Trajectory)
Packed = TypeVar("Packed")


def write_cell(
    output: Path,
    name: CellName,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    settings: dict[str, Any],
    *,
    cot: Sequence[Trajectory] | None = None,
    scores: Sequence[Score] | None = None,
) -> Cell:
    """Write the files of a cell; `write_matrix` adds the cell to the matrix.

    ``settings`` is all that the answers depend on. ``cot`` are the same model's trajectories without retrieval, for
    the CoT boundary. Scores that are not given are computed.

    Raises UserError if questions and trajectories do not match, or as `check_cell` does.
    """
    scores = score(questions, trajectories) if scores is None else scores
    check_cell(output, name, questions, settings)
    known = known_facts(questions) or None
    summary = summarize(
        questions, trajectories, strategy=name.strategy, seed=name.seed, cot=cot, known=known, scores=scores
    )
    file = f"cells/{name.id}"
    cell = Cell(
        id=name.id,
        **name._asdict(),
        trajectories=f"{file}.jsonl",
        questions=f"questions/{file_name(name.dataset)}-{digest(questions)[:8]}.jsonl",
        summary=summary,
        scores=f"{file}.scores.jsonl",
    )
    write_records(output / cell.questions, questions)
    write_records(output / cell.trajectories, trajectories)
    write_records(output / cell.scores, scores)
    write_text(output / f"{file}.settings.json", json.dumps(settings, indent=1) + "\n")
    return cell


def warnings(directory: Path, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each cell whose questions or answers were refused, or whose searches found nothing."""
    for cell in cells:
        if refused := cell.summary.refusals:
            where = f"see the errors in {directory / cell.trajectories}"
            yield f"{cell.id}: questions refused, which count as wrong ({refused}); {where}"
        if unjudged := counted(cell.summary.unjudged):
            yield f"{cell.id}: answers that the judge refused, which count as wrong: {unjudged}"
        if nothing := cell.summary.nothing_found:
            count = f"{nothing:.0f} of {cell.summary.questions:,} questions"
            yield f"{cell.id}: the retriever found no passage for {count}; check the index or the service"


def read_cell(directory: Path, cell: Cell) -> tuple[list[Question], list[Trajectory], list[Score]]:
    """Return the questions of a cell, and its trajectories and scores in the same order.

    Raises UserError as `read_questions` and `read_answers` do.
    """
    questions = read_questions(directory / cell.questions)
    trajectories = read_answers(directory / cell.trajectories, Trajectory, questions, lambda answer: answer)
    scores = read_answers(directory / cell.scores, Score, questions, lambda score: score)
    return questions, trajectories, scores


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a cell.

    Raises UserError if the file cannot be read, contains no questions or repeats an id.
    """
    questions: dict[str, Question] = {}
    for place, question in placed_records(path, Question, REMEDY):
        if question.id in questions:
            raise UserError(f"{place}: duplicate question {question.id[:80]!r}; remove one of the two lines")
        questions[question.id] = question
    if not questions:
        raise UserError(f"{path}: no questions; {REMEDY}")
    return list(questions.values())


def read_answers(
    path: Path, kind: type[Answer], questions: Sequence[Question], pack: Callable[[Answer], Packed]
) -> list[Packed]:
    """Apply ``pack`` to each record of ``path`` and return the results in the order of ``questions``.

    Only the results are kept in memory: the trajectories of ten thousand questions would not fit.

    Raises UserError if the file cannot be read, or an id is missing, duplicated or not among ``questions``.
    """
    packed: dict[str, Packed] = {}
    asked = dict.fromkeys(question.id for question in questions)
    for place, answer in placed_records(path, kind, REMEDY):
        id = answer.question_id
        if id not in asked:
            raise UserError(f"{place}: {id[:80]!r} is not among the cell's questions; {REMEDY}")
        if id in packed:
            raise UserError(f"{place}: duplicate question {id[:80]!r}; remove one of the two lines")
        packed[id] = pack(answer)
    if missing := [id for id in asked if id not in packed]:
        count = f"{len(missing)} of {len(asked)}"
        raise UserError(f"{path}: {count} questions are missing, {missing[0][:80]!r} first; {REMEDY}")
    return [packed[id] for id in asked]


def rescore(directory: Path, cell: Cell, scores: Sequence[Score], unjudged: dict[str, float]) -> Cell:
    """Replace the scores of a cell and the number of things that the judge refused to judge, by reason.

    `write_matrix` adds the cell to the matrix.
    """
    write_records(directory / cell.scores, scores)
    measures = {"measures": measure_intervals(scores), "unjudged": unjudged, **grade_counts(scores)}
    summary = cell.summary.model_copy(update=measures)
    return cell.model_copy(update={"summary": summary})


def write_matrix(output: Path, cells: Sequence[Cell]) -> None:
    """Add ``cells`` to the matrix, replacing cells with the same ids, and write the tables of all cells."""
    before = load_matrix(output).cells if (output / MATRIX).exists() else []
    matrix = Matrix(cells=list({cell.id: cell for cell in [*before, *cells]}.values()))
    write_text(output / MATRIX, matrix.model_dump_json(indent=1) + "\n")
    tables = matrix_tables(matrix.cells)
    write_text(output / "tables.md", "\n".join(table.markdown() for table in tables))
    write_text(output / "tables.tex", "\n".join(table.latex() for table in tables))
    write_text(output / "tables.csv", matrix_csv(matrix.cells))


def check_cell(output: Path, name: CellName, questions: Sequence[Question], settings: dict[str, Any]) -> None:
    """Raise UserError if writing the cell would overwrite another cell.

    That is a cell with the same files and another name, or with the same name and other settings, or with the same
    name and entirely different questions, such as those of another file called dev.jsonl.
    """
    file = output / f"cells/{name.id}.settings.json"
    remedy = "give the model, the questions or the retriever another name (NAME=PLACE), or choose another --output"
    before = {cell.id: cell for cell in load_matrix(output).cells} if (output / MATRIX).exists() else {}
    if cell := before.get(name.id):
        if cell.name != name:
            raise UserError(f"{file}: belongs to the cell {tuple(cell.name)}, not {tuple(name)}; {remedy}")
        asked = {(question.id, question.question) for question in questions}
        if asked.isdisjoint((old.id, old.question) for old in read_questions(output / cell.questions)):
            raise UserError(f"{output / cell.questions}: the cell was answered for other questions; {remedy}")
    try:
        answered = json.loads(file.read_text())
    except OSError:
        return
    differing = [key for key in settings if settings[key] != answered.get(key)]
    if differing:
        raise UserError(f"{file}: the cell was answered with a different setting {differing[0]!r}; {remedy}")
