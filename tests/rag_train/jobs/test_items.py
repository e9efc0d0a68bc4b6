"""Resumable runs: interrupted and shared runs write the same files as an uninterrupted run of one process."""

import asyncio
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import tracemalloc
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import OnePassage, TreeModel

from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.errors import PromptTooLong, Refused, ServiceError, UserError
from rag_train.jobs import items
from rag_train.jobs.items import WHOLE, OpenItems, Outcome, Rejected, Shard, Summary, run, summary_line
from rag_train.jobs.retries import current
from rag_train.llm.base import Completion, Sampling
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question


class Slow(TreeModel):
    """A tree for each question, with random latencies, so that the items are completed in random order."""

    tokenizer = SimpleNamespace(chat_template=None)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        await asyncio.sleep(random.random() * 0.02)
        self.seed = len(prompt.partition("\n")[0])
        return await super().complete(prompt, sampling)


def kill_at(name: str, call: int) -> None:
    """Make this process kill itself at call number ``call``, from 0, of a function that writes.

    If that function appends a line, half of the line is written before.
    """
    owner = items if name == "append" else Path
    original, calls = getattr(owner, name), 0

    def counted(*arguments):
        nonlocal calls
        if calls == call:
            if name == "append":
                file, value = arguments
                file.write(json.dumps(value)[: len(json.dumps(value)) // 2].encode())
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return original(*arguments)

    setattr(owner, name, counted)


def synthesize(place: Path, shard: Shard = WHOLE, kill: tuple[str, int] | None = None) -> BaseProcess:
    """Start a process that synthesizes DeepRAG's data in ``place`` with a scripted model.

    The process kills itself at the call ``kill`` (see `kill_at`).
    """
    place.mkdir(exist_ok=True)
    questions = [Question(id=str(i), question="q" * (i + 1), answers=["right"]) for i in range(60)]
    recipe = DeepRAGRecipe(
        stage="sft", questions=[], index="", model="tree", output="out.jsonl", instructions=False
    )

    def target() -> None:
        os.chdir(place)
        random.seed()
        if kill:
            kill_at(*kill)
        retriever = AsyncRetriever(OnePassage())
        asyncio.run(DeepRAGData(recipe, questions, Slow(0), retriever).write(shard))

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def files(place: Path) -> dict[str, bytes]:
    """The contents of the files in ``place`` by name."""
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.mark.slow
def test_killed_runs_continue_to_the_same_files(tmp_path: Path):
    assert exit_code(synthesize(tmp_path / "whole")) == 0
    whole = files(tmp_path / "whole")
    assert sorted(whole) == ["out.jsonl", "out.jsonl.meta.json", "out.jsonl.rejected.jsonl"]
    meta = json.loads(whole["out.jsonl.meta.json"])
    assert meta["rejected"] == {"no right trajectory": whole["out.jsonl.rejected.jsonl"].count(b"\n")}
    assert meta["records"] + meta["rejected"]["no right trajectory"] == meta["items"] == 60
    assert meta["counts"]["prompt_tokens"] == meta["counts"]["engine_calls"] > 60

    broken = tmp_path / "broken"
    partial = broken / "out.jsonl.partial"
    moments = [("append", call % 5) for call in range(20)]  # before and after the first lines
    moments += [("replace", call) for call in range(3)]  # before each of the three files of the output
    for moment in moments:
        assert exit_code(synthesize(broken, kill=moment)) == -signal.SIGKILL
        assert partial.exists() and not (broken / "out.jsonl").exists()
    with partial.open("ab") as file:
        file.write(b'{"item": 3, "rec')  # an incomplete line
    assert exit_code(synthesize(broken)) == 0
    assert files(broken) == whole

    shared = tmp_path / "shared"
    kills = (None, ("append", 1), None)
    processes = [synthesize(shared, Shard(i, 3), kill) for i, kill in enumerate(kills, 1)]
    assert [exit_code(process) for process in processes] == [0, -signal.SIGKILL, 0]
    assert (shared / "out.jsonl.2-of-3.partial").exists()
    assert exit_code(synthesize(shared, Shard(2, 3))) == 0
    assert files(shared) == whole


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


ITEMS = [Question(id=str(i), question=f"q{i}", answers=["a"]) for i in range(7)]


async def work(item: Question) -> Outcome:
    number = int(item.id)
    rejected = [Rejected(id=item.id, reason=f"reason {number % 2}", text="\u2028\n")] if number % 3 == 0 else []
    return Outcome([item] * (number % 3), {"calls": 1, "never": 0}, rejected)


def many(count: int) -> list[Question]:
    return [Question(id=str(i), question="q", answers=["a"]) for i in range(count)]


def do(output: Path, shard: Shard = WHOLE, work=work, items=ITEMS, options=None, **settings) -> Summary:
    """Run with ``options`` of `run`."""
    return asyncio.run(run(items, work, output, settings, label="t", shard=shard, **(options or {})))


@given(st.integers(1, 5).flatmap(lambda of: st.permutations([Shard(i + 1, of) for i in range(of)])))
@settings(max_examples=10)
def test_output_does_not_depend_on_number_or_order_of_shards(
    tmp_path_factory: pytest.TempPathFactory, shards: list[Shard]
):
    whole, shared = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("shared")
    want = do(whole / "out.jsonl")
    summaries = [do(shared / "out.jsonl", shard) for shard in shards]
    assert files(shared) == files(whole)
    assert [summary.remaining > 0 for summary in summaries] == [
        sum(s.items_done for s in summaries[: i + 1]) < len(ITEMS) for i in range(len(shards))
    ]
    assert summaries[-1].counts == want.counts == {"calls": 7, "never": 0}
    assert summaries[-1].rejected == want.rejected == {"reason 0": 2, "reason 1": 1}


def test_other_shards_keep_completed_items(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    half = do(output, Shard(2, 2))
    assert (half.items_done, half.remaining) == (3, 4)
    assert "4 questions remain for other shards" in summary_line(half)
    assert (do(output, Shard(1, 3)).items_done, do(output).items_done) == (2, 2)
    assert [line["id"] for line in lines_of(output)] == ["1", "2", "2", "4", "5", "5"]
    assert len(list(tmp_path.iterdir())) == 3


def test_does_not_overwrite_files_of_other_recipes_or_processes(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    do(output, k=3)
    before = files(tmp_path)
    assert do(output, k=3).items_done == 0
    with pytest.raises(UserError, match="made with a different recipe; delete it or choose another output"):
        do(output, k=5)
    assert files(tmp_path) == before

    async def twice(item: Question) -> Outcome:
        await run(ITEMS, work, tmp_path / "other.jsonl", {}, label="t")
        return Outcome([], {})

    with pytest.raises(
        UserError, match=r"other.jsonl.partial: another process is writing this file; wait for it or stop it"
    ):
        do(tmp_path / "other.jsonl", work=twice)
    do(tmp_path / "third.jsonl", Shard(1, 2), k=3)
    with pytest.raises(UserError, match=r"third.jsonl.1-of-2.partial: was started with a different recipe"):
        do(tmp_path / "third.jsonl", k=5)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_rejects_invalid_shards(text: str):
    with pytest.raises(UserError, match=f"--shard {text}: not a shard; give a number and a total, such as 1/4"):
        Shard.parse(text)


def test_open_items_are_counted_and_tried_again_with_the_same_result(tmp_path: Path):
    async def down(item: Question) -> Outcome:
        if item.id in ("1", "2"):
            raise ServiceError("down")
        return await work(item)

    output = tmp_path / "open" / "out.jsonl"
    with pytest.raises(OpenItems, match=r"out.jsonl: 3 of 7 questions done, 1 open \(down\); give the same"):
        do(output, Shard(1, 2), work=down)
    with pytest.raises(OpenItems, match="5 of 7 questions done, 2 open") as caught:
        do(output, Shard(2, 2), work=down)
    assert not caught.value.gone, "the other questions were answered"
    part = do(output, Shard(1, 2))
    assert (part.items_done, part.remaining, part.open) == (1, 1, 1)
    assert json.loads(json.dumps(asdict(part)))["remaining"] == 1  # as workers of a cluster return it
    assert "1 of them open after failures of a service" in summary_line(part)
    last = do(output, Shard(2, 2))
    assert (last.items_done, last.remaining, last.open) == (1, 0, 0)
    do(tmp_path / "whole" / "out.jsonl")
    assert files(tmp_path / "open") == files(tmp_path / "whole")


def test_a_run_without_its_service_ends_after_the_items_in_progress(tmp_path: Path):
    tried: list[str] = []

    async def down(item: Question) -> Outcome:
        tried.append(item.id)
        raise ServiceError("down")

    with pytest.raises(OpenItems, match="0 of 100 questions done") as caught:
        do(tmp_path / "out.jsonl", work=down, items=many(100), options={"in_flight": 10})
    assert caught.value.gone and 10 <= len(tried) < 20


class Filtered(Refused):
    reason = "content filter"


def refusing(*ids: str, error: Exception | None = None):
    """Return work that is refused for some items, of which a record is kept."""

    async def refuse(item: Question) -> Outcome:
        if item.id in ids:
            current().records = [item]
            raise error or Filtered(f"no answer to {item.question}")
        return await work(item)

    return refuse


def test_a_refused_item_is_counted_by_reason_and_blocks_no_other(tmp_path: Path):
    """One prompt that was refused for good left its item open, so that no file was ever written."""
    output = tmp_path / "whole" / "out.jsonl"
    summary = do(output, work=refusing("0", "1", "2"))
    assert summary.rejected == {"content filter": 3, "reason 0": 1, "reason 1": 1}
    assert (summary.remaining, summary.open, summary.items_done) == (0, 0, 7)
    assert "rejected: content filter 3, reason 0 1" in summary_line(summary)
    rejected = lines_of(tmp_path / "whole" / "out.jsonl.rejected.jsonl")
    assert rejected[0] == {"id": "0", "reason": "content filter", "text": "no answer to q0"}
    assert [line["id"] for line in lines_of(output)][:3] == ["0", "1", "2"], "records kept"
    assert do(output, work=refusing("0", "1", "2")).rejected == summary.rejected
    shards = tmp_path / "shards"
    for shard in (Shard(2, 2), Shard(1, 2)):
        do(shards / "out.jsonl", shard, work=refusing("0", "1", "2"))
    assert files(shards) == files(tmp_path / "whole")


@pytest.mark.parametrize("items", [3, 100])
def test_what_is_refused_to_all_ends_the_run_and_stays_open(tmp_path: Path, items: int):
    output, tried, few = tmp_path / "out.jsonl", [], {"in_flight": 10}

    async def all_refused(item: Question) -> Outcome:
        tried.append(item.id)
        raise Filtered("blocked")

    problem = r"no question was done, and \d+ of \d+ were refused \(content filter: b"
    with pytest.raises(OpenItems, match=problem) as caught:
        do(output, work=all_refused, items=many(items), options=few)
    assert not caught.value.gone and len(tried) < 20 and not output.exists()

    async def fine(item: Question) -> Outcome:
        return Outcome([item], {})

    assert do(output, work=fine, items=many(items)).records == items
    again = do(tmp_path / "again.jsonl", work=all_refused, items=many(items), options={"proven": True})
    assert again.rejected == {"content filter": items}


SURROGATE = UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates")


@pytest.mark.parametrize(("error", "reason"), [(PromptTooLong("5,000 tokens"), "too long"), (SURROGATE, "invalid")])
def test_what_concerns_the_items_ends_all_of_them(tmp_path: Path, error: ValueError, reason: str):
    summary = do(tmp_path / "out.jsonl", work=refusing(*(item.id for item in ITEMS), error=error))
    assert summary.rejected == {reason: 7} and summary.remaining == 0


def test_searches_without_passages_are_counted(tmp_path: Path):
    class Nothing(OnePassage):
        def search(self, queries, k):
            return [[] if query == "q0" else super(Nothing, self).search([query], k)[0] for query in queries]

    front = AsyncRetriever(Nothing())

    def searching(always: str):
        async def search(item: Question) -> Outcome:
            await front.search(always or item.question, 1)
            return Outcome([item], {})

        return search

    assert do(tmp_path / "some.jsonl", work=searching("")).counts == {"no passages": 1}
    line = summary_line(do(tmp_path / "all.jsonl", work=searching("q0")))
    assert "no passages 7" in line and "no search found a passage: check the retriever" in line


def test_numbers_that_json_lacks_become_null(tmp_path: Path):
    async def strange(item: Question) -> Outcome:
        return Outcome([item.model_copy(update={"metadata": {"x": [float("nan"), float("-inf"), 1.5]}})], {})

    do(tmp_path / "out.jsonl", work=strange)
    assert '"x": [null, null, 1.5]' in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("most", [300, 4_000])
def test_a_file_that_cannot_grow_is_named_and_nothing_is_lost(tmp_path: Path, most: int):
    """The limit is reached by a line of the partial file, or by the output."""
    output, errors = tmp_path / "out.jsonl", multiprocessing.get_context("fork").SimpleQueue()

    async def long(item: Question) -> Outcome:
        return Outcome([item.model_copy(update={"question": "x" * 500})] * (2 if item.id == "6" else 1), {})

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        try:
            do(output, work=long)
        except OSError as error:
            errors.put((error.errno, str(error.filename)))

    process = multiprocessing.get_context("fork").Process(target=limited)
    process.start()
    assert exit_code(process) == 0 and not errors.empty()
    code, name = errors.get()
    assert code == errno.EFBIG and name.startswith(str(output)) and not list(tmp_path.glob("*.tmp"))
    do(output, work=long)
    do(tmp_path / "whole" / "out.jsonl", work=long)
    whole = files(tmp_path / "whole")
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole


@pytest.mark.slow
def test_memory_does_not_grow_with_the_output(tmp_path: Path):
    """The merge held all records, 3.5 times the size of the output, at both ends of every shard."""
    long = "x" * 100_000

    async def write(item: Question) -> Outcome:
        left_out = Rejected(id=item.id, reason="r", text=long)
        return Outcome([item.model_copy(update={"question": long})], {}, [left_out])

    output = tmp_path / "out.jsonl"
    tracemalloc.start()
    for shard in (Shard(1, 2), Shard(2, 2)):
        do(output, shard, work=write, items=many(50), options={"in_flight": 1})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert output.stat().st_size > 50 * len(long)
    assert peak < 20 * len(long)
