"""LoRA adapters and inspection, compared with the model's own forward pass."""

import asyncio
import threading
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from support.fakes import Says, opened
from transformers import AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.llm.base import Completion, EngineError, Sampling, Timed
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.worlds.mini.world import CHAINS, World

GREEDY = Sampling(max_tokens=16)


@pytest.fixture(scope="module")
def prompts(mini_world: World) -> list[str]:
    return [f"Question: {CHAINS[(r,)][0].format(x=s)}\n" for s, r in sorted(mini_world.known)[::40]][:8]


@pytest.fixture(scope="module")
def adapters(mini_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two adapters with random non-zero weights, each of which changes the text for every prompt."""
    out = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj"])
        peft = get_peft_model(AutoModelForCausalLM.from_pretrained(mini_model), config)
        for name, weight in peft.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
        directory = tmp_path_factory.mktemp("adapters") / f"adapter{seed}"
        peft.save_pretrained(str(directory))
        out.append(str(directory))
    return out


@pytest.fixture(scope="module")
def expected(mini_model: Path, adapters: list[str], prompts: list[str]) -> dict[str | None, list[list[int]]]:
    """Token ids by greedy decoding of single prompts, for the base model and for each adapter merged into it."""
    tokenizer = load_tokenizer(str(mini_model))
    out = {}
    for adapter in (None, *adapters):
        merged = AutoModelForCausalLM.from_pretrained(mini_model)
        if adapter:
            merged = PeftModel.from_pretrained(merged, adapter).merge_and_unload()
        out[adapter] = []
        for prompt in prompts:
            ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
            written = merged.generate(**ids, max_new_tokens=16, do_sample=False)
            out[adapter].append(written[0, ids["input_ids"].shape[1] :].tolist())
    texts = list(zip(*out.values(), strict=True))
    assert all(len({tuple(ids) for ids in text}) == 3 for text in texts), "an adapter changes nothing"
    return out


async def _all(engine, prompts: list[str], expected: dict[str | None, list[list[int]]]) -> None:
    """Check every prompt with and without every adapter, all at the same time."""
    calls = [(prompt, adapter) for prompt in prompts for adapter in expected]
    got = await asyncio.gather(*(engine.complete(p, Sampling(max_tokens=16, adapter=a)) for p, a in calls))
    for (prompt, adapter), completion in zip(calls, got, strict=True):
        assert list(completion.token_ids) == expected[adapter][prompts.index(prompt)]


@pytest.mark.engine
def test_vllm_serves_base_model_and_adapters_at_the_same_time(
    mini_model: Path, mini_engine: VLLMEngine, runner: asyncio.Runner, adapters, prompts, expected, tmp_path: Path
):
    async def go() -> None:
        await _all(mini_engine, prompts, expected)
        with pytest.raises(UserError, match=r"no adapter_config.json; give a directory with an adapter"):
            await mini_engine.complete("x", Sampling(adapter=str(tmp_path)))
        for name, config, complaint in (
            ("large", LoraConfig(r=8, target_modules=["q_proj"]), r"start it with max_lora_rank=8"),
            ("dora", LoraConfig(r=4, target_modules=["q_proj"], use_dora=True), "vLLM cannot load it .*DoRA"),
        ):
            peft = get_peft_model(AutoModelForCausalLM.from_pretrained(mini_model), config)
            peft.save_pretrained(str(tmp_path / name))
            with pytest.raises(UserError, match=complaint):
                await mini_engine.complete("x", Sampling(adapter=str(tmp_path / name)))
        await _all(mini_engine, prompts, expected)  # an invalid adapter does not affect the engine

    runner.run(go())


@pytest.mark.slow
def test_transformers_serves_base_model_and_adapters(mini_model: Path, adapters, prompts, expected, tmp_path: Path):
    async def go() -> None:
        engine = TransformersEngine.start(str(mini_model))
        await _all(engine, prompts, expected)
        with pytest.raises(UserError, match=r"no adapter_config.json"):
            await engine.complete("x", Sampling(adapter=str(tmp_path)))
        await _all(engine, prompts, expected)

    asyncio.run(go())


def test_inspection_equals_forward_pass_of_base_model(mini_model: Path, adapters: list[str]):
    prompt, text = "Question: who?\nSo the final answer is:", " Rehus Fobunur."
    engine = TransformersEngine.start(str(mini_model))

    async def go():
        await engine.complete(prompt, Sampling(max_tokens=2, adapter=adapters[0]))  # does not affect the inspection
        return await engine.inspect(prompt, text)

    seen = asyncio.run(go())
    whole = prompt + text
    assert len(seen.tokens) == len(seen.spans) == seen.start + len(seen.entropy)
    assert seen.spans[seen.start][0] >= len(prompt) >= seen.spans[seen.start - 1][1]
    assert "".join(whole[first:end] for first, end in seen.spans) == whole
    assert seen.attention.shape == (len(seen.tokens), len(seen.tokens))
    torch.testing.assert_close(seen.attention.sum(1), torch.ones(len(seen.tokens)))
    assert seen.attention.triu(1).count_nonzero() == 0

    plain = AutoModelForCausalLM.from_pretrained(mini_model, attn_implementation="eager").eval()
    ids = load_tokenizer(str(mini_model))(whole, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        output = plain(ids, output_attentions=True)
    torch.testing.assert_close(seen.attention, output.attentions[-1][0].mean(0))
    for i, entropy in enumerate(seen.entropy, seen.start):
        p = output.logits[0, i - 1].double().softmax(-1)
        assert entropy == pytest.approx(-(p * p.log()).sum().item(), abs=1e-4)
    assert engine.model.config._attn_implementation == "sdpa"  # restored for generation

    with pytest.raises(ValueError, match="the prompt is empty"):
        asyncio.run(engine.inspect("", text))
    with pytest.raises(ValueError, match="exceed the context of 2048"):
        asyncio.run(engine.inspect("x " * 3000, text))
    assert asyncio.run(Timed(engine, 60).inspect(prompt, text)).entropy == seen.entropy


class Stuck(Says):
    """An engine that never answers."""

    cancelled = threading.Event()

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        await opened(threading.Event(), self.cancelled)
        raise AssertionError


def test_timed_engine_cancels_a_call_at_its_limit():
    stuck = Stuck("")
    with pytest.raises(EngineError, match=r"says: no answer within 0.01 s"):
        asyncio.run(Timed(stuck, 0.01).complete("x", GREEDY))
    assert stuck.cancelled.is_set()
    assert not hasattr(Timed(stuck, 1), "inspect")  # strategies test for this attribute
