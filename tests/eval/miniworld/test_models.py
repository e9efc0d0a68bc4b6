"""The order in which models are trained, the engines that make their data, and the settings of their training."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fakes import Says

from rag_train.eval.miniworld import models
from rag_train.eval.miniworld.lab import Lab, Settings, TrainingQuestions
from rag_train.eval.miniworld.models import checkpoints
from rag_train.files import read_records, write_records
from rag_train.llm.base import Sampling
from rag_train.schema import Decision, Question, SFTRecord, Step
from rag_train.training.result import RESULT


class FakeLab(Lab):
    """A lab whose ``events`` are engines that start, and models that are trained."""

    def begin(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[str] = []
        self.trained: dict[str, tuple[Any, ...]] = {}
        self.calls = 0

    @asynccontextmanager
    async def serve(self, model: Path):
        def answer(prompt: str) -> str:
            self.calls += 1
            return "yes"

        self.events.append(f"serve {model.name}")
        yield Says(answer)


def trajectory(question: Question) -> SFTRecord:
    step = Step(subquery="Who?", decision=Decision.PARAMETRIC, answer="It is Ann.")
    segments = [{"text": "yes", "trained": True}]
    return SFTRecord(
        id=question.id, prompt="", completion="yes", segments=segments, source="search", steps=[step], answer="yes"
    )


@pytest.fixture(scope="module")
def whole_lab() -> FakeLab:
    return FakeLab(0, Settings())


@pytest.fixture
def lab(whole_lab: FakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    lab = whole_lab
    lab.begin(tmp_path)
    monkeypatch.setattr(lab, "training", TrainingQuestions(QUESTIONS, QUESTIONS, QUESTIONS))

    async def search(kind: str, model: Path, questions, output: Path, seed: int, engine, *_: Any, **settings: Any):
        await engine.complete("Who?", Sampling())
        write_records(output, map(trajectory, questions))
        return output

    async def examples(lab: FakeLab, name: str, teacher: Path, engines) -> list[SFTRecord]:
        await engines.of(teacher)
        return []

    async def write_lessons(lab: FakeLab) -> None: ...

    def train(kind: str, settings: Any, start: Path, data: Path, output: Path, seed: int) -> None:
        lab.events.append(f"train {output.name}")
        lab.trained[output.name] = kind, settings, start.name, data.name
        output.mkdir()
        (output / RESULT).write_text("{}")

    monkeypatch.setattr(models, "search", search)
    monkeypatch.setattr(models.students, "examples", examples)
    monkeypatch.setattr(models, "_write_lessons", write_lessons)
    monkeypatch.setattr(models, "with_words", lambda model, texts, output: output.mkdir())
    monkeypatch.setattr(models, "train_stage", train)
    return lab


QUESTIONS = [Question(id=str(i), question=f"Director {i}?", answers=["yes"]) for i in range(3)]
NAMES = ["stage2-all-nodes", "stage2-sentence-wise", "stage1-most", "dualrag", "cot", "cot-retrieve"]


def test_one_engine_makes_the_data_of_all_models_that_need_it(lab: FakeLab):
    found = asyncio.run(checkpoints(lab, NAMES))
    assert lab.events == [
        *("train taught", "train student"),
        *("serve taught", "train stage1", "train stage1-most", "train dualrag", "train cot", "train cot-retrieve"),
        *("serve stage1", "train stage2-all-nodes", "train stage2-sentence-wise"),
    ]
    assert lab.calls == 2  # once for all searches with an engine
    assert found == {name: lab.folder / name for name in NAMES}
    lab.events.clear()
    assert asyncio.run(checkpoints(lab, NAMES)) == found and not lab.events


def test_models_are_trained_with_the_demos_settings(lab: FakeLab):
    asyncio.run(checkpoints(lab, NAMES))
    demo = lab.settings.demo
    assert lab.trained["taught"] == ("sft", demo.cold_start, "extended", "taught.jsonl")
    for name in ("stage1", "stage1-most", "cot", "cot-retrieve"):
        assert lab.trained[name] == ("sft", demo.stage1, "taught", f"{name}.jsonl")
    assert lab.trained["stage2-all-nodes"] == ("dpo", demo.stage2, "stage1", "stage2-all-nodes.jsonl")
    assert demo.stage2.balance and not lab.trained["stage2-sentence-wise"][1].balance
    assert lab.trained["dualrag"] == ("sft", lab.settings.students, "dualrag-extended", "dualrag.jsonl")
    assert not (lab.folder / "dualrag-extended").exists()


def test_chains_of_thought_are_of_stage_1s_questions(lab: FakeLab):
    asyncio.run(checkpoints(lab, ["cot", "cot-retrieve"]))
    for name, prompt in (("cot", "Question: "), ("cot-retrieve", "Context: ")):
        records = read_records(lab.folder / f"{name}.jsonl", SFTRecord)
        assert [record.id for record in records] == [question.id for question in QUESTIONS]
        assert {record.completion for record in records} == {"Thought: It is Ann.\nSo the final answer is: yes\n"}
        assert all(record.prompt.startswith(prompt) for record in records)
