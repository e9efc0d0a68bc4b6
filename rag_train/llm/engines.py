"""The configuration of an engine, and the function that opens it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from rag_train.errors import ServiceError, UserError, masked
from rag_train.identity import code
from rag_train.identity import model as model_identity
from rag_train.identity import tokenizer as tokenizer_identity
from rag_train.jobs.retries import patiently
from rag_train.llm import guide
from rag_train.llm.base import LLM, Abilities, Completion, EngineError, Sampling
from rag_train.llm.checkpoint import base_of, check_adapter
from rag_train.llm.timeout import Timed
from rag_train.recipe import Count, type_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Dollars = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine that serves the model, and its settings, with the engines that have them."""

    kind: Literal["vllm", "transformers", "openai", "chat"] = "vllm"
    """vllm: in-process vLLM, with continuous batching and prefix caching; transformers: for models that vLLM cannot
    load; openai: servers with OpenAI's completions, such as `vllm serve`; chat: servers with chat completions only,
    such as those of closed models."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights; auto: the format in which they were saved, but float32 on processors without
    instructions for bf16, where that is many times slower (vllm, transformers)."""
    max_context: Count | None = None
    """Maximum length of prompt and continuation in tokens; null: the model's own limit (vllm)."""
    max_lora_rank: Count | None = None
    """Maximum rank of the LoRA adapters that calls may select; null: that of the adapters given as models
    (vllm)."""
    tensor_parallel: Count = 1
    """Number of GPUs that share the weights (vllm)."""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the GPU's memory that the engine may use; null: an equal part of 0.9 for each of several engines, or
    vLLM's default for one (vllm)."""
    max_sequences: Count = 256
    """Maximum number of calls in flight, on each server if there are several (vllm, openai, chat)."""
    urls: list[str] = field(default_factory=list)
    """Addresses of the servers, which all serve the same model under the name given as model (openai, chat)."""
    key: str | None = None
    """Name of the environment variable with the servers' API key, such as OPENAI_API_KEY; null: none is sent
    (openai, chat)."""
    tokenizer: str | None = None
    """Directory or hub name of the model's tokenizer; null: the model's own (vllm, transformers, openai)."""
    thinking: bool | None = None
    """Whether a thinking model thinks before it answers; null: as its chat template says, and with chat with
    tokens for its thoughts if it is found to think. true only with chat: the other engines begin the model's answer
    for it (vllm, transformers, openai, chat)."""
    thinking_tokens: Count = 8192
    """Number of tokens for the thoughts of a model that thinks, in addition to those of its answer (chat)."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Time limit of a call in seconds. A call that takes longer fails (vllm, transformers, openai, chat)."""
    requests_per_minute: Count | None = None
    """Maximum number of calls a minute; null: no limit (openai, chat)."""
    tokens_per_minute: Count | None = None
    """Maximum number of tokens a minute, of prompts and answers; null: no limit (openai, chat)."""
    input_price: Dollars = 0.0
    """Dollars for a million tokens of prompts; with prices, the cost is printed at the end (chat)."""
    output_price: Dollars = 0.0
    """Dollars for a million tokens of answers (chat)."""
    cache: Path | None = None
    """File that keeps all answers, so that no call is made twice; null: none (vllm, transformers, openai, chat)."""

    def __post_init__(self) -> None:
        """Raise UserError for a setting that the engine does not have."""
        for name, kinds in _ONLY.items():
            default = [] if name == "urls" else type(self).__dataclass_fields__[name].default
            if self.kind not in kinds and getattr(self, name) != default:
                raise UserError(
                    f"engine.{name}: only for the engine {' or '.join(kinds)}, not {self.kind}; remove it"
                )
        if self.thinking and self.kind != "chat":
            raise UserError(f"engine.thinking: true only with the engine chat, not {self.kind}; remove it")

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that answers depend on. The addresses belong to them, because servers may have different
        models under one name, and so do the words that ask for a format."""
        settings = {name: value for name, value in asdict(self).items() if name not in _INDIFFERENT}
        if self.tokenizer:
            settings["tokenizer"] = tokenizer_identity(self.tokenizer)
        if self.kind in ("openai", "chat"):
            settings |= {"urls": sorted(map(masked, self.urls)), "guide": code(guide)}
        return settings


_INDIFFERENT = {
    *("max_lora_rank", "tensor_parallel", "gpu_memory", "max_sequences", "key", "timeout", "requests_per_minute"),
    *("tokens_per_minute", "input_price", "output_price", "cache"),
}
"""Settings that make no difference to an answer."""

_ONLY = {
    "dtype": ("vllm", "transformers"),
    "max_context": ("vllm",),
    "max_lora_rank": ("vllm",),
    "tensor_parallel": ("vllm",),
    "gpu_memory": ("vllm",),
    "max_sequences": ("vllm", "openai", "chat"),
    "urls": ("openai", "chat"),
    "key": ("openai", "chat"),
    "tokenizer": ("vllm", "transformers", "openai"),
    "requests_per_minute": ("openai", "chat"),
    "tokens_per_minute": ("openai", "chat"),
    "thinking_tokens": ("chat",),
    "input_price": ("chat",),
    "output_price": ("chat",),
}
"""The engines that have a setting, for those that not all have."""


def parse_settings(option: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of an engine given as ``KEY=VALUE``; ``urls`` may be repeated.

    Raises UserError if a key is unknown or a value has the wrong type; the message begins with ``option``.
    """
    hints = get_type_hints(EngineConfig, include_extras=True)
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in hints:
            raise UserError(f"{option}: no setting {key!r}; an engine has {', '.join(hints)}")
        several = get_origin(hints[key]) is list
        hint = get_args(hints[key])[0] if several else hints[key]
        try:
            value = TypeAdapter(hint).validate_python(yaml.safe_load(text))
        except (ValidationError, yaml.YAMLError):
            raise UserError(
                f"{option}: {key}={text} is not {type_name(get_type_hints(EngineConfig)[key])}"
            ) from None
        given[key] = [*given.get(key, []), value] if several else value
    return given


