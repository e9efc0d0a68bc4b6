"""Reciprocal-rank and weighted fusion."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.retrieval import Fake, ids

from rag_train.errors import UserError
from rag_train.retrieval.fusion import FusedRetriever, Method, fuse
from rag_train.schema import Passage

METHODS: list[Method] = ["rrf", "weighted"]


def ranking(scores: dict[str, float]) -> list[Passage]:
    ranked = sorted(scores, key=lambda id: -scores[id])
    return [Passage(id=id, text=f"text of {id}", score=scores[id]) for id in ranked]


SCORES = st.integers(-40, 40).map(lambda quarters: quarters / 4)
RANKINGS = st.dictionaries(st.sampled_from("abcdefgh"), SCORES, max_size=8).map(ranking)
LISTS = st.lists(RANKINGS, min_size=1, max_size=4)


def test_scores_equal_those_computed_by_hand() -> None:
    lists = [ranking({"a": 9, "b": 5, "c": 1}), ranking({"c": 0.2, "a": 0.1})]
    fused = fuse(lists, 10)
    assert ids(fused) == ["a", "c", "b"] and fused[2].text == "text of b"
    assert [p.score for p in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert ids(fuse(lists, 10, weights=[1, 3])) == ["c", "a", "b"]
    lists = [lists[0], ranking({"c": 0.2, "d": 0.1})]
    fused = fuse(lists, 10, "weighted", [2, 1])
    assert [(p.id, p.score) for p in fused] == [("a", 2.0), ("c", 1.0), ("b", 1.0), ("d", 0.0)]
    assert [p.score for p in fuse([ranking({"a": 3, "b": 3}), []], 10, "weighted")] == [1.0, 1.0]


@pytest.mark.slow
@given(LISTS, st.sampled_from([0.125, 4.0, 1024.0]), st.integers(-8, 8))
def test_rrf_ignores_scores_and_weighted_their_scale(lists: list[list[Passage]], scale: float, shift: int) -> None:
    moved = [[p.model_copy(update={"score": scale * (p.score or 0) + shift}) for p in found] for found in lists]
    unscored = [[p.model_copy(update={"score": None}) for p in found] for found in lists]
    assert fuse(lists, 8) == fuse(moved, 8) == fuse(unscored, 8)
    assert fuse(moved, 8, "weighted") == fuse(lists, 8, "weighted")


@pytest.mark.slow
@given(LISTS, st.sampled_from(METHODS), st.integers(1, 9), st.data())
def test_returns_every_passage_once_in_descending_order(
    lists: list[list[Passage]], method: Method, k: int, data: st.DataObject
) -> None:
    fused, everything = fuse(lists, k, method), fuse(lists, 100, method)
    union = {p.id for found in lists for p in found}
    scores = [p.score or 0.0 for p in fused]
    assert len(set(ids(fused))) == len(fused) == min(k, len(union)) and set(ids(fused)) <= union
    assert scores == sorted(scores, reverse=True) and fused == everything[:k]
    moved = fuse(data.draw(st.permutations(lists)), 100, method)
    assert {p.id: p.score for p in moved} == {p.id: p.score for p in everything}, "ties only depend on the order"
    assert ids(fuse([lists[0], lists[0], []], k, method)) == ids(lists[0])[:k]
    winner = Passage(id="winner", text="", score=99)
    assert fuse([[winner, *found] for found in lists], 8, method)[0].id == "winner"


def test_ties_are_ordered_by_best_rank_then_by_list() -> None:
    assert ids(fuse([ranking({"x": 2, "a": 1}), ranking({"y": 2, "b": 1})], 4)) == ["x", "y", "a", "b"]
    # With these weights, rank 1 in the second list scores as much as rank 2 in the first.
    tied = fuse([ranking({"x": 2, "a": 1}), ranking({"y": 1})], 3, weights=[62, 61])
    assert [(p.id, p.score) for p in tied] == [("x", 62 / 61), ("y", 1.0), ("a", 1.0)]


def test_queries_all_retrievers_concurrently_in_one_batch_each() -> None:
    meet = threading.Barrier(2, timeout=10).wait  # passes only if two searches run concurrently
    first = Fake("first", ranking({"a": 2, "b": 1}), meet)
    second = Fake("second", ranking({"b": 2, "c": 1}), meet)
    fused = FusedRetriever([first, second])
    assert fused.name == "rrf(first, second)"
    assert [ids(found) for found in fused.search(["q", "r"], 2)] == [["b", "a"]] * 2
    fused.search(["s"], 109)
    assert first.calls == second.calls == [(["q", "r"], 100), (["s"], 109)]
    assert fused.search([], 3) == []
    with pytest.raises(ValueError, match="k is 0"):
        fused.search(["q"], 0)


@pytest.mark.parametrize(
    ("retrievers", "weights"), [(2, [1]), (2, [1, 0]), (1, [float("nan")]), (1, [float("inf")])]
)
def test_rejects_bad_weights_at_once(retrievers: int, weights: list[float]) -> None:
    with pytest.raises(UserError, match=rf"for {retrievers} retrievers; give one positive number for each"):
        FusedRetriever([Fake() for _ in range(retrievers)], weights=weights)


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_weighted_requires_finite_scores(score: float | None) -> None:
    found = [Passage(id="7", text="", score=score)]
    with pytest.raises(UserError, match=r"passage '7' has the score .*; use rrf"):
        fuse([found], 1, "weighted")
    assert ids(fuse([found], 1, "rrf")) == ["7"]


@pytest.mark.parametrize("method", METHODS)
def test_an_id_that_stands_for_two_passages_is_refused(method: Method) -> None:
    """Of retrievers whose corpora are unknown, only the passages tell."""
    ann, bo = Passage(id="1", text="zebra poet Ann", score=1), Passage(id="1", text="zebra king Bo", score=1)
    message = "id '1' stands for different passages, 'zebra poet Ann' and 'zebra king Bo'"
    with pytest.raises(UserError, match=message):
        fuse([[ann], [bo]], 2, method)
    snippets = [passage.model_copy(update={"id": "https://a.org"}) for passage in (ann, bo)]
    assert len(fuse([[each] for each in snippets], 2, method)) == 1, "two searches show one page"
