"""Reranking: a cross-encoder, which reads query and passage together, reorders what a quicker retriever found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError

from rag_train.errors import UserError, not_installed
from rag_train.http import httpx, send
from rag_train.llm.checkpoint import check_checkpoint
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.bm25 import indexed_text
from rag_train.retrieval.corpus import encodable
from rag_train.schema import Passage

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_REQUEST_PAIRS = 512
"""Pairs in one request to a server: about 1 MB of passages of 100 words."""


class Reranker(Protocol):
    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """How relevant each passage's text is to its query, for pairs (query, text); more is better."""
        ...


class CrossEncoderReranker:
    """A cross-encoder in this process, through sentence-transformers.

    Pairs are scored in batches of similar length, whichever query they belong to.

    Args:
        model: a checkpoint directory or hub name of a sequence classifier with one label.
        batch_size: pairs in one forward pass.
        device: such as ``cpu`` or ``cuda:1``; by default the first accelerator, if there is one.
        dtype: of the weights: ``float32`` or ``bfloat16``.
        max_length: tokens of query and text together, beyond which the longer one is cut; at most what the model
            was made for.

    Raises:
        UserError: if the model cannot be read, or is no cross-encoder with one score.
    """

    def __init__(
        self,
        model: str,
        batch_size: int = 32,
        device: str | None = None,
        max_length: int = 512,
        dtype: str = "float32",
    ):
        check_checkpoint(model)
        try:
            import sentence_transformers
        except ImportError as error:
            raise not_installed(error) from error
        try:
            self._model = sentence_transformers.CrossEncoder(model, device=device, model_kwargs={"dtype": dtype})
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"reranker {model}: {_line(error)}; give a cross-encoder's checkpoint") from error
        _check_head(model, self._model)
        self._model.max_seq_length = min(max_length, self._model.max_seq_length or max_length)
        self.batch_size = batch_size

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """As the protocol has it; through the model's own activation, most often a sigmoid."""
        # `predict` sorts by length, and gives the scores back in the order of the pairs.
        readable = [(encodable(query), encodable(text)) for query, text in pairs]
        return self._model.predict(readable, batch_size=self.batch_size, show_progress_bar=False).tolist()


class _Score(BaseModel):
    index: int
    score: float


class _Scores(BaseModel):
    """What is used of vLLM's ScoreResponse (vllm/entrypoints/pooling/scoring/protocol.py)."""

    data: list[_Score]


class VLLMScoreReranker:
    """A cross-encoder served by vLLM (``vllm serve MODEL --runner pooling``), through its ``/score``.

    May be shared by threads. Pairs longer than the model takes are cut by the server.

    Args:
        url: where the server is, such as ``http://127.0.0.1:8000``.
        model: the name it serves the model by.
        timeout: seconds to wait for a connection, and for each part of an answer.
        retries: attempts after the first, where the server is busy or cannot be reached.
    """

    def __init__(self, url: str, model: str, timeout: float = 60.0, retries: int = 3):
        self.url = url.rstrip("/") + "/score"
        self.model = model
        self.retries = retries
        self._client = httpx.Client(timeout=timeout)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """As the protocol has it.

        Raises:
            UserError: if the server cannot be reached, refuses the request, or does not answer as vLLM does.
        """
        parts = [pairs[i : i + _REQUEST_PAIRS] for i in range(0, len(pairs), _REQUEST_PAIRS)]
        return [score for part in parts for score in self._scores(part)]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        asked = {
            "model": self.model,
            "text_1": [encodable(query) for query, _ in pairs],
            "text_2": [encodable(text) for _, text in pairs],
            "truncate_prompt_tokens": -1,  # to what the model takes
        }
        try:
            response = send(self._client, "POST", self.url, self.retries, json=asked)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._error(str(error) or type(error).__name__) from error
        if response.status_code != 200:
            raise self._error(f"status {response.status_code}, {' '.join(response.text[:300].split())}")
        try:
            found = {entry.index: entry.score for entry in _Scores.model_validate_json(response.content).data}
            return [found[index] for index in range(len(pairs))]
        except (ValidationError, KeyError) as error:
            raise self._error("the answer is not one score for each pair") from error

    def _error(self, problem: str) -> UserError:
        return UserError(
            f"reranker {self.url}: {problem}; "
            f"start one with `vllm serve {self.model} --runner pooling`, or mend the address"
        )


