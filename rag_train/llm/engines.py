"""The configuration of an engine, and the function that opens it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from rag_train.errors import ServiceError, UserError, masked
from rag_train.identity import code
from rag_train.identity import model as model_identity
from rag_train.identity import tokenizer as tokenizer_identity
from rag_train.jobs.retries import patiently
from rag_train.llm import unguided
from rag_train.llm.base import LLM, Adapted, EngineError, Timed
from rag_train.llm.checkpoint import base_of, check_adapter
from rag_train.recipe import Count, assign, parse_yaml, type_name

Dollars = Annotated[float, Field(ge=0)]
Kind = Literal["vllm", "transformers", "openai", "chat"]
SERVERS: tuple[Kind, ...] = ("openai", "chat")


@dataclass(frozen=True)
class For:
    """What a setting is for.

    Attributes:
        engines: the engines that have it.
        argument: its name among the arguments of vLLM's engine.
        changes_answers: whether answers depend on it.
    """

    engines: tuple[Kind, ...] = get_args(Kind)
    argument: str = ""
    changes_answers: bool = True


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine that serves the model, and its settings, with the engines that have them."""

    kind: Kind = "vllm"
    """vllm: in-process vLLM, with continuous batching and prefix caching; transformers: for models that vLLM cannot
    load; openai: servers with OpenAI's completions, such as `vllm serve`; chat: servers with chat completions only,
    such as those of closed models."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], For(("vllm", "transformers"), argument="dtype")
    ] = "auto"
    """Number format of the weights; auto: the format in which they were saved, but float32 on processors without
    instructions for bf16, where that is many times slower (vllm, transformers)."""
    max_context: Annotated[Count | None, For(("vllm",), argument="max_model_len")] = None
    """Maximum length of prompt and continuation in tokens; null: the model's own limit (vllm)."""
    max_lora_rank: Annotated[Count | None, For(("vllm",), argument="max_lora_rank", changes_answers=False)] = None
    """Maximum rank of the LoRA adapters that calls may select; null: that of the adapters given as models
    (vllm)."""
    tensor_parallel: Annotated[Count, For(("vllm",), argument="tensor_parallel_size", changes_answers=False)] = 1
    """Number of GPUs that share the weights (vllm)."""
    gpu_memory: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        For(("vllm",), argument="gpu_memory_utilization", changes_answers=False),
    ] = None
    """Share of the GPU's memory that the engine may use; null: an equal part of 0.9 for each of several engines, or
    vLLM's default for one (vllm)."""
    max_sequences: Annotated[Count, For(("vllm", *SERVERS), argument="max_num_seqs", changes_answers=False)] = 256
    """Maximum number of calls in flight, on each server if there are several (vllm, openai, chat)."""
    urls: Annotated[list[str], For(SERVERS)] = field(default_factory=list)
    """Addresses of the servers, which all serve the same model under the name given as model (openai, chat)."""
    key: Annotated[str | None, For(SERVERS, changes_answers=False)] = None
    """Name of the environment variable with the servers' API key, such as OPENAI_API_KEY; null: none is sent
    (openai, chat)."""
    tokenizer: Annotated[str | None, For(("vllm", "transformers", "openai"), argument="tokenizer")] = None
    """Directory or hub name of the model's tokenizer; null: the model's own (vllm, transformers, openai)."""
    thinking: bool | None = None
    """Whether a thinking model thinks before it answers; null: as its chat template says, and with chat with
    tokens for its thoughts if it is found to think. true only with chat: the other engines begin the model's answer
    for it (vllm, transformers, openai, chat)."""
    thinking_tokens: Annotated[Count, For(("chat",))] = 8192
    """Number of tokens for the thoughts of a model that thinks, in addition to those of its answer (chat)."""
    timeout: Annotated[float, Field(gt=0), For(changes_answers=False)] = 600.0
    """Time limit of a call in seconds. A call that takes longer fails (vllm, transformers, openai, chat)."""
    requests_per_minute: Annotated[Count | None, For(SERVERS, changes_answers=False)] = None
    """Maximum number of calls a minute; null: no limit (openai, chat)."""
    tokens_per_minute: Annotated[Count | None, For(SERVERS, changes_answers=False)] = None
    """Maximum number of tokens a minute, of prompts and answers; null: no limit (openai, chat)."""
    input_price: Annotated[Dollars, For(("chat",), changes_answers=False)] = 0.0
    """Dollars for a million tokens of prompts; with prices, the cost is printed at the end (chat)."""
    output_price: Annotated[Dollars, For(("chat",), changes_answers=False)] = 0.0
    """Dollars for a million tokens of answers (chat)."""
    cache: Annotated[Path | None, For(changes_answers=False)] = None
    """File that keeps all answers, so that no call is made twice; null: none (vllm, transformers, openai, chat)."""
    extra: Annotated[dict[str, Any], For(("vllm", *SERVERS))] = field(default_factory=dict)
    """Further settings under their own names: arguments of vLLM's engine, such as quantization (vllm), or fields of
    each request, such as min_p (openai, chat)."""

    def __post_init__(self) -> None:
        """Raise UserError for a setting that the engine does not have, or that belongs to another key."""
        of = _settings()
        for each in fields(self):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if self.kind not in of[each.name].engines and getattr(self, each.name) != default:
                engines = " or ".join(of[each.name].engines)
                raise UserError(f"engine.{each.name}: only for the engine {engines}, not {self.kind}; remove it")
        if self.thinking and self.kind != "chat":
            raise UserError(f"engine.thinking: true only with the engine chat, not {self.kind}; remove it")
        own = {setting.argument: f"set by engine.{name}" for name, setting in of.items()} | _ARGUMENTS
        for key, value in self.extra.items():
            if reason := (own if self.kind == "vllm" else _FIELDS).get(key):
                raise UserError(f"engine.extra.{key}: {reason}; remove it")
            if key == "chat_template_kwargs":
                if self.kind == "openai":
                    raise UserError(
                        f"engine.extra.{key}: the template is filled in here, not by the server; remove it"
                    )
                if not isinstance(value, dict) or "enable_thinking" in value:
                    raise UserError(
                        f"engine.extra.{key}: not a mapping without enable_thinking; set engine.thinking"
                    )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of vLLM's engine."""
        named = {each.argument: getattr(self, name) for name, each in _settings().items() if each.argument}
        return named | self.extra

    @property
    def gpus(self) -> int:
        """Number of GPUs that the engine takes: none if a server has the model."""
        shards = [self.extra.get(f"{way}_parallel_size", 1) for way in ("pipeline", "data")]
        return 0 if self.kind in SERVERS else self.tensor_parallel * prod(shards)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that answers depend on. The addresses belong to them, because servers may have different
        models under one name, and so do the words that ask for a format."""
        changing = [name for name, each in _settings().items() if each.changes_answers]
        settings = {name: getattr(self, name) for name in changing}
        if self.tokenizer:
            settings["tokenizer"] = tokenizer_identity(self.tokenizer)
        if self.kind in SERVERS:
            settings |= {"urls": sorted(map(masked, self.urls)), "guide": code(unguided)}
        return settings


@cache
def _settings() -> dict[str, For]:
    """Return what each setting is for."""
    hints = get_type_hints(EngineConfig, include_extras=True)
    return {
        name: next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, For)), For())
        for name, hint in hints.items()
    }


_ARGUMENTS = {
    "model": "set by model",
    "enable_lora": "set by engine.max_lora_rank",
    "hf_token": "a secret, which belongs into the environment variable HF_TOKEN",
    "trust_remote_code": "Python code of a model is never run",
}
"""Arguments of vLLM's engine that are not passed through, and why."""
_FIELDS = dict.fromkeys(
    ("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs"),
    "set for each call by what makes it",
) | dict.fromkeys(
    (
        *("model", "prompt", "messages", "response_format", "structured_outputs", "n", "best_of", "stream", "echo"),
        *("tools", "continue_final_message", "add_generation_prompt", "include_stop_str_in_output"),
        *("no_stop_trim", "return_token_ids", "return_tokens_as_token_ids"),
    ),
    "the engine sets it, to read the answer",
)
"""Fields of a request that are not passed through, and why."""


