"""Answers of a slow or paid retriever, kept on disk between runs and shared by processes."""

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

from pydantic import TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever
from rag_train.schema import Passage

_APPLICATION = 0x52415443  # "RATC", in the header of an SQLite file
_VERSION = 1
_AT_ONCE = 1000
"""Queries in one SELECT: SQLite takes no more than 32,766 values."""
_PASSAGES = TypeAdapter(list[Passage])


class CachedRetriever:
    """Searches only for what is not yet in a file; several processes and threads may use the file at once.

    Empty answers are not kept, because a web search that failed gives one too.

    Args:
        retriever: what searches.
        key: names everything besides query and ``k`` that decides the answer, such as the corpus' hash and the
            retriever's settings; answers under another key are not used.
        path: the SQLite file, on a local disk; made if there is none.

    Attributes:
        hits: queries answered from the file.
        misses: queries that were searched.

    Raises:
        UserError: if the file cannot be read or made, is damaged, or is none of ours.
    """

    def __init__(self, retriever: Retriever, key: str, path: str | Path):
        self.retriever = retriever
        self.key = key
        self.path = Path(path)
        self.hits = self.misses = 0
        # A connection must be used neither by another thread nor by a forked process, which must not even close it.
        self._connections: dict[tuple[int, int], sqlite3.Connection] = {}
        with self._mending():
            if not self.path.exists():
                _create(self.path)
            self._check()

    @property
    def name(self) -> str:
        return self.retriever.name

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As the retriever has it. Raises what it raises, and UserError if the file fails."""
        keys = [self._digest(query, k) for query in queries]
        known = self._read(list(dict.fromkeys(keys)))
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in known}
        self.hits += sum(key in known for key in keys)
        self.misses += len(missing)
        if missing:
            found = dict(zip(missing, self.retriever.search(list(missing.values()), k), strict=True))
            self._write({key: passages for key, passages in found.items() if passages})
            known |= found
        return [list(known[key]) for key in keys]

    def _digest(self, query: str, k: int) -> bytes:
        return hashlib.sha256(json.dumps([self.key, query, k]).encode()).digest()

    def _read(self, keys: list[bytes]) -> dict[bytes, list[Passage]]:
        known: dict[bytes, list[Passage]] = {}
        with self._mending():
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = self._connection().execute(f"SELECT key, passages FROM answers WHERE key IN ({marks})", some)
                known |= {key: _PASSAGES.validate_json(passages) for key, passages in rows.fetchall()}
        return known

    def _write(self, found: dict[bytes, list[Passage]]) -> None:
        rows = [(key, _PASSAGES.dump_json(passages)) for key, passages in found.items()]
        with self._mending(), self._connection() as transaction:
            transaction.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def _connection(self) -> sqlite3.Connection:
        owner = os.getpid(), threading.get_ident()
        if owner not in self._connections:
            # 60 s for the other processes' writes, which take milliseconds.
            connection = self._connections[owner] = sqlite3.connect(self.path, timeout=60)
            connection.execute("PRAGMA synchronous = NORMAL")
        return self._connections[owner]

    def _check(self) -> None:
        (application,) = self._connection().execute("PRAGMA application_id").fetchone()
        (version,) = self._connection().execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise UserError(f"cache {self.path}: not a retrieval cache of rag-train; choose another file")
        if version != _VERSION:
            raise UserError(f"cache {self.path}: of version {version}, this rag-train reads {_VERSION}; delete it")

    @contextmanager
    def _mending(self) -> Iterator[None]:
        """Turns errors of the file into UserErrors."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, read-only, no such directory, disk full
            raise UserError(f"cache {self.path}: {error}; choose a writable file on a local disk") from error
        except (sqlite3.DatabaseError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            raise UserError(f"cache {self.path}: damaged ({problem}); delete it to start afresh") from error
        except OSError as error:
            raise UserError(f"cache {self.path}: {error.strerror}; choose a writable file") from error


def _create(path: Path) -> None:
    """Make an empty cache under another name first: another process sees a whole one or none."""
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
        except FileExistsError:  # another process was faster
            return
