"""The attacks of `make bench NAME=attack`, a few of each; none may do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.eval.benchmarks.attack import (
    build,
    corpus,
    corrupted_checkpoints,
    corrupted_indexes,
    hostile_recipes,
)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bm25", "lucene"])
def test_corrupted_indexes_do_no_harm(kind: str, tmp_path: Path) -> None:
    build(kind, corpus(50, seed=0), tmp_path / "index")
    outcomes = corrupted_indexes(tmp_path / "index", 20, tmp_path)
    # tantivy, which reads Lucene indexes, ends the process on some of them (see SECURITY.md).
    allowed = {"refused in one line", "opened, harmless", *(["process died"] if kind == "lucene" else [])}
    assert outcomes.total() == 20 and set(outcomes) <= allowed
    assert outcomes["refused in one line"]


@pytest.mark.slow
def test_hostile_recipes_do_no_harm(tmp_path: Path) -> None:
    outcomes = hostile_recipes(300, tmp_path)
    assert outcomes.total() == 300 and set(outcomes) <= {"refused in one line", "read, harmless"}


def test_corrupted_checkpoints_do_no_harm(tmp_path: Path) -> None:
    outcomes = corrupted_checkpoints(20, tmp_path)
    assert outcomes["refused in one line"] and not any(" in several " in key or "trace" in key for key in outcomes)
