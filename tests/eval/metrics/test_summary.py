"""Summaries of runs."""

from __future__ import annotations

import json

from support.paths import ROOT

from rag_train.eval.metrics.summary import RunSummary
from rag_train.eval.pages.results import load_results


def test_saved_summaries_can_be_read() -> None:
    rows = json.loads((ROOT / "docs/results/strategies.json").read_text())["rows"]
    summaries = [RunSummary.model_validate(row["summary"]) for row in rows]
    assert len(summaries) > 20
    runs = load_results(ROOT / "docs/results/demo.json").runs
    assert {run.name for run in runs} > {"cot, base", "rag, base"}
