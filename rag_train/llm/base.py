"""The protocol of language model engines: a prompt in, a completion out, many calls at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rag_train.errors import ServiceError, masked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampling:
    """Parameters for the continuation of one prompt.

    At most one of ``json_schema``, ``choice`` and ``regex`` may be set; it restricts the output (guided decoding).
    """

    max_tokens: int = 64
    temperature: float = 0.0
    """Sampling temperature; 0 for greedy decoding."""
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the generation. The returned text ends before the stop string."""
    logprobs: int = 0
    """Number of alternatives to report for each token; 0 for no log-probabilities."""
    json_schema: str | None = None
    """JSON schema of the output, as JSON text."""
    choice: tuple[str, ...] | None = None
    """Texts of which the output is one."""
    regex: str | None = None
    """Regular expression that the whole output matches."""
    thoughts: bool = False
    """Whether thoughts between tags (``<think>``) are part of the text, because the prompt asks for them."""
    adapter: str | None = None
    """Directory of the LoRA adapter to use, as saved by PEFT; None for the base model."""

    @property
    def guided(self) -> bool:
        """Whether the output is restricted."""
        return bool(self.json_schema or self.choice or self.regex)


@dataclass(frozen=True)
class Abilities:
    """What an engine can do. It is found out once, when the engine is opened; the defaults are vLLM's abilities."""

    logprobs: bool = True
    """Whether log-probabilities of the written tokens are reported."""
    guided: bool = True
    """Whether decoding is restricted to ``json_schema``, ``choice`` and ``regex``. Without it, the format is asked
    for in words and the text is checked."""
    continues: bool = True
    """Whether the model continues a reply that the prompt has begun."""
    thinks: bool = False
    """Whether the model writes its thoughts before the answer. They are not part of `Completion.text`."""
    attention: bool = False
    """Whether the engine's ``inspect`` returns attention weights (`rag_train.llm.transformers`)."""


class EngineError(ServiceError):
    """A single call failed: the engine or server reported an error or did not answer in time.

    Other calls may still succeed. Passwords in addresses are masked.
    """

    def __str__(self) -> str:
        return masked(super().__str__())


@dataclass(frozen=True)
class TokenLogprob:
    """A token and its log-probability (natural logarithm)."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Usage:
    """Token counts of one call."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    """The continuation of one prompt."""

    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    stop: str | None = None
    """Stop string that ended the text; None if an end-of-text token or the token limit ended it."""
    truncated: bool = False
    """Whether the token limit ended the text."""
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    """Alternatives at each token, most probable first; empty if none were requested."""

    @property
    def whole(self) -> str | None:
        """The text; None if the token limit cut it, because a text that was cut is no answer, label or plan."""
        return None if self.truncated else self.text

    @property
    def whole_lines(self) -> str:
        """The text without its last line if the token limit cut that line."""
        return self.text[: self.text.rfind("\n") + 1] if self.truncated else self.text

    @property
    def chosen(self) -> tuple[TokenLogprob, ...]:
        """The generated tokens with their log-probabilities; empty if none were requested."""
        return tuple(
            next(token for token in alternatives if token.token_id == token_id)
            for token_id, alternatives in zip(self.token_ids, self.logprobs, strict=False)
        )


class LLM(Protocol):
    """An engine that serves one model. Calls are independent: start them all, and the engine batches them."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    @property
    def abilities(self) -> Abilities: ...

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``.

        Raises:
            Refused: if the prompt is refused for good, for example because it does not fit the model's context.
            EngineError: if the engine fails or does not answer in time.
        """
        ...

    async def aclose(self) -> None:
        """Shut the engine down."""
        ...


class Around:
    """An engine around another, with the name, tokenizer and abilities of that one, and what it has beyond the
    protocol, such as ``inspect``."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    abilities: Abilities

    def __init__(self, llm: LLM):
        self.llm = llm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.llm, name)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return await self.llm.complete(prompt, sampling)

    async def aclose(self) -> None:
        await self.llm.aclose()


class Timed(Around):
    """An engine that cancels a call after ``seconds``. What is beyond the protocol has no time limit."""

    def __init__(self, llm: LLM, seconds: float):
        super().__init__(llm)
        self._seconds = seconds

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``; see `LLM.complete`. Cancels the call and raises EngineError at the time limit."""
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                return await self.llm.complete(prompt, sampling)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineError(f"{self.name}: no answer within {self._seconds:g} s") from error


class Adapted(Around):
    """An engine restricted to one LoRA adapter."""

    def __init__(self, llm: LLM, adapter: str):
        super().__init__(llm)
        self.name = f"{llm.name}+{Path(adapter).name}"
        self.adapter = adapter

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return await self.llm.complete(prompt, replace(sampling, adapter=self.adapter))

    async def inspect(self, prompt: str, text: str) -> Any:
        """Inspect the model with the adapter, if ``abilities.attention`` (see `TransformersEngine.inspect`)."""
        engine: Any = self.llm
        return await engine.inspect(prompt, text, self.adapter)
