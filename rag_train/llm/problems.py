"""What a server's error means: whether it concerns one prompt, one server, every request, or only this moment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.http import is_busy
from rag_train.llm.base import Sampling

DOUBTFUL = (200, 400, 413, 414, 422)
"""Statuses of a rejected request that may concern its prompt or its settings. With 200, the body is an error."""
OF_A_SERVER = (401, 402, 403, 404, 405, 410)
"""Statuses of a server that rejects every request, such as one that has not loaded the model."""
SETTINGS = frozenset(
    {"max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "seed", "logprobs", "top_logprobs"}
    | {"response_format", "model"}
)
"""Fields of a request that its prompt is not part of."""

_ERRORS = frozenset(map(str, range(400, 600)))
_MESSAGES = ("message", "msg", "error", "detail", "raw")
_NAMES = ("code", "type", "status", "reason", "error_type", "error_code")
_QUOTED = re.compile(r'"[^"]*(?:"|$)|“[^”]*(?:”|$)|«[^»]*(?:»|$)')
_NAMED_FIELD = re.compile(
    r"(?:unrecognized|unsupported|unknown|unexpected|extra)(?: request| keyword)?"
    r"(?: argument| parameter| field| value| name| input| property)s?(?: supplied)?:? *['\"`]?([a-z_]+)",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context[_ -]?(length|window|size|limit)|exceeds? the (available |maximum )?context|exceed_context"
)
_TOO_LONG = re.compile(
    r"\b(prompt|input|request|message|sequence|text|content|string|query|payload|entity|body)s?\b[\w ]{0,20}"
    r"\btoo (long|large|big)|too_(long|large)|string_above_max|too many (\w+ )?tokens|tokens?_limit"
    r"|(reduce|shorten) [\w ]{0,40}(length|prompt|input|message|context)"
    r"|(exceed|longer than|larger than|greater than|more than)\w* [^.]{0,60}(token|context|length|character)"
    r"|(token|context|length|character)[^.]{0,60}(exceed|longer than|larger than|greater than)"
)
_LENGTH = re.compile(r"token|character|length|context|prompt|input")
_LIMIT = re.compile(
    r"max|limit|exceed|available|at most|up to|than|allowed|must|only|[<>≤]|too|over|fit|support|n_ctx"
)
_FILTERED = re.compile(
    r"content[\s_-]*(\w+[\s_-]+)?(filter|polic|moderat|safety|violat|risk|block|management)|filter(ed|ing)\b"
    r"|moderat(ed|ion)|flagged|responsible_?ai|safety|unsafe|guardrail|blocklist|prohibited_content|inappropriate"
    r"|harmful|(?<!case[- ])sensitive|(usage|acceptable use) (polic|guideline)|inspection"
    r"|violat\w* .{0,60}polic|polic\w* .{0,60}violat"
)
_IMPOSSIBLE = re.compile(r"surrogate|unicode|utf-?8|codec|null (byte|character)|control character")


class Rejected(UserError):
    """A server rejected a request; ``problem`` says why."""

    def __init__(self, url: str, problem: Problem):
        remedy = "; name the variable with its key as engine.key" if problem.status == 401 else ""
        super().__init__(f"{url}: request rejected, {problem.message}{remedy}")
        self.problem = problem


def refused(reason: str, message: str) -> Refused:
    """Return the error of an item that is refused for good, for one of a few short reasons."""
    error = PromptTooLong(message) if reason == PromptTooLong.reason else Refused(message)
    error.reason = reason
    return error


def names(error: Rejected | Refused, field: str) -> bool:
    """Whether an error names a field of the request. The request's prompt must not, which the error may quote."""
    fields = error.problem.fields if isinstance(error, Rejected) else ()
    return field in fields or bool(re.search(rf"\b{field}\b", str(error)))


def check_extra(error: Rejected | Refused, extra: Iterable[str]) -> None:
    """Raise UserError if an error names one of the further fields of each request."""
    for field in extra:
        if names(error, field):
            raise UserError(f"engine.extra.{field}: {error}; remove it") from error


class Doubts:
    """Finds out whether the prompt or the settings of a rejected request are at fault.

    The settings are, if the server also rejects them with a short question of our own.

    Args:
        ask: makes a call with that question.
    """

    def __init__(self, ask: Callable[[Sampling], Coroutine[Any, Any, Any]]):
        self._ask = ask
        self._accepted: set[Sampling] = set()

    async def refusal(self, error: Rejected, sampling: Sampling) -> Refused:
        """Return the refusal of the prompt. Raises ``error`` if something else is at fault."""
        if error.problem.status not in DOUBTFUL:
            raise error
        settings = sampling if sampling.seed is None else replace(sampling, seed=0)
        if settings not in self._accepted:
            try:
                await self._ask(settings)
            except (Rejected, Refused):
                raise error from None
            self._accepted.add(settings)
        return refused("rejected by the server", str(error))


