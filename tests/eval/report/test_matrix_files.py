"""Contents of the page of an evaluation matrix, and the files that it rejects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import call
from support.matrices import Made

from rag_train.eval.report.packing import Passages, pack_trajectory
from rag_train.schema import Decision, Passage, Step, Trajectory

texts = st.text(max_size=8)
steps = st.builds(
    Step,
    subquery=texts,
    decision=st.sampled_from(Decision),
    passages=st.lists(st.builds(Passage, id=texts, title=texts, text=texts), max_size=3),
    answer=texts,
    retrieve_probability=st.none() | st.floats(0, 1),
    queries=st.lists(texts, max_size=2),
    round=st.none() | st.integers(0, 3),
    node=texts,
)


@given(st.builds(Trajectory, question_id=texts, question=texts, strategy=texts, steps=st.lists(steps, max_size=4)))
@settings(max_examples=100)
def test_packed_steps_lose_nothing(trajectory: Trajectory):
    passages = Passages()
    packed = json.loads(pack_trajectory(trajectory, passages, {}))
    kept = list(passages.numbers)
    unpacked = []
    for step in packed["steps"]:
        decision = Decision.RETRIEVE if step.pop("retrieved") else Decision.PARAMETRIC
        read = [dict(zip(("id", "title", "text"), kept[i], strict=True), score=s) for i, s in step.pop("passages")]
        unpacked.append(Step.model_validate(step | {"decision": decision, "passages": read}))
    assert unpacked == trajectory.steps


def doubled(text: str) -> str:
    return text + text.splitlines()[0] + "\n"


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


MATRIX, QUESTIONS, PLANNER = "matrix.json", "questions/*.jsonl", "cells/model/planner/made/bm25/0"
MISTAKES: list[tuple[str, Callable[[str], str] | None, str]] = [
    (MATRIX, None, "matrix.json: No such file"),
    (QUESTIONS, None, "No such file or directory; evaluate the cell again"),
    (f"{PLANNER}.jsonl", None, "0.jsonl: No such file"),
    (f"{PLANNER}.scores.jsonl", None, "0.scores.jsonl: No such file"),
    (MATRIX, swap('"schema_version": 2', '"schema_version": 1'), "version"),
    (MATRIX, lambda _: '{"schema_version": 2, "cells": []}', "no cells"),
    (MATRIX, lambda text: text[:-9], "matrix.json: "),
    (QUESTIONS, lambda _: "", "no questions"),
    (QUESTIONS, doubled, "line 401: duplicate question 'q0'"),
    (f"{PLANNER}.scores.jsonl", doubled, "line 401: duplicate question 'q0'"),
    (f"{PLANNER}.jsonl", lambda text: text.partition("\n")[2], "1 of 400 questions are missing, 'q0' first"),
    (f"{PLANNER}.jsonl", swap('"question_id":"q7"', '"question_id":"q7b"'), "'q7b' is not among the cell's"),
    (f"{PLANNER}.jsonl", swap('"steps":', '"stops":'), "0.jsonl, line 1: not a Trajectory (stops: Extra inputs"),
    (f"{PLANNER}.jsonl", swap("{", ""), "0.jsonl, line 1: not a Trajectory (Invalid JSON"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "message"), MISTAKES)
def test_rejects_damaged_files_and_keeps_the_old_page(
    made: Made, tmp_path: Path, capsys, name: str, change: Callable[[str], str] | None, message: str
):
    shutil.copytree(made.directory, tmp_path / "matrix")
    [file] = (tmp_path / "matrix").glob(name)
    if change:
        file.write_text(change(file.read_text()))
    else:
        file.unlink()
    page = tmp_path / "page.html"
    page.write_text("the old page")
    assert call("report", tmp_path / "matrix", page) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert page.read_text() == "the old page" and not list(tmp_path.glob("*.partial"))


def test_report_command(made: Made, tmp_path: Path, capsys):
    (tmp_path / "file").touch()
    assert call("report", made.directory, tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_bytes() == made.page.read_bytes()
    assert call("report", made.directory, tmp_path / "file/page.html") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
