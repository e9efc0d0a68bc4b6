"""The comparison of ways of giving credit at equal engine tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_train.eval.benchmarks.credit import read_curve


def test_curve_adds_up_the_tokens_of_all_steps(tmp_path: Path):
    rows = [{"step": n, "reward": 0.1 * n, "engine/read": 90, "engine/written": 10} for n in (1, 2, 3)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 3, "train_loss": 1.0}]))
    assert read_curve(path) == [(100, 0.1), (200, 0.2), (300, pytest.approx(0.3))]
