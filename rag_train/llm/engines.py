"""Opening an engine by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from rag_train.llm.base import LLM


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Which engine serves the model. The place of an OpenAI-compatible client is beside these two."""

    kind: Literal["vllm", "transformers"] = "vllm"
    """vllm: continuous batching and prefix caching; transformers: for what vLLM cannot load."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; auto: as they were saved."""
    max_context: int | None = None
    """Longest prompt and continuation in tokens; null: the model's own limit (vllm)."""


@asynccontextmanager
async def open_engine(model: str, config: EngineConfig) -> AsyncIterator[LLM]:
    """Start the engine on ``model`` and shut it down at the end. Raises UserError for a bad checkpoint."""
    if config.kind == "vllm":
        from rag_train.llm.vllm import VLLMEngine

        engine: LLM = VLLMEngine.start(model, max_context=config.max_context, dtype=config.dtype)
    else:
        from rag_train.llm.transformers import TransformersEngine

        engine = TransformersEngine.start(model, dtype=config.dtype)
    try:
        yield engine
    finally:
        await engine.aclose()
