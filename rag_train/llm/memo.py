"""Counting and de-duplicating engine calls within one question."""

from __future__ import annotations

import asyncio

from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.schema import LLMCall


class CallLog:
    """An engine seen from one question: identical calls are made once, every call made is recorded.

    ``sampling`` is part of a call's identity, its seed included, so nothing random is repeated by accident.
    """

    def __init__(self, llm: LLM, calls: list[LLMCall] | None = None):
        self._llm = llm
        self._made: dict[tuple[str, Sampling], asyncio.Task[Completion]] = {}
        self.calls = [] if calls is None else calls

    async def complete(self, module: str, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt`` on behalf of ``module``, the strategy's part that the tokens are counted under."""
        task = self._made.get((prompt, sampling))
        if task is None:
            task = asyncio.create_task(self._llm.complete(prompt, sampling))
            self._made[prompt, sampling] = task
            usage = (await task).usage
            self.calls.append(
                LLMCall(
                    module=module,
                    prompt_tokens=usage.prompt_tokens,
                    completion_tokens=usage.completion_tokens,
                )
            )
        return await task
