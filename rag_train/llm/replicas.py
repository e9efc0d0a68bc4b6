"""Servers of the same model behind HTTP: choice of a server, retries, and limits on calls and tokens a minute."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx
from pydantic import BaseModel, ValidationError

from rag_train.errors import UserError, problem_in
from rag_train.http import is_busy, json_of, read_async, retry_after
from rag_train.jobs.retries import ItemState, Service, current
from rag_train.llm.base import EngineError
from rag_train.llm.problems import OF_A_SERVER, Problem, Rejected, problem_of
from rag_train.progress import say

M = TypeVar("M", bound=BaseModel)

CONNECT_TIMEOUT = 10.0
"""Time limit for connecting to a server, in seconds."""
FIRST_WAIT = 0.5
"""Seconds for which a replica is not used after its first failure; doubled at each further failure."""
LONGEST_WAIT = 30.0
"""Maximum of that time in seconds, unless the server's Retry-After header asks for more."""
SLACK = 8
"""Number of calls that a question's replica may have in flight above the least, before the question leaves it."""


@dataclass(eq=False)
class Replica:
    """A server and its state."""

    url: str
    query: str = ""
    """Query of the address with its question mark. It may hold a key, and is never shown."""
    in_flight: set[asyncio.Timeout] = field(default_factory=set)
    """Time limits of the attempts in progress."""
    failures: int = 0
    """Number of consecutive failures."""
    back_at: float = 0.0
    """Time on the event loop's clock until which the replica is not used."""
    problem: str = ""
    """Description of the last failure."""
    asked: float = 0.0
    """Seconds that the server asked to wait after it."""
    rejects: bool = False
    """Whether the server rejects every request, so that its calls go to the others."""


@dataclass
class Turn:
    """When a call's turn came, on the event loop's clock; None before."""

    began: float | None = None


@dataclass(frozen=True)
class Answer:
    """The body of a successful response, with the address that it is from."""

    url: str
    content: bytes

    def read(self, cls: type[M]) -> M:
        """Parse the body. Raises EngineError, with the name of the field, if it is not a ``cls``."""
        try:
            return cls.model_validate(json_of(self.content))
        except ValidationError as error:
            reason = problem_in(error)
        except (ValueError, RecursionError) as error:
            reason = f"Invalid JSON: {error}"
        raise EngineError(f"{self.url}: the answer is not a completion ({reason})")


class Pace:
    """A limit on an amount per minute, which spaces calls evenly; no limit if ``per_minute`` is None."""

    def __init__(self, per_minute: float | None):
        self._seconds = 60 / per_minute if per_minute else 0.0
        self._free_at = 0.0

    async def take(self, amount: float) -> None:
        """Wait until ``amount`` more may be used."""
        now = asyncio.get_running_loop().time()
        start = max(self._free_at, now)
        self._free_at = start + amount * self._seconds
        if start > now:
            await asyncio.sleep(start - now)

    def give_back(self, amount: float) -> None:
        """Correct an estimate that was ``amount`` too high."""
        self._free_at -= amount * self._seconds


