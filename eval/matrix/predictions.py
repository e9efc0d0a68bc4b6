"""Predictions of other systems, in the formats of the datasets' scripts and of other harnesses."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rag_train.answers import normalize
from rag_train.errors import UserError
from rag_train.questions.fields import truth
from rag_train.questions.formats import CONTRAST
from rag_train.rows import Row, read_rows
from rag_train.schema import Question, Trajectory

FORMATS = (
    'trajectories of rag-train, {"answer": {ID: TEXT}} (HotpotQA, 2WikiMultihopQA), {ID: TEXT} (SQuAD, TriviaQA), '
    '{"id", "predicted_answer"} (MuSiQue), {"id", "output"} (KILT, FlashRAG\'s intermediate_data.json), a table '
    "with the columns id and prediction, or lm-evaluation-harness' samples"
)
_IDS = ("id", "_id", "qid", "question_id", "QuestionId", "q_id")
_QUESTIONS = ("question", "Question", "query", "input")
_GREEDY = (["True"], ["False"])
"""What follows a choice's likelihood: whether the model would have written this choice."""
_ANSWERS = ("predicted_answer", "prediction", "pred", "answer", "response")
_PREDICTED = re.compile("pred|output|generat|response|(model|system|llm).*answer", re.IGNORECASE)
"""Names of fields that show that the field "answer" beside them is the right answer."""


def load_predictions(path: Path, questions: Sequence[Question], strategy: str) -> list[Trajectory]:
    """Read a file in any of `FORMATS`; ids are checked later, when the answers are scored.

    A record without a known id belongs to the question with its text.

    Raises UserError if the file cannot be read or has an unknown format.
    """
    asked = {question.id: question.question for question in questions}
    texts = Counter(map(normalize, asked.values()))
    by_text = {normalize(text): id for id, text in asked.items() if texts[normalize(text)] == 1}
    twins = _twins(asked)
    predicted: list[Trajectory] = []
    for where, row in _rows(path):
        try:
            if {"question_id", "strategy"} <= row.keys():
                predicted.append(Trajectory.model_validate(row).model_copy(update={"strategy": strategy}))
                continue
            id, answer = _id(row, asked.keys(), by_text), _answer(row)
        except (ValidationError, KeyError, IndexError, TypeError, AttributeError) as error:
            problem = str(error).partition("\n")[0] if isinstance(error, ValidationError) else "unknown format"
            raise UserError(f"{path}, {where}: {problem}; give {FORMATS}") from error
        except ValueError as error:
            raise UserError(f"{path}, {where}: {error}") from error
        id = twins[id].pop(0) if twins.get(id) else id
        predicted.append(Trajectory(question_id=id, question=asked.get(id, ""), strategy=strategy, answer=answer))
    return predicted


def _twins(ids: Iterable[str]) -> dict[str, list[str]]:
    """Return MuSiQue-Full's pairs of questions, in their order, by the id that both predictions have."""
    twins: defaultdict[str, list[str]] = defaultdict(list)
    for id in ids:
        twins[id.removesuffix(CONTRAST)].append(id)
    return {id: pair for id, pair in twins.items() if len(pair) > 1}


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield each prediction with its place in the file, for error messages."""
    rows = list(read_rows(path))
    whole = rows[0][1] if len(rows) == 1 else {}
    if not whole or whole.keys() & {*_IDS, *_QUESTIONS, "doc"}:
        yield from rows
        return
    answers = whole.get("answer", whole)
    if not isinstance(answers, dict):
        raise UserError(f"{path}: unknown format; give {FORMATS}")
    yield from ((f"id {id!r}", {"id": id, "predicted_answer": answer}) for id, answer in answers.items())


def _id(row: Row, asked: Container[str], by_text: Mapping[str, str]) -> str:
    """Return the id of the question that the row answers."""
    doc = row.get("doc", row)
    ids = [str(doc[name]) for name in _IDS if isinstance(doc.get(name), str | int)]
    text = next((doc[name] for name in _QUESTIONS if isinstance(doc.get(name), str)), "")
    known = next((id for id in ids if id in asked), None)
    return known or by_text.get(normalize(text)) or ids[0]


def _answer(row: Row) -> str | None:
    """Return the predicted answer; None if the system gave none."""
    if "filtered_resps" in row:
        return _response(row["filtered_resps"])
    if truth(row.get("predicted_answerable")) is False:  # MuSiQue-Full
        return ""
    name = next((name for name in ("output", *_ANSWERS) if name in row), "output")
    others = [other for other, text in row.items() if _PREDICTED.search(other) and isinstance(text, str)]
    if name == "answer" and others:
        raise ValueError(f"a prediction under 'answer' or under {others[0]!r}? Call its field predicted_answer")
    value = row[name]
    if isinstance(value, dict):
        value = value.get("pred")
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):  # KILT
        value = [each["answer"] for each in value if each.get("answer")][:1]
    if isinstance(value, list):
        if len(value) > 1:
            raise ValueError(f"{len(value)} answers to a question; give one")
        value = value[0] if value else None
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if not isinstance(value, str | None):
        raise TypeError
    return value


def _response(responses: list[Any]) -> str | None:
    """Return the answer of lm-evaluation-harness: the first text, or the letter of the likeliest choice."""
    if all(isinstance(each, list) and [str(greedy) for greedy in each[1:]] in _GREEDY for each in responses):
        likelihoods = [float(each[0]) for each in responses]
        return chr(ord("A") + likelihoods.index(max(likelihoods)))
    answer = responses[0]
    answer = answer[0] if isinstance(answer, list) else answer
    if not isinstance(answer, str | None):
        raise TypeError
    return answer
