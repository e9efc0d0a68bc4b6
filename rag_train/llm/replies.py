"""Reading the replies of all kinds of servers: ends, stop strings, thoughts, counts and log-probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, model_validator

from rag_train.llm.base import EngineError, Usage
from rag_train.llm.problems import refused

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenCount = Annotated[int, Field(ge=0, lt=2**31)]
SHORTEST_CONTEXT = 256
"""Least tokens to which a server cuts a prompt. One that tells fewer leaves out those that it has cached."""

_FAILED = re.compile(r"\b(abort|error|cancel|fail|timeout|interrupt)")
_FILTERED = re.compile(r"\b(filter|safety|sensitive|prohibit|block|refus|recitation|spii|guardrail|moderat)")
_LIMITED = re.compile(r"\b(length|limit|max)\b")
_ENDED = re.compile(r"\b(stop|stopped|eos|eot|end|complete|completed|done|finished|tool|function)\b")


class _Details(BaseModel):
    reasoning_tokens: TokenCount | None = None


class UsageMessage(BaseModel):
    """The server's token counts. Some servers leave out some of them, or all."""

    prompt_tokens: TokenCount | None = Field(None, validation_alias=AliasChoices("prompt_tokens", "input_tokens"))
    completion_tokens: TokenCount | None = Field(
        None, validation_alias=AliasChoices("completion_tokens", "output_tokens")
    )
    total_tokens: TokenCount | None = None
    completion_tokens_details: _Details | None = None

    @property
    def apart(self) -> int:
        """Number of written tokens that are counted in the total only, such as Gemini's thoughts."""
        if not self.total_tokens or self.prompt_tokens is None:
            return 0
        return max(0, self.total_tokens - self.prompt_tokens - (self.completion_tokens or 0))

    @property
    def thoughts(self) -> int:
        """Number of tokens of thoughts, as far as the server tells it."""
        details = self.completion_tokens_details
        return max(self.apart, details.reasoning_tokens or 0 if details else 0)

    def usage(self, read: int = 0, written: int = 0) -> Usage:
        """Return the counts; ``read`` and ``written`` stand for those that the server leaves out."""
        completion = None if self.completion_tokens is None else self.completion_tokens + self.apart
        return Usage(
            read if self.prompt_tokens is None else self.prompt_tokens,
            (self.apart or written) if completion is None else completion,
        )


class Named(BaseModel):
    """A token by its text; some servers tell its id."""

    token: str
    id: TokenId | None = None


class _Alternative(Named):
    logprob: float | None = None


class Token(Named):
    """A written token with its alternatives."""

    logprob: Annotated[float, Field(allow_inf_nan=False)]
    top_logprobs: list[_Alternative] | None = None

    def alternatives(self) -> list[tuple[Named, float]]:
        """Return the written token and the others that have a probability, each once, most probable first."""
        best: dict[str, tuple[Named, float]] = {}
        for each in (*(self.top_logprobs or ()), self):
            if each.logprob is not None and math.isfinite(each.logprob):
                best[each.token] = each, each.logprob
        return sorted(best.values(), key=lambda one: -one[1])


class Logprobs(BaseModel):
    """Log-probabilities, in the shape of chat completions or in the older one of completions."""

    content: list[Token] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_content(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("tokens"), list):
            return given
        tokens, logprobs = given["tokens"], given.get("token_logprobs")
        best = given.get("top_logprobs") or [None] * len(tokens)
        if not (isinstance(logprobs, list) and isinstance(best, list)) or not (
            len(tokens) == len(logprobs) == len(best)
        ):
            raise ValueError("the lists of log-probabilities differ in length")
        return {
            "content": [
                {"token": token, "logprob": logprob, "top_logprobs": _listed(others)}
                for token, logprob, others in zip(tokens, logprobs, best, strict=True)
            ]
        }


def _listed(others: Any) -> Any:
    return [{"token": t, "logprob": p} for t, p in others.items()] if isinstance(others, dict) else others


def ended_by_limit(url: str, reason: str | None, written: int, limit: int) -> bool:
    """Return whether the limit of tokens ended a text, by the server's ``finish_reason``.

    Without a reason, a text that is as long as the limit was ended by it.

    Raises:
        Refused: if a content filter ended the text.
        EngineError: if the generation was aborted, or the reason is not known.
    """
    if not reason:
        return written >= limit
    words = " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+", reason)).lower()
    if _FAILED.search(words):
        raise EngineError(f"{url}: generation was aborted ({reason[:40]})")
    if _FILTERED.search(words):
        raise refused("content filter", f"{url}: the server ended the text with {reason[:40]}")
    limited = bool(_LIMITED.search(words))
    if not limited and not _ENDED.search(words):
        raise EngineError(f"{url}: the answer's finish_reason {reason[:40]!r} says not whether the text is whole")
    return limited


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str | None]:
    """Return where ``text`` has to end, and the stop string there: the one that is complete first."""
    found = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in stops if stop in text]
    return min(found)[1:] if found else (len(text), None)


def yes_no(value: bool) -> str:
    return "yes" if value else "no"
