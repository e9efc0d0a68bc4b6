"""What the benchmarks share: contestants in turn, ratios with their range, and the files of results.

Heavy imports wait until they are needed, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rag_train.errors import UserError
from rag_train.package_files import packaged

if TYPE_CHECKING:
    from rag_train.llm.base import Completion, Sampling
    from rag_train.schema import Question
    from rag_train.table import Table
    from rag_train.worlds.mini.world import World

T = TypeVar("T")
CONTROLLER = packaged("worlds/mini/checkpoint/controller")
"""The shipped mini model after the demo's cold start, which writes DeepRAG's transcript."""
OUTPUT = Path("runs/bench")
"""Where a benchmark writes its results, unless told otherwise."""


def benchmark_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows ``description`` as written, with the option ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"directory of the results (default: {OUTPUT})")
    return parser


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median of repeated measurements as text, with the lowest and the highest."""
    middle, lowest, highest = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return middle if len(values) < 2 else f"{middle} [{lowest}, {highest}]"


def ratio(ours: Sequence[float], others: Sequence[float]) -> str:
    """Compare two series that were measured in turn, pair by pair; return the ratios as `spread` does."""
    return spread([a / b for a, b in zip(ours, others, strict=True)])


def in_turn(contestants: Mapping[str, Callable[[], T]], repeats: int, *, warm_up: int = 0) -> dict[str, list[T]]:
    """Run the contestants in turn, ``repeats`` times after ``warm_up`` rounds, and return their results."""
    results: dict[str, list[T]] = {name: [] for name in contestants}
    for number in range(warm_up + repeats):
        for name, run in contestants.items():
            result = run()
            if number >= warm_up:
                results[name].append(result)
    return results


def in_new_process(run: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, which imports everything anew."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call and its seconds, during which no garbage is collected."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        return call(), time.perf_counter() - start
    finally:
        gc.enable()


def save(output: Path, name: str, result: dict[str, Any], table: Table) -> None:
    """Write ``name.json`` and the table as ``name.md``, both with machine and commit, and print the table."""
    from rag_train.jobs.files import write_text
    from rag_train.progress import console
    from rag_train.provenance import code_version, machine, save_result

    save_result(output / f"{name}.json", result)
    info = machine()
    measured = ", ".join(f"{key} {info[key]}" for key in ("processor", "cores", "torch", "trl") if key in info)
    write_text(output / f"{name}.md", f"{table.markdown()}\n*Measured with {code_version()}; {measured}.*\n")
    console.print(table)
    console.print(f"wrote {output / name}.json and .md")


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a `UserError` of the block in one line and exit with code 2."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def process_memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes: VmRSS is resident memory, VmHWM its peak.

    The peak that getrusage tells begins with that of the process that started this process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


class Recorder:
    """An engine that keeps the calls of another one: prompt, sampling and completion."""

    def __init__(self, llm: Any):
        self._llm = llm
        self.calls: list[tuple[str, Sampling, Completion]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        completion = await self._llm.complete(prompt, sampling)
        self.calls.append((prompt, sampling, completion))
        return completion

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        uses = [completion.usage for _, _, completion in self.calls]
        return sum(use.prompt_tokens + use.completion_tokens for use in uses)


def mini_world() -> tuple[World, list[Question]]:
    """Return the mini world of seed 0, which the `CONTROLLER` knows, and its multi-hop training questions."""
    from rag_train.eval.demo.world import multi_hop
    from rag_train.worlds.mini.world import World, WorldConfig

    world = World(WorldConfig())
    return world, multi_hop(world.questions("train"))


def free_port() -> int:
    """Return a TCP port that is free on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until something listens at ``port``. Raises UserError if ``server`` has ended before."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise UserError("a service did not start; run its command, `rag-train serve ...`, to see why")
