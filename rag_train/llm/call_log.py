"""The log of one question's engine calls, which also avoids repeated calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace

from rag_train.errors import PromptTooLong
from rag_train.jobs.retries import current
from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.llm.thoughts import without_thoughts
from rag_train.schema import LLMCall

call_depth: ContextVar[int] = ContextVar("call_depth", default=0)
"""Number of sequential engine calls that led to the current point of the question. It is a context variable because
each of the tasks that run at the same time has its own; code that waits for several continues with the highest of
their depths (`rag_train.strategies.base.together`)."""

LONGEST_TOKEN = 64
"""Most characters of a token, as an estimate."""


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
        """Continue ``prompt``; the call's tokens are counted under ``module``, a part of the strategy.

        Thoughts are taken out of the text (`rag_train.llm.thoughts`), unless the sampling keeps them.

        Raises:
            PromptTooLong: if the prompt and ``max_tokens`` do not fit the model's context.
            EngineError: if the engine fails or does not answer in time.
        """
        task, order = self._made.get((prompt, sampling), (None, call_depth.get() + 1))
        if task is None and self._allow:
            self._allow()
        call_depth.set(max(call_depth.get(), order))
        if task is None:
            task = asyncio.create_task(self._complete(module, prompt, sampling, order))
            self._made[prompt, sampling] = task, order
        return await task

    async def _complete(self, module: str, prompt: str, sampling: Sampling, order: int) -> Completion:
        """Make the call, unless an earlier attempt at the item completed it, and record it."""
        so_far = current()
        key = id(self._llm), prompt, sampling
        known = so_far.completions.get(key)
        completion = known or await self._ask(prompt, sampling)
        said = completion if sampling.thoughts else without_thoughts(completion)
        usage = completion.usage
        call = LLMCall(
            module=module,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            order=order,
            cut=said.truncated and sampling.max_tokens > 1,  # a call of one token asks for its probabilities only
        )
        self.calls.append(call)
        if known is None:
            so_far.completions[key] = completion
            so_far.calls.append(call)
        return said

    async def _ask(self, prompt: str, sampling: Sampling) -> Completion:
        """Call the engine, and cut what is longer than the token limit allows: a server may ignore the limit."""
        try:
            completion = await self._llm.complete(prompt, sampling)
        except ValueError as error:
            if type(error) is not ValueError:  # pydantic's errors, for example, say nothing about the length
                raise
            raise PromptTooLong(str(error)) from error
        most = sampling.max_tokens * LONGEST_TOKEN
        if len(completion.text) <= most:
            return completion
        return replace(completion, text=completion.text[:most], stop=None, truncated=True)
