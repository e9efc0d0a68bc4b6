"""The positive control: BM25 on questions with passages of their own."""

from __future__ import annotations

from typing import Any

import pytest
from support.paths import DATA

from rag_train.eval.benchmarks.positive_control import PUBLISHED, measured
from rag_train.eval.metrics.intervals import share
from rag_train.retrieval.corpus import read_json_lines


def paragraph(idx: int, text: str, supports: bool) -> dict[str, Any]:
    return {"idx": idx, "title": "", "paragraph_text": text, "is_supporting": supports}


def test_counts_the_supporting_passages_among_the_first_ten():
    others = [paragraph(i, f"river bank {i}", False) for i in range(2, 20)]
    paragraphs = [paragraph(0, "the opera house", True), paragraph(1, "nothing alike", True), *others]
    row = {"question": "Which opera stands at the river bank?", "paragraphs": paragraphs}
    assert measured([row]) == {"recall@10": [0.5], "hit@10": [1.0]}


@pytest.mark.slow
def test_published_figures_of_bm25_lie_in_our_intervals():
    path = DATA / "musique/dev.jsonl"
    if not path.exists():
        pytest.skip("no real questions next to this checkout")
    for name, values in measured(row for _, row in read_json_lines(path)).items():
        interval = share(values)
        assert interval.lo <= PUBLISHED[name] <= interval.hi
