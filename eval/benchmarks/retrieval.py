"""Speed and memory of retrieval at one and five million passages (make bench-retrieval DATA=DIR MODEL=DIR).

DIR holds corpus.jsonl and the question files of the retrievers benchmark; the passages are resampled from the
corpus. At each size, each comparison in alternation in one run, so that the spread shows the machine's noise:

- BM25 with rank-bm25, each in a process of its own, for its memory; rank-bm25 at a million passages only, because
  it takes 4 GiB for them;
- a batch of dense searches with the bare matrix product over the same vectors;
- the retrieval service under 64 concurrent clients with the index in process.

Then, at the largest size, DeepRAG's search on a trained controller: how much of the time the engine
has calls, and the time with searches compared with the time of the same search whose passages are remembered. On a
CPU, engine and retrieval share the cores. Last, the encoder's speed. Linux. Writes bench_retrieval.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, free_port, process_memory
from rag_train.eval.benchmarks.retrievers import DATASETS
from rag_train.progress import console, progress, up_to
from rag_train.provenance import save_result
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.bm25_build import build_bm25
from rag_train.retrieval.index.dense import DenseConfig, DenseIndex
from rag_train.retrieval.index.encoder import Encoder, EncoderConfig
from rag_train.schema import Passage, Question

if TYPE_CHECKING:
    from rag_train.llm.base import Completion, Sampling

ROUNDS = 3
K = 10
CLIENTS = 64
ENCODED = 512
"""Real passages that are encoded; the vectors of all passages are copies of their vectors with noise."""
PEER_PASSAGES = 1_000_000
"""Most passages for rank-bm25."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of corpus.jsonl and the question files")
    parser.add_argument(
        "--passages",
        type=int,
        nargs="+",
        default=[1_000_000, 5_000_000],
        help="passages to index (default: 1 and 5 million)",
    )
    parser.add_argument("--questions", type=int, default=40, help="questions of DeepRAG's search")
    parser.add_argument(
        "--model", type=Path, required=True, help="checkpoint of DeepRAG's search; rag-train demo --atlas makes one"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/bench"), help="directory of the indexes")
    parser.add_argument("--serve", choices=["bm25", "rank_bm25"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    with exit_on_user_error():
        if options.serve:
            return _answer_commands(options)
        results = bench(options)
    save_result(options.output / "bench_retrieval.json", results)


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Make all comparisons and return their results."""
    queries = _queries(options.data)
    sizes = []
    for passages in options.passages:
        size = {"passages": passages, "build": _build(options, passages)}
        size["bm25"] = _against_rank_bm25(options, passages, queries)
        size["dense"] = _against_product(options, passages, queries)
        size["service"] = _against_in_process(_directory(options, passages), queries)
        for name in ("build", "bm25", "dense", "service"):
            console.print(f"{passages:,}", name, size[name])
        sizes.append(size)
    synthesis = asyncio.run(_synthesis(options, max(options.passages), queries))
    console.print("synthesis", synthesis)
    return {"sizes": sizes, "synthesis": synthesis, "encoding": _encoding(options.data)}


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


def _directory(options: argparse.Namespace, passages: int) -> Path:
    """Return the directory of the BM25 index over the resampled passages."""
    return options.work / f"bm25-{passages}"


def _build(options: argparse.Namespace, passages: int) -> dict[str, float]:
    """Build the BM25 index over the resampled passages, and return its seconds and bytes."""
    directory = _directory(options, passages)
    shutil.rmtree(directory, ignore_errors=True)
    start = time.perf_counter()
    with progress("indexing for BM25", passages) as advance:
        build_bm25(resampled(options.data / "corpus.jsonl", passages), directory, progress=up_to(advance))
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "bytes": sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()),
    }


# -- BM25 and rank-bm25 --------------------------------------------------------------------------------------


def _against_rank_bm25(options: argparse.Namespace, passages: int, queries: Sequence[str]) -> dict[str, Any]:
    shares = {"bm25": list(queries)}
    if passages <= PEER_PASSAGES:
        shares["rank_bm25"] = list(queries)[:8]
    rates: dict[str, list[float]] = {name: [] for name in shares}
    servers = {name: _start(options, passages, name) for name in shares}
    try:
        for _ in range(ROUNDS):
            for name, server in servers.items():
                answer = _tell(server, shares[name])
                rates[name].append(len(shares[name]) / answer["seconds"])
        memory = {name: _tell(server, [])["peak_bytes"] for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.kill()
            server.wait()
    result = {"queries_per_second": rates["bm25"], "peak_gib": memory["bm25"] / 2**30}
    if "rank_bm25" not in servers:
        return result
    return result | {
        "rank_bm25_queries_per_second": rates["rank_bm25"],
        "ratio": sum(rates["bm25"]) / sum(rates["rank_bm25"]),
        "ratio_lowest": min(rates["bm25"]) / max(rates["rank_bm25"]),
        "rank_bm25_peak_gib": memory["rank_bm25"] / 2**30,
        "memory_ratio": memory["bm25"] / memory["rank_bm25"],
    }


def _start(options: argparse.Namespace, passages: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rag_train.eval.benchmarks.retrieval", "--serve", name]
    command += ["--data", str(options.data), "--passages", str(passages), "--work", str(options.work)]
    command += ["--model", str(options.model)]
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
    before = process_memory("VmHWM")
    if options.serve == "bm25":
        index: Any = BM25Index.load(_directory(options, options.passages[0]))
    else:
        from rag_train.retrieval.index.rank_bm25 import RankBM25Index

        index = RankBM25Index(resampled(options.data / "corpus.jsonl", options.passages[0]))
    for line in sys.stdin:
        start = time.perf_counter()
        index.search(json.loads(line), K)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "peak_bytes": process_memory("VmHWM") - before}), flush=True)


# -- dense search and the matrix product ---------------------------------------------------------------------


def _against_product(options: argparse.Namespace, count: int, queries: Sequence[str]) -> dict[str, Any]:
    import faiss

    encoder = Encoder(EncoderConfig())
    asked = encoder.encode_queries(queries[:256])
    real = encoder.encode_passages(list(islice(read_corpus(options.data / "corpus.jsonl"), ENCODED)))
    rng = np.random.default_rng(0)
    vectors = real[rng.integers(len(real), size=count)]
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


# -- DeepRAG's search and its passages remembered -------------------------------------------------------------


class _Watched:
    """An engine that measures for how long it has calls, as ``busy`` in seconds."""

    def __init__(self, llm: Any):
        self._llm = llm
        self._calls = 0
        self._since = 0.0
        self.busy = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        if not self._calls:
            self._since = time.perf_counter()
        self._calls += 1
        try:
            return await self._llm.complete(prompt, sampling)
        finally:
            self._calls -= 1
            if not self._calls:
                self.busy += time.perf_counter() - self._since


async def _synthesis(options: argparse.Namespace, passages: int, queries: Sequence[str]) -> dict[str, Any]:
    """Search questions on a real model with the index, and again with its passages remembered, in turn."""
    from rag_train.data_synth.deeprag.recipe import DeepRAGRecipe
    from rag_train.data_synth.deeprag.run import synthesize_with
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.retrieval.batching import AsyncRetriever

    model = options.model
    questions = list(islice(load_questions(options.data / DATASETS["HotpotQA"]), options.questions))
    index = BM25Index.load(_directory(options, passages))
    index.search(queries[:64], K)  # reads pages of the memory-mapped files
    engine = VLLMEngine.start(str(model), kv_cache_bytes=2**30, max_context=4096)

    async def search(front: AsyncRetriever, asked: Sequence[Question]) -> tuple[float, float]:
        """Return the seconds of a search, and those in which the engine has calls."""
        watched: Any = _Watched(engine)
        await engine.reset()
        with tempfile.TemporaryDirectory() as folder:
            recipe = DeepRAGRecipe(
                stage="sft",
                questions=[],
                index="",
                model=str(model),
                output=f"{folder}/sft.jsonl",
                instructions=False,
            )
            start = time.perf_counter()
            await synthesize_with(recipe, watched, front, asked, index.corpus_sha256)
            return time.perf_counter() - start, watched.busy

    seconds: dict[str, list[float]] = {"searched": [], "remembered": []}
    shares, counts = [], []
    try:
        await search(AsyncRetriever(index), questions[:8])  # warms up
        for _ in range(ROUNDS - 1):
            front = AsyncRetriever(index)
            whole, busy = await search(front, questions)
            seconds["searched"].append(whole)
            shares.append(busy / whole)
            counts.append(front.distinct)
            seconds["remembered"].append((await search(front, questions))[0])
    finally:
        await engine.aclose()
    return {
        "passages": passages,
        "questions": len(questions),
        "searches": counts,
        "seconds": seconds,
        "busy": shares,
        "ratio": [kept / whole for whole, kept in zip(seconds["searched"], seconds["remembered"], strict=True)],
    }


# -- the encoder -----------------------------------------------------------------------------------------------


def _encoding(data: Path) -> dict[str, Any]:
    """Encode real passages, and return the passages a second of each round."""
    encoder = Encoder(EncoderConfig())
    real = list(islice(read_corpus(data / "corpus.jsonl"), ENCODED))
    rates = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        encoder.encode_passages(real)
        rates.append(len(real) / (time.perf_counter() - start))
    return {"model": encoder.config.model, "passages_per_second": rates[1:]}  # the first warms up


if __name__ == "__main__":
    main()
