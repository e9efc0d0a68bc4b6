"""A cache on disk for a slow or paid retriever, shared by runs and processes."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever, corpus_sha256, in_turn, service, threads_of_parts
from rag_train.retrieval.base import key as key_of
from rag_train.schema import Passage

_APPLICATION = 0x52415443  # "RATC": SQLite's application_id, in the header of the file
_VERSION = 1
_SELECT = 1000
"""Keys in one SELECT; SQLite's limit is 32,766 values."""
_PASSAGES = TypeAdapter(list[Passage])


class CachedRetriever:
    """A retriever that searches only for queries whose answers are not yet in a file.

    Several processes and threads can use the file at the same time; a batch that is in the file does not wait for a
    search of another batch. Empty answers are not stored, because a failed
    web search also returns one.

    Args:
        retriever: the retriever to call; only answers of a retriever with the same identity are used.
        path: the SQLite file, on a local disk; created if it does not exist.

    Attributes:
        hits: number of queries answered from the file.
        misses: number of queries passed to the retriever.

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
        self.hits = self.misses = 0
        self._counting = threading.Lock()
        # A connection belongs to one thread of one process: a forked process must not even close it.
        self._connections: dict[tuple[int, int], sqlite3.Connection] = {}
        with self._user_errors():
            if not self.path.exists():
                _create(self.path)
            self._check()

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
        keys = [self._digest(query, k) for query in queries]
        known = self._read(list(dict.fromkeys(keys)))
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in known}
        with self._counting:
            self.hits += sum(key in known for key in keys)
            self.misses += len(missing)
        if missing:
            found = dict(zip(missing, self._search(list(missing.values()), k), strict=True))
            self._write({key: passages for key, passages in found.items() if passages})
            known |= found
        return [list(known[key]) for key in keys]

    def _digest(self, query: str, k: int) -> bytes:
        return hashlib.sha256(json.dumps([self.key, query, k]).encode()).digest()

    def _read(self, keys: list[bytes]) -> dict[bytes, list[Passage]]:
        known: dict[bytes, list[Passage]] = {}
        with self._user_errors():
            for start in range(0, len(keys), _SELECT):
                part = keys[start : start + _SELECT]
                marks = ",".join("?" * len(part))
                rows = self._connection().execute(f"SELECT key, passages FROM answers WHERE key IN ({marks})", part)
                known |= {key: _PASSAGES.validate_json(passages) for key, passages in rows.fetchall()}
        return known

    def _write(self, found: dict[bytes, list[Passage]]) -> None:
        rows = [(key, _PASSAGES.dump_json(passages)) for key, passages in found.items()]
        with self._user_errors(), self._connection() as transaction:
            transaction.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def _connection(self) -> sqlite3.Connection:
        owner = os.getpid(), threading.get_ident()
        if owner not in self._connections:
            # Waits up to 60 s for writes of other processes, which take milliseconds.
            connection = self._connections[owner] = sqlite3.connect(self.path, timeout=60)
            connection.execute("PRAGMA synchronous = NORMAL")
        return self._connections[owner]

    def _check(self) -> None:
        (application,) = self._connection().execute("PRAGMA application_id").fetchone()
        (version,) = self._connection().execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise UserError(f"cache {self.path}: not a retrieval cache of rag-train; choose another file")
        if version != _VERSION:
            raise UserError(f"cache {self.path}: version {version}, but this rag-train reads {_VERSION}; delete it")

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of the file system into UserErrors."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, read-only, no such directory, disk full
            raise UserError(f"cache {self.path}: {error}; choose a writable file on a local disk") from error
        except (sqlite3.DatabaseError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            raise UserError(
                f"cache {self.path}: damaged ({problem}); delete it to start with an empty cache"
            ) from error
        except OSError as error:
            raise UserError(f"cache {self.path}: {error.strerror}; choose a writable file") from error


def _create(path: Path) -> None:
    """Create an empty cache atomically: other processes see a complete file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
        partial = Path(directory) / "partial"
        with closing(sqlite3.connect(partial)) as connection:
            connection.executescript(
                f"""
                PRAGMA journal_mode = WAL;
                PRAGMA application_id = {_APPLICATION};
                PRAGMA user_version = {_VERSION};
                CREATE TABLE answers (key BLOB PRIMARY KEY, passages BLOB NOT NULL);
                """
            )
        try:
            path.hardlink_to(partial)
        except FileExistsError:  # created by another process in the meantime
            return
