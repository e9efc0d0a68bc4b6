"""Dense retrieval by Milvus, for vectors that outgrow one machine.

Of the distributed vector engines, Milvus is the one whose small build is the same to its clients as a cluster:
Milvus Lite runs inside the process over a local ``.db``, so that what is tested on one machine is what runs on
many, and only the address changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from rag_train.errors import UserError, not_installed
from rag_train.progress import progress
from rag_train.retrieval.corpus import encode as to_line
from rag_train.schema import Passage

try:
    from pymilvus import DataType, MilvusClient
    from pymilvus.exceptions import MilvusException
except ImportError as error:
    raise not_installed(error) from error

Metric = Literal["ip", "cosine"]

_LONGEST = 65_535
"""Bytes of a VARCHAR; a passage of 100 words has about 700."""
_MOST_FOUND = 16_384
"""Milvus answers no search with more passages."""
_UPSERT = 1_000
"""Passages in one upsert: with vectors of 1,024 dimensions about 5 MB, of the 64 that a message may have."""
_SEARCH = 256
"""Queries in one search; with their passages, too, they must fit into one message."""


class MilvusRetriever:
    """Nearest passages in a Milvus collection, which holds vectors and passages.

    The collection is made by the first `index_vectors`, and records its metric and dimension. Each passage is
    kept under the SHA-256 of its id, since a key of Milvus is short and ids may be any string.

    Args:
        uri: of a cluster, such as ``http://127.0.0.1:19530``, or a path that ends in ``.db`` for Milvus Lite.
        collection: its name: letters, digits and underscores.
        encode: from n queries to float32 vectors of shape (n, d).
        metric: ``ip``, the inner product, or ``cosine``; higher scores are better in both.

    Raises:
        UserError: if Milvus cannot be reached, or the collection is none of ours or has another metric.
    """

    def __init__(
        self,
        uri: str,
        collection: str,
        encode: Callable[[Sequence[str]], np.ndarray],
        metric: Metric = "ip",
    ):
        self.name = "milvus"
        self.uri = uri
        self.collection = collection
        self.encode = encode
        self.metric: Metric = metric
        self._dimension: int | None = None
        if metric not in ("ip", "cosine"):
            raise self._error(f"unknown metric {metric!r}", "give ip or cosine")
        with self._mending("check the address; a .db is open to one process at a time"):
            self._client = MilvusClient(uri)
        self._open()

    def index_vectors(self, passages: Sequence[Passage], vectors: np.ndarray) -> None:
        """Put passages into the collection; one whose id is there already is replaced, so doing it twice is safe.

        Args:
            vectors: of shape (passages, d), float32.

        Raises:
            UserError: if the vectors do not fit the passages or the collection, a vector holds what is no finite
                number, a passage is too long for Milvus, or Milvus fails. Nothing is written in the first three
                cases; in the last, what was written stays, and calling again completes it.
        """
        vectors = self._checked(vectors, len(passages))
        rows = [_row(passage) for passage in passages]
        for passage, row in zip(passages, rows, strict=True):
            if len(row["passage"].encode()) > _LONGEST:
                raise self._error(
                    f"passage {passage.id[:80]!r} is longer than {_LONGEST:,} bytes", "chunk the corpus"
                )
        if not rows:
            return
        if self._dimension is None:
            self._create(vectors.shape[1])
        with self._mending(), progress("index in Milvus", len(rows)) as advance:
            for start in range(0, len(rows), _UPSERT):
                some = range(start, min(start + _UPSERT, len(rows)))
                self._client.upsert(self.collection, [{**rows[i], "vector": vectors[i]} for i in some])
                advance(len(some))
            self._client.flush(self.collection)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The ``k`` nearest passages to each query's vector, with inner product or cosine as score.

        Exact in Milvus Lite; in a cluster, as near as its automatic index comes.

        Raises:
            ValueError: if ``k`` is not from 1 to 16,384, Milvus' limit.
            UserError: if nothing is indexed, the encoder's vectors do not fit the collection, or Milvus fails.
        """
        if not 1 <= k <= _MOST_FOUND:
            raise ValueError(f"k is {k}; ask for 1 to {_MOST_FOUND} passages")
        if self._dimension is None:
            self._open()  # another process may have made it since
        if self._dimension is None:
            raise self._error("there is no such collection", "index passages first, or mend its name")
        if not queries:
            return []
        vectors = self._checked(self.encode(queries), len(queries))
        parts = [vectors[i : i + _SEARCH] for i in range(0, len(vectors), _SEARCH)]
        return [passages for part in parts for passages in self._search(part, k)]

    def close(self) -> None:
        """Let the connection go."""
        self._client.close()

    def _search(self, vectors: np.ndarray, k: int) -> list[list[Passage]]:
        with self._mending():
            found = self._client.search(self.collection, data=list(vectors), limit=k, output_fields=["passage"])
        return [[_passage(hit) for hit in hits] for hits in found]

    def _open(self) -> None:
        """Check the collection, if there is one, and have it ready for searches."""
        with self._mending():
            if not self._client.has_collection(self.collection):
                return
            schema: Any = self._client.describe_collection(self.collection)
            dimension = {field["name"]: field["params"].get("dim") for field in schema["fields"]}
            if dimension.keys() != {"key", "passage", "vector"}:
                raise self._error("not a collection of rag-train", "choose another name")
            index: Any = self._client.describe_index(self.collection, "vector")
            metric = index["metric_type"].lower()
            if metric != self.metric:
                raise self._error(f"made for {metric}, not {self.metric}", f"open it with metric {metric}")
            self._client.load_collection(self.collection)
        self._dimension = int(dimension["vector"])

    def _create(self, dimension: int) -> None:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("passage", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        index = MilvusClient.prepare_index_params()
        # Lite's automatic index is an HNSW that loses passages of a long list; at its size an exact one is quick.
        kind = "FLAT" if self.uri.endswith(".db") else "AUTOINDEX"
        index.add_index("vector", index_type=kind, metric_type=self.metric.upper())
        with self._mending():
            # Session: who writes sees it at once; others within seconds, which spares every search a wait.
            self._client.create_collection(
                self.collection, schema=schema, index_params=index, consistency_level="Session"
            )
        self._dimension = dimension

    def _checked(self, vectors: np.ndarray, rows: int) -> np.ndarray:
        if vectors.ndim != 2 or len(vectors) != rows:
            raise self._error(f"vectors of shape {vectors.shape} for {rows} texts", "give one vector for each")
        if self._dimension not in (None, vectors.shape[1]):
            raise self._error(
                f"made for {self._dimension} dimensions, not {vectors.shape[1]}", "use the encoder it was made with"
            )
        if not np.isfinite(vectors).all():
            raise self._error("a vector holds what is no finite number", "run the encoder in float32")
        return vectors.astype(np.float32, copy=False)

    @contextmanager
    def _mending(
        self, mend: str = "check the server and the collection's name, then do it again"
    ) -> Iterator[None]:
        """Turns Milvus' errors into UserErrors."""
        try:
            yield
        except MilvusException as error:
            problem = " ".join(str(error.message).split())[:300]
            raise self._error(problem or "Milvus failed and does not say why", mend) from error

    def _error(self, problem: str, mend: str) -> UserError:
        return UserError(f"Milvus {self.uri}, collection {self.collection!r}: {problem}; {mend}")


def _row(passage: Passage) -> dict[str, Any]:
    key = hashlib.sha256(passage.id.encode()).hexdigest()
    return {"key": key, "passage": to_line(passage).decode()}


def _passage(hit: dict[str, Any]) -> Passage:
    stored = Passage.model_validate_json(hit["entity"]["passage"])
    return stored.model_copy(update={"score": float(hit["distance"])})
