"""No part of a text is read as something else: the prefixes of valid texts are rejected, or valid themselves."""

import gc
import pkgutil
from importlib import import_module
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_train import data_synth, formats, strategies
from rag_train.formats import deeprag, planrag, reader, search_r1
from rag_train.formats.tasks import Task
from rag_train.llm.base import Completion, Usage
from rag_train.llm.unguided import conform
from rag_train.llm_judge import JUDGE
from rag_train.schema import Decision, Plan, PlanNode, Step

for package in (formats, strategies, data_synth):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
TASKS = sorted({task.name: task for task in gc.get_objects() if type(task) is Task}.items())
LINES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda text: deeprag.one_line(text))


def cut(text: str) -> Completion:
    return Completion(text, (), Usage(1, 1), truncated=True)


def prefixes(text: str) -> list[str]:
    return [text[:n] for n in range(len(text))]


def test_finds_the_tasks_of_all_modules():
    assert len(TASKS) > 40 and JUDGE.name in dict(TASKS)


@pytest.mark.parametrize("task", [task for _, task in TASKS], ids=[name for name, _ in TASKS])
@settings(max_examples=8)
@given(data=st.data())
def test_a_prefix_of_a_modules_answer_is_none_or_another_answer(task: Task, data: st.DataObject):
    value: Any = data.draw(LINES if task.output is str else st.from_type(task.output))
    text = task.completion(value)
    for part in prefixes(text.rstrip("\n")):
        assert task.parse(cut(part).whole) is None
        if task.output is str:  # without the engine's word for it, any line may be whole
            continue
        conforming = conform(part, task.sampling())
        for read in (task.parse(part), conforming and task.parse(conforming)):
            assert read is None or read in get_args(task.output)


@given(st.lists(LINES, min_size=2, max_size=4))
def test_a_prefix_of_a_plan_is_no_plan(questions: list[str]):
    nodes = [
        PlanNode(id=f"Q{i}.1", question=deeprag.one_line(text), parents=[f"Q{i - 1}.1"] if i > 1 else [])
        for i, text in enumerate(questions, 1)
    ]
    for part in prefixes(planrag.to_tuples(Plan(nodes=nodes), "Who?")):
        with pytest.raises(planrag.PlanError, match="not a plan"):
            planrag.read_drafts(part)
    with pytest.raises(planrag.PlanError, match="cut"):
        planrag.read_drafts(None)


def test_words_in_quotation_marks_are_no_plan():
    assert planrag.from_tuples('"Q: Who?"') == []
    with pytest.raises(planrag.PlanError):
        planrag.from_tuples('"I cannot say"')


@given(st.lists(LINES, max_size=3), LINES)
def test_a_prefix_of_a_transcript_has_its_first_steps(lines: list[str], answer: str):
    steps = [Step(subquery=line, decision=Decision.PARAMETRIC, answer=line) for line in lines]
    text = deeprag.text_of(steps, answer)
    whole = deeprag.parse(text)
    for part in prefixes(text):
        read = deeprag.parse(cut(part).whole_lines)
        assert read.answer is None and read.steps == whole.steps[: len(read.steps)]


@given(LINES, LINES)
def test_a_prefix_of_an_answer_after_reasoning_is_none(reasoning: str, answer: str):
    tail = reader.render("q", answer, [], reasoning=reasoning)[-1].text
    for part in prefixes(tail):
        assert reader.parse(part, cut=True)[1] is None
    assert reader.parse(f"{tail}Question: and", cut=True)[1] == reader.parse(tail)[1]


def test_a_prefix_of_an_action_is_none():
    for part in prefixes("<think> I know. </think> <answer> Ada </answer>"):
        assert search_r1.action(part) is None
