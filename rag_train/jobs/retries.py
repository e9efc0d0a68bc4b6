"""What happens when a service fails during a run: items are tried again for a bounded time, and then left open.

An item is a question to answer, a search tree to explore, or an answer to judge. If a service that it needs fails
(`rag_train.errors.ServiceError`), the item is tried again after a wait. Its completed engine calls are kept and not
repeated. An item that has waited for this time without making a new call stays open, and the run continues without
it. If as many items as are in progress stay open in a row, the service is gone, and the run ends.

The time counts both between attempts and within them: a service that accepts a request and never answers, or sends
its answer byte by byte, costs an item no more than its patience (`Service`). With a patience of 0, an item is not
tried again, and requests have only their own time limits.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rag_train.errors import ServiceError, UserError
from rag_train.llm.base import Completion, Sampling
from rag_train.schema import LLMCall

T = TypeVar("T")

VARIABLE = "RAG_TRAIN_PATIENCE"
SECONDS = 600.0
"""Total wait of an item in seconds if the environment variable is not set. It is also the longest time that a call
of an engine over HTTP takes by default (``engine.timeout``)."""
QUIET = 10.0
"""Seconds without an answer after which a run says which service it waits for."""
FIRST_WAIT = 0.5
"""Wait after an item's first failure in seconds; doubled after each further failure."""
LONGEST_WAIT = 30.0
IN_A_ROW = 8
"""Minimum number of items that stay open in a row before a service is taken to be gone."""


def patience_seconds() -> float:
    """Return the patience in seconds: RAG_TRAIN_PATIENCE, or `SECONDS`. Raises UserError if it is not a number."""
    text = os.environ.get(VARIABLE, "")
    try:
        value = float(text or SECONDS)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{VARIABLE}={text}: not a time; give a number of seconds, such as 600")
    return value


def longest() -> float:
    """Return the longest time in seconds that a request to a service may take.

    It is the patience. With a patience of 0, nothing is tried again, and requests have only their own time limits.
    """
    return patience_seconds() or float("inf")


@dataclass(eq=False)
class Wait:
    """A wait of an item for a service, since a time on the event loop's clock."""

    service: Service
    since: float


@dataclass(eq=False)
class ItemState:
    """What an item has done in all attempts at it, and how long it may wait.

    Attributes:
        completions: the completed engine calls, by identity of the engine, prompt and sampling. A further attempt
            does not repeat them.
        calls: the cost of each of them.
        records: what is to be kept of the last attempt if the item is refused or stays open, such as its
            trajectory so far.
        queries, passages: number of queries sent to retrievers, and of passages that they returned.
        retry_for: seconds after its first failure during which a call is sent to a server again.
        left: seconds that the current attempt may wait for a service.
        lost: seconds of the longest wait that failed in it.
        waits: the waits in progress, of all items of the run.
    """

    completions: dict[tuple[int, str, Sampling], Completion] = field(default_factory=dict)
    calls: list[LLMCall] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    queries: int = 0
    passages: int = 0
    retry_for: float = SECONDS
    left: float = float("inf")
    lost: float = 0.0
    waits: set[Wait] = field(default_factory=set)


item_state: ContextVar[ItemState | None] = ContextVar("item_state", default=None)
"""State of the item in progress. It is a context variable because the items of a run share engines and retrievers,
whose methods say nothing of items."""


def current() -> ItemState:
    """Return the state of the item in progress; outside a run, a new one."""
    return item_state.get() or ItemState()


async def patiently(work: Awaitable[T]) -> T:
    """Return the result of ``work``, which no item needs, within the patience. Run it as a task of its own."""
    item_state.set(ItemState(left=longest()))
    return await work


