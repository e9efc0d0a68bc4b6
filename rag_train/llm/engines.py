"""Opening an engine by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rag_train.llm.base import LLM
from rag_train.llm.timeout import Timed


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Which engine serves the model."""

    kind: Literal["vllm", "transformers", "openai"] = "vllm"
    """vllm: in this process, with continuous batching and prefix caching; transformers: for what vLLM cannot
    load; openai: servers that speak OpenAI's protocol, such as `vllm serve`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; auto: as they were saved (vllm, transformers)."""
    max_context: int | None = None
    """Longest prompt and continuation in tokens; null: the model's own limit (vllm)."""
    max_lora_rank: Annotated[int, Field(gt=0)] | None = None
    """Highest rank of the LoRA adapters that calls may ask for; null: none (vllm)."""
    urls: list[str] = field(default_factory=list)
    """Addresses of the servers, all with the same model under the name that model gives (openai)."""
    tokenizer: str | None = None
    """Directory or hub name of the model's tokenizer; null: that of model (openai)."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a call may take before it counts as failed."""


@asynccontextmanager
async def open_engine(model: str, config: EngineConfig) -> AsyncIterator[LLM]:
    """Start the engine on ``model`` and shut it down at the end.

    Raises UserError for a bad checkpoint, and for servers that are not there or serve something else.
    """
    engine: LLM
    if config.kind == "vllm":
        from rag_train.llm.vllm import VLLMEngine

        engine = VLLMEngine.start(
            model, max_context=config.max_context, dtype=config.dtype, max_lora_rank=config.max_lora_rank
        )
        engine = Timed(engine, config.timeout)
    elif config.kind == "transformers":
        from rag_train.llm.transformers import TransformersEngine

        engine = Timed(TransformersEngine.start(model, dtype=config.dtype), config.timeout)
    else:
        from rag_train.llm.openai import OpenAIEngine

        # Not Timed: its time-out is of one attempt, and between attempts it may wait for a server to come back.
        engine = OpenAIEngine.start(config.urls, model, tokenizer=config.tokenizer, timeout=config.timeout)
    try:
        yield engine
    finally:
        await engine.aclose()
