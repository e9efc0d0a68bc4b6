"""A text that was cut is never an answer, a label, a plan or a record, whoever reads it."""

import asyncio
import json

import pytest
from support.fakes import Cut, Found, Says
from support.hostile import ASKED, HostileModel, HostileRetriever
from support.two_hop import FILM, MAN, QUESTION

from rag_train.data_synth.deeprag.cold_start import ColdStart, ColdStartConfig
from rag_train.data_synth.deeprag.search import SearchConfig, TreeSearch
from rag_train.data_synth.methods import compound, dualrag, hanrag, labels, planrag
from rag_train.data_synth.methods.deeprag import _cold_start_outcome, _search_outcome
from rag_train.data_synth.modules.method import TeacherRecipe
from rag_train.eval.metrics.summary import summarize
from rag_train.jobs.items import Outcome
from rag_train.llm.call_log import CallLog
from rag_train.llm_judge import JudgeInput, verdict
from rag_train.schema import Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES, build

TEACHER = {"questions": [], "index": "", "output": "", "model": "t", "instructions": False}


def kit(text: str) -> Kit:
    return Kit(Cut(Says(text)), Found([FILM, MAN]), instructions=False)


def reasons(outcome: Outcome) -> set[str]:
    assert not outcome.records and outcome.counts["cut_texts"] > 0
    return {rejected.reason for rejected in outcome.rejected}


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_strategy_answers_from_a_text_that_was_cut(name: str):
    retriever = HostileRetriever("everything")
    kinds = dict.fromkeys(("sparse", "dense", "web"), retriever)
    llm = Cut(HostileModel("obedient", 0))
    opened = Kit(llm, retriever, instructions=False, retrievers=kinds)
    trajectory = asyncio.run(build(name, opened).answer(ASKED))
    assert trajectory.answer is None and trajectory.cut and "at the limit of tokens" in trajectory.notes["cut"]
    assert not any(step.answer for step in trajectory.steps)
    assert summarize([ASKED], [trajectory], strategy=name).cut == 1


def test_a_plan_of_a_teacher_is_rejected():
    recipe, text = TeacherRecipe(**TEACHER), '[{"id": "Q1.1", "question": "Who?", "parents": []}]'
    assert reasons(asyncio.run(planrag.PlanRAGData(recipe, [], Found([]), kit(text)).outcome(QUESTION))) == {"cut"}


def test_a_trajectory_of_a_teacher_is_rejected():
    recipe = dualrag.DualRAGRecipe(**TEACHER)
    assert reasons(asyncio.run(dualrag.DualRAGData(recipe, [], Found([]), kit("Nevada")).outcome(QUESTION))) == {
        "cut"
    }


def test_verdicts_of_a_teacher_are_rejected():
    marks = {hanrag.ROUTED: [], hanrag.JUDGED: [0, 1]}
    question = QUESTION.model_copy(update={"metadata": marks})
    method = hanrag.HANRAGData(hanrag.HANRAGRecipe(**TEACHER), [], Found([FILM, MAN]), kit(" true"))
    made = asyncio.run(method.outcome(question))
    assert {item.reason for item in made.rejected} == {"cut"} and not made.counts["judged"]
    assert "hanrag_relevant" not in {record.task for record in made.records}


def test_questions_of_a_teacher_are_rejected():
    recipe = compound.CompoundRecipe(index="", model="t", output="", instructions=False)
    entity = compound.Entity(id="e", name=FILM.title, split="train")
    pair = json.dumps({"Question": f"Who directed {FILM.title}?", "Answer": "John Huston"})
    assert reasons(asyncio.run(compound.CompoundData(recipe, [], kit(pair)).outcome(entity))) == {"cut"}


@pytest.mark.parametrize("text", ["Follow up: Who directed Moby Dick?", "So the final answer is: Nevada"])
def test_a_line_of_a_controller_ends_its_branch(text: str):
    searcher = TreeSearch(Cut(Says(text)), Found([FILM, MAN]), SearchConfig())
    result = asyncio.run(searcher.search(QUESTION, "Question: q\n"))
    assert result.best is None and result.root.cut and not result.root.children
    assert reasons(_search_outcome(QUESTION, result, [])) == {"cut"}


def test_an_answer_of_a_cold_start_is_left_out():
    config = ColdStartConfig(retrieve_share=0.0)
    maker = ColdStart(Cut(Says("Nevada")), Found([]), config, [QUESTION], 2, 0)
    assert reasons(_cold_start_outcome(QUESTION, *asyncio.run(maker.examples(QUESTION, "q")))) == {"cut"}


def test_a_judge_has_no_verdict():
    llm = Cut(Says(" yes"))
    asked = JudgeInput(question="q", answers=["a"], prediction="a")
    assert asyncio.run(verdict(CallLog(llm), llm, asked)) is None


def test_a_run_labels_no_question_whose_answer_it_cut():
    trajectory = asyncio.run(build("direct", kit("Nevada")).answer(QUESTION))
    assert Trajectory.model_validate_json(trajectory.model_dump_json()).cut
    assert labels.labelled(QUESTION, {"direct": trajectory}).refused == "cut"


def test_a_whole_line_before_the_cut_is_read():
    text = "It is known.\nSo the final answer is: Nevada\nAnd so on"
    trajectory = asyncio.run(build("cot", kit(f" {text}")).answer(QUESTION))
    assert trajectory.answer == "Nevada" and trajectory.reasoning == "It is known." and len(trajectory.calls) == 1
