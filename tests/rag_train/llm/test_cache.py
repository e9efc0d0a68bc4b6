"""The cache of an engine's answers: two engines that differ in one setting, model or adapter share none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import Says

from rag_train.llm import engines
from rag_train.llm.base import Sampling
from rag_train.llm.engines import EngineConfig, open_engine

ENGINE = EngineConfig(kind="openai", urls=["http://a:1"])
SETTINGS: dict[str, dict[str, Any]] = {
    "urls": {"urls": ["http://b:1"]},
    "kind": {"kind": "chat"},
    "thinking": {"thinking": False},
    "tokenizer": {"tokenizer": "org/other"},
    "extra": {"extra": {"min_p": 0.5}},
}
SAME: dict[str, dict[str, Any]] = {
    "timeout": {"timeout": 5.0},
    "max_sequences": {"max_sequences": 8},
    "requests_per_minute": {"requests_per_minute": 10},
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Ask an engine with a cache, and return how many calls have been made so far."""
    prompts: list[str] = []

    async def start(model: str, config: EngineConfig) -> Says:
        return Says(lambda prompt: prompts.append(prompt) or "yes")

    monkeypatch.setattr(engines, "_start", start)

    def ask(model: str = "m", config: EngineConfig = ENGINE, **sampling: Any) -> int:
        async def go() -> None:
            async with open_engine(model, replace(config, cache=tmp_path / "answers.db")) as engine:
                await engine.complete("Is it?", Sampling(**sampling))

        asyncio.run(go())
        return len(prompts)

    return ask


@pytest.mark.parametrize("name", SETTINGS)
def test_two_engines(asked: Callable[..., int], name: str) -> None:
    assert [asked(), asked(), asked(config=replace(ENGINE, **SETTINGS[name]))] == [1, 1, 2]


@pytest.mark.parametrize("name", SAME)
def test_settings_that_make_no_difference(asked: Callable[..., int], name: str) -> None:
    assert [asked(), asked(config=replace(ENGINE, **SAME[name]))] == [1, 1]


def test_two_models_at_one_place(asked: Callable[..., int], tmp_path: Path) -> None:
    """A model that was trained again got the answers of the model before."""
    (tmp_path / "model").mkdir()
    calls = []
    for weights in ("a", "a", "b"):
        (tmp_path / "model/model.safetensors").write_text(weights)
        calls.append(asked(str(tmp_path / "model"), EngineConfig()))
    assert calls == [1, 1, 2]


def test_two_adapters_at_one_place(asked: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    calls = []
    for weights in ("a", "a", "b"):
        (tmp_path / "adapter/adapter_model.safetensors").write_text(weights)
        calls.append(asked(adapter=str(tmp_path / "adapter")))
    assert calls == [1, 1, 2]
