"""The protocol of the test seeds, and the log of the runs on them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.paths import ROOT

from rag_train.errors import UserError
from rag_train.eval.miniworld.lab import Settings
from rag_train.eval.papers.printed import papers
from rag_train.eval.papers.protocol import (
    LOG,
    PROTOCOL,
    LoggedRun,
    committed_hash,
    load_protocol,
    logged,
)
from rag_train.strategies.registry import STRATEGIES, parse_strategy

TEST = load_protocol().seeds.test


def settings(**changes: Any) -> dict[str, Any]:
    return load_protocol().settings | changes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a committed protocol."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "protocol.yaml").write_text("unit: seed\n")
    (tmp_path / "code.py").write_text("")
    git("init")
    git("add", "protocol.yaml", "code.py")
    git("commit", "-m", "Protocol")
    return tmp_path


def test_the_protocol_is_valid_and_names_settings_and_strategies_that_exist():
    protocol = load_protocol()
    assert protocol.settings.keys() <= Settings().recorded().keys()
    claims = {claim.id for paper in papers().values() for claim in paper.claims}
    for name in protocol.left_out:
        if name not in claims:
            parse_strategy(name)
    assert not protocol.left_out.keys() & claims & STRATEGIES.keys()  # a name means either a claim or a strategy
    assert not set(protocol.seeds.dev) & set(TEST) and len(TEST) >= 6


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seeds": {"dev": [0], "test": [1, 2, 3]}}, "at least 6 items"),
        ({"seeds": {"dev": [0, 1], "test": [1, 2, 3, 4, 5, 6]}}, "dev and test seeds must differ"),
        ({"margins": {"a": 0}}, "greater than 0"),
        ({"unit": "question"}, "Input should be 'seed'"),
        ({"sample": 1}, "Extra inputs"),
    ],
)
def test_malformed_protocols_are_refused(change: dict[str, Any], problem: str, tmp_path: Path):
    path = tmp_path / "protocol.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(PROTOCOL.read_text()) | change))
    with pytest.raises(UserError, match=problem):
        load_protocol(path)


def test_test_seeds_are_run_alone_with_the_protocols_settings():
    protocol = load_protocol()
    assert not protocol.are_test_seeds(protocol.seeds.dev, {}) and not protocol.are_test_seeds([], {})
    assert protocol.are_test_seeds(TEST, settings(work="elsewhere"))
    assert protocol.are_test_seeds(TEST[:1], settings())
    with pytest.raises(UserError, match=r"--seeds 0: not one of the test seeds \[20, 21"):
        protocol.are_test_seeds([*TEST, 0], settings())
    with pytest.raises(UserError, match="run with questions=60, not 61"):
        protocol.are_test_seeds(TEST, settings(questions=61))


def test_test_seeds_need_a_committed_protocol(repository: Path):
    protocol, log = repository / "protocol.yaml", repository / "runs.jsonl"
    committed = committed_hash(protocol)
    (repository / "code.py").write_text("changed = True\n")
    with pytest.raises(UserError, match=r"^code\.py: changed since the last commit"):
        committed_hash(protocol)
    protocol.write_text("unit: question\n")
    with pytest.raises(UserError, match="differs from the committed version"), logged("all", TEST, protocol, log):
        pytest.fail("the run started")
    protocol.rename(repository / "other.yaml")
    with pytest.raises(UserError, match="not committed"):
        committed_hash(repository / "other.yaml")
    assert not log.exists() and len(committed) == 12


def test_the_log_has_runs_that_finish_and_runs_that_fail(repository: Path):
    protocol, log = repository / "protocol.yaml", repository / "runs.jsonl"
    with logged("all", TEST, protocol, log) as outcome:
        assert [run.outcome for run in read(log)] == ["started"]  # a killed run leaves this line
        outcome.text = "3 holds"
    with pytest.raises(KeyboardInterrupt), logged("all", TEST, protocol, log):
        raise KeyboardInterrupt
    assert [run.outcome for run in read(log)] == ["started", "3 holds", "started", "failed: KeyboardInterrupt: "]
    assert {run.protocol for run in read(log)} == {committed_hash(protocol)}


def read(log: Path) -> list[LoggedRun]:
    return [LoggedRun.model_validate(json.loads(line)) for line in log.read_text().splitlines()]


def test_the_repositorys_log_is_readable_and_begins_with_the_run_that_failed():
    first, *_ = read(LOG)
    assert "6e6fb55" in first.code_version and "2 of 5 claims not held" in first.outcome


def test_every_run_of_the_log_is_on_the_results_page():
    page = (ROOT / "docs/site/results/reproduction.md").read_text(encoding="utf-8")
    assert "test_runs()" in page
