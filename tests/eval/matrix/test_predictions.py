"""Predictions of other systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call
from support.matrices import add_cell, contents, numbered

from rag_train.eval.matrix.cell import load_matrix
from rag_train.eval.matrix.predictions import load_predictions
from rag_train.schema import Question


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ('{"id": "1", "output": [{"answer": "Ann", "provenance": []}]}', "Ann"),
        ('{"id": "1", "output": [{"provenance": []}]}', None),
        ('{"id": "1", "output": []}', None),
        ('{"id": 1, "output": "Ann"}', "Ann"),
        ('{"id": "1", "output": null}', None),
        ('{"id": "1", "output": {"pred": "Ann"}}', "Ann"),
        ('{"1": ["Ann"]}', "Ann"),
        ('{"1": true}', "yes"),
        ('{"_id": "1", "prediction": "Ann"}', "Ann"),
        ('{"question": "who  was the Director?", "pred": "Ann"}', "Ann"),
        ('{"id": "1", "predicted_answer": "Ann", "predicted_answerable": false}', ""),
        ("id,prediction\n1,Ann\n", "Ann"),
        ("id,predicted_answer,predicted_answerable\n1,Ann,False\n", ""),
        ('{"id": "1", "answer": "Ann", "model": "m"}', "Ann"),
        ('{"doc_id": 0, "doc": {"question_id": "1"}, "filtered_resps": ["Ann"]}', "Ann"),
        ('{"doc_id": 0, "doc": {"question": "Who was the director?"}, "filtered_resps": [["Ann"]]}', "Ann"),
        ('{"doc_id": 0, "doc": {"id": "1"}, "filtered_resps": [["-2.5", "False"], ["-0.5", "True"]]}', "B"),
        ('{"doc_id": 0, "doc": {"id": "1"}, "filtered_resps": [[-2.5, false], [-3.5, false]]}', "A"),
    ],
)
def test_reads_the_answers_of_other_systems(tmp_path: Path, content: str, answer: str | None) -> None:
    path = tmp_path / ("p.csv" if content.startswith("id,") else "p.jsonl")
    path.write_text(content)
    question = Question(id="1", question="Who was the director?", answers=["Ann"])
    [predicted] = load_predictions(path, [question], "theirs")
    assert (predicted.question_id, predicted.question, predicted.answer) == ("1", question.question, answer)


def test_predictions_of_musiques_twins_have_one_id(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f'{{"id": "q", "predicted_answer": "{answer}"}}\n' for answer in ("Ann", "unknown")))
    twins = [Question(id=id, question="who", answers=["x"]) for id in ("q", "q/unanswerable")]
    read = [(p.question_id, p.answer) for p in load_predictions(path, twins, "theirs")]
    assert read == [("q", "Ann"), ("q/unanswerable", "unknown")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"answer": {"q0": "yes", "q1": "no"}, "sp": {}}', None),
        ('{"id": "q0", "predicted_answer": "yes"}\n\n{"id": "q1", "predicted_answer": "a\u2028\u0085b"}\n', None),
        ('{"answer": {"q0": "yes"}}', "questions without an answer: 'q1'"),
        ('{"q0": "yes", "q1": "no", "q9": "no"}', "answers without a question: 'q9'"),
        ('{"q0": "yes", "q1": "no", "q0": "no"}', "p.json, line 1: duplicate key 'q0'; remove one of the two"),
        (
            '{"id": "q0", "predicted_answer": "yes"}\n' * 2,
            "duplicate answers: 'q0'; questions without an answer: 'q1'",
        ),
        ('{"q0": ["yes", "no"], "q1": "no"}', "p.json, id 'q0': 2 answers to a question; give one"),
        ('{"q0": 1, "q1": "no"}', "p.json, id 'q0': unknown format; give trajectories of rag-train"),
        ('{"id": "q0", "text": "yes"}', "p.json, line 1: unknown format"),
        (
            '{"id": "q0", "answer": "yes", "model_output": "no"}',
            "p.json, line 1: a prediction under 'answer' or under 'model_output'? Call its field predicted_answer",
        ),
        ('{"question_id": "q0", "reply": "yes"}', "p.json, line 1: "),
        ('[{"id": "q0", "output": {"pred": "yes"}}, 3]', "p.json, row 2: not a JSON object"),
        ('{"id": "q0", "predicted_answer": "yes"}\n{"id"', "p.json, line 2: invalid JSON"),
        ("", "questions without an answer: 'q0', 'q1'"),
        (None, "p.json: No such file or directory"),
    ],
)
def test_reads_predictions_and_rejects_mistakes(
    tmp_path: Path, capsys, content: str | None, problem: str | None
) -> None:
    path, asked, output = tmp_path / "p.json", tmp_path / "q.jsonl", tmp_path / "m"
    asked.write_text("".join(question.model_dump_json() + "\n" for question in numbered(0, 1)))
    add_cell(output, "kept", numbered(0, 1), ["no", "no"])
    before = contents(output)
    if content is not None:
        path.write_text(content)
    code = call("score", path, "--questions", f"d={asked}", "--output", output, "--name", "theirs")
    if problem is None:
        assert code == 0
        assert [cell.model for cell in load_matrix(output).cells] == ["kept", "theirs"]
        assert load_matrix(output).cells[1].summary.em.mean == 0.5
        return
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and problem in error
    assert contents(output) == before
