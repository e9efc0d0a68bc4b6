"""The cache of a retriever: whose answers it gives, and which it keeps."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.retrieval.cache import CachedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Passage

INDEX = BM25Index.build(
    [
        Passage(id="a", title="Solaris", text="A film by “Tarkovsky” — \u2028 1972."),
        Passage(id="b", text="She directs films."),
        Passage(id="c", text="A city \x00 in Ελλάδα."),
    ]
)


class Echo:
    """A retriever that returns each query as a passage and records its calls."""

    name = "echo"

    def __init__(self, identity: Any = "echo") -> None:
        self.identity = identity
        self.calls: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append(list(queries))
        return [[Passage(id=query, text=query, score=1 / 3)][:k] for query in queries]


def test_returns_the_retrievers_passages_and_searches_once(tmp_path: Path) -> None:
    queries = ["film", "solaris", "film", "\ud800", "zzzz", *map(str, range(3000))]
    first = CachedRetriever(INDEX, tmp_path / "cache.sqlite")
    assert first.search(queries, 2) == INDEX.search(queries, 2) and first.search([], 1) == []
    assert (first.hits, first.misses) == (0, len(queries) - 1)

    echo = Echo(INDEX.identity)
    again = CachedRetriever(echo, first.path)
    assert again.search(queries[:3], 2) == INDEX.search(queries[:3], 2) and echo.calls == []
    assert again.search(["film"], 1)[0][0].id == "film"  # another k
    other = Echo("another retriever of the same name")
    assert CachedRetriever(other, first.path).search(["film"], 2)[0][0].id == "film"
    assert len(echo.calls) == len(other.calls) == 1 and again.name == "echo"


def test_does_not_store_empty_answers_and_refuses_damaged_ones(tmp_path: Path) -> None:
    cached = CachedRetriever(INDEX, tmp_path / "cache")
    for _ in range(2):
        assert cached.search(["zzzz"], 1) == [[]]
    assert cached.misses == 2
    cached.search(["film"], 1)
    with sqlite3.connect(tmp_path / "cache") as database:
        database.execute("UPDATE answers SET value = '[{\"id\"'")
    with pytest.raises(UserError, match=r"damaged .*; choose another file, or delete it"):
        cached.search(["film"], 1)
