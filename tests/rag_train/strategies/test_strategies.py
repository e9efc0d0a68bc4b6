"""All strategies: on the real engine, on the papers' examples, with simulated latencies, and with invalid text."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fakes import Found, Replay, Says, elapsed

from rag_train.eval.matrix.answers import Answers
from rag_train.formats import planrag
from rag_train.formats.planrag import Draft, PlanError
from rag_train.jobs.items import OpenItems
from rag_train.llm.base import Abilities, Completion, EngineError, Sampling
from rag_train.llm.transformers import Inspection
from rag_train.schema import GoldStep, Passage, Plan, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES, build

PASSAGES = [Passage(id=str(i), title=f"T{i}", text=f"Text {i}.") for i in range(3)]
ASKED = Question(
    id="q", question="Who was first?", answers=["x"], decomposition=[GoldStep(subquery="s", answer="x")]
)


def kit(llm, retriever=None, **more) -> Kit:
    retriever = retriever or Found(PASSAGES)
    others = dict.fromkeys(("sparse", "dense", "web"), retriever)
    return Kit(llm, retriever, **{"instructions": False, "retrievers": others} | more)


def answer(spec: str, kit: Kit, question: Question | str = ASKED) -> Trajectory:
    if isinstance(question, str):
        question = Question(id="q", question=question, answers=["?"])
    return asyncio.run(build(spec, kit).answer(question))


# -- the real engine ------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_every_strategy_runs_on_the_real_engine(mini_world, mini_model: Path, mini_engine, runner, tmp_path: Path):
    from rag_train.llm.transformers import TransformersEngine
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index
    from rag_train.retrieval.index.lucene import LuceneIndex

    questions = [q for q in mini_world.questions("dev") if (q.hops or 0) > 1][:4]
    bm25, lucene = (
        AsyncRetriever(BM25Index.build(mini_world.corpus())),
        AsyncRetriever(LuceneIndex.build(mini_world.corpus())),
    )
    kinds = {"sparse": lucene, "dense": bm25, "web": bm25}
    specs = [f"{name},max_tokens=64" for name in STRATEGIES]  # an untrained model's texts have no end

    async def go() -> None:
        with_attention = TransformersEngine.start(str(mini_model))

        async def ask(spec: str) -> list[Trajectory]:
            llm = with_attention if spec.startswith("dragin") else mini_engine
            return await Answers(tmp_path, spec, {}).ask(Kit(llm, bm25, retrievers=kinds), questions)

        for spec, got in zip(specs, await asyncio.gather(*map(ask, specs)), strict=True):
            assert [t.question_id for t in got] == [q.id for q in questions]
            for trajectory in got:
                assert trajectory.error is None and trajectory.strategy == spec
                assert trajectory.calls and all(call.prompt_tokens > 0 for call in trajectory.calls)
                assert trajectory.retrievals >= len([s for s in trajectory.steps if s.sent and s.passages])
                assert trajectory.rounds <= len(trajectory.steps)

    runner.run(go())


# -- the papers' worked examples ------------------------------------------------------------------------------

RUMBLE = "Rumble Fish was a novel by the author of the coming-of-age novel published in what year by Viking Press?"


def test_planrag_reproduces_figure_2():
    plan = [
        {"id": "Q1.1", "question": "Who is the author of Rumble Fish?", "parents": []},
        {"id": "Q2.1", "question": "What is the coming-of-age novel by <A1.1>?", "parents": ["Q1.1"]},
        {"id": "Q3.1", "question": "In what year was <A2.1> published by Viking Press?", "parents": ["Q2.1"]},
    ]
    known = "Known answers: Q="
    llm = Replay(
        {
            f"Query: {RUMBLE}\nDAG:\n": json.dumps(plan),
            "Context: T0: Text 0.\nQuery: Who is the author of Rumble Fish?\nGeneration:\n": (
                '{"Response":"S. E. Hinton"}'
            ),
            "Q1.1: Who is the author of Rumble Fish?\nA1.1: S. E. Hinton\nOutput:": (
                " Q2.1: What is the coming-of-age novel by S. E. Hinton?\n"
            ),
            f"{known}Who is the author of Rumble Fish? A=S. E. Hinton\n"
            "Query: What is the coming-of-age novel by S. E. Hinton?\nGeneration:\n": (
                '{"Response":"The Outsiders"}'
            ),
            # The prompt has only the parent, with its tags filled: neither Rumble Fish nor the question.
            "Query: Q3.1: In what year was <A2.1> published by Viking Press?\n"
            "Q2.1: What is the coming-of-age novel by S. E. Hinton?\nA2.1: The Outsiders\nOutput:": (
                " Q3.1: In what year was The Outsiders published by Viking Press?\n"
            ),
            f"Context: T0: Text 0.\n{known}What is the coming-of-age novel by S. E. Hinton? A=The Outsiders\n"
            "Query: In what year was The Outsiders published by Viking Press?\nGeneration:\n": (
                '{"Response":"1967"}'
            ),
        }
    )
    found = Found(PASSAGES)
    got = answer("planrag", kit(llm, found, passages=1), RUMBLE)
    assert got.answer == "1967"
    assert (
        [step.subquery for step in got.steps]
        == found.queries
        == [
            "Who is the author of Rumble Fish?",
            "What is the coming-of-age novel by S. E. Hinton?",
            "In what year was The Outsiders published by Viking Press?",
        ]
    )
    assert [(s.node, s.round, s.answer) for s in got.steps] == [
        ("Q1.1", 1, "S. E. Hinton"),
        ("Q2.1", 2, "The Outsiders"),
        ("Q3.1", 3, "1967"),
    ]
    assert not any(RUMBLE in prompt for prompt in llm.asked[1:])
    assert got.plan is not None and planrag.depths(got.plan) == {"Q1.1": 1, "Q2.1": 2, "Q3.1": 3}


FILMS = "Which film has the director who was born later, El Extraño Viaje or Love In Pawn?"


def test_dualrag_reproduces_table_9():
    thoughts = [
        "To determine which film has the director who was born later, I need to find the birth years of the "
        "directors of El Extraño Viaje and Love In Pawn.",
        "I need to find the birth years of Fernando Fernán Gómez, the director of El Extraño Viaje, and Charles "
        "Saunders, the director of Love In Pawn.",
        "Since 1921 is later than 1904, the director born later is Fernando Fernán Gómez, who directed El Extraño "
        "Viaje.",
    ]
    entities = [
        {
            "El Extraño Viaje": ["El Extraño Viaje director", "El Extraño Viaje director birth year"],
            "Love In Pawn": ["Love In Pawn director", "When was the director of Love In Pawn born"],
        },
        {
            "Fernando Fernán Gómez": ["Fernando Fernán Gómez", "Fernando Fernán Gómez birth year"],
            "Charles Saunders": ["Charles Saunders birth year"],
        },
    ]
    summaries = {
        "El Extraño Viaje": "El extraño viaje is a 1964 Spanish drama film directed by Fernando Fernán Gómez.",
        "Love In Pawn": "Love in Pawn is a 1953 British comedy film directed by Charles Saunders.",
        "Fernando Fernán Gómez": "Fernando Fernández Gómez was born on 28 August 1921.",
        "Charles Saunders": "Charles Joel Saunders (8 April 1904 - April 1997) was an English film director.",
    }

    def knowledge(rounds: int) -> str:
        names = [name for queries in entities[:rounds] for name in queries]
        return "".join(f"Knowledge: {n}: {summaries[n]}\n" for n in names) or "Knowledge: nothing\n"

    said: dict[str, str] = {}
    for i, thought in enumerate(thoughts):
        before = f"Question: {FILMS}\n" + knowledge(i) + "".join(f"Thought: {t}\n" for t in thoughts[:i])
        said[f"{before}Reasoner:\n"] = json.dumps({"thought": thought, "retrieve": i < 2})
        if i < 2:
            named = [{"entity": entity, "queries": queries} for entity, queries in entities[i].items()]
            known = f"Known entities: {json.dumps(list(entities[0]), ensure_ascii=False)}\n" if i else ""
            told = "".join(f"Thought: {t}\n" for t in thoughts[: i + 1])
            said[f"Question: {FILMS}\n{knowledge(i)}{known}{told}Entities:\n"] = json.dumps(named)
    for name, summary in summaries.items():
        said[f"Entity: {name}\nSummary:"] = f" {summary}\n"
    said[f"Thought: {thoughts[2]}\nAnswer:"] = " El Extraño Viaje\n"

    found = Found(PASSAGES)
    got = answer("dualrag", kit(Replay(said), found), FILMS)
    assert got.answer == "El Extraño Viaje"
    assert got.outline == {name: [summary] for name, summary in summaries.items()}
    assert got.retrievals == 7 and got.rounds == 2  # the last thought does not retrieve
    assert found.queries == [query for named in entities for queries in named.values() for query in queries]


def hanrag(said: dict[str, str], question: str) -> Trajectory:
    llm = Replay({f"Query: {question}\nType:": said.pop("route")} | said)
    return answer("hanrag", kit(llm, passages=3), question)


def test_hanrag_reproduces_appendix_f():
    # Noise: only the first passage is relevant, and only this passage is read.
    edith = "Which English King was married to Edith Swan-Neck, also known as Edith the Fair?"
    got = hanrag(
        {
            "route": " single-step question",
            "Context: T0: Text 0.\nRelevant:": " true",
            "Context: T1: Text 1.\nRelevant:": " false",
            "Context: T2: Text 2.\nRelevant:": " false",
            f"Context: T0: Text 0.\nQuestion: {edith}\nAnswer:": " Harold II",
        },
        edith,
    )
    assert got.notes["route"] == "single-step question" and [p.id for p in got.steps[0].passages] == ["0"]
    assert got.answer == "Harold II"

    # Compound: both halves are answered in one round (Adaptive-RAG needs two).
    earl = "When did Lionel Cranfield succeed his brother James as Earl of Middlesex and who is his wife?"
    halves = ["When did Lionel Cranfield succeed his brother James as Earl of Middlesex?", "Who is his wife?"]
    said = {
        "route": " compound question",
        f"Query: {earl}\nDecomposition:\n": json.dumps({"thought": "two", "decomposition": halves}),
        f"seed query-1: {halves[0]}\nanswer-1: 1651\nseed query-2: {halves[1]}\nanswer-2: Rachael\nAnswer:": (
            " 1651 && Rachael"
        ),
    }
    context = "".join(f"Context: T{i}: Text {i}.\n" for i in range(3))
    for half, part in zip(halves, ("1651", "Rachael"), strict=True):
        said |= {f"Question: {half}\nContext: T{i}: Text {i}.\nRelevant:": " true" for i in range(3)}
        said[f"{context}Question: {half}\nAnswer:"] = part
    got = hanrag(said, earl)
    assert got.answer == "1651 && Rachael" and (got.rounds, got.retrievals) == (1, 2)

    # Complex: seed questions in sequence until the ending discriminator says that the answers are sufficient.
    football = "What is the Danish Football Union an instance of?"
    seeds = [(football, "FIFA"), ("What does the FIFA stand for?", "International Federation")]
    said = {"route": " complex question", f"Question: {football}\nThought: nothing\nOutput:": f" {football}"}
    trail = f"Question: {football}\nseed query-1: {football}\nanswer-1: FIFA\n"
    said[f"{trail}Sufficient:"] = " false"
    said[f"{trail}Output:"] = f" {seeds[1][0]}"
    for seed, part in seeds:
        said |= {f"Question: {seed}\nContext: T{i}: Text {i}.\nRelevant:": " true" for i in range(3)}
        said[f"{context}Question: {seed}\nAnswer:"] = part
    whole = f"{trail}seed query-2: {seeds[1][0]}\nanswer-2: {seeds[1][1]}\n"
    said |= {f"{whole}Sufficient:": " true", f"{whole}Answer:": " International Federation"}
    got = hanrag(said, football)
    assert [(s.subquery, s.answer) for s in got.steps] == seeds and got.rounds == 2


# -- time -----------------------------------------------------------------------------------------------------


class Slow(Replay):
    """Replay with the latency that the prompt's subquery states ("… takes 3?"), or else one second."""

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        prompt = prompt.rpartition("Query: ")[2]  # without the latencies of the parents
        _, found, tail = prompt.partition("takes ")
        await asyncio.sleep(float(tail[0]) if found and "DAG" not in prompt else 1.0)
        return await super().complete(prompt, sampling)


