"""An engine over OpenAI-compatible servers, such as ``vllm serve``, with one or several replicas."""

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
"""Time limit for connecting to a server, in seconds."""
FIRST_WAIT = 0.5
"""Seconds for which a replica is not used after its first failure; doubled at each further failure."""
LONGEST_WAIT = 30.0
"""Maximum of that time in seconds, unless the server's Retry-After header asks for more."""


@dataclass(eq=False)
class _Replica:
    """A server and its state."""

    url: str
    in_flight: set[asyncio.Timeout] = field(default_factory=set)
    """Time limits of the attempts in progress."""
    failures: int = 0
    """Number of consecutive failures."""
    back_at: float = 0.0
    """Time on the event loop's clock until which the replica is not used."""
    problem: str = ""
    """Description of the last failure."""


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

    If a replica cannot be reached, closes the connection, or answers 429, 502, 503 or 504, it is not used for a
    while and its calls are sent again, to another replica if possible. A run therefore survives a server's restart.

    Servers other than vLLM ignore vLLM's extensions of the protocol: guided decoding, the stop string that ended
    the text (``stop`` is then None), and token ids (the text is then tokenized again).
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
            # No limit on connections, and an idle time below the 5 s after which vLLM closes connections.
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
        """Connect to running servers. The environment variable OPENAI_API_KEY, if set, is sent with every call.

        Args:
            urls: addresses of the replicas, such as ``http://127.0.0.1:8000``, with or without ``/v1``.
            model: name under which every replica serves the model.
            tokenizer: directory or hub name of the model's tokenizer, if it is not ``model``.
            timeout: time limit of one attempt at a call, in seconds.
            retry_for: seconds after its first failure during which a call is retried.
            max_in_flight: maximum number of calls in flight for each replica; further calls wait.

        Raises:
            UserError: if ``urls`` is empty, a replica does not answer or does not serve ``model``, or the tokenizer
                cannot be read.
        """
        if not urls:
            raise UserError(
                "engine.urls: no server given; start a server with `vllm serve MODEL` and give its address"
            )
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
            ValueError: if the prompt and ``max_tokens`` do not fit the model's context.
            EngineError: if the servers fail, do not answer in time, or send a malformed answer.
            UserError: if the server rejects the request for another reason.
        """
        # The prompt is sent as token ids: the server may not follow tokenizer.json exactly (see load_tokenizer).
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        body = _request(self._model, ids, sampling)
        loop = asyncio.get_running_loop()
        deadline = None
        retried = False
        async with self._slots:
            while True:
                now = loop.time()
                replica = min(self._replicas, key=lambda r: (max(r.back_at, now), len(r.in_flight)))
                if replica.back_at > now:  # no replica is in use; this replica is back first
                    deadline = deadline or now + self._retry_for
                    if replica.back_at > deadline:
                        raise EngineError(f"{replica.url}: {replica.problem}; gave up after {self._retry_for:g} s")
                    await asyncio.sleep((replica.back_at - now) * random.uniform(1, 1.25))
                    continue
                response = await self._attempt(replica, body)
                if response is None:
                    deadline = deadline or now + self._retry_for
                elif response.status_code == 500 and not retried:
                    # vLLM answers 500 to all calls in flight when its engine stops, and to invalid calls.
                    retried = True
                    self._set_aside(replica, _problem(response))
                else:
                    return self._completion(replica, response, sampling)

    async def _attempt(self, replica: _Replica, body: dict[str, Any]) -> httpx.Response | None:
        """Return the replica's answer, or None if the call has to be sent again."""
        expiry = asyncio.get_running_loop().time() + self._timeout
        limit = asyncio.timeout_at(expiry)
        replica.in_flight.add(limit)
        try:
            async with limit:
                response = await self._client.post(f"{replica.url}/v1/completions", json=body)
        except TimeoutError as error:
            if limit.when() != expiry:
                return None  # another attempt set this limit to 0, see below
            problem = f"no answer within {self._timeout:g} s"
            self._set_aside(replica, problem)
            raise EngineError(f"{replica.url}: {problem}") from error
        except httpx.TransportError as error:
            self._set_aside(replica, str(error) or type(error).__name__)
            if _refused(error):
                # A vLLM server that shuts down refuses connections and does not answer the calls in progress.
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
        if replica.back_at <= now:  # if one failure hits several calls, only the first counts
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
            raise UserError(f"{replica.url}: request rejected, {problem}{remedy}")
        if status != 200:
            raise EngineError(f"{replica.url}: {_problem(response)}")
        try:
            answer = _Answer.model_validate_json(response.content)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise EngineError(f"{replica.url}: the answer is not a completion ({reason})") from error
        choice, usage = answer.choices[0], Usage(**answer.usage.model_dump())
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError(f"{replica.url}: generation was aborted ({choice.finish_reason})")
        if choice.finish_reason == "length" and usage.completion_tokens < sampling.max_tokens:
            raise ValueError(  # vLLM generates only as many tokens as the context has room for
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
        """Return the id in vLLM's notation ``token_id:7``, or the id of the first token of a text."""
        if token.startswith("token_id:"):
            return int(token.removeprefix("token_id:"))
        return self.tokenizer(token, add_special_tokens=False)["input_ids"][0]

    async def aclose(self) -> None:
        await self._client.aclose()


def _request(model: str, prompt: list[int], sampling: Sampling) -> dict[str, Any]:
    """Return the body of ``POST /v1/completions``, without the fields that have the protocol's default."""
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
        # Set explicitly: vLLM's defaults come from the model's generation_config.json.
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
    """Raise UserError unless a server at ``url`` answers and serves ``model``."""
    try:
        response = httpx.get(f"{url}/v1/models", headers=_headers(), timeout=CONNECT_TIMEOUT)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise UserError(
            f"engine.urls: {url} does not answer ({error or type(error).__name__}); "
            "start the server with `vllm serve MODEL`, or correct the address"
        ) from error
    if response.status_code in (401, 403):
        raise UserError(f"engine.urls: {url} requires a key ({_problem(response)}); set OPENAI_API_KEY")
    try:
        served = [str(card["id"]) for card in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"engine.urls: {url} is not an OpenAI-compatible server (GET /v1/models: {_problem(response)}); "
            "start a server with `vllm serve MODEL`, or correct the address"
        ) from error
    if model not in served:
        raise UserError(f"engine.urls: {url} serves {', '.join(served)}, not {model}; give a served name as model")


def _refused(error: BaseException | None) -> bool:
    """Whether the server refused the connection: ConnectionRefusedError is among the causes of httpx's error."""
    if isinstance(error, BaseExceptionGroup):  # a host with several addresses
        return all(_refused(each) for each in error.exceptions)
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _refused(error.__cause__ or error.__context__)


def _headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _problem(response: httpx.Response) -> str:
    """Return the status and the server's error message in one line."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(f"status {response.status_code}, {text}".split())[:300].rstrip(" ,")
