"""Engine utilisation of synthesis, compared with one batch of the same prompts (make bench-synthesis).

DeepRAG's search (Algorithm 1) runs over the mini world, all questions at once, and writes its files. The same
engine then gets all prompts of that run as one batch, which is its limit. The two run in turn, each after the
prefix cache was emptied. Tokens are those read and written; the ratio is the median over the rounds.
Writes bench_synthesis.json.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import Recorder, batch_seconds, benchmark_parser, mini_world, timed
from rag_train.progress import console
from rag_train.provenance import save_result

WANTED = 0.85
"""Wanted ratio of synthesis to one batch."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=512, help="questions searched at once")
    parser.add_argument("--repeats", type=int, default=5, help="measured rounds, after one to warm up")
    options = parser.parse_args()
    result = asyncio.run(bench(options.questions, options.repeats))
    save_result(options.output / "bench_synthesis.json", result)
    speeds = {name: statistics.median(result["tokens_per_second"][name]) for name in ("synthesis", "batch")}
    console.print(f"synthesis {speeds['synthesis']:,.0f} tokens/s, one batch {speeds['batch']:,.0f} tokens/s")
    console.print(f"ratio {result['ratio']:.2f} (wanted: {WANTED})")


async def bench(questions: int, repeats: int) -> dict[str, Any]:
    from rag_train.eval.demo.stages import search
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index

    world, model, training = mini_world()
    index, asked = BM25Index.build(world.corpus()), training[:questions]
    engine = VLLMEngine.start(str(model), dtype="float32", kv_cache_bytes=2**30)
    speeds: dict[str, list[float]] = {"synthesis": [], "batch": []}
    calls = tokens = 0
    try:
        for repeat in range(repeats + 1):
            with tempfile.TemporaryDirectory() as folder:
                recorder: Any = Recorder(engine)
                output, retriever = Path(folder) / "sft.jsonl", AsyncRetriever(index)
                work = search("sft", model, asked, output, 0, recorder, retriever, index.corpus_sha256)
                await engine.reset()
                seconds = await timed([work], at_once=True)
            calls, tokens = len(recorder.calls), recorder.tokens
            limit = await batch_seconds(engine, recorder.calls)
            if repeat:  # the first round warms up
                speeds["synthesis"].append(tokens / seconds)
                speeds["batch"].append(tokens / limit)
    finally:
        await engine.aclose()
    ratios = [synthesis / batch for synthesis, batch in zip(*speeds.values(), strict=True)]
    return {
        "questions": len(asked),
        "engine_calls": calls,
        "tokens": tokens,
        "tokens_per_second": speeds,
        "wanted": WANTED,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


if __name__ == "__main__":
    main()
