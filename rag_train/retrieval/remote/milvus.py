"""Dense retrieval with Milvus, for vectors too large for one machine.

Milvus Lite, which runs in the process on a local ``.db`` file, has the same interface as a Milvus cluster. The
tests on one machine therefore cover the code that runs on many; only the address differs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import ValidationError

from rag_train.errors import ServiceError, UserError, masked, not_installed
from rag_train.jobs.retries import longest
from rag_train.retrieval.corpus import encode as to_line
from rag_train.retrieval.index.encoder import Encoder, EncoderConfig, family
from rag_train.retrieval.kinds import http_address, place, refused
from rag_train.schema import Passage

Metric = Literal["ip", "cosine"]

_MAX_BYTES = 65_535
"""Maximum size of a VARCHAR; a passage of 100 words has about 700 bytes."""
_MAX_K = 16_384
"""Maximum number of results that Milvus returns for a query."""
_BLOCK = 10_000
"""Passages encoded at a time."""
_UPSERT = 1_000
"""Passages in one upsert: about 5 MB with 1,024 dimensions; a message can have 64 MB."""
_SEARCH = 256
"""Queries in one search; their results must fit into one message."""


class TextEncoder(Protocol):
    """A model that turns texts into float32 vectors of shape (texts, d), such as `Encoder`."""

    identity: Any

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray: ...


class MilvusRetriever:
    """A Milvus collection of passages and their vectors.

    The first call of `index_vectors` creates the collection, which stores its metric and dimension. The key of a
    passage is the SHA-256 of its id, because keys are short in Milvus while ids can be any string.

    Args:
        uri: address of a cluster, such as ``http://127.0.0.1:19530``, or a path ending in ``.db`` for Milvus Lite.
        collection: name of the collection: letters, digits and underscores.
        encoder: makes the vectors.
        metric: ``ip``, the inner product, or ``cosine``; for both, higher scores are better.

    Raises:
        UserError: if Milvus cannot be reached, or if the collection has another schema or another metric.
    """

    name = "milvus"

    def __init__(self, uri: str, collection: str, encoder: TextEncoder, metric: Metric = "ip"):
        self.uri = uri
        self.collection = collection
        self.service = "" if uri.endswith(".db") else f"Milvus {uri}, collection {collection!r}"
        self.encoder = encoder
        self.metric: Metric = metric
        self.identity = {
            "milvus": str(Path(uri).resolve()) if uri.endswith(".db") else masked(uri),
            "collection": collection,
            "metric": metric,
            "encoder": encoder.identity,
        }
        self._dimension: int | None = None
        if metric not in ("ip", "cosine"):
            raise self._error(f"unknown metric {metric!r}", "give ip or cosine")
        with self._service_errors("check the address; only one process can open a .db file at a time"):
            self._client = _pymilvus().MilvusClient(uri)
        self._open()

    def index_passages(self, passages: Iterable[Passage], progress: Callable[[int], None] = lambda _: None) -> int:
        """Encode passages, add them as `index_vectors` does, and return their number.

        Args:
            progress: called with the number of passages added so far.
        """
        stream, total = iter(passages), 0
        while block := list(islice(stream, _BLOCK)):
            self.index_vectors(block, self.encoder.encode_passages(block))
            progress(total := total + len(block))
        return total

    def index_vectors(self, passages: Sequence[Passage], vectors: np.ndarray) -> None:
        """Add passages to the collection; a passage with an existing id is replaced, so the call can be repeated.

        Args:
            vectors: float32, of shape (passages, d).

        Raises:
            UserError: if the shape of the vectors does not fit, if a vector contains a value that is not finite, or
                if a passage is too long for Milvus; nothing is written in these cases. Also if Milvus fails; then
                the passages written so far remain, and repeating the call completes it.
        """
        vectors = self._checked(vectors, len(passages))
        rows = [_row(passage) for passage in passages]
        for passage, row in zip(passages, rows, strict=True):
            if len(row["passage"].encode()) > _MAX_BYTES:
                raise self._error(
                    f"passage {passage.id[:80]!r} is longer than {_MAX_BYTES:,} bytes",
                    "split it up",
                )
        if not rows:
            return
        if self._dimension is None:
            self._create(vectors.shape[1])
        with self._service_errors():
            for start in range(0, len(rows), _UPSERT):
                part = range(start, min(start + _UPSERT, len(rows)))
                self._client.upsert(self.collection, [{**rows[i], "vector": vectors[i]} for i in part])
            self._client.flush(self.collection)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the ``k`` nearest passages to each query's vector; the score is the inner product or the cosine.

        The search is exact in Milvus Lite and approximate in a cluster.

        Raises:
            ValueError: if ``k`` is not between 1 and 16,384, Milvus's limit.
            UserError: if the collection does not exist, or if the query vectors do not fit it.
            ServiceError: if Milvus fails.
        """
        if not 1 <= k <= _MAX_K:
            raise ValueError(f"k is {k}; ask for 1 to {_MAX_K} passages")
        if self._dimension is None:
            self._open()  # another process may have created it in the meantime
        if self._dimension is None:
            raise self._error("the collection does not exist", "index passages first, or correct its name")
        if not queries:
            return []
        vectors = self._checked(self.encoder.encode_queries(queries), len(queries))
        parts = [vectors[i : i + _SEARCH] for i in range(0, len(vectors), _SEARCH)]
        return [passages for part in parts for passages in self._search(part, k)]

    def _search(self, vectors: np.ndarray, k: int) -> list[list[Passage]]:
        with self._service_errors():
            limit = longest()
            found = self._client.search(
                self.collection,
                data=list(vectors),
                limit=k,
                output_fields=["passage"],
                timeout=limit if math.isfinite(limit) else None,
            )
            return [[_passage(hit) for hit in hits] for hits in found]

    def _open(self) -> None:
        """Check the collection, if it exists, and load it."""
        with self._service_errors():
            if not self._client.has_collection(self.collection):
                return
            schema: Any = self._client.describe_collection(self.collection)
            dimension = {field["name"]: field["params"].get("dim") for field in schema["fields"]}
            if dimension.keys() != {"key", "passage", "vector"}:
                raise self._error("not a collection of rag-train", "choose another name")
            index: Any = self._client.describe_index(self.collection, "vector")
            metric = index["metric_type"].lower()
            if metric != self.metric:
                raise self._error(f"its metric is {metric}, not {self.metric}", f"open it with metric={metric}")
            self._client.load_collection(self.collection)
        self._dimension = int(dimension["vector"])

    def _create(self, dimension: int) -> None:
        types = _pymilvus().DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", types.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("passage", types.VARCHAR, max_length=_MAX_BYTES)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=dimension)
        index = self._client.prepare_index_params()
        # Milvus Lite's automatic index is an HNSW with poor recall for large k; at its size exact search is fast.
        kind = "FLAT" if self.uri.endswith(".db") else "AUTOINDEX"
        index.add_index("vector", index_type=kind, metric_type=self.metric.upper())
        with self._service_errors():
            # Session: a client sees its own writes at once, those of others within seconds; searches need not wait.
            self._client.create_collection(
                self.collection, schema=schema, index_params=index, consistency_level="Session"
            )
        self._dimension = dimension

    def _checked(self, vectors: np.ndarray, rows: int) -> np.ndarray:
        if vectors.ndim != 2 or len(vectors) != rows:
            raise self._error(f"vectors of shape {vectors.shape} for {rows} texts", "give one vector for each text")
        if self._dimension not in (None, vectors.shape[1]):
            raise self._error(
                f"its vectors have {self._dimension} dimensions, not {vectors.shape[1]}",
                "use the encoder that it was built with",
            )
        if not np.isfinite(vectors).all():
            raise self._error("a vector contains a value that is not finite", "run the encoder in float32")
        return vectors.astype(np.float32, copy=False)

    @contextmanager
    def _service_errors(
        self, remedy: str = "check the server and the name of the collection, then try again"
    ) -> Iterator[None]:
        """Turn Milvus's errors, and results that are not passages, into ServiceErrors."""
        try:
            yield
        except _pymilvus().MilvusException as error:
            problem = " ".join(str(error.message).split())[:300]
            raise ServiceError(self._message(problem or "Milvus failed without a message", remedy)) from error
        except (ValidationError, KeyError, TypeError) as error:
            raise ServiceError(self._message("a result is not a passage", remedy)) from error

    def _error(self, problem: str, remedy: str) -> UserError:
        return UserError(self._message(problem, remedy))

    def _message(self, problem: str, remedy: str) -> str:
        return f"Milvus {self.uri}, collection {self.collection!r}: {problem}; {remedy}"


