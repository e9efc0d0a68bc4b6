"""Benchmarks with dev and test seeds: which runs are refused, what is logged, and verdicts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.eval.benchmarks import reporting
from rag_train.eval.benchmarks.reporting import differences, judged, recorded
from rag_train.eval.papers.protocol import Outcome

RULES = "dev: [0, 1]\ntest: [20, 21]\nsettings: {speed: %s}\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A protocol whose settings are not chosen yet."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES % "null")
    return path


def record(rules: Path, seeds: Sequence[int], split: str, **more: Any) -> dict[int, dict[str, Any]]:
    """Run a benchmark whose results are those of a command line with a learning rate and a path."""
    folder = rules.parent
    options = argparse.Namespace(split=split, seeds=seeds, output=folder, work=folder, lr=0.1, **more)
    return recorded(
        "a test of speed",
        rules,
        options,
        {"epochs": 3},
        lambda seed: {"gain": seed / 10},
        lambda results: f"of {sorted(results)}",
    )


def test_dev_seeds_are_run_with_any_settings_which_are_kept(rules: Path):
    with pytest.raises(UserError, match=r"--seeds 20: not a dev seed of rules.yaml"):
        record(rules, [0, 20], "dev")
    assert record(rules, [1], "dev")[1]["gain"] == 0.1
    found = json.loads((rules.parent / "bench_speed_dev.json").read_text())
    assert found["settings"] == {"split": "dev", "lr": 0.1, "epochs": 3}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("null", "settings.speed does not name lr, price; choose settings on dev seeds and commit them"),
        ("{lr: 0.1}", "settings.speed does not name price; choose"),
        ("{lr: 0.1, price: 3}", "test seeds are run with price=3, not 2; choose"),
        ("{lr: 0.1, price: 2, epochs: 4}", "test seeds are run with epochs=4, not 3; choose"),
        ("{lr: 0.1, price: 2, typo: 1}", "test seeds are run with typo=1, not None; choose"),
    ],
)
def test_test_seeds_are_run_with_the_settings_of_the_protocol(rules: Path, chosen: str, message: str):
    rules.write_text(RULES % chosen)
    with pytest.raises(UserError, match=f"^rules.yaml: {message}"):
        record(rules, [20], "test", price=2)


def test_the_log_has_the_verdict_on_all_seeds_so_far(rules: Path, monkeypatch: pytest.MonkeyPatch):
    entered = []

    @contextmanager
    def logged(what: str, seeds: Sequence[int], protocol: Path) -> Iterator[Outcome]:
        outcome = Outcome()
        yield outcome
        entered.append((what, seeds, outcome.text))

    monkeypatch.setattr(reporting, "logged", logged)
    rules.write_text(RULES % "{lr: 0.1}")
    record(rules, [20], "test")
    assert list(record(rules, [21], "test")) == [20, 21]
    assert entered == [("a test of speed", [20], "of [20]"), ("a test of speed", [21], "of [20, 21]")]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ([0.1, 0.11], [0.2, 0.21], "holds"),
        ([-0.1, -0.11], [-0.2, -0.21], "fails"),
        ([0.1, 0.11], [-0.2, -0.21], "cannot be told apart"),
        ([0.1, 0.11], [-0.2, 0.4], "cannot be told apart"),
    ],
)
def test_a_claim_about_two_differences_needs_both(rules: Path, first: list, second: list, verdict: str):
    told = judged(rules, [21, 20], {"this": first, "that": second})
    assert told.startswith(f"{verdict}; seeds 20, 21; this: ") and "; that: " in told


@pytest.mark.parametrize("seeds", [[20], [0, 1]])
def test_a_claim_is_open_before_all_test_seeds_have_been_run(rules: Path, seeds: list[int]):
    assert judged(rules, seeds, {"this": [0.1] * len(seeds)}).startswith("open; seeds ")


def test_differences_over_seeds():
    assert differences([0.05]) == "+0.050 in one seed"
    assert differences([0.05, 0.07, 0.06]) == "+0.060 [+0.035, +0.085] over 3 seeds"
