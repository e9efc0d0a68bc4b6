"""Settings that are passed through to vLLM and to servers (``engine.extra``)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import Body, Chat, Reply, asks, fine, model_server, opened
from support.paths import MODEL

from rag_train.errors import UserError
from rag_train.llm.engines import EngineConfig, Kind, open_engine, parse_settings
from rag_train.recipe import load_recipe


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        ("vllm", "max_model_len", "engine.extra.max_model_len: set by engine.max_context; remove it"),
        ("vllm", "tensor_parallel_size", "set by engine.tensor_parallel"),
        ("vllm", "hf_token", "a secret"),
        ("vllm", "trust_remote_code", "Python code of a model is never run"),
        ("openai", "temperature", "engine.extra.temperature: set for each call"),
        ("chat", "stream", "the engine sets it"),
        ("openai", "chat_template_kwargs", "the template is filled in here"),
        ("chat", "chat_template_kwargs", "set engine.thinking"),
        ("transformers", "quantization", "engine.extra: only for the engine vllm or openai or chat"),
    ],
)
def test_what_has_another_place_is_refused(kind: Kind, key: str, message: str):
    with pytest.raises(UserError, match=message):
        EngineConfig(kind=kind, extra={key: {"enable_thinking": True}})


def test_settings_are_given_in_a_recipe_and_as_options(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("kind: vllm\nextra: {quantization: fp8}\n")
    wanted = {"quantization": "fp8", "compilation_config": {"mode": 0}}
    recipe = load_recipe(EngineConfig, tmp_path / "r.yaml", ["extra.compilation_config.mode=0"])
    given = parse_settings("--engine", ["extra.quantization=fp8", "extra.compilation_config.mode=0"])
    assert recipe.extra == given["extra"] == wanted
    for pair in ("extra=1", "extra.=1", "dtype.x=1"):
        with pytest.raises(UserError, match=r"--engine: no setting .*, extra\.KEY"):
            parse_settings("--engine", [pair])


@pytest.mark.engine
def test_arguments_reach_vllm_or_are_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch, mini_model: Path):
    from vllm.v1.engine.async_llm import AsyncLLM

    started: list[Any] = []
    stub = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64), shutdown=lambda: None)
    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda arguments: started.append(arguments) or stub)

    async def open_with(**settings: Any) -> None:
        async with open_engine(str(mini_model), EngineConfig(**settings)):
            pass

    asyncio.run(open_with(max_context=64, extra={"max_num_batched_tokens": 64, "block_size": 16}))
    assert (started[0].max_model_len, started[0].max_num_batched_tokens, started[0].block_size) == (64, 64, 16)
    message = r"engine.extra.max_num_batched_token: not .* did you mean 'max_num_batched_tokens'\?"
    with pytest.raises(UserError, match=message):
        asyncio.run(open_with(extra={"max_num_batched_token": 64}))
    assert len(started) == 1


def test_fields_are_in_each_request_of_completions():
    def rejects(body: Body) -> Reply:
        return (400, {}, "unknown field: top_k") if "top_k" in body else fine()

    own: dict[str, Any] = {"kind": "openai", "tokenizer": str(MODEL)}
    with model_server() as server:
        opened(asks(), server.url, extra={"min_p": 0.5, "cache_salt": "x"}, **own)
        assert {(body["min_p"], body["cache_salt"], body["top_k"]) for body in server.asked} == {(0.5, "x", -1)}
    with model_server(rejects) as server, pytest.raises(UserError, match=r"extra.top_k: .*unknown field: top_k"):
        opened(asks(), server.url, extra={"top_k": 3}, **own)


def test_fields_are_in_each_request_of_chats():
    fields = {"reasoning_effort": "low", "chat_template_kwargs": {"x": 1}}
    with model_server(Chat(ignores=True)) as server:
        opened(asks(), server.url, extra=fields)
    assert all(fields.items() <= body.items() for body in server.asked)
    with model_server(Chat()) as server, pytest.raises(UserError, match=r"engine.extra.min_p: .*is not supported"):
        opened(asks(), server.url, extra={"min_p": 0.5})
