"""Retrieval against bm25s, tantivy, FAISS and a bare process, at many passages (make bench NAME=retrieval).

The passages are resampled from the passages of ``--corpus``, and the queries from their titles. At each size:

- BM25, bm25s and tantivy, each in a process of its own: time and bytes of the build, peak memory, queries a second;
- a batch of dense searches, and FAISS's flat index over the same vectors;
- the retrieval service under 64 concurrent clients, and the index in process.

The contestants search in turn. ``OMP_NUM_THREADS`` and ``NUMBA_NUM_THREADS`` set the threads. Linux. Writes
retrieval.json and retrieval.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.harness import (
    Ratio,
    benchmark_parser,
    exit_on_user_error,
    free_port,
    in_turn,
    process_memory,
    ratio,
    save,
    spread,
    wait_for,
)
from rag_train.progress import console
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage

K, QUERIES, CLIENTS, DIMENSIONS = 10, 256, 64, 384
SPARSE = ("rag-train", "bm25s", "tantivy")
"""Contestants of sparse retrieval, the toolkit's own first."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="passages, as `rag-train index` reads them")
    parser.add_argument("--passages", type=int, nargs="+", default=[300_000, 1_000_000], help="sizes to measure")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, after one to warm up")
    parser.add_argument("--work", type=Path, default=Path("runs/bench/indexes"), help="directory of the indexes")
    parser.add_argument("--serve", choices=SPARSE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with exit_on_user_error():
        if options.serve:
            return answer_commands(options.serve, options.corpus, options.passages[0], options.work)
        sizes = [bench(options, passages) for passages in options.passages]

    from rag_train.table import Table

    rows = [[name, *cells] for size in sizes for name, cells in size["rows"]]
    table = Table(
        title="Retrieval",
        caption=f"{K} passages for each query; brackets: the lowest and the highest of {options.repeats} rounds. "
        "Times as fast: rag-train over the other.",
        columns=[
            "Retriever, passages",
            "Build, s",
            "Index, MiB",
            "Memory, MiB",
            "Queries a second",
            "Times as fast",
        ],
        rows=rows,
    )
    save(options.output, "retrieval", {"sizes": [size["data"] for size in sizes]}, table)


def bench(options: argparse.Namespace, passages: int) -> dict[str, Any]:
    """Return the rows of the table for one size, and their data."""
    queries = [passage.title for passage in resampled(options.corpus, QUERIES, seed=1)]
    servers = {name: Server(options, passages, name) for name in SPARSE}
    try:
        built = {name: server.tell([]) for name, server in servers.items()}
        searches: dict[str, Callable[[], float]] = {
            name: lambda server=server: len(queries) / server.tell(queries)["seconds"]
            for name, server in servers.items()
        }
        rates = in_turn(searches, options.repeats, warm_up=1)
        memory = {name: server.tell([])["peak_bytes"] for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()
    rows = []
    for name in SPARSE:
        faster = [] if name == SPARSE[0] else [ratio(rates[SPARSE[0]], rates[name])]
        rows.append(
            _row(f"BM25, {name}, {passages:,}", rates[name], faster, built[name] | {"memory": memory[name]})
        )
    data: dict[str, Any] = {"passages": passages, "sparse": rates, "built": built, "memory": memory}
    for kind, measured in (
        ("dense", against_faiss(options, passages)),
        ("service", against_in_process(options, passages, queries)),
    ):
        ours, other = measured
        data[kind] = measured
        rows += [
            _row(f"{ours}, {passages:,}", measured[ours], []),
            _row(f"{other}, {passages:,}", measured[other], [ratio(measured[ours], measured[other])]),
        ]
    return {"rows": rows, "data": data}


def _row(
    name: str, rates: Sequence[float], faster: Sequence[Ratio], built: dict[str, float] | None = None
) -> tuple[str, list[str]]:
    sizes = [f"{built['build_seconds']:,.1f}"] if built else [""]
    sizes += [f"{built[key] / 2**20:,.0f}" if built else "" for key in ("bytes", "memory")]
    return name, [*sizes, spread(rates, 0), "".join(map(str, faster))]


def resampled(corpus: Path, size: int, seed: int = 0) -> Iterator[Passage]:
    """Yield passages, each with the title of one real passage and half the words of two others."""
    real = list(read_corpus(corpus))
    halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in (p.text.split() for p in real)]
    rng = random.Random(seed)
    for i in range(size):
        title, first, second = (rng.randrange(len(real)) for _ in range(3))
        yield Passage(id=str(i), title=real[title].title, text=" ".join(halves[first][0] + halves[second][1]))


# -- sparse retrieval, each contestant in a process of its own -------------------------------------------------


class Server:
    """A contestant in a process of its own, which reads a list of queries a line and answers with its seconds."""

    def __init__(self, options: argparse.Namespace, passages: int, name: str):
        command = [sys.executable, "-m", "rag_train.eval.benchmarks.retrieval", "--serve", name]
        command += ["--corpus", str(options.corpus), "--passages", str(passages), "--work", str(options.work)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, queries: Sequence[str]) -> dict[str, float]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(list(queries)) + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise UserError("a measured process exited early; check that there is enough memory")
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def answer_commands(name: str, corpus: Path, passages: int, work: Path) -> None:
    """Build the index of contestant ``name`` in a child process, load it, and answer lists of queries."""
    from multiprocessing import get_context

    directory = work / f"{name}-{passages}"
    shutil.rmtree(directory, ignore_errors=True)
    start = time.perf_counter()
    builder = get_context("spawn").Process(target=build, args=(name, corpus, passages, directory))
    builder.start()
    builder.join()
    if builder.exitcode:
        raise UserError(f"{name}: the build failed with exit code {builder.exitcode}")
    seconds, before = time.perf_counter() - start, process_memory("VmHWM")
    search = opened(name, directory)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    for line in sys.stdin:
        start = time.perf_counter()
        search(json.loads(line))
        answer = {"seconds": time.perf_counter() - start, "peak_bytes": process_memory("VmHWM") - before}
        print(json.dumps(answer | {"build_seconds": seconds, "bytes": size}), flush=True)


def build(name: str, corpus: Path, size: int, directory: Path) -> None:
    passages = resampled(corpus, size)
    if name == "rag-train":
        from rag_train.retrieval.index.bm25 import build_bm25

        build_bm25(passages, directory)
    elif name == "tantivy":
        from rag_train.retrieval.index.lucene import build_lucene

        build_lucene(passages, directory)
    else:
        import bm25s

        index = bm25s.BM25(k1=0.9, b=0.4, backend="numba")
        index.index(bm25s_tokens(f"{passage.title} {passage.text}" for passage in passages), show_progress=False)
        index.save(directory)


def opened(name: str, directory: Path) -> Callable[[list[str]], object]:
    """Return the search of a built index."""
    if name == "bm25s":
        import bm25s

        index = bm25s.BM25.load(directory, mmap=True)
        index.backend = "numba"
        return lambda queries: index.retrieve(bm25s_tokens(queries), k=K, show_progress=False) if queries else None
    from rag_train.retrieval.open import load_index

    own = load_index(directory)
    return lambda queries: own.search(queries, K)


def bm25s_tokens(texts: Iterable[str]) -> Any:
    """Return bm25s' tokens of texts, stemmed as the toolkit's."""
    import bm25s
    import Stemmer

    return bm25s.tokenize(list(texts), stopwords=[], stemmer=Stemmer.Stemmer("english"), show_progress=False)


# -- dense retrieval and the service ---------------------------------------------------------------------------


def against_faiss(options: argparse.Namespace, size: int) -> dict[str, list[float]]:
    """Return the searches a second of the dense index, and of FAISS's flat index over the same random vectors."""
    import faiss
    import numpy as np

    from rag_train.retrieval.index.dense import DenseConfig, DenseIndex

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((size, DIMENSIONS), dtype=np.float32)
    asked = rng.standard_normal((QUERIES, DIMENSIONS), dtype=np.float32)
    flat = faiss.IndexFlatIP(DIMENSIONS)
    flat.add(vectors)
    passages: Any = [None] * size
    index = DenseIndex(DenseConfig(), None, passages, flat, "")  # pyrefly: ignore[bad-argument-type]

    def rate(search: Callable[[], object]) -> Callable[[], float]:
        def measured() -> float:
            start = time.perf_counter()
            search()
            return QUERIES / (time.perf_counter() - start)

        return measured

    contestants = {
        "dense, rag-train": rate(lambda: index.search_vectors(asked, K)),
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
        asked, start = distinct(), time.perf_counter()
        index.search(asked, K)
        return len(asked) / (time.perf_counter() - start)

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
