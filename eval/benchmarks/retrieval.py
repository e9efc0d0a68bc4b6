"""Retrieval against bm25s, tantivy, FAISS and a bare process, at many passages (make bench NAME=retrieval).

The passages are resampled from the passages of ``--corpus``, and the queries from their titles. At each size:

- BM25, bm25s and tantivy, each in a process of its own, which build from the same words: seconds, peak memory and
  bytes of the build; then, for each of ``--threads``, peak memory, queries a second, and the share of the ten best
  passages that are also bm25s' (passages with the score of the last place are alike);
- a batch of dense searches, and FAISS's flat index over the same vectors;
- the retrieval service under 64 concurrent clients, and the index in process.

The contestants search in turn, and all of them keep the passages on disk and return those found; tantivy searches
on one thread.
``OMP_NUM_THREADS`` and ``NUMBA_NUM_THREADS`` set the threads of the last two parts. Linux. Writes retrieval.json
and retrieval.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.harness import (
    benchmark_parser,
    exit_on_user_error,
    free_port,
    in_turn,
    process_memory,
    ratio,
    save,
    spread,
    timed,
    wait_for,
)
from rag_train.progress import console
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage

K, QUERIES, CLIENTS, DIMENSIONS = 10, 256, 64, 384
SPARSE = ("rag-train", "bm25s", "tantivy")
"""Contestants of sparse retrieval, the toolkit's own first."""
Ranking = list[tuple[str, float]]
"""The ids of the passages found for a query, best first, with their scores."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="passages, as `rag-train index` reads them")
    parser.add_argument("--passages", type=int, nargs="+", default=[300_000, 1_000_000], help="sizes to measure")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of BM25 and bm25s")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, after one to warm up")
    parser.add_argument("--work", type=Path, default=Path("runs/bench/indexes"), help="directory of the indexes")
    parser.add_argument("--build", choices=SPARSE, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=SPARSE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with exit_on_user_error():
        if options.build:
            return build(options.build, options.corpus, options.passages[0], options.work)
        if options.serve:
            return answer_commands(options.serve, options.work / f"{options.serve}-{options.passages[0]}")
        sizes = [bench(options, passages) for passages in options.passages]

    from rag_train.table import Table

    rows = [[name, *cells] for size in sizes for name, cells in size["rows"]]
    table = Table(
        title="Retrieval",
        caption=f"{K} passages for each query; brackets: the lowest and the highest of {options.repeats} rounds. "
        "Times as fast: rag-train over the other. Same: percent of the ten best passages that are bm25s', too.",
        columns=[
            "Retriever, passages",
            "Build, s",
            "Build, MiB",
            "Index, MiB",
            "Memory, MiB",
            "Queries a second",
            "Times as fast",
            "Same",
        ],
        rows=rows,
    )
    save(options.output, "retrieval", {"sizes": [size["data"] for size in sizes]}, table)


def bench(options: argparse.Namespace, passages: int) -> dict[str, Any]:
    """Return the rows of the table for one size, and their data."""
    queries = [passage.title for passage in resampled(list(read_corpus(options.corpus)), QUERIES, seed=1)]
    built = {name: Contestant(options, passages, name, "--build").read() for name in SPARSE}
    data: dict[str, Any] = {"passages": passages, "built": built, "sparse": {}}
    rows = []
    for threads in options.threads:
        data["sparse"][threads] = against_libraries(options, passages, threads, queries)
        rates, memory, same = data["sparse"][threads].values()
        for name in SPARSE:
            faster = "" if name == SPARSE[0] else ratio(rates[SPARSE[0]], rates[name])
            figures = [built[name]["seconds"], *(built[name][key] / 2**20 for key in ("peak", "bytes"))]
            cells = [f"{figure:,.1f}" for figure in (*figures, memory[name] / 2**20)]
            label = f"BM25, {name}, {passages:,}, {threads} thread{'s' * (threads > 1)}"
            rows.append(_row(label, rates[name], faster, cells, f"{100 * same[name]:.1f}"))
    for kind, measured in (
        ("dense", against_faiss(options, passages)),
        ("service", against_in_process(options, passages, queries)),
    ):
        ours, other = measured
        data[kind] = measured
        rows += [
            _row(f"{ours}, {passages:,}", measured[ours]),
            _row(f"{other}, {passages:,}", measured[other], ratio(measured[ours], measured[other])),
        ]
    return {"rows": rows, "data": data}


def _row(
    name: str, rates: Sequence[float], faster: str = "", built: Sequence[str] = ("",) * 4, same: str = ""
) -> tuple[str, list[str]]:
    return name, [*built, spread(rates, 0), faster, same]


def resampled(real: Sequence[Passage], size: int, seed: int = 0) -> Iterator[Passage]:
    """Yield passages, each with the title of one real passage and half the words of two others."""
    halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in (p.text.split() for p in real)]
    rng = random.Random(seed)
    for i in range(size):
        title, first, second = (rng.randrange(len(real)) for _ in range(3))
        yield Passage(id=str(i), title=real[title].title, text=" ".join(halves[first][0] + halves[second][1]))


def against_libraries(
    options: argparse.Namespace, passages: int, threads: int, queries: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return queries a second, peak memory in bytes, and the share of the passages that bm25s finds, too."""
    servers = {name: Contestant(options, passages, name, "--serve", threads) for name in SPARSE}
    try:
        searches: dict[str, Callable[[], dict[str, Any]]] = {
            name: lambda server=server: server.tell(queries) for name, server in servers.items()
        }
        answers = in_turn(searches, options.repeats, warm_up=1)
    finally:
        for server in servers.values():
            server.close()
    last = {name: each[-1] for name, each in answers.items()}
    return {
        "rates": {name: [len(queries) / answer["seconds"] for answer in each] for name, each in answers.items()},
        "memory": {name: answer["peak"] for name, answer in last.items()},
        "same": {name: fmean(map(alike, answer["found"], last["bm25s"]["found"])) for name, answer in last.items()},
    }


