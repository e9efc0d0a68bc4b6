"""Attempts at items whose services fail: what is repeated, what is kept, and when a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import VirtualLoop, completion

from rag_train.errors import PromptTooLong, ServiceError, UserError
from rag_train.jobs import retries
from rag_train.jobs.retries import ItemState, Patience, Service
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling
from rag_train.llm.call_log import CallLog, call_depth


class Failing:
    """An engine that answers with the prompt, but fails at the calls whose numbers are given."""

    name, tokenizer, abilities = "failing", None, Abilities()

    def __init__(self, *failures: int):
        self.failures = failures
        self.calls = 0

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.calls += 1
        if self.calls - 1 in self.failures:
            raise EngineError("down")
        return completion(prompt, sampling)

    async def aclose(self) -> None: ...


async def fails() -> None:
    raise EngineError("down")


def simulated(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Run ``work``; return its result and the seconds of simulated time that it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work), runner.get_loop().time()


def four_calls(llm: Failing, depths: list[int]) -> Callable[[], Coroutine[Any, Any, list[str]]]:
    async def work() -> list[str]:
        log = CallLog(llm)
        texts = [(await log.complete("m", f"p{i}", Sampling())).text for i in range(4)]
        depths.append(call_depth.get())
        assert [call.order for call in log.calls] == [1, 2, 3, 4]
        return texts

    return work


@pytest.mark.slow
@given(st.sets(st.integers(0, 12)))
def test_completed_calls_are_not_repeated(failures: set[int]) -> None:
    llm, depths, so_far = Failing(*failures), [], ItemState()
    waits: list[int] = []

    async def main() -> list[str]:
        items = Patience(1000.0, 1, lambda waiting, error: waits.append(waiting))
        found = await items.complete(four_calls(llm, depths), so_far)
        assert items.retried == len(waits)
        return found

    found, _ = simulated(main())
    assert found == ["p0", "p1", "p2", "p3"] and depths == [4]
    assert llm.calls == 4 + len(waits), "only failed calls are repeated"
    assert len(so_far.calls) == 4 and set(waits) <= {1}


def test_nothing_is_carried_over_from_item_to_item() -> None:
    """The depth of an item's calls was added to that of the item before."""
    depths: list[int] = []

    async def main() -> None:
        items = Patience(0.0, 1)
        for _ in range(3):
            await items.complete(four_calls(Failing(), depths), ItemState())

    simulated(main())
    assert depths == [4, 4, 4]


def test_an_item_without_progress_is_given_up_after_the_patience() -> None:
    async def main() -> None:
        items = Patience(100.0, 1)
        with pytest.raises(EngineError):
            await items.complete(fails, ItemState())
        assert items.retried == 9 and not items.over.is_set()

    _, seconds = simulated(main())
    assert 50 <= seconds <= 150


def test_an_item_is_given_up_at_once_if_the_service_asks_for_a_longer_wait() -> None:
    async def work() -> None:
        error = ServiceError("a day")
        error.wait = 86_400.0
        raise error

    async def main() -> None:
        with pytest.raises(ServiceError, match="a day"):
            await Patience(100.0, 1).complete(work, ItemState())

    assert simulated(main())[1] == 0.0


def test_the_run_ends_when_as_many_items_as_are_in_progress_stay_open_in_a_row() -> None:
    async def works() -> int:
        return 1

    async def main() -> None:
        items = Patience(10.0, 20)
        for _ in range(19):
            with pytest.raises(ServiceError):
                await items.complete(fails, ItemState())
        await items.complete(works, ItemState())  # the service works, but not for all items
        assert not items.over.is_set()
        results = await asyncio.gather(
            *(items.complete(fails, ItemState()) for _ in range(40)), return_exceptions=True
        )
        assert all(isinstance(result, EngineError) for result in results) and items.over.is_set()

    simulated(main())


def test_mistakes_of_the_user_are_not_tried_again() -> None:
    async def refused() -> None:
        raise UserError("no key")

    async def main() -> None:
        items = Patience(100.0, 1)
        with pytest.raises(UserError, match="no key"):
            await items.complete(refused, ItemState())
        assert items.retried == 0

    assert simulated(main())[1] == 0


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("4,097 tokens"), PromptTooLong),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), UnicodeDecodeError),
    ],
)
def test_only_plain_value_errors_of_an_engine_are_about_length(error: ValueError, raised: type[ValueError]) -> None:
    """Every ValueError was counted as too long."""

    class Refuses(Failing):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            raise error

    with pytest.raises(raised) as caught:
        simulated(CallLog(Refuses()).complete("m", "p", Sampling()))
    assert type(caught.value) is raised


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan"])
def test_invalid_patience_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(retries.VARIABLE, text)
    with pytest.raises(UserError, match="not a time; give a number of seconds"):
        retries.patience_seconds()
    monkeypatch.setenv(retries.VARIABLE, "")
    assert retries.patience_seconds() == retries.SECONDS


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("attempt", [0.0, 30.0])
def test_a_service_that_hangs_costs_an_item_no_more_than_its_patience(attempt: float) -> None:
    """Only the waits between attempts counted, however long an attempt took."""
    service, begun = Service("http://s"), []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) == 1 and attempt:  # the first attempt fails by itself
            await asyncio.sleep(attempt)
            raise EngineError("down")
        await service.answered(never(), lambda: begun[-1])

    async def main() -> None:
        items = Patience(100.0, 1)
        with pytest.raises(ServiceError, match=r"http://s: no answer for \d+"):
            await items.complete(work, ItemState())
        assert not items._waits_for_services

    _, seconds = simulated(main())
    assert seconds <= 100 + attempt + retries.FIRST_WAIT


def test_a_request_in_the_queue_of_a_service_that_answers_others_waits_on() -> None:
    service = Service("s")

    async def main() -> None:
        items = Patience(10.0, 2)
        turn: list[float] = []

        async def others() -> None:
            for _ in range(5):
                began = asyncio.get_running_loop().time()
                await service.answered(asyncio.sleep(8.0), lambda began=began: began)
            turn.append(asyncio.get_running_loop().time())

        async def queued() -> None:
            await service.answered(never(), lambda: turn[0] if turn else None)

        done, failed = await asyncio.gather(
            items.complete(others, ItemState()), items.complete(queued, ItemState()), return_exceptions=True
        )
        assert done is None and isinstance(failed, ServiceError)

    assert simulated(main())[1] == 50.0, "five answers of 8 s, and then the patience"


def test_the_run_says_which_service_it_waits_for() -> None:
    service, notes = Service("http://s"), []

    async def main() -> None:
        items = Patience(100.0, 1)
        task = asyncio.create_task(items.complete(lambda: service.answered(never(), lambda: None), ItemState()))
        for _ in range(3):
            await asyncio.sleep(8.0)
            notes.append(items.quiet())
        task.cancel()

    simulated(main())
    assert notes == ["", "http://s: no answer for 16 s", "http://s: no answer for 24 s"]


def test_without_patience_requests_have_only_their_own_limits() -> None:
    async def main() -> None:
        await Patience(0.0, 1).complete(lambda: Service("s").answered(asyncio.sleep(1e6), lambda: 0.0), ItemState())

    assert simulated(main())[1] == 1e6
