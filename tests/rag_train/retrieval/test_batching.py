"""Batching of concurrent queries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Passage


class Recorder:
    """A retriever that returns each query as a passage once ``gate`` is open, and fails on the query "bad"."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append((list(queries), k))
        self.called.set()
        assert self.gate.wait(30)
        if "bad" in queries:
            raise RuntimeError("the retriever failed")
        return [[Passage(id=query, text=query)] for query in queries]


def test_batches_concurrent_queries_and_searches_equal_ones_once() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder, max_batch=3)

    async def main() -> None:
        asked = [("a", 1), ("b", 1), ("a", 1), ("c", 2), ("d", 1), ("e", 1), ("a", 2)]
        found = await asyncio.gather(*(front.search(query, k) for query, k in asked))
        assert [passages[0].id for passages in found] == [query for query, _ in asked]
        found[0].clear()
        assert len(await front.search("a", 1)) == 1  # remembered, and not affected by the clearing

    asyncio.run(main())
    assert recorder.calls == [(["a", "b", "d"], 1), (["c", "a"], 2), (["e"], 1)]
    assert (front.queries, front.distinct, front.batches) == (8, 6, 3)


def test_batches_queries_that_arrive_while_the_retriever_is_busy() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        first = asyncio.create_task(front.search("first", 1))
        assert await asyncio.to_thread(recorder.called.wait, 30)
        rest = [asyncio.create_task(front.search(str(i), 1)) for i in range(50)]
        await asyncio.sleep(0)
        recorder.gate.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert [len(queries) for queries, _ in recorder.calls] == [1, 50]


def test_cancelling_a_caller_does_not_affect_the_others() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        callers = [asyncio.create_task(front.search("same", 1)) for _ in range(3)]
        assert await asyncio.to_thread(recorder.called.wait, 30)
        callers[0].cancel()
        await asyncio.sleep(0)
        recorder.gate.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1] == found[2] == [Passage(id="same", text="same")]

    asyncio.run(main())
    assert front.distinct == 1


def test_waiting_queries_of_cancelled_callers_are_dropped() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        first = asyncio.create_task(front.search("first", 1))
        assert await asyncio.to_thread(recorder.called.wait, 30)
        gone = [asyncio.create_task(front.search_all(["gone", "gone", "shared"], 1)) for _ in range(2)]
        stays = asyncio.create_task(front.search_all(["shared", "own"], 1))
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        recorder.gate.set()
        assert [found[0].id for found in await stays] == ["shared", "own"] and await first
        assert (await front.search("gone", 1))[0].id == "gone"

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["first"], ["shared", "own"], ["gone"]]


def test_a_failure_reaches_every_caller_and_is_not_remembered() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        found = await asyncio.gather(*(front.search(q, 1) for q in ("bad", "bad", "x")), return_exceptions=True)
        assert [str(error) for error in found] == ["the retriever failed"] * 3
        assert (await front.search("x", 1))[0].id == "x"

    asyncio.run(main())


def test_drops_the_least_recently_used_answer() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder, remember=2)

    async def main() -> None:
        for query in ("a", "b", "a", "c", "a", "b"):
            await front.search(query, 1)

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["a"], ["b"], ["c"], ["b"]]


def test_search_all_shares_pending_queries() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        both = await asyncio.gather(front.search_all(["a", "b", "a"], 1), front.search("b", 1))
        assert [[p.id for p in ps] for ps in both[0]] == [["a"], ["b"], ["a"]] and both[1][0].id == "b"
        both[0][0].clear()
        assert len((await front.search_all(["a"], 1))[0]) == 1
        with pytest.raises(RuntimeError):
            await front.search_all(["bad", "c"], 1)

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["a", "b"], ["bad", "c"]]


def test_searches_at_the_same_time_if_the_retriever_asks_for_it() -> None:
    """E8: the engine waited for one search after the other."""
    together = threading.Barrier(2)

    class Parallel(Recorder):
        threads = 2

        def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            together.wait(30)
            return super().search(queries, k)

    front = AsyncRetriever(Parallel())
    assert len(asyncio.run(front.search_all(["a", "b"], 1))) == 2
    assert AsyncRetriever(Recorder()).threads == 1 and AsyncRetriever(Parallel(), threads=1).threads == 1
