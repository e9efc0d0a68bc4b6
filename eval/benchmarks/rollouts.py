"""Stage III's engines: their throughput, and the shares of a training step (make bench-rollouts).

For each engine, the rollouts of one generation with tree credit are compared with the engine's limit, which is all
of their prompts as one batch. Tokens are those read and written. Both are repeated in turn, and the ratio is the
median over the repetitions. Then the mini model is trained for a few steps, in TRL's batches of rollouts and on
trees, and the time of a step is split into rollouts, update of the engine's weights, and training. Writes
bench_rollouts.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rag_train.eval.benchmarks.common import (
    Recorder,
    batch_seconds,
    benchmark_parser,
    empty_cache,
    mini_world,
    stage3_recipe,
)

WANTED = 0.8
"""Wanted ratio of the rollouts' tokens a second to those of one batch."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=24, help="of a generation, each with 8 rollouts")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of rollouts and batch")
    parser.add_argument("--steps", type=int, default=6, help="training steps of a layout; the first is not counted")
    options = parser.parse_args()

    from rag_train.files import write_records
    from rag_train.progress import console
    from rag_train.provenance import save_result
    from rag_train.retrieval.index.bm25_build import build_bm25
    from rag_train.training.recipe import RLRecipe

    world, _, questions = mini_world()
    engines = {}
    with tempfile.TemporaryDirectory(prefix="bench-rollouts-") as name:
        folder = Path(name)
        build_bm25(world.corpus(), folder / "index")
        write_records(folder / "questions.jsonl", questions[: 8 * options.steps])
        keys = get_type_hints(RLRecipe)
        for engine in get_args(keys["engine"]):
            row = asyncio.run(throughput(engine, folder, options))
            row["steps"] = {layout: step_times(engine, layout, folder) for layout in get_args(keys["layout"])}
            console.print(
                f"{engine}: {statistics.median(row['tokens_per_second']['rollouts']):,.0f} tokens/s, "
                f"{row['ratio']:.2f} times one batch"
            )
            for layout, seconds in row["steps"].items():
                console.print(
                    f"  layout {layout}: " + ", ".join(f"{part} {seconds[part]:.2f} s" for part in seconds)
                )
            engines[engine] = row
    result = {"questions": options.questions, "steps": options.steps, "wanted": WANTED, "engines": engines}
    save_result(options.output / "bench_rollouts.json", result)


async def throughput(engine: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the tokens a second of a step's rollouts and of the same calls as one batch."""
    from rag_train.llm.transformers import TransformersEngine
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.open import open_retriever
    from rag_train.training.rl.rollouts import Rollouts

    _, model, questions = mini_world()
    recipe = stage3_recipe(str(model), folder, price=0.1, credit="tree")
    assert recipe.rl is not None
    asked = [question for question in questions[: options.questions] for _ in range(recipe.rl.group)]
    llm: Any = (
        VLLMEngine.start(str(model), dtype="float32", kv_cache_bytes=2**30, reloads=True)
        if engine == "vllm"
        else TransformersEngine.start(str(model), dtype="float32")
    )
    rates: dict[str, list[float]] = {"rollouts": [], "batch": []}
    try:
        for number in range(options.repeats + 1):
            recorder: Any = Recorder(llm)
            retriever = AsyncRetriever(open_retriever(str(folder / "index")))
            rollouts = Rollouts(recipe.rl, recorder, retriever, recipe.max_tokens)
            await empty_cache(llm)
            start = time.perf_counter()
            await rollouts.sample(asked, str(number))
            seconds = time.perf_counter() - start
            batch = await batch_seconds(llm, recorder.calls)
            if number:  # the first round warms up
                rates["rollouts"].append(recorder.tokens / seconds)
                rates["batch"].append(recorder.tokens / batch)
    finally:
        await llm.aclose()
    ratios = [ours / limit for ours, limit in zip(rates["rollouts"], rates["batch"], strict=True)]
    return {
        "tokens_per_second": rates,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def step_times(engine: str, layout: str, folder: Path) -> dict[str, float]:
    """Return the median seconds of a training step and of its parts, all steps but the first.

    All weights are trained, so all are sent to the engine. The learning rate is so small that the rollouts of all
    layouts have the same lengths.
    """
    from rag_train.training.run import train
    from rag_train.training.tracking import METRICS

    settings = {"credit": "tree", "engine": engine, "layout": layout}
    recipe = stage3_recipe(str(mini_world().model), folder, price=0.1, **settings)
    run = folder / f"{engine}-{layout}"
    train(replace(recipe, lora=None, lr=1e-6, output_dir=str(run)))
    lines = map(json.loads, (run / METRICS).read_text().splitlines())
    rows = [row for row in lines if "step_time" in row][1:]
    parts = {name: [row[f"{name}_time"] for row in rows] for name in ("step", "rollout", "update")}
    parts["training"] = [step - rollout - update for step, rollout, update in zip(*parts.values(), strict=True)]
    return {name: statistics.median(seconds) for name, seconds in parts.items()}


if __name__ == "__main__":
    main()