class RerankedRetriever:
    """Finds ``depth`` passages with a retriever and keeps those that the reranker scores best.

    From 50 to 10 is DualRAG's setting (Cheng et al. 2025, section 4.3, "Retrieval Module").

    Args:
        depth: how many passages are asked of the retriever, or ``k`` if that is more.
    """

    def __init__(self, retriever: Retriever, reranker: Reranker, depth: int = 50):
        self.retriever = retriever
        self.reranker = reranker
        self.depth = depth
        self.name = f"{retriever.name}+rerank"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages for each query with the reranker's scores, equal ones in the retriever's order.

        Raises:
            ValueError: if ``k`` is less than 1.
            UserError: what the retriever and the reranker raise, or if a score is not a number.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        found = self.retriever.search(queries, max(self.depth, k))
        pairs = [(query, passage) for query, some in zip(queries, found, strict=True) for passage in some]
        scores = iter(_scores(self.reranker, pairs))
        return [_best(some, [next(scores) for _ in some], k) for some in found]


def group_by_entity(
    entities: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[Passage]], reranker: Reranker, k: int
) -> dict[str, list[Passage]]:
    """DualRAG's Group step (Cheng et al. 2025, section 3.1.1, equations 7 and 8): passages by key entity, filtered.

    For each entity the passages of its queries are put together, each once, and reranked. The paper leaves open
    how a passage is scored against several queries: here by the one that it fits best, since each is about another
    side of the entity. All pairs of all entities are scored in one call.

    Args:
        entities: the queries of each key entity.
        found: what was retrieved for each of these queries.
        reranker: scores each pooled passage against each query of its entity.
        k: passages to keep for each entity.

    Returns:
        For each entity, in the order given, its best passages, best first; equal ones in the order they were found.

    Raises:
        UserError: what the reranker raises, or if a score is not a number.
    """
    queries = {entity: list(dict.fromkeys(some)) for entity, some in entities.items()}
    pools = {
        entity: list({passage.id: passage for query in some for passage in found[query]}.values())
        for entity, some in queries.items()
    }
    pairs = [(query, passage) for entity, pool in pools.items() for passage in pool for query in queries[entity]]
    scores = iter(_scores(reranker, pairs))
    return {
        entity: _best(pool, [max(next(scores) for _ in queries[entity]) for _ in pool], k)
        for entity, pool in pools.items()
    }


def _scores(reranker: Reranker, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
    """The reranker's scores, each pair of texts scored once."""
    texts = [(query, indexed_text(passage)) for query, passage in pairs]
    distinct = list(dict.fromkeys(texts))
    known = dict(zip(distinct, reranker.scores(distinct) if distinct else [], strict=True))
    if any(map(math.isnan, known.values())):
        raise UserError("reranker: a score is not a number; load the model in float32 or bfloat16, not float16")
    return [known[text] for text in texts]


def _best(passages: Sequence[Passage], scores: Sequence[float], k: int) -> list[Passage]:
    ranked = sorted(zip(scores, passages, strict=True), key=lambda scored: -scored[0])
    return [passage.model_copy(update={"score": score}) for score, passage in ranked[:k]]


def _check_head(name: str, model: CrossEncoder) -> None:
    """Raise UserError unless the checkpoint holds what scores a pair: without it, the scores would be random."""
    built = model.model
    written = (built.config.architectures if built else None) or []
    if type(built).__name__ not in written:
        raise UserError(f"reranker {name}: {', '.join(written)} has no scoring head; give a cross-encoder")
    if model.num_labels != 1:
        raise UserError(f"reranker {name}: {model.num_labels} labels; give a cross-encoder with one score")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
