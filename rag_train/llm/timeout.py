"""A time limit on engine calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rag_train.llm.base import LLM, Abilities, Completion, EngineError, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Timed:
    """An ``LLM`` that cancels a call after ``seconds``."""

    def __init__(self, llm: LLM, seconds: float):
        self._llm = llm
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine beyond the protocol, such as ``inspect``; it has no time limit."""
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
        """Continue ``prompt``; see `LLM.complete`. Cancels the call and raises EngineError at the time limit."""
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self._llm.complete(prompt, sampling)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineError(f"{self.name}: no answer within {self._seconds:g} s") from error

    async def aclose(self) -> None:
        await self._llm.aclose()