def alike(ours: Ranking, others: Ranking) -> float:
    """Return the share of equal passages in two rankings; those with the score of both last places are alike."""
    if not ours or not others:
        return float(ours == others)
    last = ours[-1][1] if ours[-1][1] == others[-1][1] else None
    both = {id for id, _ in ours} & {id for id, _ in others}
    swapped = min(sum(id not in both and score == last for id, score in found) for found in (ours, others))
    return (len(both) + swapped) / max(len(ours), len(others))


class Contestant:
    """A contestant in a process of its own, which answers with a line of JSON."""

    def __init__(self, options: argparse.Namespace, passages: int, name: str, task: str, threads: int = 1):
        command = [sys.executable, "-m", "rag_train.eval.benchmarks.retrieval", task, name]
        command += ["--corpus", str(options.corpus), "--passages", str(passages), "--work", str(options.work)]
        limits = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | limits
        )

    def tell(self, queries: Sequence[str]) -> dict[str, Any]:
        """Send the queries of one search, and return the answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(list(queries)) + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout
        if not (answer := self._process.stdout.readline()):
            raise UserError("a measured process exited early; check that there is enough memory")
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def build(name: str, corpus: Path, size: int, work: Path) -> None:
    """Build the index of a contestant, and print its seconds, peak memory and size in bytes."""
    directory = work / f"{name}-{size}"
    shutil.rmtree(directory, ignore_errors=True)
    passages = resampled(list(read_corpus(corpus)), size)
    start, before = time.perf_counter(), process_memory("VmHWM")
    if name == "rag-train":
        from rag_train.retrieval.index.bm25 import build_bm25

        build_bm25(passages, directory)
    elif name == "tantivy":
        from rag_train.retrieval.index.lucene import build_lucene

        build_lucene(passages, directory)
    else:
        import bm25s

        from rag_train.retrieval.index.words import Words, indexed_text

        words, index, kept = Words("english"), bm25s.BM25(backend="numba"), list(passages)
        index.index([words(indexed_text(passage)) for passage in kept], show_progress=False)
        rows = (passage.model_dump(exclude_none=True) for passage in kept)
        index.save(directory, corpus=rows, show_progress=False)
    seconds, peak = time.perf_counter() - start, process_memory("VmHWM") - before
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(json.dumps({"seconds": seconds, "peak": peak, "bytes": size}), flush=True)


def answer_commands(name: str, directory: Path) -> None:
    """Answer lists of queries, one a line, with the passages found, the seconds and the peak memory."""
    before = process_memory("VmHWM")
    search, rankings = opened(name, directory)
    for queries in map(json.loads, sys.stdin):
        found, seconds = timed(partial(search, queries))
        answer = {"seconds": seconds, "peak": process_memory("VmHWM") - before}
        print(json.dumps(answer | {"found": rankings(found)}), flush=True)


def opened(name: str, directory: Path) -> tuple[Callable[[list[str]], Any], Callable[[Any], list[Ranking]]]:
    """Return the search of a built index, and the function from what it finds to rankings."""
    if name == "bm25s":
        import bm25s

        from rag_train.retrieval.index.words import Words

        index = bm25s.BM25.load(directory, mmap=True, load_corpus=True)
        threads = int(os.environ["NUMBA_NUM_THREADS"])

        def search(queries: list[str]) -> Any:
            words = Words("english")
            return index.retrieve([words(query) for query in queries], k=K, n_threads=threads, show_progress=False)

        def rankings(found: Any) -> list[Ranking]:
            rows = zip(found.documents.tolist(), found.scores.tolist(), strict=True)
            return [[(found["id"], score) for found, score in zip(*row, strict=True) if score > 0] for row in rows]

        return search, rankings
    from rag_train.retrieval.open import load_index

    own = load_index(directory)
    return (
        lambda queries: own.search(queries, K),
        lambda found: [[(passage.id, passage.score) for passage in passages] for passages in found],
    )


# -- dense retrieval and the service ---------------------------------------------------------------------------


def against_faiss(options: argparse.Namespace, size: int) -> dict[str, list[float]]:
    """Return the searches a second of the dense index, and of FAISS's flat index over the same random vectors."""
    import faiss
    import numpy as np

    from rag_train.retrieval.index.exact import largest_products

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((size, DIMENSIONS), dtype=np.float32)
    asked = rng.standard_normal((QUERIES, DIMENSIONS), dtype=np.float32)
    flat = faiss.IndexFlatIP(DIMENSIONS)
    flat.add(vectors)

    def rate(search: Callable[[], object]) -> Callable[[], float]:
        return lambda: QUERIES / timed(search)[1]

    contestants = {
        "dense, rag-train": rate(lambda: largest_products(asked, vectors, K)),
        "dense, FAISS flat": rate(lambda: flat.search(asked, K)),
    }
    return in_turn(contestants, options.repeats, warm_up=1)