@dataclass(frozen=True)
class Adapted:
    """An engine restricted to one LoRA adapter."""

    llm: LLM
    adapter: str

    @property
    def name(self) -> str:
        return f"{self.llm.name}+{Path(self.adapter).name}"

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.llm.tokenizer

    @property
    def abilities(self) -> Abilities:
        return self.llm.abilities

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return await self.llm.complete(prompt, replace(sampling, adapter=self.adapter))

    async def inspect(self, prompt: str, text: str) -> Any:
        """Inspect the model with the adapter, if ``abilities.attention`` (see `TransformersEngine.inspect`)."""
        engine: Any = self.llm
        return await engine.inspect(prompt, text, self.adapter)

    async def aclose(self) -> None:
        await self.llm.aclose()


def identity(model: str, config: EngineConfig) -> dict[str, Any]:
    """Return all that the answers of an engine depend on: the identity of ``model``, and the engine's settings.

    A server's model has its name for an identity, and the weights if it is named after a directory of this machine.
    """
    served = config.kind in ("openai", "chat") and not Path(model).exists()
    return {"model": {"name": model} if served else model_identity(model), "engine": config.identity}


@asynccontextmanager
async def open_engine(model: str, config: EngineConfig) -> AsyncIterator[LLM]:
    """Start the engine that serves ``model``, and shut it down on exit.

    For the directory of a LoRA adapter, the engine serves the model that it was trained on, and all calls use the
    adapter.

    Raises UserError if the checkpoint is invalid, or if a server does not answer or does not serve ``model``.
    """
    base, adapter = base_of(model)
    if adapter and config.kind == "vllm":
        config = replace(config, max_lora_rank=max(check_adapter(adapter), config.max_lora_rank or 0))
    engine = await _start(base, config)
    try:
        if config.cache:
            from rag_train.llm.cache import CachedEngine

            engine = CachedEngine(engine, config.cache, identity(base, config))
        yield Adapted(engine, adapter) if adapter else engine
    finally:
        await engine.aclose()


async def _start(model: str, config: EngineConfig) -> LLM:
    if config.kind == "vllm":
        from rag_train.llm.vllm import VLLMEngine

        names = ("max_context", "dtype", "max_lora_rank", "tensor_parallel", "gpu_memory", "max_sequences")
        options = {name: getattr(config, name) for name in (*names, "tokenizer", "thinking")}
        return Timed(VLLMEngine.start(model, **options), config.timeout)
    if config.kind == "transformers":
        from rag_train.llm.transformers import TransformersEngine

        options = {"dtype": config.dtype, "tokenizer": config.tokenizer, "thinking": config.thinking}
        return Timed(TransformersEngine.start(model, **options), config.timeout)
    return await _connect(model, config)


async def _connect(model: str, config: EngineConfig) -> LLM:
    """Open an engine over servers. It limits each attempt itself, and may wait between attempts for a server."""
    from rag_train.llm.chat import ChatEngine
    from rag_train.llm.openai import OpenAIEngine
    from rag_train.llm.replicas import Replicas

    names = ("key", "timeout", "requests_per_minute", "tokens_per_minute")
    options: dict[str, Any] = {name: getattr(config, name) for name in names}
    options["max_in_flight"] = config.max_sequences
    if config.kind == "openai":
        tokenizer, thinking = config.tokenizer, config.thinking
        engine = OpenAIEngine.start(config.urls, model, tokenizer=tokenizer, thinking=thinking, **options)
    else:
        prices = (config.input_price, config.output_price)
        thoughts = {"thinking": config.thinking, "thinking_tokens": config.thinking_tokens}
        engine = ChatEngine(Replicas(config.urls, **options), model, **thoughts, prices=prices)
    try:
        await asyncio.create_task(patiently(engine.probe()))
    except BaseException as error:
        await engine.aclose()
        if isinstance(error, ServiceError | ValueError):
            waits = isinstance(error, EngineError) and error.wait
            remedy = "give the same command again then" if waits else "start the server, or correct the address"
            raise UserError(f"engine.urls: {error}; {remedy}") from error
        raise
    return engine
