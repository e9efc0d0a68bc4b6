"""The async front of a retriever: concurrent single queries become batches, equal ones are searched once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from rag_train.retrieval.base import Retriever
from rag_train.schema import Passage

_Key = tuple[str, int]


class AsyncRetriever:
    """Searches in batches of what is waiting whenever the retriever is free; nothing waits for a batch to fill.

    The retriever runs in threads, ``threads`` batches at a time. Use from one event loop at a time.

    Args:
        retriever: what searches.
        max_batch: most queries given to it at once.
        threads: most batches under way at once; more than one for retrievers that let go of Python's lock.
        remember: how many answers are kept for queries to come, the least recently used forgotten first.

    Attributes:
        queries: queries asked.
        distinct: queries that had to be searched, being neither remembered nor already under way.
        batches: calls of the retriever.
    """

    def __init__(self, retriever: Retriever, max_batch: int = 256, remember: int = 10_000, threads: int = 1):
        self.retriever = retriever
        self.max_batch = max_batch
        self.remember = remember
        self.threads = threads
        self.queries = self.distinct = self.batches = 0
        self._remembered: OrderedDict[_Key, list[Passage]] = OrderedDict()
        self._pending: dict[_Key, asyncio.Future[list[Passage]]] = {}
        self._waiting: dict[_Key, None] = {}  # of the pending, those not yet given to the retriever, in order
        self._workers: set[asyncio.Task[None]] = set()

    async def search(self, query: str, k: int) -> list[Passage]:
        """The ``k`` best passages for one query. Raises what the retriever raises for its batch."""
        # Shielded, because other callers may wait for the same future when this one is cancelled.
        return list(await asyncio.shield(self._ask(query, k)))

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As `search`, for several queries at once, at less cost than a task for each."""
        found = await asyncio.gather(*(asyncio.shield(self._ask(query, k)) for query in queries))
        return [list(passages) for passages in found]

    def _ask(self, query: str, k: int) -> asyncio.Future[list[Passage]]:
        """The query's answer to come, shared by all who wait for it."""
        self.queries += 1
        key = (query, k)
        if key in self._remembered:
            self._remembered.move_to_end(key)
            answer: asyncio.Future[list[Passage]] = asyncio.get_running_loop().create_future()
            answer.set_result(self._remembered[key])
            return answer
        if key not in self._pending:
            self.distinct += 1
            self._pending[key] = asyncio.get_running_loop().create_future()
            self._waiting[key] = None
            if len(self._workers) < self.threads:
                self._workers.add(asyncio.create_task(self._work()))
        return self._pending[key]

    async def _work(self) -> None:
        try:
            while self._waiting:
                k = next(iter(self._waiting))[1]
                share = min(self.max_batch, -(-len(self._waiting) // self.threads))
                batch = list(islice((key for key in self._waiting if key[1] == k), share))
                for key in batch:
                    del self._waiting[key]
                await self._search(batch, k)
        finally:
            self._workers.discard(asyncio.current_task())  # pyright: ignore[reportArgumentType]
            if not self._workers:
                for future in self._pending.values():  # some are left only if the event loop is shutting down
                    future.cancel()
                self._pending.clear()
                self._waiting.clear()

    async def _search(self, batch: list[_Key], k: int) -> None:
        self.batches += 1
        queries = [query for query, _ in batch]
        try:
            found = await asyncio.to_thread(self.retriever.search, queries, k)
            answers = dict(zip(batch, found, strict=True))
        except Exception as error:
            for key in batch:
                self._pending.pop(key).set_exception(error)
            return
        for key, passages in answers.items():
            self._pending.pop(key).set_result(passages)
            self._remembered[key] = passages
        while len(self._remembered) > self.remember:
            self._remembered.popitem(last=False)
