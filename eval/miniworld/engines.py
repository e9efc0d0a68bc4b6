"""The engines of the lab's checkpoints: few at a time, and no engine makes a greedy call twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Self

from rag_train.llm.base import LLM, Completion, Sampling

MOST = 2
"""Open engines: that of a model, and that of a model which plays a role."""


class Remembering:
    """An engine that keeps the completions of its greedy calls, and does not make such a call again.

    The variants of a strategy and those of a search begin with the same calls. Completions with log-probabilities
    are large, and are not kept.
    """

    def __init__(self, llm: LLM):
        self._llm = llm
        self._kept: dict[bytes, Completion] = {}
        self.name = llm.name
        self.tokenizer = llm.tokenizer
        self.abilities = llm.abilities

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``; see `LLM.complete`."""
        if sampling.temperature or sampling.logprobs:
            return await self._llm.complete(prompt, sampling)
        key = hashlib.sha256(f"{sampling}\n{prompt}".encode()).digest()
        if key not in self._kept:
            self._kept[key] = await self._llm.complete(prompt, sampling)
        return self._kept[key]

    async def aclose(self) -> None:
        """Shut the engine down."""
        await self._llm.aclose()


class Engines:
    """At most `MOST` open engines. The one that was asked for least recently is closed when another is needed.

    Use it in an ``async with`` block, at whose end all engines are closed.
    """

    def __init__(self, serve: Callable[[Path], AbstractAsyncContextManager[LLM]]):
        """``serve`` starts the engine of a checkpoint, and closes it at the end of its block."""
        self._serve = serve
        self._open: dict[Path, tuple[LLM, AsyncExitStack]] = {}

    async def of(self, model: Path) -> LLM:
        """Return the engine of a checkpoint, which is started if it is not open."""
        if model not in self._open:
            if len(self._open) == MOST:
                await self._close()
            stack = AsyncExitStack()
            self._open[model] = Remembering(await stack.enter_async_context(self._serve(model))), stack
        self._open[model] = self._open.pop(model)  # the dictionary's last one is the newest
        return self._open[model][0]

    async def _close(self) -> None:
        """Close the engine that was asked for least recently."""
        _, stack = self._open.pop(next(iter(self._open)))
        await stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._open:
            await self._close()
