"""Kills, memory and time at full count: synthesis and training data (make bench NAME=resume).

Synthesis: DeepRAG's search (Algorithm 1) over copies of the mini world's questions. The mini model answers the
calls of each question once; its answers are replayed for the copies, so that all except the engine is measured.
Training data: DeepRAG trajectories over the mini world's questions, with passages drawn at random, are tokenised.

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

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.eval.benchmarks.harness import Recorder, benchmark_parser, mini_world, process_memory, save
from rag_train.eval.benchmarks.training import trajectories
from rag_train.jobs.files import CACHE_VARIABLE, sha256, write_records
from rag_train.jobs.items import Summary
from rag_train.llm.base import LLM, Abilities, Completion, Sampling
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question
from rag_train.table import Table
from rag_train.training.data import sft_rows

QUESTIONS = 500
"""Distinct questions of the synthesis."""
ROW = 4096
"""Tokens of the longest trajectory."""

Work = Callable[[], dict[str, Any]]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="questions, and training examples")
    parser.add_argument("--kills", type=int, default=10, help="kills of each killed run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--work", type=Path, default=Path("runs/scale"), help="working directory; deleted first")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    rng, answers = random.Random(options.seed), options.work / "answers.pickle"
    asyncio.run(record(answers))
    found: list[dict[str, Any]] = []
    for part in (10, 1):
        count, folder = options.examples // part, options.work / f"1-of-{part}"
        folder.mkdir()
        questions, data = folder / "questions.jsonl", folder / "sft.jsonl"
        write_records(questions, copies(count))
        write_records(data, trajectories(count))
        model = mini_world().model.resolve()
        works = {
            "synthesis": partial(search_file, questions.resolve(), answers.resolve()),
            "training data": partial(tokenise, model, data.resolve()),
        }
        for name, work in works.items():
            found.append({"work": name, "items": count} | compare(work, options.kills, rng, folder / name))
            console.print(found[-1])
    table = Table(
        title="Kills and scale",
        caption=f"Undisturbed, and with up to {options.kills} kills (SIGKILL) at random moments.",
        columns=["Work", "Items", "Seconds", "Memory, MiB", "Seconds with kills", "Kills", "The same bytes"],
        rows=[
            [
                row["work"],
                f"{row['items']:,}",
                f"{row['whole']['seconds']:.1f}",
                f"{(row['whole']['peak_bytes'] - row['whole']['start_bytes']) / 2**20:.1f}",
                f"{row['killed']['seconds']:.1f}",
                str(row["killed"]["kills"]),
                "yes" if row["same_bytes"] else "NO",
            ]
            for row in found
        ],
    )
    save(options.output, "resume", {"kills": options.kills, "works": found}, table)
    sys.exit(not all(row["same_bytes"] for row in found))


def compare(work: Callable[[Path], dict[str, Any]], kills: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Do ``work`` in one folder undisturbed and in another with kills, and return what was measured."""
    whole = in_process(partial(work, folder / "whole"))
    killed = until_done(partial(work, folder / "killed"), moments_of(kills, whole["seconds"], rng))
    return {"whole": whole, "killed": killed, "same_bytes": digest(folder / "whole") == digest(folder / "killed")}


# -- synthesis -------------------------------------------------------------------------------------------


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
    engine = VLLMEngine.start(str(model), dtype="float32", kv_cache_memory_bytes=2**30)
    recorder: Any = Recorder(engine)
    try:
        await search(recorder, questions[:QUESTIONS], path.with_name("recorded.jsonl"))
    finally:
        await engine.aclose()
    answers = {(prompt, sampling): completion for prompt, sampling, completion in recorder.calls}
    path.write_bytes(pickle.dumps(answers))


async def search(llm: LLM, questions: Sequence[Question], output: Path) -> Summary:
    """Search ``questions`` in the mini world and write the trajectories to ``output``."""
    world, model, _ = mini_world()
    index = BM25Index.build(world.corpus())
    recipe = DeepRAGRecipe(
        stage="sft", questions=[], index="", model=str(model.resolve()), output=str(output), instructions=False
    )
    return await DeepRAGData(recipe, questions, llm, AsyncRetriever(index)).write()


def copies(count: int) -> Iterator[Question]:
    """Yield the mini world's questions in turn, each with a number of its own."""
    questions = mini_world().questions[:QUESTIONS]
    for number in range(count):
        question = questions[number % len(questions)]
        yield question.model_copy(update={"id": f"{question.id}/{number}"})


def search_file(questions: Path, answers: Path, folder: Path) -> dict[str, Any]:
    """Search the questions of a file with replayed answers, in ``folder``, and count."""
    model = mini_world().model.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # the sidecar names the output
    read = read_questions([questions], None, 0)
    summary = asyncio.run(search(Replayed(model, answers), read, Path("sft.jsonl")))
    return {"records": summary.records, "engine_calls": summary.counts["engine_calls"]}


# -- training data ---------------------------------------------------------------------------------------


def tokenise(model: Path, data: Path, cache: Path) -> dict[str, Any]:
    """Write the token ids of ``data`` to ``cache``."""
    os.environ[CACHE_VARIABLE] = str(cache)
    _, report = sft_rows(data, load_tokenizer(str(model)), max_tokens=ROW, chat=False)
    return {"tokens": report.tokens}


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
    before = peak = process_memory("RssAnon")
    connection.send("begun")
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, process_memory("RssAnon"))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    over.set()
    watching.join()
    connection.send(result | {"seconds": seconds, "peak_bytes": peak, "start_bytes": before})


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
