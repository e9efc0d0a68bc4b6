"""The benchmark of kills at full count, at a small count."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from rag_train.eval.benchmarks.resume import Items, moments_of, record, runner, synthesis, training
from rag_train.eval.benchmarks.training import trajectories


@pytest.mark.slow
def test_trajectories_differ_and_repeat():
    records = list(trajectories(5))
    assert len({record.completion for record in records}) == len({record.id for record in records}) == 5
    assert records == list(trajectories(5))
    assert any(segment.trained for record in records for segment in record.segments)


def test_items_and_moments():
    assert [item.id for item in Items(3)] == ["0", "1", "2"]
    moments = moments_of(1000, 50.0, random.Random(0))
    assert 40 < sum(moments) < 60 and all(a != b for a, b in pairwise(moments))


@pytest.mark.release
@pytest.mark.slow
def test_measures_and_compares_bytes(tmp_path: Path):
    rng = random.Random(0)
    data = training(20, 2, rng, tmp_path)
    assert data["same_bytes"] and data["epoch"]["row_tokens"] <= data["tokens"] and data["killed"]["kills"] <= 2
    items = runner(300, 2, rng, tmp_path)
    assert items["same_bytes"] and items["bytes"] > 300 and items["whole"]["peak_bytes"] > 0


@pytest.mark.release
@pytest.mark.slow
def test_replays_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rag_train.eval.benchmarks.resume.QUESTIONS", 4)
    asyncio.run(record(tmp_path / "answers.pickle"))
    searched = synthesis(9, 2, random.Random(0), tmp_path, tmp_path / "answers.pickle")
    assert searched["same_bytes"] and searched["engine_calls"] > 9 and searched["records"] <= 9