class Replicas:
    """A client of one or several servers, which takes care of retries.

    All calls of an item, such as a question, go to the same replica, whose prefix cache knows it, unless
    it falls behind. If a replica cannot be reached, closes the connection, or reports a temporary failure
    (`rag_train.http.is_busy`), it is not used for a while and its calls are sent again, to another replica if
    possible, for the time of `ItemState.retry_for`. A run therefore survives a server's restart. A replica that
    rejects every call, such as one that has not loaded the model, is named, and its calls go to the others.

    Args:
        urls: addresses of the API, such as ``https://api.openai.com/v1``; ``/v1`` is added to one without a path.
            The path of an endpoint is left out (``/chat/completions``), and a query is kept (``?api-version=``).
        key: name of the environment variable with the API key; None to send no key.
        timeout: time limit of one attempt at a call, in seconds.
        max_in_flight: maximum number of calls in flight for each replica; further calls wait.
        requests_per_minute: maximum number of calls a minute, for all replicas together; None: no limit.
        tokens_per_minute: maximum number of tokens a minute, of prompts and answers; None: no limit.

    Raises:
        UserError: if there is no address, or a key would be sent in clear text or is not set.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str | None = None,
        timeout: float = 600.0,
        max_in_flight: int = 256,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ):
        if not urls:
            raise UserError(
                "engine.urls: no server given; start a server with `vllm serve MODEL` and give its address"
            )
        self.all = [Replica(*_split(url)) for url in urls]
        self.headers = _headers(key, self.all)
        self._service = Service(" and ".join(replica.url for replica in self.all))
        self._timeout = timeout
        self._slots = asyncio.Semaphore(max_in_flight * len(urls))
        self._requests, self._tokens = Pace(requests_per_minute), Pace(tokens_per_minute)
        self._homes: WeakKeyDictionary[ItemState, Replica] = WeakKeyDictionary()
        self._client = httpx.AsyncClient(
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            # No limit on connections, and an idle time below the 5 s after which vLLM closes connections.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )

    async def post(self, path: str, body: dict[str, Any], tokens: int) -> Answer:
        """Send ``body`` to ``path`` on one of the replicas; the call will need about ``tokens`` tokens.

        Raises:
            Refused: if the server refuses the prompt, for example because it does not fit the model's context.
            ServiceError: if the servers fail or do not answer in time.
            Rejected: if the servers reject the request for another reason.
        """
        turn = Turn()
        return await self._service.answered(self._post(path, body, tokens, turn), lambda: turn.began)

    async def _post(self, path: str, body: dict[str, Any], tokens: int, turn: Turn) -> Answer:
        loop = asyncio.get_running_loop()
        patience = current().retry_for
        deadline = None
        retried = False
        async with self._slots:
            await self._requests.take(1)
            await self._tokens.take(tokens)
            turn.began = loop.time()
            while True:
                now = loop.time()
                replica = self._choose(now)
                if replica.back_at > now:  # no replica is in use; this replica is back first
                    deadline = deadline or now + patience
                    if replica.back_at > deadline:
                        raise _gave_up(replica, now, patience)
                    await asyncio.sleep((replica.back_at - now) * random.uniform(1, 1.25))
                    continue
                response = await self._attempt(replica, path, body)
                problem = problem_of(response) if response else None
                if response is None:
                    deadline = deadline or now + patience
                elif problem is None:
                    replica.rejects = False
                    return Answer(replica.url, response.content)
                elif refusal := problem.refusal:
                    raise refusal
                elif problem.busy:
                    deadline = deadline or now + patience
                    self._set_aside(replica, problem.message, asked := retry_after(response) or 0.0)
                    replica.asked = asked
                elif problem.status == 500 and not retried:
                    # vLLM answers 500 to all calls in flight when its engine stops, and to invalid calls.
                    retried = True
                    self._set_aside(replica, problem.message)
                elif problem.status >= 500 or (problem.status < 400 and problem.status != 200):
                    raise EngineError(f"{replica.url}: {problem.message}")
                elif problem.status not in OF_A_SERVER or not self._leave(replica, problem):
                    raise Rejected(replica.url, problem)

    def used(self, estimate: int, tokens: int) -> None:
        """Correct the ``estimate`` given for a call to the number of tokens that it used."""
        self._tokens.give_back(estimate - tokens)

    def _leave(self, replica: Replica, problem: Problem) -> bool:
        """Stop using a replica that rejects every call for a while. Return whether there is another."""
        if not replica.rejects and len(self.all) > 1:
            say(f"{replica.url}: {problem.message}; its calls go to the other servers")
        replica.rejects = True
        if others := not all(each.rejects for each in self.all):
            self._set_aside(replica, problem.message, LONGEST_WAIT)
        return others

    def _choose(self, now: float) -> Replica:
        least = min(self.all, key=lambda replica: (max(replica.back_at, now), len(replica.in_flight)))
        question = current()
        home = self._homes.setdefault(question, least)
        if home.back_at > now or len(home.in_flight) > len(least.in_flight) + SLACK:
            home = self._homes[question] = least
        return home

    async def _attempt(self, replica: Replica, path: str, body: dict[str, Any]) -> httpx.Response | None:
        """Return the replica's response, or None if there is none and the call has to be sent again."""
        expiry = asyncio.get_running_loop().time() + self._timeout
        limit = asyncio.timeout_at(expiry)
        replica.in_flight.add(limit)
        try:
            async with limit:
                request = self._client.build_request("POST", f"{replica.url}{path}{replica.query}", json=body)
                response = await read_async(self._client, request)
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
        except httpx.RequestError as error:  # a body that is too large or cannot be decompressed
            raise EngineError(f"{replica.url}: {error}") from error
        finally:
            replica.in_flight.discard(limit)
        if not is_busy(response.status_code) and replica.back_at <= asyncio.get_running_loop().time():
            replica.failures = 0
        return response

    def _set_aside(self, replica: Replica, problem: str, at_least: float = 0.0) -> None:
        now = asyncio.get_running_loop().time()
        if replica.back_at <= now:  # if one failure hits several calls, only the first counts
            replica.failures += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (replica.failures - 1))
        replica.back_at = max(replica.back_at, now + max(at_least, wait))
        replica.problem = self._service.problem = problem
        replica.asked = 0.0

    async def aclose(self) -> None:
        await self._client.aclose()


