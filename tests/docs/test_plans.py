"""The plans on the pages: sizes of vector indexes, and measurements extrapolated to more passages."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
from support.paths import ROOT


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("generator.plans")


@pytest.mark.slow
def test_sizes_of_vector_indexes_are_those_of_faiss(plans: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(plans, "CENTROIDS", 16)
    monkeypatch.setattr(plans, "CODE", 8)
    vectors = np.random.default_rng(0).standard_normal((5000, 32), dtype=np.float32)
    for kind, size in plans.vector_bytes(*vectors.shape).items():
        index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        assert len(faiss.serialize_index(index)) == pytest.approx(size, rel=0.01)


def test_extrapolation_tells_its_error_where_two_sizes_were_measured(plans: ModuleType) -> None:
    small, large = {"passages": 10, "seconds": 2.0}, {"passages": 50, "seconds": 8.0}
    assert plans.extrapolated([small], lambda run: run["seconds"], 100) == (20.0, None)
    assert plans.extrapolated([large, small], lambda run: run["seconds"], 100) == (16.0, 0.25)


def test_plan_of_retrieval_states_what_was_not_measured(plans: ModuleType) -> None:
    lines = plans.retrieval_plan(21_000_000).splitlines()
    assert len(lines) == 12 and "| 60.1 GiB | 4 d |" in lines[9]
    assert "measured at" in lines[2] and "unknown: not measured" in lines[6]