@dataclass(frozen=True)
class Problem:
    """An error in a server's words.

    Attributes:
        status: the response's status, or the one that the body of a successful response tells.
        message: the status and the message in one line.
        words: codes, types and messages in lower case, without the texts that the messages quote.
        fields: fields of the request that the server names as the cause.
    """

    status: int
    message: str
    words: str = ""
    fields: frozenset[str] = frozenset()

    @property
    def busy(self) -> bool:
        """Whether the same request may succeed later."""
        return is_busy(self.status) and not re.search(r"insufficient_(quota|balance|credit)|billing_", self.words)

    @property
    def refusal(self) -> Refused | None:
        """The refusal of the request's prompt, whichever server words it; None if the error does not tell one."""
        reason = self._reason()
        return refused(reason, self.message) if reason else None

    def _reason(self) -> str | None:
        if self.status == 429:
            return "too long" if self._asks_more_than_allowed() else None
        if self.status == 413 or (self.status in (400, 500, *DOUBTFUL) and _CONTEXT.search(self.words)):
            return "too long"
        if self.fields & SETTINGS:
            return None
        if self.status in (403, 451, *DOUBTFUL) and _FILTERED.search(self.words):
            return "content filter"
        if self.status in DOUBTFUL and self._too_long():
            return "too long"
        return "impossible text" if self.status in DOUBTFUL and _IMPOSSIBLE.search(self.words) else None

    def _too_long(self) -> bool:
        """Whether the words are about the length of the prompt, and not only about that of the answer."""
        words = re.sub(r"(?<=\d)[,_ ](?=\d{3}\b)", "", self.words)
        if re.search(r"max_(completion_|new_)?tokens", words) and not re.search(
            r"context|prompt|input|message", words
        ):
            return False
        numbers = [
            number for number in re.findall(r"\d+", words) if int(number) >= 10 and int(number) != self.status
        ]
        return bool(
            _TOO_LONG.search(words) or (len(numbers) > 1 and _LENGTH.search(words) and _LIMIT.search(words))
        )

    def _asks_more_than_allowed(self) -> bool:
        """Whether the request alone is above the limit of a minute, so that no wait helps."""
        limit, requested = (re.search(rf"{name}\D{{0,3}}(\d+)", self.words) for name in ("limit", "requested"))
        return bool(limit and requested and int(requested[1]) > int(limit[1]) and "used" not in self.words)


def problem_of(response: httpx.Response) -> Problem | None:
    """Return the error that a response tells, with whatever status; None if it is an answer."""
    successful = response.status_code == 200
    if successful and b'"error"' not in response.content and b'"choices"' in response.content:
        return None
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        body = None
    if not successful:
        return _problem(response.status_code, body, response.text)
    error = _error_in(body)
    return _problem(200, error, response.text) if error else None


def describe(response: httpx.Response) -> str:
    """Return a response's status and the beginning of its text in one line."""
    return _line(response.status_code, response.text)


def _error_in(body: Any) -> Any:
    """Return the part of a successful response's body that tells an error, or None."""
    if isinstance(body, list):
        body = body[0] if body else None
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        return choices[0] if isinstance(choices[0], dict) and choices[0].get("error") else None
    return body if body.get("error") or body.get("object") == "error" else None


def _problem(status: int, body: Any, text: str) -> Problem:
    pairs = list(_walk(body))
    told = [value for key, value in pairs if key in _MESSAGES and isinstance(value, str)] or [text]
    codes = [str(value) for key, value in pairs if key in _NAMES and isinstance(value, str | int)]
    if status == 200:
        status = next((int(code) for code in codes if code in _ERRORS), status)
    named = {field for key, value in pairs if key in ("param", "loc") for field in _texts(value)}
    named |= {match[1] for each in told if (match := _NAMED_FIELD.match(each))}
    words = " ".join([*codes, *(_QUOTED.sub(" ", each[:2000]) for each in told)]).lower()
    return Problem(status, _line(status, "; ".join(dict.fromkeys(told[:2]))), words, frozenset(named))


def _line(status: int, text: str) -> str:
    return " ".join(f"status {status}, {text[:1000]}".split())[:300].rstrip(" ,")


def _walk(value: Any, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of nested JSON, also of JSON in a text, the outer ones first."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list) and depth:
        for each in value[:50]:
            yield from _walk(each, depth - 1)


def _texts(value: Any) -> list[str]:
    return [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
