"""A cache on disk for an engine's answers, so that an answer is never paid for twice."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rag_train.identity import model as model_identity
from rag_train.jobs.cache import Cache
from rag_train.llm.base import LLM, Around, Completion, Sampling
from rag_train.llm.control import MARK

_COMPLETIONS = TypeAdapter(Completion)


class CachedEngine(Around):
    """An engine that makes a call only if its answer is not yet in a file, which processes can share.

    Args:
        llm: the engine to call.
        path: the file, on a local disk (`rag_train.jobs.cache`); created if it does not exist.
        identity: everything except prompt and sampling that an answer depends on; see
            `rag_train.llm.engines.identity`.

    Raises:
        UserError: if the file cannot be used, or is not such a cache.
    """

    def __init__(self, llm: LLM, path: Path, identity: Any):
        super().__init__(llm)
        self._identity = identity
        self._cache = Cache(path, "RATL", "engine.cache")

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``, from the file if it has the answer. Raises as the engine does, and UserError."""
        parts = prompt.split(MARK)  # which control tokens are marked is part of the key; a mark differs by process
        asked = parts if len(parts) > 1 else prompt
        settings = asdict(sampling) | {"adapter": sampling.adapter and model_identity(sampling.adapter)}
        key = Cache.key([self._identity, asked, settings])
        with self._cache.user_errors():
            if value := self._cache.read([key]).get(key):
                return _COMPLETIONS.validate_json(value)
        completion = await self.llm.complete(prompt, sampling)
        self._cache.write({key: _COMPLETIONS.dump_json(completion)})
        return completion

    async def aclose(self) -> None:
        self._cache.close()
        await super().aclose()
