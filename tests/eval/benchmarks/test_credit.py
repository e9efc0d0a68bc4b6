"""The comparison of two ways of giving credit at equal engine tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_train.eval.benchmarks.credit import read_curve, reward_at


def test_curve_adds_up_the_tokens_of_all_steps(tmp_path: Path):
    rows = [{"step": n, "reward": 0.1 * n, "engine/read": 90, "engine/written": 10} for n in (1, 2, 3)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 3, "train_loss": 1.0}]))
    assert read_curve(path) == [(100, 0.1), (200, 0.2), (300, pytest.approx(0.3))]


@pytest.mark.parametrize(
    ("tokens", "window", "reward"),
    [(300, 150, 2.5), (299, 150, 2.0), (300, 1000, 2.0), (350, 10, 3.0), (50, 10, 1.0)],
)
def test_reward_at_a_number_of_tokens(tokens: float, window: float, reward: float):
    assert reward_at([(100, 1.0), (200, 2.0), (300, 3.0)], tokens, window) == reward
