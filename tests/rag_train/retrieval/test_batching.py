"""Batching of concurrent queries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fakes import VirtualLoop
from support.retrieval import Fake

from rag_train.errors import ServiceError
from rag_train.jobs.retries import ItemState, Patience
from rag_train.provenance import cores
from rag_train.retrieval.base import service, threads
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.cache import CachedRetriever
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.rerank import RerankedRetriever
from rag_train.schema import Passage


class Recorder(Fake):
    """A retriever that returns each query as a passage once ``gate`` is open, and fails on the query "bad"."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = super().search(queries, k)
        self.called.set()
        assert self.gate.wait(30)
        if "bad" in queries:
            raise RuntimeError("the retriever failed")
        return found


class Lengths:
    """A reranker that scores by length."""

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in pairs]


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
    assert (front.queries, front.batches) == (8, 3)


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
        assert [passages[0].id for passages in found[1:]] == ["same"] * 2

    asyncio.run(main())
    assert len(recorder.calls) == 1


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


def test_drops_the_least_recently_used_answer() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder, remember=2)

    async def main() -> None:
        for query in ("a", "b", "a", "c", "a", "b"):
            await front.search(query, 1)

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["a"], ["b"], ["c"], ["b"]]


def test_search_all_shares_pending_queries_and_a_failure_reaches_every_caller() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        both = await asyncio.gather(front.search_all(["a", "b", "a"], 1), front.search("b", 1))
        assert [[p.id for p in ps] for ps in both[0]] == [["a"], ["b"], ["a"]] and both[1][0].id == "b"
        both[0][0].clear()
        assert len((await front.search_all(["a"], 1))[0]) == 1
        asked = (front.search_all(["bad", "c"], 1), front.search("bad", 1), front.search("c", 1))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(error) for error in found] == ["the retriever failed"] * 3
        assert (await front.search("c", 1))[0].id == "c", "a failure is not remembered"

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["a", "b"], ["bad", "c"], ["c"]]


def test_searches_at_the_same_time_if_the_retriever_asks_for_it() -> None:
    """The engine waited for one search after the other."""
    together = threading.Barrier(2)

    class Parallel(Recorder):
        threads = 2

        def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            together.wait(30)
            return super().search(queries, k)

    front = AsyncRetriever(Parallel())
    assert len(asyncio.run(front.search_all(["a", "b"], 1))) == 2
    assert AsyncRetriever(Recorder()).threads == 1 and AsyncRetriever(Parallel(), threads=1).threads == 1


def test_a_search_that_waits_holds_up_no_other_retriever() -> None:
    """Searches ran in threads that all of the process shares: 6 with 2 cores."""
    slow, quick = Recorder(), Recorder()
    slow.gate.clear()
    fronts = [AsyncRetriever(slow, threads=16) for _ in range(4)]

    async def main() -> None:
        waiting = [asyncio.create_task(front.search(str(n), 1)) for front in fronts for n in range(16)]
        assert await AsyncRetriever(quick).search("a", 1)
        slow.gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(asyncio.wait_for(main(), 60))


COMBINED: list[Callable[[Any, Path], Any]] = [
    lambda inner, folder: CachedRetriever(inner, folder / "cache"),
    lambda inner, folder: FusedRetriever([inner, Recorder()]),
    lambda inner, folder: RerankedRetriever(inner, Lengths()),
]


@pytest.mark.parametrize("combined", COMBINED)
def test_combined_retrievers_keep_the_limits_of_their_parts(combined: Callable, tmp_path: Path) -> None:
    """They searched one batch after the other, whatever their parts take."""

    class Alone(Recorder):
        at_once = most = 0

        def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            found = super().search(queries, k)
            self.at_once -= 1
            return found

    inner = Alone()
    retriever = combined(inner, tmp_path)
    front = AsyncRetriever(retriever, max_batch=1)
    assert front.threads == threads(retriever) == 2

    async def main() -> None:
        await asyncio.gather(*(front.search(str(n), 1) for n in range(20)))

    asyncio.run(main())
    assert inner.most == 1 and len(inner.calls) == 20


def test_a_batch_in_the_cache_does_not_wait_for_a_search(tmp_path: Path) -> None:
    recorder = Recorder()
    cached = CachedRetriever(recorder, tmp_path / "cache")
    cached.search(["known"], 1)
    recorder.gate.clear()
    recorder.called.clear()
    front = AsyncRetriever(cached)

    async def main() -> None:
        new = asyncio.create_task(front.search("new", 1))
        assert await asyncio.to_thread(recorder.called.wait, 30)
        assert (await front.search("known", 1))[0].id == "known"
        recorder.gate.set()
        await new

    asyncio.run(asyncio.wait_for(main(), 60))


def test_bm25_searches_on_all_cores() -> None:
    assert AsyncRetriever(BM25Index.build([Passage(id="a", text="a")])).threads == cores()


def test_a_retriever_that_never_answers_costs_no_question_more_than_its_patience() -> None:
    """Queries in its queue waited for each of its time limits in turn."""
    recorder = Recorder()
    recorder.service = "service r"
    recorder.gate.clear()
    front = AsyncRetriever(recorder, max_batch=2)
    items = Patience(100.0, 20)

    async def ask(query: str) -> None:
        with pytest.raises(ServiceError, match="service r: no answer for 100 s"):
            await items.complete(lambda: front.search(query, 1), ItemState())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(10):
                group.create_task(ask(str(i)))
        assert asyncio.get_running_loop().time() == 100.0
        recorder.gate.set()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_only_a_retriever_all_of_whose_parts_are_services_is_one(tmp_path: Path) -> None:
    """How long an index or a cross-encoder of this process takes is not the fault of a service."""
    remote, other, local = Recorder(), Recorder(), Recorder()
    remote.service, other.service = "r", "o"
    assert service(CachedRetriever(remote, tmp_path / "cache.db")) == "r"
    assert service(FusedRetriever([remote, other])) == "r and o"
    assert service(FusedRetriever([remote, local])) == service(RerankedRetriever(remote, Lengths())) == ""
