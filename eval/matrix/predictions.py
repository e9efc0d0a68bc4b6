"""Predictions of other systems, in the formats of the datasets' scripts and of other harnesses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.schema import Question, Trajectory

FORMATS = (
    'trajectories of rag-train, {"answer": {ID: TEXT}} (HotpotQA, 2WikiMultihopQA), {ID: TEXT} (SQuAD, TriviaQA), '
    '{"id", "predicted_answer"} (MuSiQue), FlashRAG\'s intermediate_data.json, or lm-evaluation-harness\' samples'
)


def load_predictions(path: Path, questions: Sequence[Question], strategy: str) -> list[Trajectory]:
    """Read a file in any of `FORMATS`; ids are checked later, when the answers are scored.

    Raises UserError if the file cannot be read or has an unknown format.
    """
    asked = {question.id: question.question for question in questions}
    predicted: list[Trajectory] = []
    for where, row in _rows(path):
        try:
            if "question_id" in row:
                predicted.append(Trajectory.model_validate(row).model_copy(update={"strategy": strategy}))
                continue
            id, answer = _id_and_answer(row)
        except (ValidationError, KeyError, IndexError, TypeError) as error:
            problem = str(error).partition("\n")[0] if isinstance(error, ValidationError) else "unknown format"
            raise UserError(f"{path}, {where}: {problem}; give {FORMATS}") from error
        predicted.append(Trajectory(question_id=id, question=asked.get(id, ""), strategy=strategy, answer=answer))
    return predicted


class DuplicateKey(ValueError):
    """A JSON object has the same key twice; Python's parser would silently keep the last."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    duplicate = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) < len(keys) else None
    if duplicate is not None:
        raise DuplicateKey(f"duplicate key {duplicate!r}")
    return dict(pairs)


def _id_and_answer(row: dict[str, Any]) -> tuple[str, str | None]:
    if "predicted_answer" in row:
        id, answer = row["id"], row["predicted_answer"]
    elif "output" in row:
        id, answer = row["id"], row["output"].get("pred")
    else:
        id, answer = row["doc"]["id"], row["filtered_resps"][0]
        answer = answer[0] if isinstance(answer, list) else answer
    if not isinstance(id, str | int) or not isinstance(answer, str | None):
        raise TypeError
    return str(id), answer


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place in the file, for error messages."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "the text is not UTF-8"
        raise UserError(f"cannot read {path}: {problem}; give a file of predictions") from error
    try:
        whole = json.loads(text, object_pairs_hook=_unique_keys)
    except DuplicateKey as error:
        raise UserError(f"{path}: {error}; remove one of the two") from error
    except ValueError:
        whole = None  # JSON Lines; `json.loads` of each line reports errors
    if isinstance(whole, dict) and not whole.keys() & {"id", "question_id", "doc"}:
        answers = whole.get("answer", whole)
        if not isinstance(answers, dict):
            raise UserError(f"{path}: unknown format; give {FORMATS}")
        yield from ((f"id {id!r}", {"id": id, "predicted_answer": answer}) for id, answer in answers.items())
        return
    rows = whole if isinstance(whole, list) else text.split("\n")
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) and not row.strip():
            continue
        where = f"{'row' if isinstance(whole, list) else 'line'} {number}"
        try:
            row = json.loads(row, object_pairs_hook=_unique_keys) if isinstance(row, str) else row
        except ValueError as error:
            raise UserError(f"{path}, {where}: invalid JSON ({error}); give {FORMATS}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, {where}: not a JSON object; give {FORMATS}")
        yield where, row
