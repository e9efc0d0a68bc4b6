"""Any OpenAI-compatible server (``vllm serve`` and others) behind the same protocol, on one or several replicas."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.http import BUSY, httpx, retry_after
from rag_train.llm.base import Completion, EngineError, Sampling, TokenLogprob, Usage
from rag_train.llm.checkpoint import load_tokenizer

CONNECT_TIMEOUT = 10.0
"""Seconds within which a server accepts a connection."""
FIRST_WAIT = 0.5
"""Seconds that a replica is left aside after its first failure; doubled at each further one."""
LONGEST_WAIT = 30.0
"""Seconds that it is left aside at most, unless its Retry-After says longer."""


@dataclass(eq=False)
class _Replica:
    url: str
    in_flight: set[asyncio.Timeout] = field(default_factory=set)
    """The time limits of the attempts under way."""
    failures: int = 0
    """In a row, of calls begun while it was in service."""
    back_at: float = 0.0
    """Until then, on the event loop's clock, it is left aside."""
    problem: str = ""
    """The last failure, in words."""


class _Logprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]


class _Choice(BaseModel):
    text: str
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Answer(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1)]
    usage: _Usage


class OpenAIEngine:
    """An ``LLM`` over ``POST /v1/completions``. Each call goes to the replica with the fewest calls in flight.

    A replica that cannot be reached, breaks off, or answers 429, 502, 503 or 504 is left aside for a while, and
    its calls are sent again, to another replica where there is one. So a run survives a server's restart.

    A server that is not vLLM ignores what the OpenAI protocol lacks: guided decoding, and telling which stop
    string ended the text (``stop`` is None then) and which token ids were written (found by tokenising anew).
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        timeout: float,
        retry_for: float,
        max_in_flight: int,
    ):
        self.tokenizer = tokenizer
        self.name = Path(model).name
        self._model = model
        self._replicas = [_Replica(url) for url in urls]
        self._timeout = timeout
        self._retry_for = retry_for
        self._slots = asyncio.Semaphore(max_in_flight * len(urls))
        self._client = httpx.AsyncClient(
            headers=_headers(),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            # The pool must not hold calls back, and vLLM closes idle connections after 5 s: let go before it does.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )

    @classmethod
    def start(
        cls,
        urls: Sequence[str],
        model: str,
        *,
        tokenizer: str | None = None,
        timeout: float = 600.0,
        retry_for: float = 600.0,
        max_in_flight: int = 256,
    ) -> OpenAIEngine:
        """Connect to servers that are up. The environment's OPENAI_API_KEY, if set, is sent with every call.

        Args:
            urls: of the replicas, such as ``http://127.0.0.1:8000``, with or without ``/v1``.
            model: name under which each of them serves the model.
            tokenizer: directory or hub name of the model's tokenizer, where that is not ``model``.
            timeout: seconds that one attempt at a call may take.
            retry_for: seconds from a call's first failure until it is given up.
            max_in_flight: calls sent at once for each replica; the others wait here.

        Raises:
            UserError: if there is no replica, one does not answer or serves other models, or the tokenizer
                cannot be read.
        """
        if not urls:
            raise UserError("engine.urls: no server given; start one with `vllm serve MODEL` and give its address")
        replicas = [url.rstrip("/").removesuffix("/v1") for url in urls]
        for url in replicas:
            _check_server(url, model)
        try:
            loaded = load_tokenizer(tokenizer or model)
        except UserError as error:
            raise UserError(f"{error}; give the tokenizer's directory as engine.tokenizer") from error
        return cls(replicas, model, loaded, timeout, retry_for, max_in_flight)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        """Continue ``prompt``.

        Raises:
            ValueError: if the prompt does not fit the model's context.
            EngineError: if no answer came in time, or one that makes no sense.
            UserError: if the server refuses the request for another reason.
        """
        # Not as text: the server may tokenise otherwise than tokenizer.json says (see load_tokenizer).
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        body = _request(self._model, ids, sampling)
        loop = asyncio.get_running_loop()
        deadline = None
        broke = False
        async with self._slots:
            while True:
                now = loop.time()
                replica = min(self._replicas, key=lambda r: (max(r.back_at, now), len(r.in_flight)))
                if replica.back_at > now:  # all are left aside; this one is back first
                    deadline = deadline or now + self._retry_for
                    if replica.back_at > deadline:
                        raise EngineError(f"{replica.url}: {replica.problem}; given up after {self._retry_for:g} s")
                    await asyncio.sleep((replica.back_at - now) * random.uniform(1, 1.25))
                    continue
                response = await self._attempt(replica, body)
                if response is None:
                    deadline = deadline or now + self._retry_for
                elif response.status_code == 500 and not broke:
                    # vLLM's answer to every call in flight when its engine dies, and to a call that it cannot do.
                    broke = True
                    self._set_aside(replica, _problem(response))
                else:
                    return self._completion(replica, response, sampling)

    async def _attempt(self, replica: _Replica, body: dict[str, Any]) -> httpx.Response | None:
        """The replica's answer; None if the call is to be sent again."""
        expiry = asyncio.get_running_loop().time() + self._timeout
        limit = asyncio.timeout_at(expiry)
        replica.in_flight.add(limit)
        try:
            async with limit:
                response = await self._client.post(f"{replica.url}/v1/completions", json=body)
        except TimeoutError as error:
            if limit.when() != expiry:
                return None  # cut short below
            problem = f"no answer within {self._timeout:g} s"
            self._set_aside(replica, problem)
            raise EngineError(f"{replica.url}: {problem}") from error
        except httpx.TransportError as error:
            self._set_aside(replica, str(error) or type(error).__name__)
            if _refused(error):
                # vLLM that was asked to end takes no more connections, and leaves the calls under way unanswered.
                for other in replica.in_flight - {limit}:
                    if not other.expired():
                        other.reschedule(0)
            return None
        except httpx.RequestError as error:  # a body that cannot be decompressed
            raise EngineError(f"{replica.url}: {error}") from error
        finally:
            replica.in_flight.discard(limit)
        if response.status_code in BUSY:
            self._set_aside(replica, _problem(response), retry_after(response) or 0.0)
            return None
        if replica.back_at <= asyncio.get_running_loop().time():
            replica.failures = 0
        return response

    def _set_aside(self, replica: _Replica, problem: str, at_least: float = 0.0) -> None:
        now = asyncio.get_running_loop().time()
        if replica.back_at <= now:  # of the calls that one failure hits, only the first counts
            replica.failures += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (replica.failures - 1))
        replica.back_at = max(replica.back_at, now + max(at_least, wait))
        replica.problem = problem

    def _completion(self, replica: _Replica, response: httpx.Response, sampling: Sampling) -> Completion:
        status = response.status_code
        if 400 <= status < 500:
            problem = _problem(response)
            if status == 400 and ("context length" in problem or "context_length" in problem):
                raise ValueError(problem)
            remedy = "; set OPENAI_API_KEY" if status in (401, 403) else ""
            raise UserError(f"{replica.url}: refused, {problem}{remedy}")
        if status != 200:
            raise EngineError(f"{replica.url}: {_problem(response)}")
        try:
            answer = _Answer.model_validate_json(response.content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise EngineError(f"{replica.url}: the answer is not a completion ({reason})") from error
        choice, usage = answer.choices[0], Usage(**answer.usage.model_dump())
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError(f"{replica.url}: the answer was broken off ({choice.finish_reason})")
        if choice.finish_reason == "length" and usage.completion_tokens < sampling.max_tokens:
            raise ValueError(  # vLLM writes only as much as there is room for
                f"prompt of {usage.prompt_tokens} tokens and {sampling.max_tokens} to write exceed the context"
            )
        logprobs = self._logprobs(choice.logprobs)
        if choice.token_ids is not None:
            token_ids = choice.token_ids
        elif choice.logprobs is not None:
            token_ids = [self._token_id(token) for token in choice.logprobs.tokens]
        else:
            token_ids = self.tokenizer(choice.text, add_special_tokens=False)["input_ids"]
        return Completion(
            text=choice.text,
            token_ids=tuple(token_ids),
            usage=usage,
            stop=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
            truncated=choice.finish_reason == "length",
            logprobs=logprobs,
        )

    def _logprobs(self, given: _Logprobs | None) -> tuple[tuple[TokenLogprob, ...], ...]:
        if given is None:
            return ()
        out = []
        for token, logprob, best in zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=False):
            alternatives = sorted((best | {token: logprob}).items(), key=lambda item: -item[1])
            ids = [(self._token_id(text), value) for text, value in alternatives]
            out.append(tuple(TokenLogprob(i, str(self.tokenizer.decode([i])), value) for i, value in ids))
        return tuple(out)

    def _token_id(self, token: str) -> int:
        """The id that vLLM writes as ``token_id:7``, or else of the token with this text, as far as it has one."""
        if token.startswith("token_id:"):
            return int(token.removeprefix("token_id:"))
        return self.tokenizer(token, add_special_tokens=False)["input_ids"][0]

    async def aclose(self) -> None:
        await self._client.aclose()


