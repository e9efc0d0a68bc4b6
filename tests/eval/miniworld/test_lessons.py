"""The lessons of the mini models: examples of all methods from the same questions, without worked examples."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from support.fakes import Says

from rag_train.eval.demo.recipe import demo_recipe
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.lessons import lessons, spaced
from rag_train.miniworld.text import build_tokenizer
from rag_train.schema import Segment, SFTRecord

METHODS = "adaptive auto chatqa cot cot-rag deeprag direct dualrag genground hanrag ircot iterdrag itrg levelrag "
METHODS += "metarag planrag qd rag rankrag react resp rq selfrag taare uar"


class FakeLab(Lab):
    """A lab whose model answers "Nobody" to everything; ``prompts`` are what it is asked."""

    def __init__(self, folder: Path):
        demo = demo_recipe()
        few = replace(demo, cold_start=replace(demo.cold_start, questions=24))
        super().__init__(0, Settings(work=folder, demo=few))
        self.prompts: list[str] = []

    @asynccontextmanager
    async def serve(self, model: Path):
        engine = Says(lambda prompt: self.prompts.append(prompt) or "Nobody")
        engine.tokenizer = build_tokenizer(self.world)
        yield engine


def test_every_method_has_examples_from_the_same_questions(tmp_path: Path):
    lab = FakeLab(tmp_path)
    examples = asyncio.run(lessons(lab, tmp_path))
    assert sorted(examples) == METHODS.split()
    ids = {question.id for question in lab.lessons()}
    assert len(ids) == 24 + 4
    for records in examples.values():
        assert records and {record.id.partition("/")[0] for record in records} <= ids
    assert all(record.prompt.startswith("Question: ") and not record.task for record in examples["deeprag"])
    for method, prompt, completion in (
        ("direct", "Question: ", "So the final answer is:"),
        ("cot", "Question: ", "Thought:"),
        ("rag", "Context: ", "So the final answer is:"),
        ("cot-rag", "Context: ", "Thought:"),
    ):  # a budget of tokens for each, not one for all
        assert all(r.prompt.startswith(prompt) and r.completion.startswith(completion) for r in examples[method])


def test_the_pretrained_model_is_asked_plain_questions(tmp_path: Path):
    lab = FakeLab(tmp_path)
    asyncio.run(lessons(lab, tmp_path))
    questions = {question.question for question in lab.lessons()}
    subqueries = {step.subquery for question in lab.lessons() for step in question.decomposition}
    assert set(lab.prompts) > questions and set(lab.prompts) - questions <= subqueries
    lab.prompts.clear()
    asyncio.run(lessons(lab, tmp_path))
    assert not lab.prompts  # the cold start is kept


def test_strings_of_json_begin_with_a_space():
    def record(text: str) -> SFTRecord:
        lead, answer = Segment(text="Queries:", trained=False), Segment(text=text, trained=True)
        return SFTRecord(id="a", prompt="", completion=f"Queries:{text}", segments=[lead, answer], source="gold")

    assert spaced(record('[["Ann Lee", ""], 1]')).completion == 'Queries:[[" Ann Lee",""],1]\n'
    assert spaced(record("[Retrieval] Ann")) == record("[Retrieval] Ann")
