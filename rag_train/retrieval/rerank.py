"""Reranking: a cross-encoder reads query and passage together and reorders the passages of a faster retriever."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError

from rag_train.errors import UserError, masked, not_installed
from rag_train.identity import model as model_identity
from rag_train.llm.checkpoint import check_checkpoint
from rag_train.llm.control import defused
from rag_train.retrieval.base import (
    Retriever,
    check_number,
    corpus_sha256,
    identity,
    in_turn,
    service,
    threads_of_parts,
)
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.index.words import indexed_text
from rag_train.retrieval.kinds import combination
from rag_train.retrieval.remote.service import ServiceClient
from rag_train.schema import Passage

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_LONGEST = 512
"""Maximum number of tokens of query and text together."""
_REQUEST_PAIRS = 512
"""Maximum number of pairs in a request to a server: about 1 MB for passages of 100 words."""


class Reranker(Protocol):
    """A model that scores pairs of query and text. Its ``identity`` is all that the scores depend on, as JSON."""

    @property
    def identity(self) -> Any: ...

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the relevance of the text to the query for each pair (query, text); higher is better."""
        ...


class CrossEncoderReranker:
    """A cross-encoder in this process, loaded with sentence-transformers.

    Pairs of all queries are scored together, in float32 and in batches of similar length, on the first accelerator
    or else on the CPU. Of pairs that exceed `_LONGEST` or the model's own maximum, the longer text is truncated.

    Args:
        model: a checkpoint directory or hub name of a sequence classifier with one label.

    Raises:
        UserError: if the model cannot be loaded, or is not a cross-encoder with one score.
    """

    def __init__(self, model: str):
        check_checkpoint(model)
        try:
            import sentence_transformers
            import torch
        except ImportError as error:
            raise not_installed(error) from error
        try:
            self._model = sentence_transformers.CrossEncoder(model, model_kwargs={"dtype": "float32"})
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(f"reranker {model}: {_one_line(error)}; give a cross-encoder's checkpoint") from error
        _check_head(model, self._model)
        self._model.max_seq_length = min(_LONGEST, self._model.max_seq_length or _LONGEST)
        activation = self._model.activation_fn
        self.zero = float(activation(torch.zeros(1))) if activation else 0.0
        self.identity = {"cross_encoder": model_identity(model), "max_length": _LONGEST, "dtype": "float32"}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the relevance for each pair, after the model's activation function, usually a sigmoid."""
        # `predict` sorts by length and returns the scores in the order of the pairs.
        readable = [(self._readable(query), self._readable(text)) for query, text in pairs]
        return self._model.predict(readable, show_progress_bar=False).tolist()

    def _readable(self, text: str) -> str:
        return defused(encodable(text), self._model.tokenizer)


class _Score(BaseModel):
    index: int
    score: Annotated[float, Field(allow_inf_nan=False)]


class _Scores(BaseModel):
    """The fields used of vLLM's ScoreResponse (vllm/entrypoints/pooling/scoring/protocol.py)."""

    data: list[_Score]