def against_in_process(options: argparse.Namespace, size: int, queries: Sequence[str]) -> dict[str, list[float]]:
    """Return the queries a second of the service, and of the index in process; no cache helps either of them."""
    from rag_train.retrieval.open import load_index

    directory = options.work / f"{SPARSE[0]}-{size}"
    index, port, numbers = load_index(directory), free_port(), count()
    command = [sys.executable, "-m", "rag_train.cli", "serve", "retriever", str(directory), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def distinct() -> list[str]:
        return [f"{query} {number}" for query, number in zip(list(queries) * 4, numbers, strict=False)]

    def in_process() -> float:
        asked = distinct()
        return len(asked) / timed(lambda: index.search(asked, K))[1]

    def served() -> float:
        asked = distinct()
        return len(asked) / asyncio.run(clients(port, asked))

    try:
        wait_for(port, server)
        with console.status("asking the service"):
            return in_turn({"service": served, "index in process": in_process}, options.repeats, warm_up=1)
    finally:
        server.terminate()
        server.wait()


async def clients(port: int, queries: Sequence[str]) -> float:
    """Return the seconds until 64 keep-alive connections have sent all queries and read the answers.

    The clients write plain HTTP, so that they take little of the time.
    """
    remaining = iter(queries)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for query in remaining:
            body = json.dumps({"queries": [query], "k": K}).encode()
            head = f"POST /search HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise UserError(f"the service answered {answer.splitlines()[0].decode()}")
            length = next(x for x in answer.lower().split(b"\r\n") if x.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
