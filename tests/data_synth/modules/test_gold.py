"""Gold examples of all methods, from the mini world and from files in the released formats."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.fakes import CHAT, PLAIN, Found, Replay
from support.paths import DATA
from support.questions import compounds
from support.synthesis import search_hops
from support.two_hop import FILM, MAN, QUESTION

from rag_train.data_synth.knowable import unknown as unknowable_parts
from rag_train.data_synth.methods import dualrag, hanrag, planrag
from rag_train.data_synth.modules import baselines
from rag_train.data_synth.modules.examples import says
from rag_train.data_synth.modules.method import ModuleMethod
from rag_train.data_synth.registry import METHODS
from rag_train.formats import dualrag as dual
from rag_train.formats import hanrag as han
from rag_train.formats import planrag as plans
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import Task
from rag_train.questions.load import load_questions
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import GoldStep, SFTRecord
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build
from rag_train.worlds.mini.world import World

SYSTEMS = [each for each in METHODS.values() if issubclass(each, ModuleMethod)]


@pytest.mark.slow
def test_every_record_is_valid_and_parses_as_its_task(world: World, index: BM25Index):
    tasks = {}
    for question in [*world.questions("dev")[:60], *compounds(world, "dev", 20)]:
        for system in SYSTEMS:
            for record in system.gold_records(question, search_hops(question, index)):
                assert SFTRecord.model_validate_json(record.model_dump_json()) == record
                assert "".join(segment.text for segment in record.segments) == record.completion
                tasks.setdefault(record.task, []).append(record)
    assert {name.partition("_")[0] for name in tasks} == {"planrag", "hanrag", "dualrag", "levelrag"}
    declared = [task for format in (plans, han, dual) for task in vars(format).values() if isinstance(task, Task)]
    assert {task.name for task in declared} <= tasks.keys()
    for task in declared:
        for record in tasks[task.name]:
            assert task.parse(record.segments[-1].text) is not None and record.segments[0].text == task.lead


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT], ids=["plain", "chat"])
def test_replaying_the_examples_answers_correctly(tokenizer: Any, world: World, index: BM25Index):
    """If a strategy searches for the hops' subqueries, each of its prompts is exactly the prompt of an example.

    With a chat template, the texts are in the same turns in training and at inference.
    """
    answered = 0
    for question in (q for q in world.questions("dev") if q.type == "chain"):
        passages = search_hops(question, index)
        if not all(says(passages[step.subquery][:1], step.short) for step in question.decomposition):
            continue
        completions = {}
        for factory in (baselines, planrag, hanrag, dualrag):
            for record in factory.gold_records(question, passages, instructions=False):
                prompt = as_turn(tokenizer, record.prompt) if record.chat else record.prompt
                for segment in record.segments:
                    completions |= {prompt: segment.text} if segment.trained else {}
                    prompt += segment.text
        for name in ("iterdrag", "react", "auto-rag", "planrag", "dualrag"):
            engine: Any = Replay(completions)
            engine.tokenizer = tokenizer
            kit = Kit(engine, AsyncRetriever(index), instructions=False)
            trajectory = asyncio.run(build(name, kit).answer(question))
            assert trajectory.answer == question.answers[0], name
        answered += 1
    assert answered >= 5


def test_reads_musique_and_2wiki_as_released(tmp_path: Path):
    paragraph = {"idx": 0, "title": "Paris", "paragraph_text": "Paris lies on the Seine.", "is_supporting": True}
    musique = {
        "id": "2hop__1",
        "question": "Which river is the capital of France on?",
        "answer": "Seine",
        "answer_aliases": [],
        "answerable": True,
        "paragraphs": [paragraph],
        "question_decomposition": [
            {"question": "capital of France", "answer": "Paris", "paragraph_support_idx": 0},
            {"question": "Which river is #1 on?", "answer": "Seine", "paragraph_support_idx": 0},
        ],
    }
    wiki = {
        "_id": "w",
        "question": "Were A and B born in the same city?",
        "answer": "no",
        "type": "comparison",
        "supporting_facts": [["A", 0]],
        "context": [["A", ["A was born in C."]]],
        "evidences": [["A", "place of birth", "C"], ["B", "place of birth", "D"]],
    }
    (tmp_path / "m.jsonl").write_text(json.dumps(musique))
    (tmp_path / "w.json").write_text(json.dumps([wiki]))
    [chain] = load_questions(tmp_path / "m.jsonl")
    assert [(n.id, n.question, n.parents) for n in planrag.plan_from_gold(chain).nodes] == [
        ("Q1.1", "capital of France?", []),
        ("Q2.1", "Which river is <A1.1> on?", ["Q1.1"]),
    ]
    assert [step.entity for step in chain.decomposition] == ["France", "Paris"]
    [comparison] = load_questions(tmp_path / "w.json")
    plan = planrag.plan_from_gold(comparison)
    assert [(n.id, n.parents) for n in plan.nodes] == [("Q1.1", []), ("Q1.2", []), ("Q2.1", ["Q1.1", "Q1.2"])]
    assert plan.nodes[-1].question == comparison.question and dualrag.rounds(comparison) == [[0, 1]]
    queries = [comparison.question, *(step.subquery for step in comparison.decomposition)]
    records = planrag.gold_records(comparison, {query: [] for query in queries})
    assert [draft.id for draft in plans.PLAN.parse(records[0].segments[-1].text)] == ["Q1.1", "Q1.2", "Q2.1"]


SHORTHAND = QUESTION.model_copy(
    update={"id": "s", "decomposition": [GoldStep(subquery="A >> odd relation", answer="b", entity="A")]}
)


def test_hops_in_shorthand_and_unknowable_targets_are_left_out_and_counted():
    unknowable = QUESTION.model_copy(update={"question": "Where was the director of it born?"})
    for system in SYSTEMS:
        recipe: Any = system.recipe_type(questions=[], index="", output="", instructions=False)
        marks = {hanrag.ROUTED: ["", "0"], hanrag.JUDGED: [0]}
        shorthand, unknown = (
            asyncio.run(system(recipe, [], Found([FILM, MAN])).outcome(q.model_copy(update={"metadata": marks})))
            for q in (SHORTHAND, unknowable)
        )
        assert not shorthand.records and [item.reason for item in shorthand.rejected] == ["hop in shorthand"]
        assert {item.reason for item in unknown.rejected} == {"not known from its prompt"}
        assert unknown.records and not any(map(unknowable_parts, unknown.records))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the real question sets are not here")
def test_real_gold_examples_can_be_known_from_their_prompts():
    questions = [
        *load_questions(DATA / "musique/train_100.jsonl")[:40],
        *load_questions(DATA / "2wikimultihopqa/train_sample.json")[:40],
    ]
    for system in SYSTEMS:
        recipe: Any = system.recipe_type(questions=[], index="", output="", instructions=False)
        kept = 0
        for question in questions:
            marks = {hanrag.ROUTED: [""], hanrag.JUDGED: [0]}
            retriever: Any = Found(question.gold_passages)
            marked = question.model_copy(update={"metadata": question.metadata | marks})
            made = asyncio.run(system(recipe, [], retriever).outcome(marked))
            assert not any(map(unknowable_parts, made.records))
            assert not any(">>" in record.completion for record in made.records)
            kept += bool(made.records)
        assert kept > 0.8 * len(questions)
