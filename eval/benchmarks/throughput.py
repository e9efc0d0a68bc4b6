"""Strategies, tree search, synthesis and rollouts, against the engine's limit (make bench NAME=throughput).

All run over the mini world with one engine, in three ways that take turns, each after the prefix cache was emptied:

- together: all questions at once;
- batch: the prompts of that run, given to the engine as one batch, which is the engine's limit;
- alone: one question at a time, on a part of the questions.

Tokens are those read and written. The first round of each work warms up. Writes throughput.json and throughput.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.harness import (
    CONTROLLER,
    Recorder,
    benchmark_parser,
    mini_world,
    ratio,
    save,
    spread,
)

if TYPE_CHECKING:
    from rag_train.schema import Question

Work = Callable[[Any, Sequence["Question"]], list[Coroutine[Any, Any, Any]]]
"""Returns what an engine is to do for questions."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--works", nargs="*", help="works to measure, such as synthesis or deeprag; default: all")
    parser.add_argument("--questions", type=int, default=256, help="questions at once")
    parser.add_argument("--alone", type=int, default=24, help="questions one at a time")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, after one to warm up")
    options = parser.parse_args()

    from rag_train.table import NOTHING, Table

    rows = asyncio.run(measure(options))
    table = Table(
        title="Throughput",
        caption=f"{options.questions} questions of the mini world at once: tokens a second, over the same prompts "
        f"as one batch, and over one question at a time. Brackets: lowest and highest of {options.repeats} rounds.",
        columns=["Work", "Tokens a second", "Over one batch", "Over one at a time"],
        rows=[
            [
                name,
                spread(rates["together"], 0),
                ratio(rates["together"], rates["batch"]),
                ratio(rates["together"], rates["alone"]) if rates["alone"] else NOTHING,
            ]
            for name, rates in rows.items()
        ],
    )
    save(options.output, "throughput", {"questions": options.questions, "tokens_per_second": rows}, table)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the tokens a second of each work: together, as one batch, and alone."""
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.progress import progress

    _, questions = mini_world()
    asked = questions[: options.questions]
    engine = VLLMEngine.start(str(CONTROLLER), dtype="float32", kv_cache_memory_bytes=2**30)
    found: dict[str, dict[str, list[float]]] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            chosen = [(name, work) for name, work in works(Path(folder)) if name in (options.works or [name])]
            with progress("benchmark", len(chosen) * (options.repeats + 1)) as advance:
                for name, work in chosen:
                    rates: dict[str, list[float]] = {"together": [], "batch": [], "alone": []}
                    for number in range(options.repeats + 1):
                        recorder = Recorder(engine)
                        await engine.reset()
                        seconds = await timed(work(recorder, asked), at_once=True)
                        tokens, calls = recorder.tokens, [call[:2] for call in recorder.calls]
                        await engine.reset()
                        batch = await timed([engine.complete(*call) for call in calls], at_once=True)
                        recorder = Recorder(engine)
                        await engine.reset()
                        alone = 0.0
                        if name not in ("synthesis", "rollouts"):  # one run over all questions
                            alone = await timed(work(recorder, asked[: options.alone]), at_once=False)
                        if number:
                            rates["together"].append(tokens / seconds)
                            rates["batch"].append(tokens / batch)
                            rates["alone"] += [recorder.tokens / alone] if alone else []
                        advance(1, name)
                    found[name] = rates
    finally:
        await engine.aclose()
    return found


async def timed(work: Sequence[Coroutine[Any, Any, Any]], *, at_once: bool) -> float:
    """Run the coroutines, all at once or one after the other, and return the seconds that they take."""
    start = time.perf_counter()
    if at_once:
        await asyncio.gather(*work, return_exceptions=True)
    else:
        for coroutine in work:
            await asyncio.gather(coroutine, return_exceptions=True)
    return time.perf_counter() - start


def works(folder: Path) -> Iterator[tuple[str, Work]]:
    """Yield the name and the work of all that is measured; ``folder`` is for files."""
    from rag_train.data_synth.deeprag.search import SearchConfig, TreeSearch
    from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
    from rag_train.formats.deeprag import question_prompt
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index
    from rag_train.retrieval.index.lucene import LuceneIndex
    from rag_train.strategies.base import Kit
    from rag_train.strategies.registry import STRATEGIES, build
    from rag_train.training.recipe import RLRecipe
    from rag_train.training.rl.rollouts import Rollouts

    world, _ = mini_world()
    bm25, lucene = BM25Index.build(world.corpus()), LuceneIndex.build(world.corpus())

    def strategy(name: str) -> Work:
        def work(llm: Any, asked: Sequence[Question]) -> list[Coroutine[Any, Any, Any]]:
            # New retrievers, so that no run benefits from the cache of the run before.
            dense, sparse = AsyncRetriever(bm25), AsyncRetriever(lucene)
            kit = Kit(llm, dense, instructions=False, retrievers={"sparse": sparse, "dense": dense})
            answering = build(name, kit)
            return [answering.answer(question) for question in asked]

        return work

    def tree_search(llm: Any, asked: Sequence[Question]) -> list[Coroutine[Any, Any, Any]]:
        searcher = TreeSearch(llm, AsyncRetriever(bm25), SearchConfig())
        return [searcher.search(question, question_prompt(question.question)) for question in asked]

    def synthesis(llm: Any, asked: Sequence[Question]) -> list[Coroutine[Any, Any, Any]]:
        output = Path(tempfile.mkdtemp(dir=folder)) / "sft.jsonl"
        places = {"model": str(CONTROLLER), "output": str(output), "index": ""}
        recipe = DeepRAGRecipe(stage="sft", questions=[], instructions=False, **places)
        return [DeepRAGData(recipe, list(asked), llm, AsyncRetriever(bm25)).write()]

    def rollouts(llm: Any, asked: Sequence[Question]) -> list[Coroutine[Any, Any, Any]]:
        recipe = RLRecipe(
            index="", instructions=False, call_tokens=160, credit="tree", reward={"exact_match": 1, "format": 0.1}
        )
        sampled = [question for question in asked[: len(asked) // recipe.group] for _ in range(recipe.group)]
        return [Rollouts(recipe, llm, AsyncRetriever(bm25), 1024).sample(sampled, "0")]

    yield from {"tree search": tree_search, "synthesis": synthesis, "rollouts": rollouts}.items()
    # Left out: the latency of a web search is not the runtime's, and vLLM returns no attention weights.
    yield from ((name, strategy(name)) for name in STRATEGIES if name not in ("levelrag-web", "dragin"))


if __name__ == "__main__":
    main()
