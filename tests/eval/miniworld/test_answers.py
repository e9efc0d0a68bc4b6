"""Answers of the mini world's models: each question asked once, by few engines, and kept."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fakes import Found, Says

from rag_train.eval.demo.recipe import Thresholds, demo_recipe
from rag_train.eval.miniworld import answers
from rag_train.eval.miniworld.answers import Request, as_in_the_lab, ask, stored
from rag_train.eval.miniworld.lab import Settings
from rag_train.schema import Passage, Question
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES

LAB = Settings()


class FakeLab:
    """A lab whose engines all answer "yes"; ``served`` lists the served checkpoints, ``prompts`` the calls."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.settings = LAB
        self.index = SimpleNamespace(corpus_sha256="")
        self.served: list[str] = []
        self.prompts: list[str] = []

    def kit(self, llm, models=None) -> Kit:
        return Kit(llm, Found([Passage(id="p", title="t", text="x")]), instructions=False, models=models or {})

    @asynccontextmanager
    async def serve(self, model: Path):
        self.served.append(model.name)
        yield Says(lambda prompt: self.prompts.append(prompt) or "yes\n")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    async def checkpoints(lab: FakeLab, names) -> dict[str, Path]:
        return {name: lab.folder / name for name in names}

    monkeypatch.setattr(answers, "checkpoints", checkpoints)
    return FakeLab(tmp_path)


def questions(*numbers: int) -> list[Question]:
    return [Question(id=str(i), question=f"Number {i}?", answers=["yes"]) for i in numbers]


FIRST, SECOND = questions(1, 2, 3), questions(3, 4)
REQUESTS = {
    Request("taught", "direct", "first"): FIRST,
    Request("student", "direct", "first"): FIRST,
    Request("taught", "rag", "second"): SECOND,
    Request("taught", "direct", "second", ("planner", "planrag")): SECOND,
    Request("student", "direct", "second", ("planner", "taught")): SECOND,
}


def test_each_engine_starts_once_and_the_answers_are_in_order(lab: FakeLab):
    trajectories = asyncio.run(ask(lab, REQUESTS))
    assert lab.served == ["taught", "planrag", "student", "taught"]  # two at a time
    assert trajectories.keys() == REQUESTS.keys()
    for request, asked in REQUESTS.items():
        assert [t.question_id for t in trajectories[request]] == [q.id for q in asked]
        assert {(t.strategy, t.answer) for t in trajectories[request]} == {(request.strategy, "yes")}


def test_answered_questions_start_no_engine(lab: FakeLab):
    first = asyncio.run(ask(lab, REQUESTS))
    lab.served.clear()
    again = asyncio.run(ask(lab, REQUESTS))
    assert again == first and lab.served == []


def test_a_question_of_two_sets_and_a_call_of_two_strategies_are_asked_once(lab: FakeLab):
    requests = {
        Request("taught", strategy, name): asked
        for strategy in ("rag", "cot-rag", "cot-retrieve", "taare")
        for name, asked in (("first", FIRST), ("second", SECOND))
    }
    trajectories = asyncio.run(ask(lab, requests))
    assert len(set(lab.prompts)) == len(lab.prompts)
    assert {t.question_id for answered in trajectories.values() for t in answered} == {"1", "2", "3", "4"}
    assert len(list((lab.folder / "answers").iterdir())) == 3


def test_other_weights_have_other_answers(lab: FakeLab, tmp_path: Path):
    def weights(text: str) -> None:
        (tmp_path / "taught").mkdir(exist_ok=True)
        (tmp_path / "taught" / "model.safetensors").write_text(text)

    request = Request("taught", "direct", "first")
    weights("first")
    asyncio.run(ask(lab, {request: FIRST}))
    assert not stored(lab, request).missing(FIRST)
    weights("other weights")
    assert stored(lab, request).missing(FIRST) == FIRST


def in_the_lab(strategy: str, settings: Settings = LAB, model: str = "taught") -> str:
    return as_in_the_lab(Request(model, strategy, ""), settings)


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("dualrag,max_iterations=5", "dualrag"),
        ("dualrag,max_iterations=4", "dualrag,max_iterations=4"),
        ("levelrag,summarize=true,feedback=false", "levelrag,feedback=false"),
        ("qd-rag-subq", "qd-rag-subq"),
        ("cot-retrieve", "cot-rag"),
        ("flare,theta=0.4", "flare,theta=0.4"),
        ("direct,max_calls=3", "direct,max_calls=3"),
        ("taare", f"taare,today={answers.TODAY}"),
    ],
)
def test_strategies_that_are_the_same_in_the_lab_have_one_name(strategy: str, asked: str):
    assert in_the_lab(strategy) == asked


def test_the_labs_settings_are_those_of_the_strategies():
    other = Settings(flare="theta=0.4,beta=0.2", dragin="threshold=0.1", self_rag="threshold=0.6")
    assert in_the_lab("flare", other) == "flare,theta=0.4,beta=0.2"
    assert in_the_lab("flare,theta=0.6", other) == "flare,theta=0.6,beta=0.2"
    assert in_the_lab("dragin", other) == "dragin,threshold=0.1"
    assert in_the_lab("self-rag", other) == "self-rag,threshold=0.6"
    names = {name: in_the_lab(name) for name in STRATEGIES}
    changed = {name for name, asked in names.items() if name != asked}
    assert changed == {"cot-retrieve", "dragin", "fireact", "flare", "self-rag", "taare"}


def test_deeprag_decides_at_the_threshold_of_its_stage():
    settings = Settings(demo=replace(demo_recipe(), thresholds=Thresholds(stage1=0.3, stage2=0.2)))
    models = ("taught", "stage1", "stage1-most", "stage2-all-nodes")
    asked = [in_the_lab("deeprag", settings, model) for model in models]
    assert asked == ["deeprag", "deeprag,threshold=0.3", "deeprag,threshold=0.3", "deeprag,threshold=0.2"]
    assert in_the_lab("deeprag-retrieve", settings, "stage1") == "deeprag-retrieve"
