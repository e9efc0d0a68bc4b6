"""The answers of real models to the papers' tables: what they are stored by."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import Found, Says
from support.matrices import numbered
from support.synthesis import write

from rag_train.eval.papers import sources
from rag_train.eval.papers.sources import CheckpointSource, Request
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Passage
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig

PARTS = [BM25Index.build([Passage(id="p", text="x")])] * 2


@pytest.fixture
def source(tmp_path: Path) -> CheckpointSource:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/model.safetensors").write_text("a")
    write(tmp_path / "q.jsonl", numbered(0))
    models, files = {"base": str(tmp_path / "base")}, {"d": tmp_path / "q.jsonl"}
    retrievers = {"": FusedRetriever(PARTS, "weighted", [0.9, 0.1])}
    config = KitConfig(model="", indexes=[])
    return CheckpointSource(models, files, config, retrievers, None, 0, tmp_path / "work")


@pytest.mark.parametrize("setting", ["retriever", "passages", "weights"])
def test_two_settings_share_no_answers(
    source: CheckpointSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Answers were stored by the path of the model alone."""
    prompts: list[str] = []

    @asynccontextmanager
    async def open_kit(config: KitConfig, retrievers):
        yield Kit(Says(lambda prompt: prompts.append(prompt) or "yes"), Found([]))

    monkeypatch.setattr(sources, "open_kit", open_kit)
    requests = [Request("base", "rag", "d")]
    for _ in range(2):
        asyncio.run(source.answers(requests))
    assert len(prompts) == 1
    match setting:
        case "retriever":
            source = replace(source, retrievers={"": FusedRetriever(PARTS, "weighted", [0.1, 0.9])})
        case "passages":
            source = replace(source, kit=replace(source.kit, passages=5))
        case "weights":
            (tmp_path / "base/model.safetensors").write_text("b")
    asyncio.run(source.answers(requests))
    assert len(prompts) == 2
