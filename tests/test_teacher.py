"""The factories with a teacher: what is kept, mended and rejected, and why."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from replay import Found, Says

from data_synth import compound, dualrag, factories, hanrag, planrag
from data_synth.leakage import Leakage
from data_synth.recipes import DualRAGRecipe, HANRAGRecipe, PlanRAGRecipe, RouteSizes
from eval.plans import depth_table, edit_distance, gain_table, information_gain
from rag_train.formats import dualrag as format
from rag_train.formats import planrag as plans
from rag_train.formats.dualrag import Entity
from rag_train.schema import GoldStep, Passage, Plan, PlanNode, Question, SFTRecord
from rag_train.strategies.base import Ask, Kit

FILM = Passage(id="f", title="Moby Dick", text="Moby Dick is a 1956 film. It was directed by John Huston.")
MAN = Passage(id="m", title="John Huston", text="John Huston (born in Nevada) made films.")
QUESTION = Question(
    id="q",
    question="Where was the director of Moby Dick born?",
    answers=["Nevada", "NV"],
    hops=2,
    decomposition=[
        GoldStep(subquery="Who directed Moby Dick?", answer="John Huston", entity="Moby Dick", passage_ids=["f"]),
        GoldStep(subquery="Where was John Huston born?", answer="Nevada", entity="John Huston", passage_ids=["m"]),
    ],
)


def kit(text, passages=(FILM, MAN), **more) -> Kit:
    return Kit(Says(text), Found(passages), instructions=False, **more)


def made(outcome) -> dict[str, list[SFTRecord]]:
    by_task: dict[str, list[SFTRecord]] = {}
    for record in outcome.records:
        assert record.source == "teacher"
        by_task.setdefault(record.task, []).append(record)
    return by_task


def teacher(answer: str, summary: str = "It was directed by John Huston."):
    """DualRAG's modules: one round about the film, whose name it gives twice, one about the man."""

    def say(prompt: str) -> str:
        thoughts = prompt.count("Thought:")
        if prompt.endswith(f"{format.REASON.marker}\n"):
            return json.dumps({"thought": f"Thought {thoughts}", "retrieve": thoughts < 2})
        if prompt.endswith(f"{format.IDENTIFY.marker}\n"):
            film = [{"entity": "Moby Dick", "queries": ["who directed it"]}]
            more = {"entity": " moby dick.", "queries": ["Who directed it?", "director"]}
            return json.dumps([*film, more] if thoughts == 1 else [{"entity": "John Huston", "queries": ["born"]}])
        if prompt.endswith(format.SUMMARIZE.marker):
            return f" {summary}\n" if "Entity: Moby Dick" in prompt else " nothing\n"
        return f" {answer}\n"

    return say


def recipe(**more) -> DualRAGRecipe:
    return DualRAGRecipe(questions=[], index="", output="", model="t", instructions=False, **more)


def test_only_right_trajectories_are_kept():
    wrong = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([FILM]), kit(teacher("Ohio"))))  # pyright: ignore
    assert not wrong.records and [one.reason for one in wrong.rejected] == ["wrong answer"]
    right = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([FILM]), kit(teacher("nv"))))  # pyright: ignore
    assert right.counts["right"] == 1 and right.counts["engine_calls"] == len(right.records)
    assert {name: len(some) for name, some in made(right).items()} == {
        "dualrag_reason": 3,
        "dualrag_identify": 2,
        "dualrag_summarize": 2,
        "dualrag_answer": 1,
    }
    assert len({record.id for record in right.records}) == len(right.records)


def test_a_judge_accepts_what_is_right_in_other_words():
    def judging(answer: str):
        def say(prompt: str) -> str:
            if prompt.endswith("Right:"):
                return " yes\n" if "Prediction: in the state of Nevada\n" in prompt else " no\n"
            return teacher(answer)(prompt)

        return say

    def counts(answer: str) -> dict[str, int]:
        llm = kit(judging(answer))
        return asyncio.run(dualrag.outcome(QUESTION, recipe(judge=True), Found([FILM]), llm)).counts  # pyright: ignore

    assert counts("in the state of Nevada")["right by the judge"] == 1
    assert counts("NV")["right"] == 1 and counts("NV")["right by the judge"] == 0
    assert counts("Ohio")["right by the judge"] == counts("Ohio")["right"] == 0


