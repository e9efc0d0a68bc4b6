"""Kills, memory and time at full count: synthesis, training data and the runner (make bench NAME=resume).

Synthesis: DeepRAG's search (Algorithm 1) over copies of the mini world's questions. The mini model answers the
calls of each question once; its answers are replayed for the copies, so that all except the engine is measured.
Training data: DeepRAG trajectories over the mini world's questions, with passages drawn at random, are tokenised,
packed, and read once in random order, as each process of a training does in an epoch. Runner: small items without
any work, so that only the files are measured.

Each is done once undisturbed, and once with SIGKILL at random moments; the files must be the same, byte for byte.
All is done with a tenth of the items as well, which shows what grows. Memory is the peak of a process's own pages
(RssAnon, read every 20 ms); pages of mapped files are the system's. Linux only. Writes resume.json and resume.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import default_data_collator

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.eval.benchmarks.harness import benchmark_parser, mini_world, process_memory, save
from rag_train.eval.benchmarks.training import trajectories
from rag_train.jobs.files import CACHE_VARIABLE, sha256, write_records
from rag_train.jobs.items import Outcome, Summary, run
from rag_train.llm.base import LLM, Abilities, Completion, Sampling
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question
from rag_train.table import Table
from rag_train.training.data import sft_rows
from rag_train.training.sft import packed_rows

QUESTIONS = 500
"""Distinct questions of the synthesis."""
ROW = 4096
"""Tokens of a packed row, and of the longest trajectory."""

Work = Callable[[], dict[str, Any]]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="questions, and training examples")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the runner")
    parser.add_argument("--kills", type=int, default=10, help="kills of each killed run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--work", type=Path, default=Path("runs/scale"), help="working directory; deleted first")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    rng = random.Random(options.seed)
    result: dict[str, Any] = {"kills": options.kills, "synthesis": [], "training": [], "runner": []}
    options.work.mkdir(parents=True)
    answers = options.work / "answers.pickle"
    asyncio.run(record(answers))
    for part in (10, 1):
        folder = options.work / f"1-of-{part}"
        folder.mkdir()
        result["synthesis"].append(synthesis(options.examples // part, options.kills, rng, folder, answers))
        console.print(result["synthesis"][-1])
        result["training"].append(training(options.examples // part, options.kills, rng, folder))
        console.print(result["training"][-1])
        result["runner"].append(runner(options.items // part, options.kills, rng, folder))
        console.print(result["runner"][-1])
    measured = [(kind, row) for kind in ("synthesis", "training", "runner") for row in result[kind]]
    table = Table(
        title="Kills and scale",
        caption=f"Undisturbed, and with up to {options.kills} kills (SIGKILL) at random moments.",
        columns=["Work", "Items", "Seconds", "Memory, MiB", "Seconds with kills", "Kills", "The same bytes"],
        rows=[
            [
                kind,
                f"{row['items']:,}",
                f"{row['whole']['seconds']:.1f}",
                f"{(row['whole']['peak_bytes'] - row['whole']['start_bytes']) / 2**20:.1f}",
                f"{row['killed']['seconds']:.1f}",
                str(row["killed"]["kills"]),
                "yes" if row["same_bytes"] else "NO",
            ]
            for kind, row in measured
        ],
    )
    save(options.output, "resume", result, table)
    sys.exit(not all(row["same_bytes"] for _, row in measured))


# -- synthesis -------------------------------------------------------------------------------------------


class Recorded:
    """An engine that keeps the answers of another one in ``answers``."""

    def __init__(self, llm: Any, answers: dict[tuple[str, Sampling], Completion]):
        self._llm, self._answers = llm, answers
        self.name, self.tokenizer, self.abilities = llm.name, llm.tokenizer, llm.abilities

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        completion = await self._llm.complete(prompt, sampling)
        self._answers[prompt, sampling] = completion
        return completion


class Replayed:
    """An engine that gives recorded answers at once."""

    name = "replayed"

    def __init__(self, model: Path, answers: Path):
        self.tokenizer = load_tokenizer(str(model))
        self.abilities = Abilities()
        self._answers: dict[tuple[str, Sampling], Completion] = pickle.loads(answers.read_bytes())

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        return self._answers[prompt, sampling]

    async def aclose(self) -> None:
        pass


async def record(path: Path) -> None:
    """Search `QUESTIONS` questions with the mini model, and write all answers of the engine to ``path``."""
    from rag_train.llm.vllm import VLLMEngine

    _, model, questions = mini_world()
    answers: dict[tuple[str, Sampling], Completion] = {}
    engine = VLLMEngine.start(str(model), dtype="float32", kv_cache_memory_bytes=2**30)
    try:
        recorded: Any = Recorded(engine, answers)
        await search(recorded, questions[:QUESTIONS], path.with_name("recorded.jsonl"))
    finally:
        await engine.aclose()
    path.write_bytes(pickle.dumps(answers))


async def search(llm: LLM, questions: Sequence[Question], output: Path) -> Summary:
    """Search ``questions`` in the mini world and write the trajectories to ``output``."""
    world, model, _ = mini_world()
    index = BM25Index.build(world.corpus())
    recipe = DeepRAGRecipe(
        stage="sft", questions=[], index="", model=str(model.resolve()), output=str(output), instructions=False
    )
    return await DeepRAGData(recipe, questions, llm, AsyncRetriever(index)).write()


def synthesis(count: int, kills: int, rng: random.Random, folder: Path, answers: Path) -> dict[str, Any]:
    """Search ``count`` questions with replayed answers."""
    questions = folder / "questions.jsonl"
    write_records(questions, copies(count))
    searching = partial(search_file, questions.resolve(), answers.resolve())
    whole = in_process(partial(searching, folder / "search"))
    moments = moments_of(kills, whole["seconds"], rng)
    killed = until_done(partial(searching, folder / "killed-search"), moments)
    return {
        "items": count,
        "engine_calls": whole.pop("engine_calls"),
        "records": whole.pop("records"),
        "question_bytes": questions.stat().st_size,
        "bytes": (folder / "search/sft.jsonl").stat().st_size,
        "same_bytes": digest(folder / "search") == digest(folder / "killed-search"),
        "whole": whole,
        "killed": killed,
    }


def copies(count: int) -> Iterator[Question]:
    """Yield the mini world's questions in turn, each with a number of its own."""
    questions = mini_world().questions[:QUESTIONS]
    for number in range(count):
        question = questions[number % len(questions)]
        yield question.model_copy(update={"id": f"{question.id}/{number}"})