def test_plan_takes_the_time_of_its_slowest_path_and_compound_question_one_step():
    plan = [
        {"id": "Q1.1", "question": "a takes 5?", "parents": []},
        {"id": "Q1.2", "question": "b takes 2?", "parents": []},
        {"id": "Q1.3", "question": "c takes 3?", "parents": []},
        {"id": "Q2.1", "question": "d takes 4?", "parents": ["Q1.1", "Q1.2", "Q1.3"]},
    ]
    llm = Slow({"DAG:\n": json.dumps(plan), "Generation:\n": '{"Response":"r"}'})
    seconds = elapsed(build("planrag", kit(llm, Found(PASSAGES, 0.5))).answer(ASKED))
    assert seconds == 1 + max(5, 2, 3) + 0.5 + 4 + 0.5  # the plan, then each depth

    parts = {"thought": "", "decomposition": ["a takes 2?", "b takes 4?", "c takes 3?"]}
    llm = Slow({"Decomposition:\n": json.dumps(parts), "Answer:": " x", "Type:": " compound question"})
    seconds = elapsed(build("hanrag,relevance=false", kit(llm, Found(PASSAGES, 0.5))).answer(ASKED))
    assert seconds == 1 + 1 + (0.5 + 4) + 2  # route, decompose, slowest part, combine (its prompt states 2)


