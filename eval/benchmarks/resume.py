"""Resumption of a synthesis that is killed at random moments (make bench-resume).

A server (`vllm serve`) runs the mini model. DeepRAG's synthesis runs in a process that gets SIGKILL again and
again, each time a random while after its first result. The files of the last run, which is not killed, must equal
those of a run that was never killed, byte for byte. Writes bench_resume.json.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx

from rag_train.data_synth.deeprag.recipe import DeepRAGRecipe
from rag_train.data_synth.deeprag.run import synthesize
from rag_train.eval.benchmarks.common import benchmark_parser, free_port, mini_world
from rag_train.llm.engines import EngineConfig
from rag_train.miniworld.world import write_world
from rag_train.progress import console, progress
from rag_train.provenance import save_result
from rag_train.retrieval.index.open import build_index


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="number of kills")
    parser.add_argument("--questions", type=int, default=300, help="questions to search")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--work", type=Path, default=Path("runs/resume"), help="working directory; deleted first")
    options = parser.parse_args()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    world, model, _ = mini_world()
    write_world(world, work / "world")
    build_index("bm25", work / "world/corpus.jsonl", work / "index", lambda done: None)
    with served(str(model.resolve())) as url:
        recipe = DeepRAGRecipe(
            stage="sft",
            questions=[work / "world/train.jsonl"],
            index=str(work / "index"),
            model=str(model.resolve()),
            output="sft.jsonl",
            sample=options.questions,
            instructions=False,
            engine=EngineConfig(kind="openai", urls=[url]),
        )
        whole, seconds = run_undisturbed(recipe, work / "whole")
        resumed, finished = run_killed(recipe, work / "broken", options.kills, random.Random(options.seed), seconds)
    same = whole == resumed
    done_at = ", ".join(map(str, finished))
    console.print(f"killed {len(finished)} times, after {done_at} of {options.questions} questions")
    console.print("the files are identical" if same else "the files DIFFER")
    result = {
        "questions": options.questions,
        "kills": len(finished),
        "questions_done_at_each": finished,
        "files": sorted(whole),
        "byte_identical": same,
    }
    save_result(options.output / "bench_resume.json", result)
    sys.exit(not same)


@contextmanager
def served(model: str) -> Iterator[str]:
    """Serve ``model`` with `vllm serve` within the block, and yield the server's address."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    space = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    server = subprocess.Popen(command, env=space, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                if server.poll() is not None:
                    raise RuntimeError(f"vllm serve exited with code {server.returncode}") from None
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait()


def start(recipe: DeepRAGRecipe, folder: Path) -> BaseProcess:
    """Start the synthesis in ``folder``, in a new process."""
    folder.mkdir(exist_ok=True)

    def target() -> None:
        os.chdir(folder)
        asyncio.run(synthesize(recipe))

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder's files by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_undisturbed(recipe: DeepRAGRecipe, folder: Path) -> tuple[dict[str, bytes], float]:
    """Return the files of a run that is never killed, and the seconds from its first question to its end."""
    process = start(recipe, folder)
    while process.is_alive() and not (folder / "sft.jsonl.partial").exists():
        time.sleep(0.002)
    begun = time.monotonic()
    process.join()
    if process.exitcode:
        raise RuntimeError("the undisturbed run failed")
    return files(folder), time.monotonic() - begun


def run_killed(
    recipe: DeepRAGRecipe, folder: Path, kills: int, rng: random.Random, seconds: float
) -> tuple[dict[str, bytes], list[int]]:
    """Return the files of a run that is killed ``kills`` times, and the number of completed questions at each kill.

    A process is killed at a random moment within a tenth of ``seconds`` after the first question it completes.
    """
    partial = folder / "sft.jsonl.partial"
    finished: list[int] = []
    with progress("killing", kills) as advance:
        while len(finished) < kills:
            process = start(recipe, folder)
            size = partial.stat().st_size if partial.exists() else 0
            while process.is_alive() and not (partial.exists() and partial.stat().st_size > size):
                time.sleep(0.002)
            process.join(rng.uniform(0, seconds / 10))
            process.kill()
            process.join()
            if process.exitcode == -signal.SIGKILL:
                finished.append(partial.read_bytes().count(b"\n") - 1)
                advance()
            else:  # the run completed before the kill: start again from the beginning
                shutil.rmtree(folder)
    last = start(recipe, folder)
    last.join()
    if last.exitcode:
        raise RuntimeError("the killed run could not be resumed")
    return files(folder), finished


if __name__ == "__main__":
    main()
