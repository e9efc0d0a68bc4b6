"""What happens when a service fails during a run: items are tried again for a bounded time, and then left open.

An item is a question to answer, a search tree to explore, or an answer to judge. If a service that it needs fails
(`rag_train.errors.ServiceError`), the item is tried again after a wait. Its completed engine calls are kept and not
repeated. An item that has waited for this time without making a new call stays open, and the run continues without
it. If as many items as are in progress stay open in a row, the service is gone, and the run ends.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from rag_train.errors import ServiceError, UserError
from rag_train.llm.memo import Kept, kept

T = TypeVar("T")

VARIABLE = "RAG_TRAIN_PATIENCE"
SECONDS = 300.0
"""Total wait of an item in seconds if the environment variable is not set."""
FIRST_WAIT = 0.5
"""Wait after an item's first failure in seconds; doubled after each further failure."""
LONGEST_WAIT = 30.0
IN_A_ROW = 8
"""Minimum number of items that stay open in a row before a service is taken to be gone."""


def seconds() -> float:
    """Return the patience in seconds: RAG_TRAIN_PATIENCE, or `SECONDS`. Raises UserError if it is not a number."""
    text = os.environ.get(VARIABLE, "")
    try:
        value = float(text or SECONDS)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{VARIABLE}={text}: not a time; give a number of seconds, such as 600")
    return value


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
        self._waiting = 0
        self._left_open = 0
        """Number of items left open since an item was completed."""

    async def complete(self, work: Callable[[], Coroutine[Any, Any, T]], so_far: Kept) -> T:
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
        self._left_open = 0
        return result

    async def _attempts(self, work: Callable[[], Coroutine[Any, Any, T]], so_far: Kept) -> T:
        async def attempt() -> T:
            kept.set(so_far)
            return await work()

        waited, wait, calls = 0.0, FIRST_WAIT, 0
        while True:
            try:
                return await asyncio.create_task(attempt())
            except ServiceError as error:
                if len(so_far.calls) > calls:
                    waited, wait, calls = 0.0, FIRST_WAIT, len(so_far.calls)
                if waited >= self.seconds or self.over.is_set():
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
                await asyncio.wait_for(self.over.wait(), seconds * random.uniform(0.5, 1.5))
        finally:
            self._waiting -= 1
