"""A cache on disk for an engine's answers, so that an answer is never paid for twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.identity import model as model_identity
from rag_train.llm.base import LLM, Abilities, Completion, Sampling
from rag_train.llm.control import MARK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_APPLICATION = 0x5241544C  # "RATL": SQLite's application_id, in the header of the file
_COMPLETIONS = TypeAdapter(Completion)


class CachedEngine:
    """An ``LLM`` that makes a call only if its answer is not yet in a file. Processes can share the file.

    Args:
        llm: the engine to call.
        path: the SQLite file, on a local disk; created if it does not exist.
        identity: everything except prompt and sampling that an answer depends on; see
            `rag_train.llm.engines.identity`.

    Raises:
        UserError: if the file cannot be used, or is not such a cache.
    """

    def __init__(self, llm: LLM, path: Path, identity: Any):
        self._llm = llm
        self._path = path
        self._identity = identity
        with self._user_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
            (application,) = self._file.execute("PRAGMA application_id").fetchone()
            (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != _APPLICATION and tables:
                raise UserError(f"engine.cache: {path} is another application's file; choose another file")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(f"PRAGMA application_id = {_APPLICATION}")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, completion BLOB NOT NULL)"
            )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine beyond the protocol, which is not cached."""
        return getattr(self._llm, name)

    @property
    def name(self) -> str:
        return self._llm.name

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._llm.tokenizer

    @property
    def abilities(self) -> Abilities:
        return self._llm.abilities

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``, from the file if it has the answer. Raises as the engine does, and UserError."""
        parts = prompt.split(MARK)  # which control tokens are marked is part of the key; a mark differs by process
        asked = parts if len(parts) > 1 else prompt
        settings = asdict(sampling) | {"adapter": sampling.adapter and model_identity(sampling.adapter)}
        key = hashlib.sha256(json.dumps([self._identity, asked, settings]).encode()).digest()
        with self._user_errors():
            row = self._file.execute("SELECT completion FROM answers WHERE key = ?", (key,)).fetchone()
            if row:
                return _COMPLETIONS.validate_json(row[0])
        completion = await self._llm.complete(prompt, sampling)
        with self._user_errors():
            self._file.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, _COMPLETIONS.dump_json(completion))
            )
        return completion

    async def aclose(self) -> None:
        self._file.close()
        await self._llm.aclose()

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValidationError, OSError) as error:
            problem = str(error).partition("\n")[0]
            raise UserError(f"engine.cache: {self._path}: {problem}; choose another file") from error
