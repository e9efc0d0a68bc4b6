"""Hybrid retrieval: the rankings of several retrievers are fused into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from rag_train.errors import UserError
from rag_train.retrieval.base import (
    Retriever,
    check_number,
    common_corpus,
    identity,
    in_turn,
    service,
    threads_of_parts,
)
from rag_train.retrieval.kinds import combination
from rag_train.schema import Passage

Method = Literal["rrf", "weighted"]
DEPTH = 100
"""Passages requested from each retriever; as many as are asked for if that is more."""
RRF_K = 60
"""The constant of reciprocal rank fusion."""


class FusedRetriever:
    """A retriever that queries several retrievers concurrently, in one batch each, and fuses their rankings.

    Args:
        retrievers: one or more retrievers over the same corpus: passages are identified by their ids.
        method, weights: see `fuse`.

    Raises:
        UserError: if there is not one positive weight for each retriever, or if two retrievers are known to have
            different corpora.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], method: Method = "rrf", weights: Sequence[float] | None = None
    ):
        self.weights = [1.0] * len(retrievers) if weights is None else list(weights)
        fuse([[] for _ in retrievers], 1, method, self.weights)  # rejects bad weights before the first search
        self.retrievers = list(retrievers)
        self.method: Method = method
        self.name = f"{method}({', '.join(retriever.name for retriever in retrievers)})"
        self.corpus_sha256 = common_corpus(retrievers)
        self.service = service(*retrievers)
        self.threads = threads_of_parts(*retrievers)
        self._searches = [in_turn(retriever, retriever.search) for retriever in retrievers]

    @property
    def identity(self) -> Any:
        parts = [[float(w), identity(part)] for w, part in zip(self.weights, self.retrievers, strict=True)]
        return {"fusion": self.method, "rrf_k": RRF_K, "depth": DEPTH, "of": parts}

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return at most ``k`` passages for each query, with fused scores."""
        check_number(k)
        depth = max(DEPTH, k)
        with ThreadPoolExecutor(len(self.retrievers)) as pool:
            found = list(pool.map(lambda search: search(queries, depth), self._searches))
        return [fuse(lists, k, self.method, self.weights) for lists in zip(*found, strict=True)]


@combination("rrf", "rrf(A, B, ...)", "reciprocal rank fusion of A, B, ...; rrf(2*A, B) sets weights")
def _rrf(retrievers: Sequence[Retriever], weights: Sequence[float]) -> FusedRetriever:
    return FusedRetriever(retrievers, "rrf", weights)


@combination("weighted", "weighted(A, B, ...)", "fusion by weighted scores, such as weighted(0.3*A, 0.7*B)")
def _weighted(retrievers: Sequence[Retriever], weights: Sequence[float]) -> FusedRetriever:
    return FusedRetriever(retrievers, "weighted", weights)


def fuse(
    lists: Sequence[Sequence[Passage]], k: int, method: Method = "rrf", weights: Sequence[float] | None = None
) -> list[Passage]:
    """Return the ``k`` best passages of several rankings for the same query.

    The score of a passage is a sum over the rankings that contain it. Each term is the weight of the ranking times

    - ``rrf``: 1 / (`RRF_K` + rank), with ranks from 1 (Cormack et al. 2009, "Reciprocal rank fusion outperforms
      Condorcet and individual rank learning methods", with the constant 60); scores are ignored;
    - ``weighted``: the score of the passage, scaled to 0 for the worst and 1 for the best passage of the ranking; 1
      if all scores are equal.

    Equal sums are ordered by the best rank in any ranking, then by the position of that ranking.

    A passage is identified by its id. Of a web page, whose id is its address, each search shows another text.

    Args:
        lists: the ranking of each retriever, best first, without duplicates.
        weights: one positive number for each ranking; by default 1.

    Raises:
        UserError: if there is not one positive weight for each ranking, if ``weighted`` gets a passage without a
            finite score, or if two passages of different corpora have the same id.
    """
    weights = [1.0] * len(lists) if weights is None else weights
    if len(weights) != len(lists) or not all(0 < weight < math.inf for weight in weights):
        raise UserError(
            f"fusion: weights {list(weights)} for {len(lists)} retrievers; give one positive number for each"
        )
    parts: dict[str, list[float]] = {}
    best: dict[str, tuple[int, int]] = {}
    passages: dict[str, Passage] = {}
    for number, (found, weight) in enumerate(zip(lists, weights, strict=True)):
        for rank, (passage, share) in enumerate(zip(found, _shares(found, method), strict=True), 1):
            known = passages.setdefault(passage.id, passage)
            if (known.title, known.text) != (passage.title, passage.text) and "://" not in passage.id:
                raise UserError(
                    f"fusion: the id {passage.id[:80]!r} stands for different passages, {known.text[:40]!r} and "
                    f"{passage.text[:40]!r}; let the retrievers search one corpus"
                )
            parts.setdefault(passage.id, []).append(weight * share)
            best[passage.id] = min(best.get(passage.id, (rank, number)), (rank, number))
    # fsum rounds once, so that sums do not depend on the order of the lists.
    scores = {id: math.fsum(part) for id, part in parts.items()}
    ranked = sorted(scores, key=lambda id: (-scores[id], best[id]))
    return [passages[id].model_copy(update={"score": scores[id]}) for id in ranked[:k]]


def _shares(found: Sequence[Passage], method: Method) -> list[float]:
    """Return the term of each passage of one ranking, before weighting."""
    if method == "rrf":
        return [1 / (RRF_K + rank) for rank in range(1, len(found) + 1)]
    for passage in found:
        if passage.score is None or not math.isfinite(passage.score):
            problem = f"passage {passage.id[:80]!r} has the score {passage.score}"
            raise UserError(f"fusion: {problem}; use rrf, which ignores scores")
    scores = [passage.score or 0.0 for passage in found]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]
