"""The protocol of language model engines: text in, text out, thousands of calls in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sampling:
    """How to continue one prompt. At most one of ``json_schema`` (as JSON text), ``choice``, ``regex``."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these; it is not part of the text."""
    logprobs: int = 0
    """How many alternatives to report at each token; 0 for none."""
    json_schema: str | None = None
    choice: tuple[str, ...] | None = None
    regex: str | None = None
    adapter: str | None = None
    """Directory of the LoRA adapter (as PEFT saves it) to answer with; None: the base model."""


class EngineError(Exception):
    """A call that came to nothing: the server failed, or no answer came in time. Other calls may fare better."""


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    """One continuation. ``logprobs[i]`` lists the alternatives at token i, most probable first;
    ``stop`` is the stop string that ended the text, None at end-of-text or at the token limit."""

    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    stop: str | None = None
    truncated: bool = False
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()

    @property
    def chosen(self) -> tuple[TokenLogprob, ...]:
        """The tokens that were written; empty where no log-probabilities were asked for."""
        return tuple(
            next(token for token in alternatives if token.token_id == token_id)
            for token_id, alternatives in zip(self.token_ids, self.logprobs, strict=False)
        )


class LLM(Protocol):
    """An engine with one model. Calls are independent: issue them all, the engine batches them."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``.

        Raises:
            ValueError: if the prompt does not fit the model's context.
            EngineError: if the engine failed or did not answer in time.
        """
        ...

    async def aclose(self) -> None: ...
