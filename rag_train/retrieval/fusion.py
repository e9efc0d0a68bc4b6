"""Hybrid retrieval: one ranking from the rankings of several retrievers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever
from rag_train.schema import Passage

Method = Literal["rrf", "weighted"]


class FusedRetriever:
    """Asks every retriever for all queries in one batch, all at the same time, and fuses what they find.

    Args:
        retrievers: at least one; passages are told apart by id, so they must share a corpus.
        method, weights, rrf_k: as for `fuse`.
        depth: how many passages are asked of each retriever, or ``k`` if that is more.

    Raises:
        UserError: if the method is unknown, or the weights are not one positive number for each retriever.
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        method: Method = "rrf",
        weights: Sequence[float] | None = None,
        depth: int = 100,
        rrf_k: int = 60,
    ):
        fuse([[] for _ in retrievers], 1, method, weights, rrf_k)  # bad settings are told before the first search
        self.retrievers = list(retrievers)
        self.method: Method = method
        self.weights = weights
        self.depth = depth
        self.rrf_k = rrf_k
        self.name = f"{method}({', '.join(retriever.name for retriever in retrievers)})"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query, with fused scores.

        Raises:
            ValueError: if ``k`` is less than 1.
            UserError: what `fuse` and the retrievers raise.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        depth = max(self.depth, k)
        with ThreadPoolExecutor(len(self.retrievers)) as pool:
            found = list(pool.map(lambda retriever: retriever.search(queries, depth), self.retrievers))
        return [fuse(lists, k, self.method, self.weights, self.rrf_k) for lists in zip(*found, strict=True)]


def fuse(
    lists: Sequence[Sequence[Passage]],
    k: int,
    method: Method = "rrf",
    weights: Sequence[float] | None = None,
    rrf_k: int = 60,
) -> list[Passage]:
    """The ``k`` best passages of several rankings of one query.

    A passage's score is the sum, over the lists that hold it, of the list's weight times

    - ``rrf``: 1 / (rrf_k + rank), with ranks from 1 (Cormack et al. 2009, "Reciprocal rank fusion outperforms
      Condorcet and individual rank learning methods", whose constant is 60); scores are not looked at;
    - ``weighted``: its score in the list, scaled so that the list's worst is 0 and its best 1. Where all are
      equal, each is 1.

    Equal sums are ordered by the best rank in any list, then by the list that has it.

    Args:
        lists: for each retriever its passages, best first, each passage once.
        weights: one positive number for each list; by default all are 1.

    Raises:
        UserError: if the method is unknown, if there are no lists or the weights do not fit, or if ``weighted``
            meets a passage without a finite score.
    """
    weights = _checked([1.0] * len(lists) if weights is None else weights, len(lists))
    parts: dict[str, list[float]] = {}
    best: dict[str, tuple[int, int]] = {}
    passages: dict[str, Passage] = {}
    for number, (found, weight) in enumerate(zip(lists, weights, strict=True)):
        for rank, (passage, share) in enumerate(zip(found, _shares(found, method, rrf_k), strict=True), 1):
            passages.setdefault(passage.id, passage)
            parts.setdefault(passage.id, []).append(weight * share)
            best[passage.id] = min(best.get(passage.id, (rank, number)), (rank, number))
    # fsum rounds once, so that equal sums are equal in whichever order the lists come.
    scores = {id: math.fsum(part) for id, part in parts.items()}
    ranked = sorted(scores, key=lambda id: (-scores[id], best[id]))
    return [passages[id].model_copy(update={"score": scores[id]}) for id in ranked[:k]]


def _shares(found: Sequence[Passage], method: Method, rrf_k: int) -> list[float]:
    """What one list, before weighting, gives to each of its passages."""
    match method:
        case "rrf":
            return [1 / (rrf_k + rank) for rank in range(1, len(found) + 1)]
        case "weighted":
            scores = [_score(passage) for passage in found]
            low, high = min(scores, default=0.0), max(scores, default=0.0)
            return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
        case _:
            raise UserError(f"unknown fusion {method!r}; give rrf or weighted")


def _score(passage: Passage) -> float:
    if passage.score is None or not math.isfinite(passage.score):
        raise UserError(
            f"passage {passage.id[:80]!r} has the score {passage.score}; use rrf, which needs no scores"
        )
    return passage.score


def _checked(weights: Sequence[float], lists: int) -> Sequence[float]:
    if not lists:
        raise UserError("fusion: no retrievers; give at least one")
    if len(weights) != lists or not all(0 < weight < math.inf for weight in weights):
        raise UserError(
            f"fusion: weights {list(weights)} for {lists} retrievers; give one positive number for each"
        )
    return weights
