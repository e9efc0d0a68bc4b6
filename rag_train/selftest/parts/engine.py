"""What strategies need of vLLM, asked of one engine; its numbers are compared with those of transformers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rag_train.formats.deeprag import FOLLOW_UP
from rag_train.llm.base import Completion, Sampling
from rag_train.selftest.registry import NotHere, part
from rag_train.selftest.work import CONTROLLER, Work

if TYPE_CHECKING:
    from rag_train.llm.vllm import VLLMEngine

T = TypeVar("T")
FIRST, ENGINE = "vLLM answers", "vLLM"
PROMPT = "Question: In which city was the person who directed Zokex Vevos born?\n"
GREEDY = Sampling(max_tokens=48)
CLOSE = {"float32": 0.01, "bfloat16": 0.1}
"""Most by which log-probabilities may differ between vLLM and transformers in fp32, in nats, on average."""
RANK = 4
"""Rank of the adapter that is served."""


@part(FIRST, short=True, process=ENGINE)
def answers(work: Work) -> str:
    """Start vLLM, and continue a question."""
    written = _complete(work, GREEDY)
    assert written.text.startswith(FOLLOW_UP), f"not a transcript: {written.text!r}"
    return f"{len(written.token_ids)} tokens, in {_dtype(work)}"


@part("vLLM: log-probabilities", short=True, after=[FIRST], process=ENGINE)
def logprobs(work: Work) -> str:
    """Compare the log-probabilities of a greedy continuation with those of transformers."""
    return f"{_difference(work, None, _model()):.1g} nats from those of transformers"


@part("vLLM: stop strings", short=True, after=[FIRST], process=ENGINE)
def stop(work: Work) -> str:
    """End a continuation at a string."""
    stopped = _complete(work, replace(GREEDY, stop=("\n",)))
    assert "\n" not in stopped.text, f"there is text after the stop string: {stopped.text!r}"
    assert stopped.stop == "\n", f"the stop string is not named: {stopped.stop!r}"
    return f"ended {stopped.text!r}"


@part("vLLM: guided decoding", short=True, after=[FIRST], process=ENGINE)
def guided(work: Work) -> str:
    """Restrict a continuation to choices, to an expression, and to a JSON schema."""
    choice = _complete(work, replace(GREEDY, choice=("yes", "no")))
    assert choice.text in ("yes", "no"), f"not one of the choices: {choice.text!r}"
    number = _complete(work, replace(GREEDY, regex=r"[0-9]{3}"))
    assert re.fullmatch(r"[0-9]{3}", number.text), f"not three digits: {number.text!r}"
    schema = json.dumps({"enum": ["retrieve", "parametric"]})
    record = _complete(work, replace(GREEDY, json_schema=schema))
    assert json.loads(record.text) in ("retrieve", "parametric"), f"not the schema's: {record.text!r}"
    return f"{choice.text}, {number.text}, {record.text}"


@part("vLLM: prefix cache", short=True, after=[FIRST], process=ENGINE)
def prefix(work: Work) -> str:
    """Ask twice with a long prompt, whose beginning must not be computed again."""
    prompt = PROMPT * 10

    async def cached() -> int:
        # The engine's own outputs, because completions do not tell what the cache had.
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        served: Any = _engine(work)
        sampling = SamplingParams(max_tokens=1, temperature=0.0, output_kind=RequestOutputKind.FINAL_ONLY)
        ids = served.tokenizer(prompt)["input_ids"]
        request = served._engine.generate({"prompt_token_ids": ids}, sampling, request_id="selftest")
        return [output async for output in request][-1].num_cached_tokens

    before, after = _run(cached()), _run(cached())
    assert after > before, f"of a prompt that was read before, {after} tokens come from the cache"
    return f"{after} tokens of a prompt that was read before"


@part("vLLM: adapters", short=True, after=[FIRST], process=ENGINE)
def adapters(work: Work) -> str:
    """Serve an adapter beside its model, and compare the log-probabilities with those of PEFT."""
    folder, adapted = _adapter(work)
    plain = _complete(work, GREEDY)
    far = _difference(work, str(folder), adapted)
    changed = _complete(work, replace(GREEDY, adapter=str(folder)))
    assert changed.token_ids != plain.token_ids, "the adapter changes nothing"
    assert _complete(work, GREEDY) == plain, "the model itself writes something else after the adapter"
    return f"{far:.1g} nats from the log-probabilities of PEFT"


@part("vLLM: tensor parallel 2", short=True)
def parallel(work: Work) -> str:
    """Share a model between two GPUs."""
    if work.gpus < 2:
        raise NotHere(f"needs two GPUs, this machine has {work.gpus or 'none'}")
    written = _run(_engine(work, 2).complete(PROMPT, GREEDY))
    assert written.text.startswith(FOLLOW_UP), f"not a transcript: {written.text!r}"
    return f"{len(written.token_ids)} tokens, in {_dtype(work)}"


@cache
def _loop() -> asyncio.Runner:
    return asyncio.Runner()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return _loop().run(coroutine)


def _dtype(work: Work) -> str:
    """Return bfloat16 on GPUs, where vLLM's kernels are made for it, and float32 on processors."""
    return "bfloat16" if work.gpus else "float32"


@cache
def _engine(work: Work, shards: int = 1) -> VLLMEngine:
    """Return the engine of this process, which lives as long as the process."""
    from rag_train.llm.vllm import VLLMEngine

    memory: dict[str, Any] = {"gpu_memory_utilization": 0.3} if work.gpus else {"kv_cache_memory_bytes": 2**29}

    async def start() -> VLLMEngine:
        return VLLMEngine.start(
            str(CONTROLLER), dtype=_dtype(work), max_lora_rank=RANK, tensor_parallel_size=shards, **memory
        )

    return _run(start())


def _complete(work: Work, sampling: Sampling) -> Completion:
    return _run(_engine(work).complete(PROMPT, sampling))


@cache
def _model() -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(CONTROLLER, attn_implementation="eager")
    return model.eval()


@cache
def _prompt_ids() -> list[int]:
    from rag_train.llm.checkpoint import encode, load_tokenizer

    return encode(load_tokenizer(str(CONTROLLER)), PROMPT)


def _difference(work: Work, adapter: str | None, model: Any) -> float:
    """Return the mean difference between the log-probabilities of what vLLM writes and those of ``model``.

    Raises AssertionError if it is more than rounding.
    """
    import torch

    written = _complete(work, replace(GREEDY, logprobs=1, adapter=adapter))
    ids = torch.tensor([*_prompt_ids(), *written.token_ids])
    with torch.no_grad():
        scores = model(ids[None]).logits[0, -len(written.token_ids) - 1 : -1].float().log_softmax(-1)
    expected = scores.gather(1, torch.tensor(written.token_ids)[:, None])[:, 0]
    assert len(written.chosen) == len(written.token_ids), "tokens have no log-probabilities"
    got = torch.tensor([token.logprob for token in written.chosen])
    far = (got - expected).abs().mean().item()
    assert far < CLOSE[_dtype(work)], f"on average {far:.2g} nats from those of transformers"
    return far


def _adapter(work: Work) -> tuple[Path, Any]:
    """Write an adapter with random weights, and return its folder and the model with it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(CONTROLLER, attn_implementation="eager")
    names = ["q_proj", "v_proj", "down_proj"]
    settings = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names, init_lora_weights=False)
    adapted: Any = get_peft_model(model, settings)
    adapted.save_pretrained(work.folder / "adapter")
    return work.folder / "adapter", adapted.eval()