def test_entities_are_linked_and_lost_summaries_repaired():
    outcome = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([]), kit(teacher("Nevada"))))  # pyright: ignore
    first, second = (format.IDENTIFY.parse(r.segments[-1].text) for r in made(outcome)["dualrag_identify"])
    assert first == [Entity(entity="Moby Dick", queries=["who directed it", "director"])]
    assert second == [Entity(entity="John Huston", queries=["born"])]
    assert [(one.reason, one.text) for one in outcome.rejected] == [
        ("entity linked", "moby dick. = Moby Dick (1.000)")
    ]
    # The man's passage says where he was born, and the teacher wrote "nothing".
    summaries = [record.segments[-1].text.strip() for record in made(outcome)["dualrag_summarize"]]
    assert summaries == ["It was directed by John Huston.", "John Huston (born in Nevada) made films."]
    rows = {row[0]: row[1:] for row in dualrag.table(outcome.counts).rows}
    assert rows["Entity Identifier"] == rows["Knowledge Summarizer"] == ["1", "1", "2"]
    assert rows["Reasoner"] == ["4", "0", "4"] and rows["Total"] == ["6", "2", "8"]


def test_made_up_summaries_are_dropped_and_capabilities_chosen():
    said = teacher("Nevada", summary="It was directed by John Huston in Ohio in 1999.")
    one = recipe(capabilities=["summaries"])
    outcome = asyncio.run(dualrag.outcome(QUESTION, one, Found([]), kit(said)))  # pyright: ignore
    assert made(outcome).keys() == {"dualrag_summarize"} and len(outcome.records) == 1
    assert [rejected.reason for rejected in outcome.rejected] == ["made up"]


def test_a_cross_encoder_links_across_spellings_and_to_the_outline():
    def scores(pairs):
        return [0.95 if {a, b} == {"J. Huston", "John Huston"} else 0.1 for a, b in pairs]

    entities = [Entity(entity="J. Huston", queries=["birthplace"]), Entity(entity="Ohio", queries=["birthplace"])]
    linked, links = dualrag.link(entities, ["John Huston"], scores, 0.9)
    assert linked == [Entity(entity="John Huston", queries=["birthplace"])]  # Ohio's only query was asked already
    assert links == [("J. Huston", "John Huston", 0.95, True), ("Ohio", "John Huston", 0.1, False)]
    apart, links = dualrag.link(entities[:1], ["John Huston"], scores, 0.96)
    assert apart == entities[:1] and not links[0].linked
    again = [Entity(entity="John Huston", queries=["films"])]
    assert dualrag.link(again, ["John Huston"], scores, 0.96) == (again, [])


def test_a_reranker_of_the_kit_is_the_one_that_links():
    class Far:
        def scores(self, pairs):
            return [0.2 for _ in pairs]

    outcome = asyncio.run(
        dualrag.outcome(QUESTION, recipe(), Found([]), kit(teacher("Nevada"), reranker=Far()))  # pyright: ignore
    )
    assert outcome.counts["similarity 0.2"] == 2 and not outcome.rejected


def test_a_summary_that_contradicts_the_gold_passage_is_replaced():
    fields = format.summary_fields(QUESTION.question, "who?", "Moby Dick", [FILM, MAN])
    ask = Ask(format.SUMMARIZE, fields, "")
    mend = lambda summary: dualrag.mended(summary, ask, QUESTION)  # noqa: E731
    assert mend("It was directed by Nevada.") == "It was directed by John Huston."
    assert mend("Moby Dick is a 1956 film.") == "Moby Dick is a 1956 film. It was directed by John Huston."
    assert mend("the director was John Huston") == "the director was John Huston"