class Service:
    """A service that items wait for, such as a server of a model or a retriever.

    Attributes:
        name: its name or address, for messages.
        problem: its last failure, if it tells more than that no answer came.
        answered_at: time of its last answer on the event loop's clock.
    """

    def __init__(self, name: str):
        self.name = name
        self.problem = ""
        self.answered_at = float("-inf")

    async def answered(self, work: Awaitable[T], began: Callable[[], float | None]) -> T:
        """Return the result of ``work``, a request to the service, within the patience of the current item.

        A request that waits for its turn waits as long as the service answers others.

        Args:
            work: the request; it is cancelled when the time is over.
            began: returns the time on the event loop's clock at which the request was sent; None if it was not.

        Raises:
            ServiceError: if the time is over.
        """
        own, loop = current(), asyncio.get_running_loop()
        request = asyncio.ensure_future(work)
        request.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be waiting
        wait = Wait(self, loop.time())
        own.waits.add(wait)
        try:
            while not request.done():
                since = began()
                since = max(wait.since, self.answered_at) if since is None else since
                if (rest := since + own.left - loop.time()) <= 0:
                    problem = f"{self.problem}; " if self.problem else ""
                    silence = loop.time() - wait.since
                    raise ServiceError(f"{self.name}: {problem}no answer for {silence:.3g} s")
                await asyncio.wait({request}, timeout=None if rest == float("inf") else rest)
            if not isinstance(request.exception(), ServiceError):
                self.answered_at, self.problem = loop.time(), ""
            return request.result()
        except ServiceError:
            own.lost = max(own.lost, loop.time() - wait.since)
            raise
        finally:
            request.cancel()
            own.waits.discard(wait)


class Patience:
    """The attempts at the items of one run.

    Args:
        seconds: total wait of an item without progress.
        in_flight: number of items in progress.
        waits: called before each wait with the number of waiting items and the error.

    Attributes:
        retried: number of attempts that were repeated.
        over: set when the service is gone. Waiting items give up then.
    """

    def __init__(
        self,
        seconds: float,
        in_flight: int,
        waits: Callable[[int, ServiceError], None] = lambda waiting, error: None,
    ):
        self.seconds = seconds
        self.retried = 0
        self.over = asyncio.Event()
        self._in_a_row = max(in_flight, IN_A_ROW)
        self._waits = waits
        self._waits_for_services: set[Wait] = set()
        self._waiting = 0
        self._left_open = 0
        """Number of items left open since an item was completed."""

    async def complete(self, work: Callable[[], Coroutine[Any, Any, T]], so_far: ItemState) -> T:
        """Return the result of ``work()``; ``so_far`` collects what its attempts have done.

        Each attempt has its own context variables, so nothing is carried over from the item before.

        Raises:
            ServiceError: of the last attempt.
            UserError: of the first attempt; it is not tried again.
        """
        try:
            result = await self._attempts(work, so_far)
        except UserError:
            self._left_open += 1
            if self._left_open >= self._in_a_row:
                self.over.set()
            raise
        except ValueError:  # the item is refused: the service works
            self._left_open = 0
            raise
        self._left_open = 0
        return result

    def quiet(self) -> str:
        """Return which service has not answered for a while, in words; empty if none is waited for in vain."""
        now = asyncio.get_running_loop().time()
        silence = {wait.service: 0.0 for wait in self._waits_for_services}
        for wait in self._waits_for_services:
            since = max(wait.since, wait.service.answered_at)
            silence[wait.service] = max(silence[wait.service], now - since)
        return "; ".join(
            f"{service.name}: no answer for {seconds:.0f} s"
            for service, seconds in silence.items()
            if seconds >= QUIET
        )

    async def _attempts(self, work: Callable[[], Coroutine[Any, Any, T]], so_far: ItemState) -> T:
        async def attempt() -> T:
            item_state.set(so_far)
            return await work()

        waited, wait, calls = 0.0, FIRST_WAIT, 0
        while True:
            least = min(FIRST_WAIT, self.seconds)  # the last attempt needs a little time
            so_far.left = max(least, self.seconds - waited) if self.seconds else float("inf")
            so_far.lost, so_far.waits = 0.0, self._waits_for_services
            try:
                return await asyncio.create_task(attempt())
            except ServiceError as error:
                waited += so_far.lost
                if len(so_far.calls) > calls:
                    waited, wait, calls = so_far.lost, FIRST_WAIT, len(so_far.calls)
                if waited + error.wait >= self.seconds or self.over.is_set():
                    raise
                await self._wait(min(wait, self.seconds - waited), error)
                waited, wait = waited + wait, min(2 * wait, LONGEST_WAIT)

    async def _wait(self, seconds: float, error: ServiceError) -> None:
        """Wait before another attempt, but not if the run ends.

        The wait is random, so that items that failed together are not tried again together: a query that the
        service cannot answer fails the whole batch that it is part of.
        """
        self.retried += 1
        self._waiting += 1
        self._waits(self._waiting, error)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), seconds * random.uniform(0.5, 1))
        finally:
            self._waiting -= 1
