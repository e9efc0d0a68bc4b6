"""DualRAG's training data: rounds of hops, and post-processed trajectories of a teacher."""

import asyncio
import json

from support.fakes import Found
from support.two_hop import FILM, MAN, QUESTION, kit

from rag_train.data_synth.modules import dualrag
from rag_train.data_synth.modules.recipes import DualRAGRecipe
from rag_train.formats import dualrag as format
from rag_train.formats.dualrag import Entity
from rag_train.miniworld.world import World
from rag_train.schema import SFTRecord
from rag_train.strategies.base import Ask


def by_task(outcome) -> dict[str, list[SFTRecord]]:
    """The records of a teacher's outcome, by task."""
    records: dict[str, list[SFTRecord]] = {}
    for record in outcome.records:
        assert record.source == "teacher"
        records.setdefault(record.task, []).append(record)
    return records


def teacher(answer: str, summary: str = "It was directed by John Huston."):
    """A fake of DualRAG's modules: a round about the film, which is named twice, then a round about the man."""

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


def test_independent_hops_share_a_round(world: World):
    for question in world.questions("dev"):
        rounds = dualrag.rounds(question)
        assert sorted(i for hops in rounds for i in hops) == list(range(len(question.decomposition)))
        if question.type.startswith("comparison"):
            assert len(rounds) == (question.hops or 0) // 2
        else:
            assert len(rounds) == question.hops


def test_keeps_only_trajectories_with_a_correct_answer():
    wrong = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([FILM]), kit(teacher("Ohio"))))  # pyright: ignore
    assert not wrong.records and [rejected.reason for rejected in wrong.rejected] == ["wrong answer"]
    right = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([FILM]), kit(teacher("nv"))))  # pyright: ignore
    assert right.counts["right"] == 1 and right.counts["engine_calls"] == len(right.records)
    assert {task: len(records) for task, records in by_task(right).items()} == {
        "dualrag_reason": 3,
        "dualrag_identify": 2,
        "dualrag_summarize": 2,
        "dualrag_answer": 1,
    }
    assert len({record.id for record in right.records}) == len(right.records)


def test_judge_accepts_a_correct_answer_in_other_words():
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


def test_links_entities_and_repairs_summaries():
    outcome = asyncio.run(dualrag.outcome(QUESTION, recipe(), Found([]), kit(teacher("Nevada"))))  # pyright: ignore
    first, second = (format.IDENTIFY.parse(r.segments[-1].text) for r in by_task(outcome)["dualrag_identify"])
    assert first == [Entity(entity="Moby Dick", queries=["who directed it", "director"])]
    assert second == [Entity(entity="John Huston", queries=["born"])]
    [rejected] = outcome.rejected
    assert (rejected.reason, rejected.text) == ("entity linked", "moby dick. = Moby Dick (1.000)")
    # The teacher wrote "nothing" for the man, but his passage says where he was born.
    summaries = [record.segments[-1].text.strip() for record in by_task(outcome)["dualrag_summarize"]]
    assert summaries == ["It was directed by John Huston.", "John Huston (born in Nevada) made films."]
    rows = {row[0]: row[1:] for row in dualrag.table(outcome.counts).rows}
    assert rows["Entity Identifier"] == rows["Knowledge Summarizer"] == ["1", "1", "2"]
    assert rows["Reasoner"] == ["4", "0", "4"] and rows["Total"] == ["6", "2", "8"]


def test_drops_invented_summaries_and_writes_only_the_chosen_capabilities():
    inventing = teacher("Nevada", summary="It was directed by John Huston in Ohio in 1999.")
    summaries = recipe(capabilities=["summaries"])
    outcome = asyncio.run(dualrag.outcome(QUESTION, summaries, Found([]), kit(inventing)))  # pyright: ignore
    assert by_task(outcome).keys() == {"dualrag_summarize"} and len(outcome.records) == 1
    assert [rejected.reason for rejected in outcome.rejected] == ["made up"]


def test_cross_encoder_links_spellings_and_entities_of_the_outline():
    def scores(pairs):
        return [0.95 if {a, b} == {"J. Huston", "John Huston"} else 0.1 for a, b in pairs]

    entities = [Entity(entity="J. Huston", queries=["birthplace"]), Entity(entity="Ohio", queries=["birthplace"])]
    linked, links = dualrag.link(entities, ["John Huston"], scores, 0.9)
    assert linked == [Entity(entity="John Huston", queries=["birthplace"])]  # Ohio's query is a repetition
    assert links == [("J. Huston", "John Huston", 0.95, True), ("Ohio", "John Huston", 0.1, False)]
    apart, links = dualrag.link(entities[:1], ["John Huston"], scores, 0.96)
    assert apart == entities[:1] and not links[0].linked
    again = [Entity(entity="John Huston", queries=["films"])]
    assert dualrag.link(again, ["John Huston"], scores, 0.96) == (again, [])


def test_the_kits_reranker_links_entities():
    class DifferentEntities:
        def scores(self, pairs):
            return [0.2 for _ in pairs]

    outcome = asyncio.run(
        dualrag.outcome(QUESTION, recipe(), Found([]), kit(teacher("Nevada"), reranker=DifferentEntities()))  # pyright: ignore
    )
    assert outcome.counts["similarity 0.2"] == 2 and not outcome.rejected


def test_repairs_summaries_that_contradict_or_lack_a_gold_fact():
    fields = format.summary_fields(QUESTION.question, "who?", "Moby Dick", [FILM, MAN])
    ask = Ask(format.SUMMARIZE, fields, "")

    def repair(summary: str) -> str | None:
        return dualrag.repaired_summary(summary, ask, QUESTION)

    assert repair("It was directed by Nevada.") == "It was directed by John Huston."
    assert repair("Moby Dick is a 1956 film.") == "Moby Dick is a 1956 film. It was directed by John Huston."
    assert repair("the director was John Huston") == "the director was John Huston"
