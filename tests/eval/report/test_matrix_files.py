"""Contents of the page of an evaluation matrix, and the files that it rejects."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.matrices import SIZE, Made

from rag_train.cli.app import main
from rag_train.eval.metrics.scores import score
from rag_train.eval.report.packing import Passages, pack_trajectory
from rag_train.schema import Decision, Passage, Step, Trajectory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("matrix"))


# -- contents ----------------------------------------------------------------------------------------------------


def blocks(page: Path) -> dict[str, Any]:
    elements = re.findall(
        r'<script type="application/gzip" id="(.*?)">(.*?)</script>', page.read_text(encoding="utf-8")
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in elements}


def chunks(blocks: dict[str, Any], name: str) -> list[Any]:
    return [value for key, chunk in blocks.items() if key.rpartition("-")[0] == name for value in chunk]


@pytest.mark.slow
def test_page_contains_each_passage_once_and_all_trajectories(made: Made):
    packed_blocks = blocks(made.page)
    passages = chunks(packed_blocks, "passages")
    everything = [p for ts in made.trajectories.values() for t in ts for s in t.steps for p in s.passages]
    assert len(passages) == len({(p.id, p.title, p.text) for p in everything}) == 11 < len(everything)
    for number, (name, trajectories) in enumerate(made.trajectories.items()):
        assert packed_blocks[f"outcomes-{number}"]["em"] == "".join(
            str(int(score.em)) for score in score(made.questions, trajectories)
        )
        packed = chunks(packed_blocks, f"trajectories-{number}")
        assert len(packed) == SIZE, name
        for unpacked, trajectory in zip(packed, trajectories, strict=True):
            assert [step["subquery"] for step in unpacked["steps"]] == [step.subquery for step in trajectory.steps]
            read = [[passages[i] for i, _ in step["passages"]] for step in unpacked["steps"]]
            assert read == [[[p.id, p.title, p.text] for p in step.passages] for step in trajectory.steps]


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


# -- rejected files ----------------------------------------------------------------------------------------------


def doubled(text: str) -> str:
    return text + text.splitlines()[0] + "\n"


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


MATRIX, QUESTIONS, PLANNER = "matrix.json", "questions/*.jsonl", "cells/model/planner/made/bm25/0"
MISTAKES: list[tuple[str, Callable[[str], str] | None, str]] = [
    (MATRIX, None, "matrix.json: No such file"),
    (QUESTIONS, None, "No such file or directory, but matrix.json lists it"),
    (f"{PLANNER}.jsonl", None, "0.jsonl: No such file"),
    (f"{PLANNER}.scores.jsonl", None, "0.scores.jsonl: No such file"),
    (MATRIX, swap('"schema_version": 2', '"schema_version": 1'), "version"),
    (MATRIX, lambda _: '{"schema_version": 2, "cells": []}', "no cells"),
    (MATRIX, lambda text: text[:-9], "matrix.json: "),
    (QUESTIONS, lambda _: "", "no questions"),
    (QUESTIONS, doubled, "line 401: duplicate question 'q0'"),
    (f"{PLANNER}.scores.jsonl", doubled, "line 401: duplicate question 'q0'"),
    (
        f"{PLANNER}.jsonl",
        lambda text: text.partition("\n")[2],
        "0.jsonl: 1 of 400 questions are missing, 'q0' first",
    ),
    (
        f"{PLANNER}.jsonl",
        swap('"question_id":"q7"', '"question_id":"q7b"'),
        "'q7b' is not among the cell's questions",
    ),
    (f"{PLANNER}.jsonl", swap('"steps":', '"stops":'), "0.jsonl, line 1: field 'stops': Extra inputs"),
    (f"{PLANNER}.jsonl", swap("{", ""), "0.jsonl, line 1: Invalid JSON"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "message"), MISTAKES)
def test_rejects_damaged_files_and_keeps_the_old_page(
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: Callable[[str], str] | None,
    message: str,
):
    shutil.copytree(made.directory, tmp_path / "matrix")
    [file] = (tmp_path / "matrix").glob(name)
    if change:
        file.write_text(change(file.read_text()))
    else:
        file.unlink()
    page = tmp_path / "page.html"
    page.write_text("the old page")
    monkeypatch.setattr(sys, "argv", ["rag-train", "report", str(tmp_path / "matrix"), str(page)])
    with pytest.raises(SystemExit) as caught:
        main()
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert page.read_text() == "the old page" and not list(tmp_path.glob("*.partial"))


def test_report_command(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    for output, code in ((tmp_path / "page.html", 0), (tmp_path / "file" / "page.html", 2)):
        monkeypatch.setattr(sys, "argv", ["rag-train", "report", str(made.directory), str(output)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code
    assert (tmp_path / "page.html").read_bytes() == made.page.read_bytes()
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
