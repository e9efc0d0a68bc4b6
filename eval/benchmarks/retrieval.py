"""Speed and memory of retrieval at a million passages (make bench-retrieval DATA=DIR).

DIR holds corpus.jsonl and the question files of the retrievers benchmark; the passages are resampled from the
corpus. Three comparisons, each in alternation in one run, so that the spread shows the machine's noise:

- BM25 with rank-bm25, each in a process of its own, for its memory;
- a batch of dense searches with the bare matrix product over the same vectors;
- the retrieval service under 64 concurrent clients with the index in process.

Writes bench_retrieval.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, free_port
from rag_train.eval.benchmarks.retrievers import DATASETS
from rag_train.progress import console, progress, up_to
from rag_train.provenance import save_result
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.bm25_build import build_bm25
from rag_train.retrieval.index.dense import DenseConfig, DenseIndex
from rag_train.retrieval.index.encoder import Encoder, EncoderConfig
from rag_train.schema import Passage

ROUNDS = 3
K = 10
CLIENTS = 64
ENCODED = 512
"""Real passages that are encoded; the million vectors are copies of their vectors with noise."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of corpus.jsonl and the question files")
    parser.add_argument("--passages", type=int, default=1_000_000, help="passages to index")
    parser.add_argument("--work", type=Path, default=Path("runs/bench"), help="directory of the indexes")
    parser.add_argument("--serve", choices=["bm25", "rank_bm25"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    with exit_on_user_error():
        if options.serve:
            return _answer_commands(options)
        results = bench(options)
    save_result(options.output / "bench_retrieval.json", results)
    for name in ("bm25", "dense", "service"):
        console.print(name, {key: value for key, value in results[name].items() if not isinstance(value, list)})


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Make the three comparisons and return their results."""
    queries = _queries(options.data)
    directory = _bm25(options)
    return {
        "passages": options.passages,
        "bm25": _against_rank_bm25(options, queries),
        "dense": _against_product(options, queries),
        "service": _against_in_process(directory, queries),
    }


def _queries(data: Path) -> list[str]:
    return [question.question for file in DATASETS.values() for question in load_questions(data / file)]


def resampled(corpus: Path, count: int, seed: int = 0) -> Iterator[Passage]:
    """Yield ``count`` passages, each with the title of one real passage and half the words of two others."""
    real = list(read_corpus(corpus))
    halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in (p.text.split() for p in real)]
    rng = random.Random(seed)
    for i in range(count):
        title, first, second = (rng.randrange(len(real)) for _ in range(3))
        yield Passage(id=str(i), title=real[title].title, text=" ".join(halves[first][0] + halves[second][1]))


def _bm25(options: argparse.Namespace) -> Path:
    """Return the directory of the BM25 index over the resampled passages, after building it if necessary."""
    directory = options.work / f"bm25-{options.passages}"
    if not (directory / "index.json").exists():
        with progress("indexing for BM25", options.passages) as advance:
            build_bm25(
                resampled(options.data / "corpus.jsonl", options.passages), directory, progress=up_to(advance)
            )
    return directory


# -- BM25 and rank-bm25 --------------------------------------------------------------------------------------


def _against_rank_bm25(options: argparse.Namespace, queries: Sequence[str]) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"bm25": [], "rank_bm25": []}
    shares = {"bm25": list(queries), "rank_bm25": list(queries)[:8]}
    servers = {name: _start(options, name) for name in rates}
    try:
        for _ in range(ROUNDS):
            for name, server in servers.items():
                answer = _tell(server, shares[name])
                rates[name].append(len(shares[name]) / answer["seconds"])
        memory = {name: _tell(server, [])["peak_bytes"] for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.kill()
    return {
        "queries_per_second": rates["bm25"],
        "rank_bm25_queries_per_second": rates["rank_bm25"],
        "ratio": sum(rates["bm25"]) / sum(rates["rank_bm25"]),
        "ratio_lowest": min(rates["bm25"]) / max(rates["rank_bm25"]),
        "peak_gib": memory["bm25"] / 2**30,
        "rank_bm25_peak_gib": memory["rank_bm25"] / 2**30,
        "memory_ratio": memory["bm25"] / memory["rank_bm25"],
    }


def _start(options: argparse.Namespace, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rag_train.eval.benchmarks.retrieval", "--serve", name]
    command += ["--data", str(options.data), "--passages", str(options.passages), "--work", str(options.work)]
    with console.status(f"starting {name}"):
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _tell(server, ["warm up"])
    return server


def _tell(server: subprocess.Popen[str], queries: Sequence[str]) -> dict[str, Any]:
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps(list(queries)) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise UserError("a measured process exited early; check that there is enough memory")
    return json.loads(answer)


def _answer_commands(options: argparse.Namespace) -> None:
    """Run the measured process: read a JSON list of queries per line, answer with seconds and peak memory.

    Memory is what the process uses more than after its imports. Pages of the memory-mapped index count once they
    have been read.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if options.serve == "bm25":
        index: Any = BM25Index.load(_bm25(options))
    else:
        from rag_train.retrieval.index.rank_bm25 import RankBM25Index

        index = RankBM25Index(resampled(options.data / "corpus.jsonl", options.passages))
    for line in sys.stdin:
        start = time.perf_counter()
        index.search(json.loads(line), K)
        seconds = time.perf_counter() - start
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


# -- dense search and the matrix product ---------------------------------------------------------------------


def _against_product(options: argparse.Namespace, queries: Sequence[str]) -> dict[str, Any]:
    import faiss

    encoder = Encoder(EncoderConfig())
    asked = encoder.encode_queries(queries[:256])
    real = encoder.encode_passages(list(islice(read_corpus(options.data / "corpus.jsonl"), ENCODED)))
    rng = np.random.default_rng(0)
    vectors = real[rng.integers(len(real), size=options.passages)]
    for start in range(0, len(vectors), 100_000):
        vectors[start : start + 100_000] += 0.05 * rng.standard_normal(
            vectors[start : start + 100_000].shape, dtype=np.float32
        )
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    passages: Any = [None] * len(vectors)
    index = DenseIndex(DenseConfig(), encoder, passages, flat, "")
    ours, product = [], []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        index.search_vectors(asked, K)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        for block in range(0, len(vectors), 65_536):
            np.dot(asked, vectors[block : block + 65_536].T)
        product.append(time.perf_counter() - start)
    ours, product = ours[1:], product[1:]  # the first of each warms up
    return {
        "queries": len(asked),
        "dimension": vectors.shape[1],
        "search_seconds": ours,
        "product_seconds": product,
        "ratio": sum(ours) / sum(product),
        "ratio_highest": max(ours) / min(product),
    }


# -- the service and the index in process --------------------------------------------------------------------


def _against_in_process(directory: Path, queries: Sequence[str]) -> dict[str, Any]:
    """Compare the rates; a client sends one query per request, and the next one after the answer."""
    index = BM25Index.load(directory)
    distinct = [f"{query} {i}" for i, query in enumerate(islice(cycle(queries), 4096))]  # so that no cache helps
    alone, served = [], []
    port = free_port()
    command = [sys.executable, "-m", "rag_train.cli", "serve", "retriever", str(directory), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        share = len(distinct) // (ROUNDS + 1)
        for i in range(ROUNDS + 1):
            part = distinct[i * share : (i + 1) * share]
            start = time.perf_counter()
            index.search(part, K)
            alone.append(share / (time.perf_counter() - start))
            served.append(share / asyncio.run(_clients(port, part)))
    finally:
        server.terminate()
        server.wait()
    alone, served = alone[1:], served[1:]  # the first of each warms up
    return {
        "clients": CLIENTS,
        "in_process_queries_per_second": alone,
        "service_queries_per_second": served,
        "ratio": sum(served) / sum(alone),
        "ratio_lowest": min(served) / max(alone),
    }


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise UserError("the service did not start; run `rag-train serve retriever` on the index to see why")


async def _clients(port: int, queries: Sequence[str]) -> float:
    """Return the seconds until 64 keep-alive connections have sent all queries and read the answers.

    The clients write plain HTTP, so that they take little of the time.
    """
    remaining = iter(queries)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for query in remaining:
            body = json.dumps({"queries": [query], "k": K}).encode()
            head = f"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
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
