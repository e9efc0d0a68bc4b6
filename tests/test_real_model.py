"""A minute with a real model: SmolLM2 trained in every way, served by vLLM, and asked by every strategy.

The mini model has no chat template, a vocabulary of words and short rows. This model has ChatML, byte-level BPE,
tied embeddings and 49,152 tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.training import pair, sft_record, write

from rag_train.formats.deeprag import question_prompt
from rag_train.formats.prompting import as_turn
from rag_train.llm.base import Completion, Sampling
from rag_train.llm.checkpoint import encode, load_tokenizer
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import RETRIEVER_KINDS, Adapted
from rag_train.strategies.registry import STRATEGIES, build
from rag_train.training.merge import merge
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.result import TrainResult
from rag_train.training.run import train
from rag_train.worlds.atlas.facts import Atlas
from rag_train.worlds.atlas.passages import corpus
from rag_train.worlds.atlas.questions import questions

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.real, pytest.mark.timeout(1800)]

T = TypeVar("T")

PROMPT = question_prompt("Where was the maker of film 3 born?")
MOST_CALLS = 3
"""Budget of a question, because a call takes long on a CPU."""

WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "adapter": {"lora": LoraRecipe(r=8, alpha=32), "lr": 1e-3},
    "packed": {"lora": LoraRecipe(r=8), "batch_size": 1, "sft": SFTRecipe(pack_tokens=512)},
    "pairs": {"stage": "dpo", "lora": LoraRecipe(r=8)},
    "tree": {"stage": "dpo", "lora": LoraRecipe(r=8), "dpo": DPORecipe(layout="tree")},
}


@pytest.fixture(scope="module")
def trained(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    """SmolLM2 after two steps of each way of training."""
    work = tmp_path_factory.mktemp("real")
    write(work / "sft.jsonl", [sft_record(i) for i in range(8)])
    write(work / "dpo.jsonl", [pair(i) for i in range(8)])
    common = {"model": str(smollm2), "epochs": 1, "batch_size": 4, "lr": 1e-5, "logging_steps": 1}
    results = {}
    for name, keys in WAYS.items():
        stage = keys.get("stage", "sft")
        place = {"stage": stage, "data": work / f"{stage}.jsonl", "output_dir": str(work / name)}
        results[name] = train(TrainRecipe(**(common | place | keys)))
    # Two steps change less than bf16 can hold, which a merge refuses otherwise.
    merge(str(smollm2), results["adapter"].output_dir, work / "merged", force=True)
    results["merged"] = replace(results["adapter"], output_dir=str(work / "merged"))
    return results


def test_trains_in_every_way(trained: dict[str, TrainResult]):
    losses = {name: [entry["loss"] for entry in result.losses] for name, result in trained.items()}
    assert all(0 < loss < 6 for values in losses.values() for loss in values)
    assert trained["full"].steps == trained["pairs"].steps == trained["tree"].steps == 2
    assert losses["full"][0] == pytest.approx(losses["adapter"][0], rel=0.02)  # adapters begin with no effect
    for layout in ("pairs", "tree"):
        assert losses[layout][0] == pytest.approx(math.log(2), abs=0.01)


def test_vllm_serves_the_adapter_as_it_was_merged(smollm2: Path, trained: dict[str, TrainResult]):
    import torch
    from transformers import AutoModelForCausalLM

    adapter = trained["adapter"].output_dir
    first = Sampling(max_tokens=1, logprobs=5)

    async def complete(engine: VLLMEngine) -> list[Completion]:
        prompt = as_turn(engine.tokenizer, PROMPT)
        return [await llm.complete(prompt, first) for llm in (engine, Adapted(engine, adapter))]

    completions = asyncio.run(on_vllm(str(smollm2), complete, max_lora_rank=8))
    base, adapted = ({t.token_id: t.logprob for t in got.logprobs[0]} for got in completions)
    merged = AutoModelForCausalLM.from_pretrained(trained["merged"].output_dir)
    tokenizer = load_tokenizer(trained["merged"].output_dir)
    ids = torch.tensor([encode(tokenizer, as_turn(tokenizer, PROMPT))])
    with torch.no_grad():
        logprobs = torch.log_softmax(merged(ids).logits[0, -1].float(), -1)
    assert all(logprobs[token].item() == pytest.approx(value, abs=0.25) for token, value in adapted.items())
    assert any(abs(logprobs[token].item() - value) > 0.5 for token, value in base.items())


def test_every_strategy_answers_or_says_what_was_cut(atlas: Atlas, trained: dict[str, TrainResult]):
    model = trained["merged"].output_dir
    question = next(q for q in questions(atlas, "dev") if q.type == "chain")
    retriever = AsyncRetriever(BM25Index.build(corpus(atlas)))
    kinds: dict[str, AsyncRetriever] = dict.fromkeys(RETRIEVER_KINDS, retriever)

    async def answer(engine: VLLMEngine) -> list[tuple[str, Trajectory]]:
        kit = Kit(engine, retriever, passages=1, retrievers=kinds)
        with_attention = replace(kit, llm=TransformersEngine.start(model))
        built = [
            build(f"{name},max_calls={MOST_CALLS}", with_attention if name == "dragin" else kit)
            for name in STRATEGIES
        ]
        found = await asyncio.gather(*(strategy.answer(question) for strategy in built))
        return list(zip(STRATEGIES, found, strict=True))

    for name, trajectory in asyncio.run(on_vllm(model, answer)):
        assert trajectory.answer or trajectory.notes, name
        assert 0 < len(trajectory.calls) <= MOST_CALLS and all(c.prompt_tokens > 0 for c in trajectory.calls), name


async def on_vllm(model: str, use: Callable[[VLLMEngine], Awaitable[T]], **settings: Any) -> T:
    """Start vLLM, use it and close it."""
    engine = VLLMEngine.start(model, max_model_len=4096, **settings)
    try:
        return await use(engine)
    finally:
        await engine.aclose()
