"""The benchmark of kills at full count, at a small count."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from rag_train.eval.benchmarks import resume
from rag_train.eval.benchmarks.harness import mini_world
from rag_train.eval.benchmarks.training import trajectories
from rag_train.jobs.files import write_records


@pytest.mark.slow
def test_trajectories_differ_and_repeat():
    records = list(trajectories(5))
    assert len({record.completion for record in records}) == len({record.id for record in records}) == 5
    assert records == list(trajectories(5))
    assert any(segment.trained for record in records for segment in record.segments)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("name", ["synthesis", "training data"])
def test_killed_work_ends_with_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resume, "QUESTIONS", 4)
    write_records(tmp_path / "sft.jsonl", trajectories(20))
    work = partial(resume.tokenise, mini_world().model.resolve(), tmp_path / "sft.jsonl")
    if name == "synthesis":
        asyncio.run(resume.record(tmp_path / "answers.pickle"))
        write_records(tmp_path / "questions.jsonl", resume.copies(9))
        work = partial(resume.search_file, tmp_path / "questions.jsonl", tmp_path / "answers.pickle")
    found = resume.compare(work, 2, random.Random(0), tmp_path / "work")
    assert found["same_bytes"] and found["killed"]["kills"] <= 2 and found["whole"]["peak_bytes"] > 0
    assert found["whole"].get("tokens") or found["whole"]["engine_calls"] > 9