def _request(model: str, prompt: list[int], sampling: Sampling) -> dict[str, Any]:
    """The body of ``POST /v1/completions``. Null is the protocol's default of each field."""
    guide = {"json": sampling.json_schema, "choice": sampling.choice, "regex": sampling.regex}
    guide = {name: value for name, value in guide.items() if value}
    body = {
        "model": Path(sampling.adapter).name if sampling.adapter else model,
        "prompt": prompt,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "logprobs": sampling.logprobs or None,
        "structured_outputs": guide or None,
        # Otherwise vLLM takes these from the model's generation_config.json.
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "include_stop_str_in_output": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True if sampling.logprobs else None,
    }
    return {name: value for name, value in body.items() if value is not None}


def _check_server(url: str, model: str) -> None:
    """Raise UserError unless a server that serves ``model`` answers at ``url``."""
    try:
        response = httpx.get(f"{url}/v1/models", headers=_headers(), timeout=CONNECT_TIMEOUT)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise UserError(
            f"engine.urls: {url} does not answer ({error or type(error).__name__}); "
            "start the server with `vllm serve MODEL`, or mend the address"
        ) from error
    if response.status_code in (401, 403):
        raise UserError(f"engine.urls: {url} wants a key ({_problem(response)}); set OPENAI_API_KEY")
    try:
        served = [str(card["id"]) for card in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"engine.urls: {url} is no OpenAI-compatible server (GET /v1/models: {_problem(response)}); "
            "start one with `vllm serve MODEL`, or mend the address"
        ) from error
    if model not in served:
        raise UserError(f"engine.urls: {url} serves {', '.join(served)}, not {model}; give one of these as model")


def _refused(error: BaseException | None) -> bool:
    """Whether nothing listens there: a cause of httpx's error is ConnectionRefusedError."""
    if isinstance(error, BaseExceptionGroup):  # a host of several addresses
        return all(_refused(each) for each in error.exceptions)
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _refused(error.__cause__ or error.__context__)


def _headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _problem(response: httpx.Response) -> str:
    """What the server says about an error, in one line."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(f"status {response.status_code}, {text}".split())[:300].rstrip(" ,")
