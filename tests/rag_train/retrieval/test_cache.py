"""The cache on disk: threads, processes, forks and damaged files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
    first = CachedRetriever(INDEX, tmp_path / "new" / "cache.sqlite")
    assert first.search(queries, 2) == INDEX.search(queries, 2) and first.search([], 1) == []
    assert (first.hits, first.misses) == (0, len(queries) - 1)

    echo = Echo(INDEX.identity)
    again = CachedRetriever(echo, first.path)
    assert again.search(queries[:3], 2) == INDEX.search(queries[:3], 2) and echo.calls == []
    assert again.search(["film"], 1)[0][0].id == "film"  # another k
    other = Echo("another retriever of the same name")
    assert CachedRetriever(other, first.path).search(["film"], 2)[0][0].id == "film"
    assert len(echo.calls) == len(other.calls) == 1 and again.name == "echo"


def test_does_not_store_empty_answers(tmp_path: Path) -> None:
    cached = CachedRetriever(INDEX, tmp_path / "cache")
    for _ in range(2):
        assert cached.search(["zzzz"], 1) == [[]]
    assert cached.misses == 2


def test_works_in_threads_and_after_a_fork(tmp_path: Path) -> None:
    cached = CachedRetriever(Echo(), tmp_path / "cache")
    cached.search(["parent"], 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cached.search(["parent", "child"], 1)
            status = cached.hits - 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: cached.search(["parent", "child", str(i)], 1), range(20)))
    assert cached.misses == 21


WRITER = """
import sys
from rag_train.retrieval.cache import CachedRetriever
from rag_train.schema import Passage

class Echo:
    name = identity = "echo"
    def search(self, queries, k):
        return [[Passage(id=q, text=q)] for q in queries]

sys.stdin.readline()
for start in range(0, 400, 20):
    queries = [str(i) for i in range(start, start + 40)]
    found = CachedRetriever(Echo(), sys.argv[1]).search(queries, 1)
    assert [passages[0].id for passages in found] == queries
"""


@pytest.mark.slow
def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for writer in writers:  # released together, so that they also compete for creating the file
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0] * 4
    cached = CachedRetriever(Echo(), path)
    cached.search([str(i) for i in range(420)], 1)
    assert cached.misses == 0
    assert [name for name in os.listdir(tmp_path) if not name.startswith("cache")] == []  # noqa: PTH208


def _damage(path: Path, kind: str) -> None:
    match kind:
        case "not a database":
            path.write_bytes(b"\x00garbage" * 1000)
        case "truncated":
            path.write_bytes(path.read_bytes()[:6000])
        case "empty":
            path.write_bytes(b"")
        case "directory":
            path.unlink()
            path.mkdir()
        case "overwritten":
            data = path.read_bytes()
            path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
        case statement:
            with sqlite3.connect(path) as database:
                database.execute(statement)
            database.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "not a database",
        "truncated",
        "empty",
        "directory",
        "overwritten",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 9",
        "UPDATE answers SET passages = '[{\"id\"'",
    ],
)
def test_rejects_a_damaged_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cache"
    writer = CachedRetriever(Echo(), path)
    queries = [str(i) for i in range(2000)]
    writer.search(queries, 1)
    for connection in writer._connections.values():
        connection.close()
    _damage(path, kind)
    with pytest.raises(UserError, match="cache") as caught:
        CachedRetriever(Echo(), path).search(queries, 1)
    assert "\n" not in str(caught.value) and "; " in str(caught.value)