def test_plans_are_mended_or_rejected_by_reason():
    def outcome(text: str):
        want = PlanRAGRecipe(questions=[], index="", output="", model="t", instructions=False)
        return asyncio.run(planrag.outcome(QUESTION, want, Found([]), kit(text)))  # pyright: ignore

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


def test_plans_are_made_minimal():
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


def test_distance_gain_and_depth_of_plans():
    one = planrag.plan_from_gold(QUESTION)
    other = Plan(nodes=[*one.nodes, PlanNode(id="Q3.1", question="And <A2.1>?", parents=["Q2.1"])])
    assert (edit_distance(one, one), edit_distance(one, other), edit_distance(Plan(), one)) == (0, 2, 4)
    gains = asyncio.run(information_gain(QUESTION, one, kit(lambda prompt: " 10" if "Q2.1" in prompt else " 5")))
    assert gains == [5, 10] and asyncio.run(information_gain(QUESTION, one, kit(" much"))) == [None, None]
    assert gain_table({"a": [gains, [7, None]]}).rows == [["a", "6.00", "10.00"]]
    assert depth_table({"a": [0, 2, 2, 5]}).rows == [
        ["a", "25.0% (1)", "0.0% (0)", "50.0% (2)", "0.0% (0)", "25.0% (1)"]
    ]