class VLLMScoreReranker(ServiceClient):
    """A cross-encoder served by vLLM (``vllm serve MODEL --runner pooling``) at its endpoint ``/score``.

    The server truncates pairs that exceed the model's maximum length.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8000``.
        model: name of the model on the server; if empty, the server uses its only model.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the server is busy or cannot be reached.
    """

    zero = 0.5
    """The score of a pair whose raw score is 0: vLLM's scores of one label are sigmoids."""

    def __init__(self, url: str, model: str = "", timeout: float = 60.0, retries: int = 3):
        url = f"{url.rstrip('/')}/score"
        serve = f"start a server with `vllm serve {model or 'MODEL'} --runner pooling`, or correct the address"
        super().__init__(f"reranker {url}", url, serve, timeout, retries)
        self.model = model
        self.identity = {"service": masked(url), "model": model}

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the relevance for each pair.

        Raises:
            ServiceError: if the server cannot be reached, rejects the request, or does not respond like vLLM.
        """
        parts = [pairs[i : i + _REQUEST_PAIRS] for i in range(0, len(pairs), _REQUEST_PAIRS)]
        return [score for part in parts for score in self._scores(part)]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        request: dict[str, Any] = {
            "text_1": [defused(encodable(query)) for query, _ in pairs],
            "text_2": [defused(encodable(text)) for _, text in pairs],
            "truncate_prompt_tokens": -1,  # to the model's maximum
        }
        if self.model:
            request["model"] = self.model
        response = self.send("POST", json=request)
        try:
            found = {entry.index: entry.score for entry in _Scores.model_validate_json(response.content).data}
            return [found[index] for index in range(len(pairs))]
        except (ValidationError, KeyError) as error:
            raise self.error("the response does not have one score for each pair") from error


@combination(
    "rerank",
    "rerank(A, MODEL)",
    "passages of A, reranked by a cross-encoder: a directory, a hub name, or the address of a vLLM server; "
    "rerank(A, URL, NAME) if the server has several models",
    most_places=2,
)
def _reranked(retriever: Retriever, place: str, model: str = "") -> RerankedRetriever:
    return RerankedRetriever(retriever, open_reranker(place, model))


def open_reranker(place: str, model: str = "") -> Reranker:
    """Open the cross-encoder in a directory, on the hub, or on a vLLM server.

    Args:
        place: directory, hub name, or address of the server.
        model: name of the model on the server, if the server has several.

    Raises:
        UserError: if the cross-encoder cannot be loaded.
    """
    if place.startswith(("http://", "https://")):
        return VLLMScoreReranker(place, model)
    return CrossEncoderReranker(place)


class RerankedRetriever:
    """A retriever that reranks ``depth`` passages of another retriever and returns the best of them.

    The passages of a batch are reranked while other batches are searched.

    DualRAG reranks 50 passages and keeps 10 (Cheng et al. 2025, section 4.3, "Retrieval Module").

    Args:
        retriever: retriever of the passages.
        reranker: model that scores the passages.
        depth: number of passages requested from the retriever; ``k`` if that is greater.
    """

    def __init__(self, retriever: Retriever, reranker: Reranker, depth: int = 50):
        self.retriever = retriever
        self.reranker = reranker
        self.depth = depth
        self.name = f"{retriever.name}+rerank"
        self.corpus_sha256 = corpus_sha256(retriever)
        self.threads = threads_of_parts(retriever, reranker)
        self.service = service(retriever, reranker)
        self._search = in_turn(retriever, retriever.search)
        self._score = in_turn(reranker, reranker.scores)

    @property
    def identity(self) -> Any:
        return {"rerank": identity(self.reranker), "depth": self.depth, "of": identity(self.retriever)}

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return at most ``k`` passages for each query with the reranker's scores; ties keep their order."""
        check_number(k)
        found = self._search(queries, max(self.depth, k))
        pairs = [(query, passage) for query, passages in zip(queries, found, strict=True) for passage in passages]
        scores = iter(_scores(self._score, pairs))
        return [_best(passages, [next(scores) for _ in passages], k) for passages in found]


def best_of(
    passages: Sequence[Passage], query: str, reranker: Reranker, k: int, *, floor: bool = False
) -> list[Passage]:
    """Return at most ``k`` of the passages, best first, with the reranker's scores; ties keep their order.

    With ``floor``, passages whose raw score is 0 or less are left out, as in DualRAG's release.

    Raises:
        ServiceError: if the reranker fails.
        UserError: if a score is not a number.
    """
    scores = _scores(reranker.scores, [(query, passage) for passage in passages])
    least = zero_of(reranker) if floor else -math.inf
    kept = [(passage, score) for passage, score in zip(passages, scores, strict=True) if score > least]
    return _best([passage for passage, _ in kept], [score for _, score in kept], k)


def zero_of(reranker: Reranker) -> float:
    """Return the reranker's score of a pair whose raw score is 0: 0.5 after a sigmoid, 0 without one."""
    return getattr(reranker, "zero", 0.0)


def _scores(
    score: Callable[[Sequence[tuple[str, str]]], list[float]], pairs: Sequence[tuple[str, Passage]]
) -> list[float]:
    """Return the reranker's score for each pair, scoring equal pairs of texts once."""
    texts = [(query, indexed_text(passage)) for query, passage in pairs]
    distinct = list(dict.fromkeys(texts))
    known = dict(zip(distinct, score(distinct) if distinct else [], strict=True))
    if any(map(math.isnan, known.values())):
        raise UserError("reranker: a score is not a number; run the model in float32 or bfloat16, not float16")
    return [known[text] for text in texts]


def _best(passages: Sequence[Passage], scores: Sequence[float], k: int) -> list[Passage]:
    ranked = sorted(zip(scores, passages, strict=True), key=lambda scored: -scored[0])
    return [passage.model_copy(update={"score": score}) for score, passage in ranked[:k]]


def _check_head(name: str, model: CrossEncoder) -> None:
    """Raise UserError if the checkpoint has no scoring head: a new head would return random scores."""
    built = model.model
    written = (built.config.architectures if built else None) or []
    if type(built).__name__ not in written:
        raise UserError(f"reranker {name}: {', '.join(written)} has no scoring head; give a cross-encoder")
    if model.num_labels != 1:
        raise UserError(f"reranker {name}: {model.num_labels} labels; give a cross-encoder with one score")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
