"""Reciprocal-rank and weighted fusion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.errors import UserError
from rag_train.retrieval.fusion import FusedRetriever, Method, fuse
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Passage

METHODS: list[Method] = ["rrf", "weighted"]


def ranking(scores: dict[str, float]) -> list[Passage]:
    ranked = sorted(scores, key=lambda id: -scores[id])
    return [Passage(id=id, text=f"text of {id}", score=scores[id]) for id in ranked]


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


SCORES = st.integers(-40, 40).map(lambda quarters: quarters / 4)
RANKINGS = st.dictionaries(st.sampled_from("abcdefgh"), SCORES, max_size=8).map(ranking)
LISTS = st.lists(RANKINGS, min_size=1, max_size=4)


class Fixed:
    """A retriever with a fixed ranking that records its calls; ``meet`` is called in each search."""

    def __init__(self, name: str, found: list[Passage], meet: Callable[[], Any] = lambda: None):
        self.name = name
        self.found = found
        self.meet = meet
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.meet()
        self.asked.append((list(queries), k))
        return [self.found[:k] for _ in queries]


def test_rrf_equals_hand_computed_scores() -> None:
    lists = [ranking({"a": 9, "b": 5, "c": 1}), ranking({"c": 0.2, "a": 0.1})]
    fused = fuse(lists, 10)
    assert ids(fused) == ["a", "c", "b"]
    assert [p.score for p in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert fused[2].text == "text of b"
    assert ids(fuse(lists, 10, weights=[1, 3])) == ["c", "a", "b"]
    assert fuse(lists, 1, rrf_k=0)[0].score == 1.5


def test_weighted_equals_hand_computed_scores() -> None:
    lists = [ranking({"a": 9, "b": 5, "c": 1}), ranking({"c": 0.2, "d": 0.1})]
    fused = fuse(lists, 10, "weighted", [2, 1])
    assert [(p.id, p.score) for p in fused] == [("a", 2.0), ("c", 1.0), ("b", 1.0), ("d", 0.0)]
    assert [p.score for p in fuse([ranking({"a": 3, "b": 3}), []], 10, "weighted")] == [1.0, 1.0]


@pytest.mark.slow
@given(LISTS)
def test_rrf_ignores_scores(lists: list[list[Passage]]) -> None:
    rescaled = [[p.model_copy(update={"score": 1e6 * (p.score or 0) - 7}) for p in found] for found in lists]
    unscored = [[p.model_copy(update={"score": None}) for p in found] for found in lists]
    assert fuse(lists, 8) == fuse(rescaled, 8) == fuse(unscored, 8)


@pytest.mark.slow
@given(LISTS, st.sampled_from([0.125, 4.0, 1024.0]), st.integers(-8, 8))
def test_weighted_is_invariant_to_scale_and_shift(lists: list[list[Passage]], scale: float, shift: int) -> None:
    moved = [[p.model_copy(update={"score": scale * (p.score or 0) + shift}) for p in found] for found in lists]
    assert fuse(moved, 8, "weighted") == fuse(lists, 8, "weighted")


@pytest.mark.slow
@given(LISTS, st.sampled_from(METHODS))
def test_passage_first_in_every_list_is_first(lists: list[list[Passage]], method: Method) -> None:
    winner = Passage(id="winner", text="", score=99)
    assert fuse([[winner, *found] for found in lists], 8, method)[0].id == "winner"


@pytest.mark.slow
@given(RANKINGS, st.sampled_from(METHODS), st.integers(1, 9))
def test_keeps_the_order_of_a_single_list(found: list[Passage], method: Method, k: int) -> None:
    assert ids(fuse([found], k, method)) == ids(found)[:k]
    assert ids(fuse([found, found, []], k, method)) == ids(found)[:k]


@pytest.mark.slow
@given(LISTS, st.sampled_from(METHODS), st.integers(1, 9))
def test_returns_every_passage_once_in_descending_order(lists: list[list[Passage]], method: Method, k: int) -> None:
    fused = fuse(lists, k, method)
    union = {p.id for found in lists for p in found}
    scores = [p.score or 0.0 for p in fused]
    assert len(set(ids(fused))) == len(fused) == min(k, len(union)) and set(ids(fused)) <= union
    assert scores == sorted(scores, reverse=True)
    assert fused == fuse(lists, 100, method)[:k]


@pytest.mark.slow
@given(LISTS, st.sampled_from(METHODS), st.data())
def test_order_of_lists_affects_ties_only(lists: list[list[Passage]], method: Method, data: st.DataObject) -> None:
    def score_of(ordered: list[list[Passage]]) -> dict[str, float | None]:
        return {p.id: p.score for p in fuse(ordered, 8, method)}

    assert score_of(data.draw(st.permutations(lists))) == score_of(lists)


def test_ties_are_ordered_by_best_rank_then_by_list() -> None:
    assert ids(fuse([ranking({"x": 2, "a": 1}), ranking({"y": 2, "b": 1})], 4)) == ["x", "y", "a", "b"]
    # With this weight, rank 1 in the second list scores as much as rank 2 in the first: 1 / 1 = 2 / 2.
    tied = fuse([ranking({"x": 2, "a": 1}), ranking({"y": 1})], 3, weights=[2, 1], rrf_k=0)
    assert [(p.id, p.score) for p in tied] == [("x", 2.0), ("y", 1.0), ("a", 1.0)]


def test_queries_all_retrievers_concurrently_in_one_batch_each() -> None:
    meet = threading.Barrier(2, timeout=10).wait  # passes only if two searches run concurrently
    first = Fixed("first", ranking({"a": 2, "b": 1}), meet)
    second = Fixed("second", ranking({"b": 2, "c": 1}), meet)
    fused = FusedRetriever([first, second], depth=7)
    assert fused.name == "rrf(first, second)"
    assert [ids(found) for found in fused.search(["q", "r"], 2)] == [["b", "a"]] * 2
    fused.search(["s"], 9)
    assert first.asked == second.asked == [(["q", "r"], 7), (["s"], 9)]
    with pytest.raises(ValueError, match="k is 0"):
        fused.search(["q"], 0)


def test_no_queries_give_no_results() -> None:
    assert FusedRetriever([Fixed("fixed", ranking({"a": 1}))]).search([], 3) == []


def test_fuses_real_indexes() -> None:
    passages = [Passage(id=str(i), text=text) for i, text in enumerate(["red fox", "red red hen", "blue jay"])]
    bm25 = BM25Index.build(passages)
    alone = bm25.search(["red", "zebra"], 3)
    assert [ids(found) for found in FusedRetriever([bm25, bm25], "weighted").search(["red", "zebra"], 3)] == [
        ids(found) for found in alone
    ]


@pytest.mark.parametrize(
    ("retrievers", "settings", "problem"),
    [
        (0, {}, "no retrievers"),
        (2, {"weights": [1]}, "weights [1] for 2 retrievers"),
        (2, {"weights": [1, 0]}, "one positive number for each"),
        (1, {"weights": [float("nan")]}, "one positive number for each"),
        (1, {"weights": [float("inf")]}, "one positive number for each"),
        (1, {"method": "borda"}, "unknown fusion method 'borda'"),
    ],
)
def test_rejects_bad_settings_at_once(retrievers: int, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        FusedRetriever([Fixed("fixed", []) for _ in range(retrievers)], **settings)
    assert problem in str(caught.value) and "; " in str(caught.value)


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
    with pytest.raises(
        UserError, match="id '1' stands for different passages, 'zebra poet Ann' and 'zebra king Bo'"
    ):
        fuse([[ann], [bo]], 2, method)
    snippets = [passage.model_copy(update={"id": "https://a.org"}) for passage in (ann, bo)]
    assert len(fuse([[each] for each in snippets], 2, method)) == 1, "two searches show one page"
