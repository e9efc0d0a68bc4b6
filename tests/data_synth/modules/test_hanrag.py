"""HANRAG's training data: router samples and a teacher's relevance judgements."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import Found
from support.synthesis import write
from support.two_hop import FILM, MAN, QUESTION, kit

from rag_train.data_synth.method import synthesize
from rag_train.data_synth.methods import hanrag
from rag_train.data_synth.methods.hanrag import HANRAGData, HANRAGRecipe, RouteSizes
from rag_train.data_synth.methods.hanrag_router import RouterTest, RouterTestRecipe
from rag_train.errors import UserError
from rag_train.jobs.files import read_records
from rag_train.schema import GoldStep, Passage, Question, SFTRecord


def test_draws_routes_from_all_sources_and_takes_the_teachers_relevance_judgements(tmp_path: Path):
    plain = [Question(id=f"s{i}", question=f"Is {i} even?", answers=["no"]) for i in range(5)]
    single = Question(id="one", question="Where was John Huston born?", answers=["Nevada"])
    both = QUESTION.model_copy(update={"id": "both", "type": "compound", "question": "Who, and where?"})
    recipe = HANRAGRecipe(
        questions=[write(tmp_path / "q.jsonl", [QUESTION])],
        straightforward=[write(tmp_path / "s.jsonl", plain)],
        single_step=[write(tmp_path / "one.jsonl", [single])],
        compound=[write(tmp_path / "both.jsonl", [both])],
        routes=RouteSizes(straightforward=2, single_step=3, compound=None),
        index="",
        output=str(tmp_path / "out.jsonl"),
        model="t",
        instructions=False,
    )
    teacher = kit(
        lambda prompt: " true" if "Context: Moby" in prompt else " false" if "Nevada" in prompt else " eh"
    )
    questions = hanrag.routed_questions(recipe)
    retriever = Found([FILM, MAN])
    summary = asyncio.run(HANRAGData(recipe, questions, retriever, teacher).write())
    records = read_records(tmp_path / "out.jsonl", SFTRecord)
    routed = [r.segments[-1].text.strip() for r in records if r.task == "hanrag_route"]
    assert Counter(routed) == {
        "straightforward question": 2,
        "single-step question": 3,
        "compound question": 1,
        "complex question": 1,
    }
    assert {record.task for record in records if record.id.startswith("s")} == {"hanrag_route"}
    refined = [r for r in records if r.task == "hanrag_refine" and r.id.startswith("one/")]
    assert refined[0].segments[-1].text.strip() == single.question
    assert {r.source for r in records if r.task == "hanrag_relevant"} == {"teacher"}
    assert {r.source for r in records if r.task == "hanrag_ending"} == {"gold"}
    assert summary.counts["judged"] == 8 and summary.counts["judged as annotated"] < 8
    assert not {r.task for r in records} & {"hanrag_answer", "hanrag_combine"}  # the generator is not trained


def test_passages_are_drawn_before_they_are_judged(tmp_path: Path):
    passages = [FILM, MAN, *(Passage(id=str(i), title="T", text=f"Text {i}.") for i in range(18))]
    for relevance, judged in ((None, 4), (1, 2)):
        recipe = HANRAGRecipe(
            questions=[write(tmp_path / "q.jsonl", [QUESTION])], index="", output="", model="t", relevance=relevance
        )
        [question] = hanrag.routed_questions(recipe)
        made = asyncio.run(HANRAGData(recipe, [], Found(passages), kit(" true", passages)).outcome(question))
        assert made.counts["engine_calls"] == made.counts["judged"] == judged


def test_only_the_named_files_feed_the_router_besides_its_own(tmp_path: Path):
    files = [
        write(tmp_path / name / "train.jsonl", [QUESTION, Question(id=name, question=f"{name}?", answers=["x"])])
        for name in ("musique", "wiki")
    ]
    recipe = HANRAGRecipe(questions=files, routed=files[:1], index="", output="")
    routed = {question.id: question.metadata[hanrag.ROUTED] for question in hanrag.routed_questions(recipe)}
    assert routed == {
        "musique/train.jsonl:q": ["", "0", "1"], "musique": [], "wiki/train.jsonl:q": [], "wiki": []
    }  # fmt: skip
    with pytest.raises(UserError, match="is not one of the recipe's questions"):
        hanrag.routed_questions(replace(recipe, questions=files[1:]))


def test_the_routers_test_set_has_as_many_questions_of_each_class_from_each_of_its_files(tmp_path: Path):
    sizes = {"memory": 2, "nq": 9, "squad": 9, "both": 9, "musique": 1, "wiki": 9}
    files = {
        name: write(
            tmp_path / f"{name}.jsonl",
            [QUESTION.model_copy(update={"id": f"{name}{i}", "question": f"{name} {i}?"}) for i in range(size)],
        )
        for name, size in sizes.items()
    }
    recipe = RouterTestRecipe(
        straightforward=[files["memory"]],
        single_step=[files["nq"], files["squad"]],
        compound=[files["both"]],
        complex=[files["musique"], files["wiki"]],
        size=5,
        output=str(tmp_path / "out.jsonl"),
    )
    summary = asyncio.run(synthesize(RouterTest, recipe))
    records = read_records(tmp_path / "out.jsonl", SFTRecord)
    drawn = Counter((re.sub(r"\d.*", "", r.id), r.segments[-1].text.strip()) for r in records)
    assert drawn == {
        ("memory", "straightforward question"): 2,
        ("nq", "single-step question"): 2,
        ("squad", "single-step question"): 3,
        ("both", "compound question"): 5,
        ("musique", "complex question"): 1,
        ("wiki", "complex question"): 3,
    }
    assert {record.task for record in records} == {"hanrag_route"}
    assert summary.counts["compound question"] == 5 and records[0].prompt.endswith("Query: memory 0?\n")


@pytest.mark.parametrize(
    ("written", "taken"), [("Who made A?", True), ("Who made it?", False), ("A >> maker", False)]
)
def test_a_teacher_writes_out_shorthand(written: str, taken: bool):
    step = GoldStep(subquery="A1 >> maker", answer="John Huston", entity="A1")
    marks = {hanrag.ROUTED: [], hanrag.JUDGED: []}
    question = QUESTION.model_copy(update={"question": "Who made A1?", "decomposition": [step], "metadata": marks})
    recipe = HANRAGRecipe(questions=[], index="", output="", model="t", instructions=False)
    llm = kit(f" {written.replace('A', 'A1')}\n")
    made = asyncio.run(HANRAGData(recipe, [], Found([FILM]), llm).outcome(question))
    assert [item.reason for item in made.rejected] == ([] if taken else ["hop in shorthand"])
    assert made.counts["engine_calls"] == 1
    refined = [record.completion for record in made.records if record.task == "hanrag_refine"]
    assert refined == (["Output: Who made A1?\n"] if taken else [])
