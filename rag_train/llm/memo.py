"""Counting and de-duplicating engine calls within one question."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.schema import LLMCall

path: ContextVar[int] = ContextVar("path", default=0)
"""How many calls were made one after the other to come here. Who waits for several coroutines goes on from the
longest (`rag_train.strategies.base.together`)."""


class CallLog:
    """An engine seen from one question: identical calls are made once, every call made is recorded.

    ``sampling`` is part of a call's identity, its seed included, so nothing random is repeated by accident.
    """

    def __init__(self, llm: LLM, calls: list[LLMCall] | None = None):
        self._llm = llm
        self._made: dict[tuple[str, Sampling], tuple[asyncio.Task[Completion], int]] = {}
        self.calls = [] if calls is None else calls

    async def complete(self, module: str, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt`` on behalf of ``module``, the strategy's part that the tokens are counted under."""
        task, order = self._made.get((prompt, sampling), (None, path.get() + 1))
        path.set(max(path.get(), order))
        if task is None:
            task = asyncio.create_task(self._llm.complete(prompt, sampling))
            self._made[prompt, sampling] = task, order
            usage = (await task).usage
            self.calls.append(
                LLMCall(
                    module=module,
                    prompt_tokens=usage.prompt_tokens,
                    completion_tokens=usage.completion_tokens,
                    order=order,
                )
            )
        return await task
