"""Training examples from gold annotations: of the mini world, and of files in the released shapes."""

import asyncio
import json
from pathlib import Path

import pytest
from replay import Replay

from data_synth import baselines, dualrag, hanrag, levelrag, planrag
from data_synth.records import says
from eval.datasets import load_questions
from rag_train.formats import dualrag as dual
from rag_train.formats import hanrag as han
from rag_train.formats import planrag as plans
from rag_train.formats import reader
from rag_train.formats.planrag import PLAN, PlanError
from rag_train.formats.tasks import Task
from rag_train.miniworld.world import World, WorldConfig
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.bm25 import BM25Index
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies import build
from rag_train.strategies.base import Kit
from rag_train.strategies.baselines import (
    adaptive_rag,
    auto_rag,
    genground,
    ircot,
    iter_retgen,
    metarag,
    qd_rag,
    rankrag,
    resp,
    taare,
    two_hop,
    uar,
)

FACTORIES = (planrag, hanrag, dualrag, levelrag)


@pytest.fixture(scope="module")
def world() -> World:
    return World(WorldConfig(films=40, people=48, cities=12, countries=5))


def found(question: Question, index: BM25Index) -> dict[str, list[Passage]]:
    queries = [question.question, *(step.subquery for step in question.decomposition)]
    return dict(zip(queries, index.search(queries, 3), strict=True))


def test_plans_of_the_mini_world_are_valid_and_lead_to_the_answer(world: World):
    for question in [*world.questions("dev"), *world.compounds("dev", 30)]:
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


def test_every_record_is_what_its_module_is_asked_and_reads_back(world: World):
    index = BM25Index.build(world.corpus())
    tasks = {}
    for question in [*world.questions("dev")[:60], *world.compounds("dev", 20)]:
        for factory in FACTORIES:
            for record in factory.gold_records(question, found(question, index)):
                assert SFTRecord.model_validate_json(record.model_dump_json()) == record
                assert "".join(segment.text for segment in record.segments) == record.completion
                tasks.setdefault(record.task, []).append(record)
    assert {name.partition("_")[0] for name in tasks} == {"planrag", "hanrag", "dualrag", "levelrag"}
    named = [task for format in (plans, han, dual) for task in vars(format).values() if isinstance(task, Task)]
    modules = {task.name: task for task in named}
    assert modules.keys() <= tasks.keys()
    for name, task in modules.items():
        for record in tasks[name]:
            assert task.parse(record.segments[-1].text) is not None and record.segments[0].text == task.lead


def test_nothing_is_taught_that_is_neither_read_nor_known(world: World):
    index = BM25Index.build(world.corpus())
    for question in world.questions("dev")[:80]:
        unknown = [step.short for step in question.decomposition if not step.known]
        for record in planrag.gold_records(question, found(question, index)):
            if record.task == plans.ANSWER.name and "Known answers" not in record.prompt:
                value = json.loads(record.completion.partition("\n")[2])["Response"]
                assert value not in unknown or value in record.prompt


def test_baselines_are_taught_what_they_ask(world: World):
    index = BM25Index.build(world.corpus())
    modules = (adaptive_rag, auto_rag, genground, ircot, iter_retgen, metarag, qd_rag, rankrag, resp, taare)
    modules += (two_hop, uar)
    tasks = {task.name: task for module in modules for task in vars(module).values() if isinstance(task, Task)}
    seen = set()
    for question in [*world.questions("dev")[:80], *world.compounds("dev", 10)]:
        for record in baselines.gold_records(question, found(question, index), instructions=False):
            seen.add(record.task)
            if record.task == "reader":
                _, answer = reader.parse(record.prompt.rpartition("\n")[2] + record.completion)
                assert answer == question.answers[0]
                unknown = [step for step in question.decomposition if not step.known]
                assert all(step.short in record.prompt for step in unknown)
            elif record.task in tasks:
                assert tasks[record.task].parse(record.segments[-1].text) is not None
    assert seen == {*tasks, "reader", "iterdrag", "react", "rq_rag", "selfrag"}


def test_who_has_learned_the_examples_answers_right(world: World):
    """Strategies ask for the examples, to the letter, where they search for the hops' subqueries."""
    index = BM25Index.build(world.corpus())
    answered = 0
    for question in (q for q in world.questions("dev") if q.type == "chain"):
        passages = found(question, index)
        if not all(says(passages[step.subquery][:1], step.short) for step in question.decomposition):
            continue
        said = {}
        for factory in (baselines, planrag, hanrag, dualrag):
            for record in factory.gold_records(question, passages, instructions=False):
                prompt = record.prompt
                for segment in record.segments:
                    said |= {prompt: segment.text} if segment.trained else {}
                    prompt += segment.text
        for name in ("iterdrag", "react", "auto-rag", "planrag", "dualrag"):
            kit = Kit(Replay(said), AsyncRetriever(index), instructions=False)
            got = asyncio.run(build(name, kit).answer(question))
            assert got.answer == question.answers[0], name
        answered += 1
    assert answered >= 5


def test_hops_that_do_not_depend_on_each_other_are_one_round(world: World):
    for question in world.questions("dev"):
        rounds = dualrag.rounds(question)
        assert sorted(i for hops in rounds for i in hops) == list(range(len(question.decomposition)))
        if question.type.startswith("comparison"):
            assert len(rounds) == (question.hops or 0) // 2
        else:
            assert len(rounds) == question.hops


