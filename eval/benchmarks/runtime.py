"""Throughput of every strategy, compared with one batch and with one question at a time (make bench-runtime).

Every strategy runs three ways over the same engine in one process, each after the prefix cache was emptied:

- concurrent: all questions at once, as in an evaluation;
- batch: the prompts of that run, given to the engine as one batch, which is the engine's limit;
- single: one question at a time, on a part of the questions.

Tokens are those read and written. The runs are repeated in turn, and the ratios are medians over the repetitions.
Writes bench_runtime.json; results of other strategies in that file are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import Recorder, batch_seconds, benchmark_parser, mini_world, timed

WANTED = {"batch": 0.85, "single": 8.0}
"""Wanted ratios of the concurrent run to the others."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", type=Path, default=None, help="checkpoint (default: the shipped controller)")
    parser.add_argument("--questions", type=int, default=256, help="questions asked at once")
    parser.add_argument("--single", type=int, default=24, help="questions asked one at a time")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of the three runs")
    parser.add_argument("--strategies", nargs="*", default=None, help="strategies to measure (default: all)")
    asyncio.run(run(parser.parse_args()))


async def run(options: argparse.Namespace) -> None:
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.progress import console, progress
    from rag_train.provenance import save_result
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index
    from rag_train.retrieval.index.lucene import LuceneIndex
    from rag_train.strategies.base import Kit
    from rag_train.strategies.registry import STRATEGIES, build

    world, shipped, training = mini_world()
    asked = training[: options.questions]
    bm25, lucene = BM25Index.build(world.corpus()), LuceneIndex.build(world.corpus())
    engine = VLLMEngine.start(str(options.model or shipped), dtype="float32", kv_cache_bytes=2**30)
    # Left out: the latency of a web search is not the runtime's, and vLLM returns no attention weights.
    names = options.strategies or [name for name in STRATEGIES if name not in ("levelrag-web", "dragin")]
    rows = []
    try:
        warm = AsyncRetriever(bm25)
        await timed([build("rag", Kit(engine, warm, instructions=False)).answer(q) for q in asked], at_once=True)
        with progress("benchmark", len(names) * options.repeats) as advance:
            for name in names:
                row: dict[str, list[float]] = {"concurrent": [], "batch": [], "single": []}
                for _ in range(options.repeats):
                    recorder = Recorder(engine)

                    def work(questions: Sequence[Any], name: str = name, llm: Any = recorder) -> list[Any]:
                        # New retrievers, so that no run benefits from the cache of the run before.
                        dense, sparse = AsyncRetriever(bm25), AsyncRetriever(lucene)
                        retrievers = {"sparse": sparse, "dense": dense}
                        strategy = build(name, Kit(llm, dense, instructions=False, retrievers=retrievers))
                        return [strategy.answer(question) for question in questions]

                    await engine.reset()
                    seconds = await timed(work(asked), at_once=True)
                    calls, tokens = recorder.calls, recorder.tokens
                    row["concurrent"].append(tokens / seconds)
                    row["batch"].append(tokens / await batch_seconds(engine, calls))
                    await engine.reset()
                    recorder.tokens = 0
                    seconds = await timed(work(asked[: options.single]), at_once=False)
                    row["single"].append(recorder.tokens / seconds)
                    advance(1, name)
                ratios = {
                    other: statistics.median(a / b for a, b in zip(row["concurrent"], row[other], strict=True))
                    for other in WANTED
                }
                rows.append({"strategy": name, "tokens_per_second": row, "ratios": ratios})
                shown = ", ".join(f"{ratio:.2f} times {other}" for other, ratio in ratios.items())
                console.print(f"{name}: {statistics.median(row['concurrent']):,.0f} tokens/s, {shown}")
    finally:
        await engine.aclose()
    file = options.output / "bench_runtime.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    merged = {row["strategy"]: row for row in before + rows}
    result = {
        "questions": len(asked),
        "single": options.single,
        "wanted": WANTED,
        "rows": [merged[name] for name in STRATEGIES if name in merged],
    }
    save_result(file, result)


if __name__ == "__main__":
    main()
