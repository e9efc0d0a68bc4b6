"""The configuration of an engine, and the function that opens it."""

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
    """The engine that serves the model, and its settings."""

    kind: Literal["vllm", "transformers", "openai"] = "vllm"
    """vllm: in-process vLLM, with continuous batching and prefix caching; transformers: for models that vLLM cannot
    load; openai: servers with an OpenAI-compatible API, such as `vllm serve`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; auto: the format in which they were saved (vllm, transformers)."""
    max_context: int | None = None
    """Maximum length of prompt and continuation in tokens; null: the model's own limit (vllm)."""
    max_lora_rank: Annotated[int, Field(gt=0)] | None = None
    """Maximum rank of the LoRA adapters that calls may select; null: no adapters (vllm)."""
    urls: list[str] = field(default_factory=list)
    """Addresses of the servers, which all serve the same model under the name given as model (openai)."""
    tokenizer: str | None = None
    """Directory or hub name of the model's tokenizer; null: the model's own (openai)."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Time limit of a call in seconds. A call that takes longer fails."""


@asynccontextmanager
async def open_engine(model: str, config: EngineConfig) -> AsyncIterator[LLM]:
    """Start the engine that serves ``model``, and shut it down on exit.

    Raises UserError if the checkpoint is invalid, or if a server does not answer or does not serve ``model``.
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

        # Without Timed: this engine limits each attempt, and may wait between attempts until a server is back.
        engine = OpenAIEngine.start(config.urls, model, tokenizer=config.tokenizer, timeout=config.timeout)
    try:
        yield engine
    finally:
        await engine.aclose()