def test_critical_path_counts_sequential_calls():
    chain = [{"id": "Q1.1", "question": "a?", "parents": []}, {"id": "Q2.1", "question": "b?", "parents": ["Q1.1"]}]
    plan = [*chain, {"id": "Q1.2", "question": "c?", "parents": []}]
    last = {"id": "Q3.1", "question": "d?", "parents": ["Q2.1", "Q1.2"]}
    llm = Replay({"DAG:\n": json.dumps([*plan, last]), "Generation:\n": '{"Response":"r"}'})
    got = answer("planrag", kit(llm, Found(PASSAGES)), "?")
    assert (len(got.calls), got.critical_path) == (5, 4)  # the plan and three of its four nodes
    said = {"route": " single-step question", "Relevant:": " true", "Answer:": " x"}
    got = hanrag(said, "Who?")
    assert (len(got.calls), got.critical_path) == (5, 3)  # the route, three passages at the same time, the answer


async def inspected(prompt: str, text: str) -> Inspection:
    """An inspection in which every word is uncertain and attends to every word."""
    words = list(re.finditer(r"\S+", prompt + text))
    start = sum(word.start() < len(prompt) for word in words)
    spans = tuple(word.span() for word in words)
    unsure = (9.0,) * (len(words) - start)
    return Inspection(tuple(w[0] for w in words), start, spans, unsure, torch.ones(len(words), len(words)))