def test_musique_and_2wiki_as_released(tmp_path: Path):
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
        ("Q1.1", "capital of France", []),
        ("Q2.1", "Which river is <A1.1> on?", ["Q1.1"]),
    ]
    assert [step.entity for step in chain.decomposition] == ["Paris", "Paris"]
    [comparison] = load_questions(tmp_path / "w.json")
    plan = planrag.plan_from_gold(comparison)
    assert [(n.id, n.parents) for n in plan.nodes] == [("Q1.1", []), ("Q1.2", []), ("Q2.1", ["Q1.1", "Q1.2"])]
    assert plan.nodes[-1].question == comparison.question and dualrag.rounds(comparison) == [[0, 1]]
    queries = [comparison.question, *(step.subquery for step in comparison.decomposition)]
    records = planrag.gold_records(comparison, {query: [] for query in queries})
    assert [draft.id for draft in PLAN.parse(records[0].segments[-1].text)] == ["Q1.1", "Q1.2", "Q2.1"]


def test_a_plan_too_large_is_left_out():
    steps = [GoldStep(subquery=f"q{i}?", answer=f"a{i}", entity="e") for i in range(20)]
    question = Question(id="q", question="all?", answers=["x"], decomposition=steps)
    with pytest.raises(PlanError, match="too many nodes"):
        planrag.plan_from_gold(question)
    assert planrag.gold_records(question, {}) == [] and len(dualrag.rounds(question)) == 20


def test_factories_and_routers_from_the_command_line(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from rag_train import cli
    from rag_train.miniworld.world import write_world
    from rag_train.schema import Trajectory

    def call(*arguments: str) -> dict:
        monkeypatch.setattr("sys.argv", ["rag-train", *arguments, "--json"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    write_world(world, tmp_path)
    call("index", str(tmp_path / "corpus.jsonl"), str(tmp_path / "index"))
    recipe = [f"questions=[{tmp_path}/dev.jsonl]", f"index={tmp_path}/index", "sample=20"]
    for method in ("planrag", "hanrag", "dualrag", "levelrag"):
        output = f"output={tmp_path}/{method}.jsonl"
        made = call("synth", method, "recipes/gold.yaml", *recipe, output)
        assert made["items"] == 20
        modules = {name: n for name, n in made["counts"].items() if not name.startswith("depth")}
        assert made["records"] == sum(modules.values()) > 20
        again = call("synth", method, "recipes/gold.yaml", *recipe, output)
        assert again["items_done"] == 0 and again["records"] == made["records"]

    questions = load_questions(tmp_path / "dev.jsonl")
    runs = {"direct": lambda i: i % 3 == 0, "rag": lambda i: i % 3 == 1}
    for name, right in runs.items():
        done = [
            Trajectory(
                question_id=q.id, question=q.question, strategy=name, answer=q.answers[0] if right(i) else "?"
            )
            for i, q in enumerate(questions)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in done))
    files = [f"{name}={tmp_path}/{name}.jsonl" for name in runs] + [f"questions={tmp_path}/dev.jsonl"]
    labels = call("synth", "adaptive-rag", "recipes/router_synth.yaml", *files, f"output={tmp_path}/a.jsonl")[
        "counts"
    ]
    single = sum(q.hops == 1 for i, q in enumerate(questions) if i % 3 == 2)
    assert labels == {"A": (len(questions) + 2) // 3, "B": (len(questions) + 1) // 3 + single} | (
        {"C": len(questions) // 3 - single}
    )
    judged = call("synth", "uar", "recipes/router_synth.yaml", *files, f"output={tmp_path}/u.jsonl")
    assert judged["records"] == 5 * len(questions)


def test_new_words_leave_the_model_as_it_was(tmp_path: Path):
    import torch
    from transformers import Qwen2ForCausalLM

    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.miniworld.pretrain import PretrainConfig, build_model
    from rag_train.miniworld.text import build_tokenizer
    from rag_train.miniworld.vocabulary import with_words

    world = World(WorldConfig(films=20, people=20, cities=5, countries=3))
    before = build_tokenizer(world)
    model = build_model(PretrainConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64), before)
    model.save_pretrained(tmp_path / "base")
    before.save_pretrained(tmp_path / "base")
    name = world.entities["film"][0]
    token = "[No Retrieval]"
    assert with_words(tmp_path / "base", [f'Relevant: true\n["{name}"]'], tmp_path / "more", [token]) >= 4
    assert with_words(tmp_path / "more", [], tmp_path / "same", [token]) == 0
    load_tokenizer(str(tmp_path / "more")).save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_bytes((tmp_path / "more" / "config.json").read_bytes())
    for after in (load_tokenizer(str(tmp_path / "more")), load_tokenizer(str(tmp_path / "again"))):
        text = f"Question: Who directed {name}?\n<|endoftext|>"
        assert after(text)["input_ids"] == before(text)["input_ids"]
        assert (after.eos_token_id, after.pad_token_id) == (before.eos_token_id, before.pad_token_id)
        assert len(after(f"{token}{token}")["input_ids"]) == 2 and after.decode(after(token)["input_ids"]) == token
        words = after(f"Relevant: true\n{name}")["input_ids"]
        assert len(words) == len(set(words)) == 5 and min(words[0], words[2], words[4]) >= len(before)
    ids = torch.tensor([before(f"Who directed {name}?")["input_ids"]])
    more = Qwen2ForCausalLM.from_pretrained(tmp_path / "more")
    known = len(before)
    torch.testing.assert_close(more(ids).logits[..., :known], model.eval()(ids).logits[..., :known])
