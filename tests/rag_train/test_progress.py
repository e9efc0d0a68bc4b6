"""Progress without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rag_train import progress


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=file, width=100))
    return file


@pytest.mark.parametrize(("every", "between"), [(0.0, ["1/3", "2/3"]), (1e9, [])])
def test_a_log_has_a_line_from_time_to_time_and_one_at_the_end(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, every: float, between: list[str]
):
    monkeypatch.setattr(progress, "EVERY", every)
    with progress.progress("training", 3) as advance:
        for step in range(3):
            advance(1, f"loss {step}")
    *lines, last = log.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == between
    assert all(line.startswith("training") and "loss" in line for line in lines)
    assert "━" in last and "3/3" in last and last.rstrip().endswith("loss 2")
