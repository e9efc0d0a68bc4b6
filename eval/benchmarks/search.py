"""Throughput of DeepRAG's tree search: all questions in flight compared with one question at a time (make bench).

Both ways run the same mini model on vLLM, the same questions and the same prompts, in alternation, so that the
spread over the rounds shows the machine's noise. The prefix cache is emptied before each round.
Writes bench_search.json.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.common import benchmark_parser, mini_world
from rag_train.progress import console
from rag_train.provenance import save_result

if TYPE_CHECKING:
    from rag_train.schema import Question

ROUNDS = 3
QUESTIONS = 1000
ALONE = 12
"""Questions per round of the one-at-a-time runs, which are slow."""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    result = asyncio.run(bench())
    save_result(options.output / "bench_search.json", result)
    together, alone = result["questions_per_second_together"], result["questions_per_second_alone"]
    console.print(f"all in flight  {min(together):.1f} to {max(together):.1f} questions/s")
    console.print(f"one in flight  {min(alone):.2f} to {max(alone):.2f} questions/s")
    console.print(f"ratio          {result['ratio']:.1f} (lowest: {result['ratio_lowest']:.1f})")


async def bench() -> dict[str, Any]:
    from rag_train.data_synth.deeprag.search import SearchConfig, TreeSearch
    from rag_train.formats.deeprag import question_prompt
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index

    world, model, questions = mini_world()
    index = BM25Index.build(world.corpus())
    engine = VLLMEngine.start(str(model), dtype="float32")

    async def rate(sample: list[Question], at_once: bool) -> tuple[float, int]:
        """Return questions per second, and the number of engine calls."""
        await engine.reset()
        searcher = TreeSearch(engine, AsyncRetriever(index), SearchConfig())
        start = time.perf_counter()
        if at_once:
            results = await asyncio.gather(*(searcher.search(q, question_prompt(q.question)) for q in sample))
        else:
            results = [await searcher.search(q, question_prompt(q.question)) for q in sample]
        return len(sample) / (time.perf_counter() - start), sum(len(result.calls) for result in results)

    try:
        await rate(questions[-8:], True)
        together, alone, calls = [], [], 0
        for i in range(ROUNDS):
            speed, calls = await rate(questions[:QUESTIONS], True)
            together.append(speed)
            speed, _ = await rate(questions[i * ALONE : (i + 1) * ALONE], False)
            alone.append(speed)
    finally:
        await engine.aclose()
    return {
        "questions_per_second_together": together,
        "questions_per_second_alone": alone,
        "ratio": sum(together) / sum(alone),
        "ratio_lowest": min(together) / max(alone),
        "engine_calls_per_question": calls / QUESTIONS,
    }


if __name__ == "__main__":
    main()
