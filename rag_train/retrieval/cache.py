"""A cache on disk for a slow or paid retriever, shared by runs and processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rag_train.jobs.cache import Cache
from rag_train.retrieval.base import Retriever, corpus_sha256, in_turn, service, threads_of_parts
from rag_train.retrieval.base import key as key_of
from rag_train.retrieval.kinds import combination
from rag_train.schema import Passage

_PASSAGES = TypeAdapter(list[Passage])


@combination(
    "cache",
    "cache(A, FILE)",
    "answers of A, stored in a file on disk by A's indexes, models and settings; delete it when a service has "
    "changed that states no identity",
    most_places=1,
)
class CachedRetriever:
    """A retriever that searches only for queries whose answers are not yet in a file (`rag_train.jobs.cache`).

    A batch that is in the file does not wait for a search of another batch. Empty answers are not stored, because a
    failed web search also returns one.

    Args:
        retriever: the retriever to call; only answers of a retriever with the same identity are used.
        path: the file, on a local disk; created if it does not exist.

    Raises:
        UserError: if the file cannot be read or created, is damaged, or is not a cache.
    """

    def __init__(self, retriever: Retriever, path: str | Path):
        self.retriever = retriever
        self.key = key_of(retriever)
        self.path = Path(path)
        self.threads = threads_of_parts(retriever)
        self.service = service(retriever)
        self._search = in_turn(retriever, retriever.search)
        self._cache = Cache(self.path, "RATC", "cache")

    @property
    def name(self) -> str:
        return self.retriever.name

    @property
    def identity(self) -> Any:
        return self.retriever.identity

    @property
    def corpus_sha256(self) -> str:
        return corpus_sha256(self.retriever)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the retriever's passages for each query, from the file where possible.

        Raises the retriever's exceptions, and UserError if the file cannot be used.
        """
        keys = [Cache.key([self.key, query, k]) for query in queries]
        with self._cache.user_errors():
            known = {key: _PASSAGES.validate_json(value) for key, value in self._cache.read(keys).items()}
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in known}
        if missing:
            found = dict(zip(missing, self._search(list(missing.values()), k), strict=True))
            self._cache.write({key: _PASSAGES.dump_json(passages) for key, passages in found.items() if passages})
            known |= found
        return [list(known[key]) for key in keys]
