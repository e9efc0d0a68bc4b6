"""An asynchronous interface to a retriever that batches concurrent queries and searches equal queries once."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from rag_train.jobs.retries import Service, current
from rag_train.retrieval.base import Retriever, service
from rag_train.retrieval.base import identity as identity_of
from rag_train.retrieval.base import threads as wanted_threads
from rag_train.schema import Passage

_Key = tuple[str, int]


class AsyncRetriever:
    """An asynchronous interface to a retriever. Use it from one event loop at a time.

    Whenever the retriever is free, it searches a batch of all waiting queries; no query waits for a batch to fill.
    A waiting query is dropped when its last caller is cancelled. The retriever runs in threads of its own, which no
    other retriever has to wait for. If it is a service, a caller waits no longer than its item's patience
    (`rag_train.jobs.retries.Service`).

    Args:
        retriever: the retriever to call.
        max_batch: maximum number of queries in a batch.
        threads: maximum number of concurrent batches; by default, what the retriever asks for.
        remember: number of answers kept in memory; the least recently used are dropped first.

    Attributes:
        queries: number of queries received.
        batches: number of calls of the retriever.
    """

    def __init__(
        self, retriever: Retriever, max_batch: int = 256, remember: int = 10_000, threads: int | None = None
    ):
        self.retriever = retriever
        self.max_batch = max_batch
        self.remember = remember
        self.threads = wanted_threads(retriever) if threads is None else threads
        self._pool = ThreadPoolExecutor(self.threads, "search")
        self.queries = self.batches = 0
        self._remembered: OrderedDict[_Key, list[Passage]] = OrderedDict()
        self._pending: dict[_Key, asyncio.Future[list[Passage]]] = {}
        self._waiting: dict[_Key, None] = {}  # pending queries not yet passed to the retriever, in order
        self._callers: Counter[_Key] = Counter()  # of queries neither answered nor dropped
        self._began: dict[_Key, float] = {}  # queries passed to the retriever, with the event loop's time
        self._workers: set[asyncio.Task[None]] = set()
        self._service = Service(name) if (name := service(retriever)) else None

    @property
    def identity(self) -> Any:
        return identity_of(self.retriever)

    async def search(self, query: str, k: int) -> list[Passage]:
        """Return the ``k`` best passages for one query. Raises the retriever's exception if its batch fails."""
        return (await self.search_all([query], k))[0]

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the ``k`` best passages for each query, at a lower cost than one `search` task per query."""
        keys = [(query, k) for query in queries]
        self._callers.update(keys)
        try:
            # Shielded, because other callers may wait for the same future when this caller is cancelled.
            answers = asyncio.gather(*(asyncio.shield(self._ask(key)) for key in keys))
            found = await (self._service.answered(answers, lambda: self._sent(keys)) if self._service else answers)
        finally:
            self._release(keys)
        item = current()
        item.queries += len(queries)
        item.passages += sum(map(len, found))
        return [list(passages) for passages in found]

    def _sent(self, keys: Sequence[_Key]) -> float | None:
        """Return when the last of ``keys`` was passed to the retriever; None if one of them still waits."""
        if any(key in self._waiting for key in keys):
            return None
        return max((self._began[key] for key in keys if key in self._began), default=None)

    def _release(self, keys: Sequence[_Key]) -> None:
        """Drop the waiting queries among ``keys`` that no other caller has asked for."""
        self._callers.subtract(keys)
        for key in keys:
            if self._callers[key] == 0:
                del self._callers[key]
                if key in self._waiting:
                    del self._waiting[key]
                    self._pending.pop(key).cancel()

    def _ask(self, key: _Key) -> asyncio.Future[list[Passage]]:
        """Return a future of the query's passages, shared by all callers with the same query."""
        self.queries += 1
        if key in self._remembered:
            self._remembered.move_to_end(key)
            answer: asyncio.Future[list[Passage]] = asyncio.get_running_loop().create_future()
            answer.set_result(self._remembered[key])
            return answer
        if key not in self._pending:
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
                    self._began[key] = asyncio.get_running_loop().time()
                await self._search(batch, k)
        finally:
            self._workers.discard(asyncio.current_task())
            if not self._workers:
                for future in self._pending.values():  # not empty only if the event loop is shutting down
                    future.cancel()
                self._pending.clear()
                self._waiting.clear()
                self._began.clear()

    async def _search(self, batch: list[_Key], k: int) -> None:
        self.batches += 1
        loop = asyncio.get_running_loop()
        queries = [query for query, _ in batch]
        try:
            found = await loop.run_in_executor(self._pool, self.retriever.search, queries, k)
            answers = dict(zip(batch, found, strict=True))
        except Exception as error:
            for key in batch:
                self._pending.pop(key).set_exception(error)
            return
        finally:
            for key in batch:
                self._began.pop(key, None)
        for key, passages in answers.items():
            self._pending.pop(key).set_result(passages)
            self._remembered[key] = passages
        while len(self._remembered) > self.remember:
            self._remembered.popitem(last=False)
