"""Answers of the mini world's models: grouped by model, served once, kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fakes import Says

from rag_train.eval.miniworld import answers
from rag_train.eval.miniworld.answers import Request, ask
from rag_train.schema import Passage, Question
from rag_train.strategies.base import Kit


class Found:
    """A retriever of one passage."""

    async def search(self, query: str, k: int) -> list[Passage]:
        return [Passage(id="p", title="t", text="x")]

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [await self.search(query, k) for query in queries]


class FakeLab:
    """A lab whose engines all answer "yes"; ``served`` lists the served checkpoints."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.served: list[str] = []

    def kit(self, llm, models=None) -> Kit:
        return Kit(llm, Found(), instructions=False, models=models or {})

    @asynccontextmanager
    async def serve(self, model: Path):
        self.served.append(model.name)
        yield Says("yes\n")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    async def checkpoint(lab: FakeLab, name: str) -> Path:
        return lab.folder / name

    monkeypatch.setattr(answers, "checkpoint", checkpoint)
    return FakeLab(tmp_path)


def questions(name: str) -> list[Question]:
    return [Question(id=f"{name}{i}", question=f"{name} {i}?", answers=["yes"]) for i in range(3)]


REQUESTS = {
    Request("base", "direct", "first"): questions("first"),
    Request("taught", "direct", "first"): questions("first"),
    Request("base", "rag", "second"): questions("second"),
    Request("base", "direct", "second", ("planner", "student")): questions("second"),
}


def test_serves_each_pair_of_models_once_and_answers_in_order(lab: FakeLab):
    trajectories = asyncio.run(ask(lab, REQUESTS))
    assert lab.served == ["base", "taught", "base", "student"]
    assert trajectories.keys() == REQUESTS.keys()
    for request, asked in REQUESTS.items():
        assert [t.question_id for t in trajectories[request]] == [q.id for q in asked]
        assert {(t.strategy, t.answer) for t in trajectories[request]} == {(request.strategy, "yes")}


def test_answered_questions_start_no_engine(lab: FakeLab):
    first = asyncio.run(ask(lab, REQUESTS))
    lab.served.clear()
    again = asyncio.run(ask(lab, REQUESTS))
    assert again == first and lab.served == []
