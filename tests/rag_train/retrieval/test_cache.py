"""The cache of a retriever: whose answers it gives, and which it keeps."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.retrieval import Fake

from rag_train.errors import UserError
from rag_train.retrieval.cache import CachedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Passage

TEXTS = {"a": "A film by “Tarkovsky” — \u2028 1972.", "b": "She directs films.", "c": "A city \x00 in Ελλάδα."}
INDEX = BM25Index.build([Passage(id=id, title="Solaris" * (id == "a"), text=text) for id, text in TEXTS.items()])


def test_returns_the_retrievers_passages_and_searches_once(tmp_path: Path) -> None:
    queries = ["film", "solaris", "film", "\ud800", "zzzz", *map(str, range(3000))]
    first = CachedRetriever(INDEX, tmp_path / "cache.sqlite")
    assert first.search(queries, 2) == INDEX.search(queries, 2) and first.search([], 1) == []

    same, other = Fake("same"), Fake("another retriever of the same name")
    same.identity = INDEX.identity
    again = CachedRetriever(same, first.path)
    assert again.search(queries[:3], 2) == INDEX.search(queries[:3], 2) and same.calls == []
    assert again.search(["film"], 1)[0][0].id == "film"  # another k
    assert CachedRetriever(other, first.path).search(["film"], 2)[0][0].id == "film"
    assert len(same.calls) == len(other.calls) == 1 and again.name == "same"


def test_does_not_store_empty_answers_and_refuses_damaged_ones(tmp_path: Path) -> None:
    nothing = Fake(found=[])
    for _ in range(2):
        assert CachedRetriever(nothing, tmp_path / "cache").search(["zzzz"], 1) == [[]]
    assert len(nothing.calls) == 2
    cached = CachedRetriever(INDEX, tmp_path / "cache")
    cached.search(["film"], 1)
    with sqlite3.connect(tmp_path / "cache") as database:
        database.execute("UPDATE answers SET value = '[{\"id\"'")
    with pytest.raises(UserError, match=r"damaged .*; choose another file, or delete it"):
        cached.search(["film"], 1)
