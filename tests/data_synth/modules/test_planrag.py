"""PlanRAG's training data: plans and answers from gold annotations, and plans from a teacher."""

import asyncio

import pytest
from support.fakes import Found
from support.questions import compounds
from support.two_hop import QUESTION, kit

from rag_train.data_synth.methods import dualrag, planrag
from rag_train.data_synth.modules.method import TeacherRecipe
from rag_train.formats import planrag as plans
from rag_train.formats.planrag import PlanError
from rag_train.schema import GoldStep, Plan, PlanNode, Question
from rag_train.worlds.mini.world import World


def test_gold_plans_of_the_mini_world_are_valid_and_lead_to_the_answer(world: World):
    for question in [*world.questions("dev"), *compounds(world, "dev", 30)]:
        plan = planrag.plan_from_gold(question)
        assert plans.problems(plan) == []
        if (question.hops or 0) == 1:
            assert plan.nodes == []
            continue
        chain = question.type == "chain"
        assert len(plan.nodes) == (question.hops or 0) + (not chain)
        values = {step.subquery: step.short for step in question.decomposition}
        answers: dict[str, str] = {}
        for node in plan.nodes:
            text = plans.fill(node.question, answers)
            assert not plans.tags(text)
            answers[node.id] = values.get(text, question.answers[0])
        assert answers[plan.nodes[-1].id] == question.answers[0]


def test_makes_no_examples_of_a_plan_with_too_many_nodes():
    steps = [GoldStep(subquery=f"q{i}?", answer=f"a{i}", entity="e") for i in range(20)]
    question = Question(id="q", question="all?", answers=["x"], decomposition=steps)
    with pytest.raises(PlanError, match="too many nodes"):
        planrag.plan_from_gold(question)
    assert planrag.gold_records(question, {}) == [] and len(dualrag.rounds(question)) == 20


def test_teacher_plans_are_repaired_or_rejected_with_a_reason():
    def outcome(text: str):
        recipe = TeacherRecipe(questions=[], index="", output="", model="t", instructions=False)
        return asyncio.run(planrag.PlanRAGData(recipe, [], Found([]), kit(text)).outcome(QUESTION))

    good = '[{"id":"Q1.1","question":"Who directed Moby Dick?"},{"id":"Q2.1","question":"Where was <A1.1> born?"}]'
    [record] = outcome(good).records
    assert [draft.parents for draft in plans.PLAN.parse(record.segments[-1].text)] == [[], ["Q1.1"]]
    counts = outcome(good).counts
    assert (counts["depth 2"], counts["mended"], counts["edits from gold"]) == (1, 1, 0)
    tuples = '[("Q: x", "Q1.1: Who?"), ("Q1.1: Who?", "Q2.1: Where was <A1.1> born?")]'
    assert outcome(tuples).counts["compared with gold"] == 1
    bad = {
        "__import__('os').system('true')": "not a plan",
        '[{"id":"Q1.1","question":"Who is <A7.1>?"}]': "unknown tag",
        '[{"id":"Q1.1","question":"a <A1.2>"},{"id":"Q1.2","question":"b","parents":["Q1.1"]}]': "cycle",
        '[{"id":"first","question":"Who?"}]': "bad id",
        '[{"id":"Q1.1","question":" "}]': "empty subquery",
    }
    for text, reason in bad.items():
        [rejected] = outcome(text).rejected
        assert rejected.reason == reason and rejected.text and not outcome(text).records


def test_repair_makes_plans_minimal():
    def plan(*nodes: tuple[str, str, list[str]]) -> list[PlanNode]:
        return [PlanNode(id=id, question=text, parents=parents) for id, text, parents in nodes]

    unused = plan(
        ("Q1.1", "Who?", []), ("Q1.2", "What?", []), ("Q2.1", "Of <A1.2>?", ["Q1.2"]),
        ("Q3.1", "Where was <A1.1>?", ["Q1.1", "Q2.1"]),
    )  # fmt: skip
    assert plans.problems(Plan(nodes=unused)) == ["unused node"]
    assert [node.id for node in plans.repair(unused, "x?").nodes] == ["Q1.1", "Q3.1"]
    twice = plan(("Q1.1", "Who?", []), ("Q1.2", "who?", []), ("Q2.1", "<A1.1> and <A1.2>?", ["Q1.1", "Q1.2"]))
    assert plans.problems(Plan(nodes=twice)) == ["repeated subquery"]
    assert plans.repair(twice, "x?").nodes[-1] == PlanNode(
        id="Q2.1", question="<A1.1> and <A1.1>?", parents=["Q1.1"]
    )
    assert plans.repair(plan(("Q1.1", "Where is it?", [])), "Where is it").nodes == []
    both = plan(("Q1.1", "Who?", []), ("Q1.2", "What?", []), ("Q2.1", "Which is older?", ["Q1.1", "Q1.2"]))
    assert plans.problems(Plan(nodes=both)) == [] and plans.repair(both, "x?").nodes == both


def test_edit_distance_of_plans():
    plan = planrag.plan_from_gold(QUESTION)
    longer = Plan(nodes=[*plan.nodes, PlanNode(id="Q3.1", question="And <A2.1>?", parents=["Q2.1"])])
    pairs = ((plan, plan), (plan, longer), (Plan(), plan))
    assert [planrag.edit_distance(first, second) for first, second in pairs] == [0, 2, 4]
