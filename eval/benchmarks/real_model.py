"""Speed on a real model: training against TRL, generation against vLLM's own benchmark (make bench-real).

The model is SmolLM2-135M-Instruct. Training is compared as in make bench-training: on the examples of all methods
from the atlas, and on preference pairs of the papers' shape; and, with adapters over random weights in bf16, on two
layers of Qwen2.5-7B's width with its vocabulary.

Generation: our engine and vllm.benchmarks.throughput, the function behind `vllm bench throughput`, answer the same
requests at once: questions of the atlas with five passages each. vLLM's requests write as many tokens as ours did.
vLLM has its default settings, except the number format, the size of the key-value cache and that it uses all cores.
Both run in turn, each time in a new process, warmed up by other requests. Writes bench_real.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rag_train.eval.benchmarks.common import WIDTH, benchmark_parser, random_model
from rag_train.eval.benchmarks.training import NODES, TrainingSet, compare, in_new_process, shaped
from rag_train.training.recipe import LoraRecipe

TOKENS = 1000
"""Tokens of each method's examples for imitation."""
WRITTEN = 64
"""Most tokens that a request writes."""
PASSAGES = 5
WARM_UP = 16
"""Requests before the measurement."""
CACHE, CONTEXT = 2**30, 4096
"""Bytes of the key-value cache, and most tokens of a request."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="packaged model, or directory of a checkpoint")
    parser.add_argument("--trajectories", type=int, default=2, help="trajectories of preference pairs")
    parser.add_argument("--requests", type=int, default=64, help="requests of generation")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each contestant; one on the wide model")
    options = parser.parse_args()

    from rag_train.llm.packaged import checkpoint_of
    from rag_train.progress import console
    from rag_train.provenance import save_result

    model = checkpoint_of(options.model, Path("runs/models"))
    rates = generation(model, options)
    console.print(f"generation: {statistics.median(rates['ratio']):.2f} times vLLM's benchmark")
    with tempfile.TemporaryDirectory(prefix="bench-real-") as name:
        work = Path(name)
        small, wide = training_sets(model, work, options.trajectories)
        sets = compare(small, options.repeats, work) | compare(wide, 1, work)
    save_result(options.output / "bench_real.json", {"model": model.name, "generation": rates, "sets": sets})


def training_sets(
    model: Path, work: Path, trajectories: int
) -> tuple[dict[str, TrainingSet], dict[str, TrainingSet]]:
    """Return the sets for the real model, and those for the model of Qwen2.5-7B's width, by name."""
    from rag_train.precision import has_bf16

    precision = {"precision": "bf16" if has_bf16() else "fp32"}
    pairs, pair = shaped(work / "pairs.jsonl", trajectories), shaped(work / "pair.jsonl", 1)
    # With all pairs of a trajectory in one batch, TRL's logits would not fit the memory.
    single = {"batch_size": 1, "gradient_accumulation": NODES}
    small = {
        "calibration": TrainingSet("dpo", model, pairs, {"batch_size": NODES, **precision}, single),
        "imitation": TrainingSet("sft", model, examples(model, work), precision),
    }
    keys: dict[str, Any] = {"precision": "bf16", "lora": LoraRecipe(merge=False), "batch_size": NODES}
    wide = random_model(work / "wide", WIDTH, model, "bfloat16")
    return small, {"calibration, 7B's width": TrainingSet("dpo", wide, pair, keys, single)}


def examples(model: Path, work: Path) -> Path:
    """Write the examples of the modules and baselines from the atlas, in equal shares, and return their file."""
    from rag_train.eval.real.examples import equal_shares, gold_examples
    from rag_train.eval.real.world import open_atlas
    from rag_train.files import write_records
    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index

    world = open_atlas("dev", 0)
    made = asyncio.run(gold_examples(world.train[:100], AsyncRetriever(BM25Index.build(world.corpus)), passages=3))
    drawn, _ = equal_shares(made, load_tokenizer(str(model)), TOKENS, seed=0)
    write_records(work / "examples.jsonl", drawn)
    return work / "examples.jsonl"


