"""The log of one question's engine calls, which also avoids repeated calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.schema import LLMCall

call_depth: ContextVar[int] = ContextVar("call_depth", default=0)
"""Number of sequential engine calls that led to the current point of the question. Code that waits for several
coroutines continues with the highest of their depths (`rag_train.strategies.base.together`)."""


class CallLog:
    """An engine as used for one question: makes identical calls only once and records every call made.

    Two calls are identical if their prompt and all sampling parameters are equal, including the seed.
    """

    def __init__(self, llm: LLM, calls: list[LLMCall] | None = None, allow: Callable[[], None] | None = None):
        """``allow`` is called before each call that is not a repetition, and may raise an error to prevent it."""
        self._llm = llm
        self._allow = allow
        self._made: dict[tuple[str, Sampling], tuple[asyncio.Task[Completion], int]] = {}
        self.calls = [] if calls is None else calls

    async def complete(self, module: str, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``; the call's tokens are counted under ``module``, a part of the strategy."""
        task, order = self._made.get((prompt, sampling), (None, call_depth.get() + 1))
        if task is None and self._allow:
            self._allow()
        call_depth.set(max(call_depth.get(), order))
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
