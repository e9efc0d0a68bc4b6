"""A cache on disk for answers that are slow or paid: values by the identity of all that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rag_train.errors import UserError

_SELECT = 1000
"""Keys in one SELECT; SQLite's limit is 32,766 values."""


class Cache:
    """Values in an SQLite file on a local disk, which threads and processes can use at the same time.

    Args:
        path: the file; created if it does not exist.
        kind: four letters in the header of the file, by which a cache of another kind is refused.
        label: what messages call the cache.

    Raises:
        UserError: if the file cannot be read or created, is damaged, or is not a cache of this kind.
    """

    def __init__(self, path: Path, kind: str, label: str):
        self.path = path
        self._label = label
        self._kind = int.from_bytes(kind.encode("ascii"))
        # A connection belongs to one thread of one process: a forked process must not even close it.
        self._connections: dict[tuple[int, int], sqlite3.Connection] = {}
        with self.user_errors():
            if not path.exists():
                self._create()
            (found,) = self._connection().execute("PRAGMA application_id").fetchone()
            if found != self._kind:
                raise UserError(f"{label} {path}: another application's file; choose another file")

    @staticmethod
    def key(depends_on: Any) -> bytes:
        """Return the key of a value that depends on ``depends_on``, a JSON value."""
        return hashlib.sha256(json.dumps(depends_on).encode()).digest()

    def read(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the values that the file has, by key. Raises UserError if it cannot be read."""
        keys, known = list(dict.fromkeys(keys)), {}
        with self.user_errors():
            for start in range(0, len(keys), _SELECT):
                part = keys[start : start + _SELECT]
                marks = ",".join("?" * len(part))
                known.update(self._connection().execute(f"SELECT * FROM answers WHERE key IN ({marks})", part))
        return known

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Add values, unless their keys have one. Raises UserError if the file cannot be written."""
        with self.user_errors(), self._connection() as transaction:
            transaction.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", values.items())

    @contextmanager
    def user_errors(self) -> Iterator[None]:
        """Turn errors of SQLite, of the file system and of damaged values into UserErrors."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, read-only, no such directory, disk full
            remedy = "choose a writable file on a local disk"
            raise UserError(f"{self._label} {self.path}: {error}; {remedy}") from error
        except (sqlite3.DatabaseError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            remedy = "choose another file, or delete it to start with an empty cache"
            raise UserError(f"{self._label} {self.path}: damaged ({problem}); {remedy}") from error
        except OSError as error:
            raise UserError(f"{self._label} {self.path}: {error.strerror}; choose another file") from error

    def close(self) -> None:
        """Close the connections of this process."""
        for process, thread in list(self._connections):
            if process == os.getpid():
                self._connections.pop((process, thread)).close()

    def _connection(self) -> sqlite3.Connection:
        owner = os.getpid(), threading.get_ident()
        if owner not in self._connections:
            # Waits up to 60 s for writes of other processes, which take milliseconds.
            connection = self._connections[owner] = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            connection.execute("PRAGMA synchronous = NORMAL")
        return self._connections[owner]

    def _create(self) -> None:
        """Create an empty cache atomically: other processes see a complete file or none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{self.path.name}.", dir=self.path.parent) as directory:
            new = Path(directory) / "new"
            with closing(sqlite3.connect(new)) as connection:
                connection.executescript(
                    f"""
                    PRAGMA journal_mode = WAL;
                    PRAGMA application_id = {self._kind};
                    CREATE TABLE answers (key BLOB PRIMARY KEY, value BLOB NOT NULL);
                    """
                )
            try:
                self.path.hardlink_to(new)
            except FileExistsError:  # created by another process in the meantime
                return