def _gave_up(replica: Replica, now: float, patience: float) -> EngineError:
    """Return the error of a call that no replica is back for in time."""
    why = f"gave up after {patience:g} s"
    if replica.asked > patience:
        why = f"the server asks to wait {replica.asked:,.0f} s, and a call waits {patience:g} s"
    error = EngineError(f"{replica.url}: {replica.problem}; {why}")
    error.wait = replica.asked and replica.back_at - now
    return error


def _split(url: str) -> tuple[str, str]:
    """Return the address of an API, with ``/v1`` if it has no path and without an endpoint's, and its query."""
    url, mark, query = url.partition("#")[0].partition("?")
    endpoint = r"(chat/)?completions" if query else r"(chat/)?completions|models"  # Azure's address ends in /models
    url = re.sub(rf"/+({endpoint})?/*$", "", url)
    return url if "/" in url.partition("://")[2] else f"{url}/v1", mark + query


def _headers(key: str | None, replicas: Sequence[Replica]) -> dict[str, str]:
    """Return the header with the key. Raises UserError if it is not set, or the addresses are not safe for it."""
    if key is None:
        return {}
    value = os.environ.get(key, "").strip()
    if not value or not value.isascii() or not value.isprintable():
        raise UserError(f"engine.key: the environment variable {key} has no key; set it, or leave out engine.key")
    for replica in replicas:
        if not _is_private(replica.url):
            raise UserError(
                f"engine.key: {replica.url} would receive the key in clear text; give an https:// address"
            )
    azure = any("api-version=" in replica.query for replica in replicas)
    return {"api-key": value} if azure else {"Authorization": f"Bearer {value}"}


def _is_private(url: str) -> bool:
    """Whether nobody in between can read what is sent to ``url``."""
    parts = urlsplit(url)
    try:
        loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        loopback = parts.hostname == "localhost"
    return parts.scheme == "https" or loopback


def _refused(error: BaseException | None) -> bool:
    """Whether the server refused the connection: ConnectionRefusedError is among the causes of httpx's error."""
    if isinstance(error, BaseExceptionGroup):  # a host with several addresses
        return all(_refused(each) for each in error.exceptions)
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _refused(error.__cause__ or error.__context__)