class Generated(NamedTuple):
    """Seconds for all requests, and the tokens that each wrote."""

    seconds: float
    written: list[int]


def generation(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the tokens a second, read and written, of both contestants, and the ratio of ours to vLLM's."""
    from rag_train.llm.checkpoint import encode, load_tokenizer

    prompts = requests(options.requests + WARM_UP)
    tokenizer = load_tokenizer(str(model))
    read = sum(len(encode(tokenizer, prompt)) for prompt in prompts[WARM_UP:])
    rates: dict[str, list[float]] = {"ours": [], "vllm": []}
    written = 0
    for _ in range(options.repeats):
        own = in_new_process(ours, str(model), prompts)
        limit = in_new_process(vllm, str(model), prompts, own.written)
        for name, run in (("ours", own), ("vllm", limit)):
            rates[name].append((read + sum(run.written)) / run.seconds)
        written = sum(own.written)
    return {
        "requests": options.requests,
        "read": read,
        "written": written,
        "tokens_per_second": rates,
        "ratio": [own / limit for own, limit in zip(rates["ours"], rates["vllm"], strict=True)],
    }


def requests(count: int) -> list[str]:
    """Return prompts with the passages that BM25 finds for ``count`` questions of the atlas."""
    from rag_train.eval.real.world import open_atlas
    from rag_train.formats import reader
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index

    world = open_atlas("dev", 0)
    retriever = AsyncRetriever(BM25Index.build(world.corpus))

    async def prompts() -> list[str]:
        asked = [question.question for question in world.asked["atlas"][:count]]
        return [reader.prompt(question, await retriever.search(question, PASSAGES)) for question in asked]

    return asyncio.run(prompts())


def ours(model: str, prompts: Sequence[str]) -> Generated:
    """Answer the prompts with our engine, after those to warm up."""
    return asyncio.run(_ours(model, prompts))


async def _ours(model: str, prompts: Sequence[str]) -> Generated:
    from rag_train.llm.base import Sampling
    from rag_train.llm.vllm import VLLMEngine

    engine = VLLMEngine.start(model, kv_cache_bytes=CACHE, max_context=CONTEXT)
    sampling = Sampling(max_tokens=WRITTEN)
    try:
        await asyncio.gather(*(engine.complete(prompt, sampling) for prompt in prompts[:WARM_UP]))
        start = time.perf_counter()
        done = await asyncio.gather(*(engine.complete(prompt, sampling) for prompt in prompts[WARM_UP:]))
        seconds = time.perf_counter() - start
    finally:
        await engine.aclose()
    return Generated(seconds, [completion.usage.completion_tokens for completion in done])


def vllm(model: str, prompts: Sequence[str], written: Sequence[int]) -> Generated:
    """Answer the prompts with vLLM's benchmark of offline throughput, after those to warm up."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"  # as our engine: vLLM's default would leave a core idle
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.throughput import run_vllm
    from vllm.engine.arg_utils import EngineArgs

    from rag_train.llm.checkpoint import encode, load_tokenizer
    from rag_train.precision import fast_dtype

    tokenizer = load_tokenizer(model)

    def request(prompt: str, tokens: int) -> Any:
        return SampleRequest(prompt, prompt_len=len(encode(tokenizer, prompt)), expected_output_len=tokens)

    arguments = EngineArgs(
        model=model,
        dtype=fast_dtype("auto"),  # pyrefly: ignore[bad-argument-type]
        kv_cache_memory_bytes=CACHE,
        max_model_len=CONTEXT,
    )
    seconds, outputs = run_vllm(
        [request(prompt, tokens) for prompt, tokens in zip(prompts[WARM_UP:], written, strict=True)],
        n=1,
        engine_args=arguments,
        do_profile=False,
        warmup_requests=[request(prompt, WRITTEN) for prompt in prompts[:WARM_UP]],
    )
    assert outputs is not None
    return Generated(seconds, [len(output.outputs[0].token_ids) for output in outputs])


if __name__ == "__main__":
    main()