# -- invalid text ---------------------------------------------------------------------------------------------

CYCLE = json.dumps(
    [
        {"id": "Q1.1", "question": "a <A1.2>?", "parents": ["Q1.2"]},
        {"id": "Q1.2", "question": "b <A1.1>?", "parents": ["Q1.1"]},
    ]
)
BAD = {
    "nothing": "",
    "garbage": "\x00]}{[ \ufffd <A9.9> __import__('os').system('false') \u2028",
    "cut JSON": '{"thought": "so", "retrieve": tr',
    "cyclic plan": CYCLE,
    "wrong types": '{"thought": 3, "decomposition": "no", "queries": {}, "Response": [1]}',
    "repetition": "Follow up: again and again? " * 2500,
    "deep": "[" * 10_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", STRATEGIES)
def test_invalid_text_does_not_stop_a_strategy(name: str, kind: str):
    llm = Says(BAD[kind])
    if name == "dragin":
        llm.inspect, llm.abilities = inspected, Abilities(attention=True)
    got = answer(name, kit(llm))
    assert got.error is None and Trajectory.model_validate_json(got.model_dump_json()) == got
    assert len(got.steps) <= 100 and got.retrievals <= 130


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "dragin"])
def test_leaves_questions_open_if_the_engine_fails(name: str, tmp_path: Path):
    others = [ASKED.model_copy(update={"id": str(i)}) for i in range(3)]
    bad = kit(Says(EngineError("no answer in 600 s")))
    with pytest.raises(OpenItems, match=r"0 of 3 questions done, 3 open \(no answer in 600 s\)"):
        asyncio.run(Answers(tmp_path, name, {}).ask(bad, others))


