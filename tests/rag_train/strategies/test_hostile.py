"""Every strategy ends within its stated calls and retrievals, with any model and retriever."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_train.eval.benchmarks.hostile import FIXED, MODELS, RETRIEVERS, ask
from rag_train.schema import Trajectory
from rag_train.strategies.bounds import BOUNDS
from rag_train.strategies.registry import STRATEGIES


def test_every_strategy_has_a_bound():
    assert list(BOUNDS) == list(STRATEGIES)


def check(name: str, model, retriever, seed: int) -> None:
    trajectory, calls, queries = asyncio.run(ask(name, model, retriever, seed))
    assert calls == len(trajectory.calls) <= BOUNDS[name].calls
    assert queries == trajectory.retrievals <= BOUNDS[name].retrievals
    assert trajectory.answer or trajectory.notes
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


@pytest.mark.slow
@pytest.mark.parametrize("model", FIXED)
@pytest.mark.parametrize("name", STRATEGIES)
def test_ends_with_a_model_that_writes_one_text(name: str, model):
    check(name, model, "everything", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=6)
@given(
    model=st.sampled_from([model for model in MODELS if model not in FIXED]),
    retriever=st.sampled_from(RETRIEVERS),
    seed=st.integers(0, 999),
)
def test_ends_with_a_model_that_asks_for_more(name: str, model, retriever, seed: int):
    check(name, model, retriever, seed)