def parse_settings(option: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings of an engine given as ``KEY=VALUE``; ``urls`` may be repeated.

    ``extra.KEY=VALUE`` gives one of the further settings, and ``extra.KEY.INNER=VALUE`` a part of it.

    Raises UserError if a key is unknown or a value has the wrong type; the message begins with ``option``.
    """
    hints, plain = get_type_hints(EngineConfig, include_extras=True), get_type_hints(EngineConfig)
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        name, *inner = key.split(".")
        if not equals or name not in hints or (name == "extra") != bool(inner) or "" in inner:
            known = ", ".join("extra.KEY" if name == "extra" else name for name in hints)
            raise UserError(f"{option}: no setting {key!r}; an engine has {known}")
        several = get_origin(plain[name]) is list
        try:
            value = parse_yaml(text)
            if not inner:
                value = TypeAdapter(get_args(plain[name])[0] if several else hints[name]).validate_python(value)
        except (ValidationError, yaml.YAMLError):
            wanted = "plain YAML" if inner else type_name(plain[name])
            raise UserError(f"{option}: {key}={text} is not {wanted}") from None
        assign(given, [name, *inner], [*given.get(key, []), value] if several else value, pair)
    return given


def identity(model: str, config: EngineConfig) -> dict[str, Any]:
    """Return all that the answers of an engine depend on: the identity of ``model``, and the engine's settings.

    A server's model has its name for an identity, and the weights if it is named after a directory of this machine.
    """
    served = config.kind in SERVERS and not Path(model).exists()
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

        engine = VLLMEngine.start(model, thinking=config.thinking, **config.arguments)
        return Timed(engine, config.timeout)
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

    replicas = Replicas(
        config.urls,
        key=config.key,
        timeout=config.timeout,
        max_in_flight=config.max_sequences,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
    )
    options: dict[str, Any] = {"thinking": config.thinking, "extra": config.extra}
    if config.kind == "openai":
        engine = OpenAIEngine(replicas, model, tokenizer=config.tokenizer, **options)
    else:
        prices = (config.input_price, config.output_price)
        engine = ChatEngine(replicas, model, thinking_tokens=config.thinking_tokens, prices=prices, **options)
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