def search_file(questions: Path, answers: Path, folder: Path) -> dict[str, Any]:
    """Search the questions of a file with replayed answers, in ``folder``, and count."""
    model = mini_world().model.resolve()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)  # the sidecar names the output
    read = read_questions([questions], None, 0)
    summary = asyncio.run(search(Replayed(model, answers), read, Path("sft.jsonl")))
    return {"records": summary.records, "engine_calls": summary.counts["engine_calls"]}


# -- training data ---------------------------------------------------------------------------------------


def training(examples: int, kills: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Tokenise ``examples`` trajectories, pack them and read them all."""
    model, data = mini_world().model.resolve(), folder / "sft.jsonl"
    write_records(data, trajectories(examples))
    tokenising = partial(tokenise, model, data, folder / "whole")
    whole = in_process(tokenising)
    moments = moments_of(kills, whole["seconds"], rng)
    killed = until_done(partial(tokenise, model, data, folder / "killed"), moments)
    epoch = in_process(partial(read_epoch, model, data, folder / "whole"))
    return {
        "items": examples,
        "tokens": whole.pop("tokens"),
        "source_bytes": data.stat().st_size,
        "bytes": sum(file.stat().st_size for file in (folder / "whole").rglob("*.arrow")),
        "same_bytes": digest(folder / "whole") == digest(folder / "killed"),
        "whole": whole,
        "killed": killed,
        "epoch": epoch,
    }


def tokenise(model: Path, data: Path, cache: Path) -> dict[str, Any]:
    """Write the token ids of ``data`` to ``cache``."""
    os.environ[CACHE_VARIABLE] = str(cache)
    _, report = sft_rows(data, load_tokenizer(str(model)), max_tokens=ROW, chat=False)
    return {"tokens": report.tokens}


def read_epoch(model: Path, data: Path, cache: Path) -> dict[str, Any]:
    """Open the token ids, pack them, and read every row once in random order."""
    os.environ[CACHE_VARIABLE] = str(cache)
    start = time.perf_counter()
    rows, _ = sft_rows(data, load_tokenizer(str(model)), max_tokens=ROW, chat=False)
    opened = time.perf_counter()
    packed = packed_rows(rows, ROW, 0)
    done = time.perf_counter()
    tokens = sum(
        batch["input_ids"].numel() for batch in DataLoader(packed, shuffle=True, collate_fn=default_data_collator)
    )
    return {
        "rows": len(packed),
        "row_tokens": tokens,
        "open_seconds": opened - start,
        "pack_seconds": done - opened,
        "read_seconds": time.perf_counter() - done,
    }


# -- the runner ------------------------------------------------------------------------------------------


class Items(Sequence[Question]):
    """Numbered questions, each made when it is read: a list of them would be most of the memory."""

    def __init__(self, count: int):
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Question:  # pyrefly: ignore[bad-override]
        if not 0 <= i < self._count:
            raise IndexError(i)
        return Question.model_construct(id=str(i), question=f"question {i}", answers=["answer"])


async def answer(item: Question) -> Outcome:
    return Outcome([item], {"engine_calls": 1})


def runner(items: int, kills: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run ``items`` small items through the runner."""
    whole = in_process(partial(process_items, items, folder / "items"))
    moments = moments_of(kills, whole["seconds"], rng)
    killed = until_done(partial(process_items, items, folder / "killed-items"), moments)
    return {
        "items": items,
        "bytes": (folder / "items/out.jsonl").stat().st_size,
        "same_bytes": digest(folder / "items") == digest(folder / "killed-items"),
        "whole": whole,
        "killed": killed,
    }


def process_items(items: int, folder: Path) -> dict[str, Any]:
    summary = asyncio.run(run(Items(items), answer, folder / "out.jsonl", {}, label="items"))
    assert summary.records == items
    return {}


# -- processes -------------------------------------------------------------------------------------------


def in_process(work: Work, kill_after: float | None = None) -> dict[str, Any]:
    """Do ``work`` in a new process, and return its result with seconds and peak memory.

    The process is killed ``kill_after`` seconds after its start, unless it has finished; the result is then {}.
    """
    context = multiprocessing.get_context("forkserver")  # imports once, and has no threads when it forks
    context.set_forkserver_preload(["rag_train.eval.benchmarks.resume"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, work))
    process.start()
    theirs.close()
    try:
        ours.recv()
        if ours.poll(kill_after):
            return ours.recv()
        process.kill()
        return {}
    finally:
        process.join()


def _report(connection: Connection, work: Work) -> None:
    before = process_memory("RssAnon")
    connection.send("begun")
    with Peak() as peak:
        start = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - start
    connection.send(result | {"seconds": seconds, "peak_bytes": peak.bytes, "start_bytes": before})


class Peak:
    """The peak memory of this process within a ``with`` block, as ``bytes``."""

    def __enter__(self) -> Peak:
        self.bytes = process_memory("RssAnon")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, process_memory("RssAnon"))


def moments_of(kills: int, seconds: float, rng: random.Random) -> list[float]:
    """Return how long each of the killed processes lives: random, together about as long as the undisturbed run."""
    return [rng.uniform(0, 2 * seconds / (kills + 1)) for _ in range(kills)]


def until_done(work: Work, moments: Sequence[float]) -> dict[str, Any]:
    """Do ``work``, killed at each of ``moments``, then undisturbed; return the last result and all seconds."""
    killed, start = 0, time.perf_counter()
    for moment in moments:
        if in_process(work, moment):
            break
        killed += 1
    last = in_process(work)
    return {"kills": killed, "seconds": time.perf_counter() - start, "peak_bytes": last["peak_bytes"]}


def digest(folder: Path) -> str:
    """Return a hash of the names and contents of all files in ``folder``, without locks."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lock":
            whole.update(f"{path.relative_to(folder)} {sha256(path)}\n".encode())
    return whole.hexdigest()


if __name__ == "__main__":
    main()