# -- plans ----------------------------------------------------------------------------------------------------

ids = st.builds(lambda i, j: f"Q{i}.{j}", st.integers(1, 3), st.integers(1, 3))
questions = st.lists(st.sampled_from(["who", "<A1.1>", "< a2.1 >", "<A3.3>", '"', "\\", ","]), min_size=1).map(
    " ".join
)
drafts = st.lists(st.builds(Draft, id=ids, question=questions, parents=st.lists(ids, max_size=3)), max_size=6)


@pytest.mark.slow
@example(
    [
        Draft(id="Q2.2", question="who"),
        Draft(id="Q3.3", question="who who"),
        Draft(id="Q1.1", question="<A3.3> who"),
        Draft(id="Q1.2", question="<A3.3> who", parents=["Q2.2"]),
    ]
)
@given(drafts)
def test_repaired_plan_is_valid_and_can_be_read_back(nodes: list[Draft]):
    try:
        plan = planrag.repair(nodes, "the question")
    except PlanError as error:
        assert error.reason in ("cycle", "unknown tag")
        return
    assert planrag.problems(plan) == []
    assert planrag.repair(plan.nodes, "the question") == plan
    again = planrag.parse_plan(planrag.to_tuples(plan, "the question"), "the question")
    if len(plan.nodes) == 1:
        assert len(again.nodes) == 1
    assert {(n.id, n.question, frozenset(n.parents)) for n in again.nodes} == {
        (n.id, n.question, frozenset(n.parents)) for n in plan.nodes
    }


@pytest.mark.slow
@settings(max_examples=300)
@given(st.text() | st.recursive(st.sampled_from(['"Q1.1: a"', "1", "Q"]), lambda x: st.lists(x).map(str)))
def test_plan_parser_accepts_any_text(text: str):
    with contextlib.suppress(PlanError):
        assert planrag.problems(planrag.parse_plan(text, "q")) == []


def test_names_the_problems_of_a_plan():
    node = {"id": "Q1.1", "question": "a?", "parents": ["Q2.2"]}
    assert planrag.problems(Plan.model_validate({"nodes": [node]})) == ["unknown parent"]
    assert planrag.problems(Plan.model_validate({"nodes": [node | {"parents": []}] * 2}))[0] == "duplicate id"
    for text, reason in {
        "[(1, 2)]": "not a plan",
        "__import__('os')": "not a plan",
        CYCLE: "cycle",
        '[{"id": "x", "question": "a"}]': "bad id",
        '[{"id": "Q1.1", "question": " "}]': "empty subquery",
        '[{"id": "Q1.1", "question": "a <A7.7>?"}]': "unknown tag",
    }.items():
        with pytest.raises(PlanError) as error:
            planrag.parse_plan(text, "q")
        assert error.value.reason == reason
    sinks = planrag.parse_plan('[{"id": "Q1.1", "question": "a"}, {"id": "Q1.2", "question": "b"}]', "both?")
    assert sinks.nodes[-1].question == "both?" and sinks.nodes[-1].parents == ["Q1.1", "Q1.2"]