def test_routes_are_drawn_from_all_sources_and_the_teacher_judges_relevance(tmp_path: Path):
    def write(name: str, *questions: Question) -> Path:
        (tmp_path / name).write_text("".join(f"{question.model_dump_json()}\n" for question in questions))
        return tmp_path / name

    plain = [Question(id=f"s{i}", question=f"Is {i} even?", answers=["no"]) for i in range(5)]
    single = Question(id="one", question="Where was John Huston born?", answers=["Nevada"])
    both = QUESTION.model_copy(update={"id": "both", "type": "compound", "question": "Who, and where?"})
    want = HANRAGRecipe(
        questions=[write("q.jsonl", QUESTION)],
        straightforward=[write("s.jsonl", *plain)],
        single_step=[write("one.jsonl", single)],
        compound=[write("both.jsonl", both)],
        routes=RouteSizes(straightforward=2, single_step=3, compound=None),
        index="",
        output=str(tmp_path / "out.jsonl"),
        model="t",
        instructions=False,
    )
    yes = kit(lambda prompt: " true" if "Context: Moby" in prompt else " false" if "Nevada" in prompt else " eh")
    settings = {"corpus_sha256": "-"}
    items = hanrag.items(want)
    summary = asyncio.run(factories.synthesize_with("hanrag", want, items, Found([FILM, MAN]), yes, settings))  # pyright: ignore
    records = [SFTRecord.model_validate_json(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    routed = [r.segments[-1].text.strip() for r in records if r.task == "hanrag_route"]
    assert {kind: routed.count(kind) for kind in set(routed)} == {
        "straightforward question": 2,
        "single-step question": 3,
        "compound question": 1,
        "complex question": 1,
    }
    assert {record.task for record in records if record.id.startswith("s")} == {"hanrag_route"}
    through = [r for r in records if r.task == "hanrag_refine" and r.id.startswith("one/")]
    assert through[0].segments[-1].text.strip() == single.question
    assert {r.source for r in records if r.task == "hanrag_relevant"} == {"teacher"}
    assert {r.source for r in records if r.task == "hanrag_ending"} == {"gold"}
    assert summary.counts["judged"] == 10 and summary.counts["judged as annotated"] < 10


def test_what_is_held_out_does_not_come_in(tmp_path: Path):
    held = Leakage([QUESTION])
    same = Question(id="a", question="where was the director of  Moby Dick born", answers=["?"])
    hop = Question(id="b", question="Who directed Moby Dick?", answers=["?"])
    start = QUESTION.model_copy(
        update={
            "id": "c",
            "question": "Who played in Moby Dick?",
            "decomposition": [GoldStep(subquery="cast of Moby Dick?", answer="x", entity="Moby Dick")],
        }
    )
    later = start.model_copy(
        update={"decomposition": [GoldStep(subquery="films of John Huston?", answer="x", entity="John Huston")]}
    )
    assert [held.of(one) for one in (same, hop, start, later)] == ["text", "text", "entity", None]
    (tmp_path / "held.jsonl").write_text(QUESTION.model_dump_json())
    for leak, kept in (("text", 1), ("entity", 0)):
        want = PlanRAGRecipe(
            questions=[], index="", output=str(tmp_path / leak), held_out=[tmp_path / "held.jsonl"], leak=leak
        )  # pyright: ignore
        summary = asyncio.run(factories.synthesize_with("planrag", want, [same, start], Found([]), None, {}))  # pyright: ignore
        assert summary.rejected["held out (text)"] == 1
        assert summary.counts.get("shares an entity", 0) == kept == 1 - summary.rejected.get("held out (entity)", 0)


def test_compound_questions_are_built_checked_and_dealt_out(tmp_path: Path):
    passages = [
        Passage(id=str(i), title=name, text=f"{name} number {i} says value{i}.")
        for i, name in enumerate(["Ada"] * 4 + ["Bob"] * 2)
    ]
    names = ["Ada", "Bob"]

    class Titled:
        async def search(self, query: str, k: int) -> list[Passage]:
            return passages

    def say(prompt: str) -> str:
        if prompt.endswith("Output:\n"):
            name = re.search(r"Title: (\w+)", prompt)[1]  # pyright: ignore
            number = re.search(r"number (\d)", prompt)[1]  # pyright: ignore
            answer = "elsewhere" if number == "3" else f"value{number}"
            return json.dumps({"Question": f"What does {name} say in {number}?", "Answer": answer})
        return " no" if "Bob" in prompt else " What does Ada say" + "".join(re.findall(r"in (\d)", prompt)) + "?"

    want = compound.CompoundRecipe(
        index="", model="t", output=str(tmp_path / "c.jsonl"), combinations=3, dev=0.4, test=0.0, instructions=False
    )
    drawn = compound.entities([Passage(id="", title=name, text="") for name in names], want)  # pyright: ignore
    teacher = Kit(Says(say), Titled(), instructions=False)  # pyright: ignore
    summary = asyncio.run(compound.synthesize_with(want, drawn, teacher, {}))
    assert summary.rejected == {"answer not in the document": 1, "cannot be combined": 1}
    split = {entity.name: entity.split for entity in drawn}
    lines = (tmp_path / f"c.{split['Ada']}.jsonl").read_text().splitlines()
    questions = [Question.model_validate_json(line) for line in lines]
    assert len(questions) == summary.records == 3 and not (tmp_path / "c.test.jsonl").read_text()
    for question in questions:
        assert question.type == "compound" and question.hops == len(question.decomposition) in (2, 3)
        assert question.answers == [" && ".join(step.answer for step in question.decomposition)]
        assert all(step.answer in passages[int(step.passage_ids[0])].text for step in question.decomposition)


def test_recipes_list_the_keys_they_share(tmp_path: Path):
    from rag_train.errors import UserError
    from rag_train.recipe import describe, load_recipe

    keys = {key.name: key.help for key in describe(DualRAGRecipe)}
    assert all(keys.values()) and {"questions", "model", "similarity", "engine.kind"} <= keys.keys()
    for name in ("dualrag_teacher", "hanrag_teacher", "planrag_teacher", "compound"):
        text = Path(f"recipes/{name}.yaml").read_text()
        for path in set(re.findall(r"data/[\w./-]+", text)):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
            text = text.replace(path, str(tmp_path / path))
        (tmp_path / "recipe.yaml").write_text(text)
        method = name.removesuffix("_teacher")
        cls = compound.CompoundRecipe if method == "compound" else factories.FACTORIES[method].recipe
        assert load_recipe(cls, tmp_path / "recipe.yaml").model
    (tmp_path / "bad.yaml").write_text("questions: []\nindex: i\noutput: o\nmodel: m\n")
    with pytest.raises(UserError, match="unknown key 'model'"):
        load_recipe(factories.FACTORIES["levelrag"].recipe, tmp_path / "bad.yaml")