@place("milvus:FILE.db/COLLECTION", "Milvus Lite, with the same settings", r"milvus:.*")
@place(
    "milvus://HOST:PORT/COLLECTION",
    "Milvus; milvus+https:// with TLS; settings are ?encoder=MODEL and &metric=cosine",
    r"milvus(\+\w*)?://.*",
)
def _open(text: str) -> MilvusRetriever:
    address, _, query = text.partition("?")
    options = {name: value for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)}
    if unknown := options.keys() - {"encoder", "metric"}:
        raise refused(text, f"unknown option {min(unknown)!r}", "the options are encoder and metric")
    local = "://" not in address
    uri, _, collection = (address.removeprefix("milvus:") if local else http_address(address)).rpartition("/")
    if not collection or not uri or uri.endswith("/"):
        raise refused(text, "no collection", "write milvus://HOST:PORT/COLLECTION or milvus:FILE.db/COLLECTION")
    encoder = Encoder(family(options["encoder"]) if options.get("encoder") else EncoderConfig())
    metric: Any = options.get("metric", "ip")
    return MilvusRetriever(uri, collection, encoder, metric)


def _pymilvus() -> Any:
    try:
        import pymilvus
    except ImportError as error:
        raise not_installed(error, "milvus") from error
    return pymilvus


def _row(passage: Passage) -> dict[str, Any]:
    key = hashlib.sha256(passage.id.encode()).hexdigest()
    return {"key": key, "passage": to_line(passage).decode()}


def _passage(hit: dict[str, Any]) -> Passage:
    stored = Passage.model_validate_json(hit["entity"]["passage"])
    return stored.model_copy(update={"score": float(hit["distance"])})
