"""DualRAG's training data: rounds of hops, and post-processed trajectories of a teacher."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import Found, Says
from support.synthesis import write
from support.two_hop import FILM, MAN, QUESTION, kit

from rag_train.data_synth.method import synthesize
from rag_train.data_synth.methods import dualrag
from rag_train.data_synth.methods.dualrag import DualRAGRecipe
from rag_train.data_synth.modules import gold_titles
from rag_train.errors import UserError
from rag_train.formats import dualrag as format
from rag_train.formats.dualrag import Entity
from rag_train.jobs.items import Outcome
from rag_train.llm.engines import EngineConfig
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies.base import Kit
from rag_train.worlds.mini.world import World


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


def taught(llm: Kit, question: Question = QUESTION, **keys) -> Outcome:
    """The outcome of a question with the teacher ``llm``; ``keys`` are the recipe's."""
    return asyncio.run(dualrag.DualRAGData(recipe(**keys), [], Found([]), llm).outcome(question))


def test_independent_hops_share_a_round(world: World):
    for question in world.questions("dev"):
        rounds = dualrag.rounds(question)
        assert sorted(i for hops in rounds for i in hops) == list(range(len(question.decomposition)))
        if question.type.startswith("comparison"):
            assert len(rounds) == (question.hops or 0) // 2
        else:
            assert len(rounds) == question.hops


def test_keeps_only_trajectories_with_a_correct_answer():
    wrong = taught(kit(teacher("Ohio")))
    assert not wrong.records and [rejected.reason for rejected in wrong.rejected] == ["wrong answer"]
    right = taught(kit(teacher("nv")))
    assert right.counts["right"] == 1 and right.counts["engine_calls"] == len(right.records)
    assert {task: len(records) for task, records in by_task(right).items()} == {
        "dualrag_reason": 3,
        "dualrag_identify": 2,
        "dualrag_summarize": 2,
        "dualrag_answer": 1,
    }
    assert len({record.id for record in right.records}) == len(right.records)


def test_a_teachers_answer_is_correct_by_the_rules_of_the_questions_dataset():
    for scoring, counted in (("triviaqa", 1), ("squad", 0)):
        update = {"answers": ["New York"], "metadata": {"scoring": scoring}}
        asked = QUESTION.model_copy(update=update)
        assert taught(kit(teacher("New-York")), asked).counts.get("right", 0) == counted


GOLD = QUESTION.model_copy(
    update={"gold_passages": [FILM, MAN], "metadata": {"supporting": ["It was directed by John Huston.", MAN.text]}}
)


def test_entities_that_match_no_gold_title_go_and_their_summaries_become_nothing():
    """A teacher that names the man twice, and Ohio, which no gold passage is about."""

    def say(prompt: str) -> str:
        round = prompt.count("Thought:")
        if prompt.endswith(f"{format.IDENTIFY.marker}\n"):
            names = ["Moby Dick", "Ohio"] if round == 1 else ["john huston", "John Huston (director)"]
            return json.dumps([{"entity": name, "queries": [f"{name} {round}"]} for name in names])
        if prompt.endswith(format.SUMMARIZE.marker):
            return " nothing\n" if "Entity: Moby Dick" in prompt else " It is a state.\n"
        return teacher("Nevada")(prompt)

    class Titles(Constant):
        def scores(self, pairs):
            self.pairs += pairs
            table = {("Moby Dick", "Moby Dick"): 3, ("john huston", "John Huston"): 1}
            table |= {("John Huston (director)", "John Huston"): 2}
            return [table.get(pair, -1 if pair[1] in ("Moby Dick", "John Huston") else 1) for pair in pairs]

    outcome = taught(kit(say, reranker=Titles(0)), GOLD)
    records = by_task(outcome)
    first, second = records["dualrag_identify"]
    assert format.IDENTIFY.parse(first.segments[-1].text) == [Entity(entity="Moby Dick", queries=["Moby Dick 1"])]
    assert format.IDENTIFY.parse(second.segments[-1].text) == [
        Entity(entity="John Huston (director)", queries=["John Huston (director) 2"])
    ]
    assert "Ohio" not in second.prompt and "Known entities" not in second.prompt
    summaries = {
        record.prompt.rpartition("Entity: ")[2].partition("\n")[0]: record.segments[-1].text.strip()
        for record in records["dualrag_summarize"]
    }
    assert summaries == {
        "Moby Dick": "It was directed by John Huston.",
        "Ohio": "nothing",
        "john huston": "It is a state.",
        "John Huston (director)": "It is a state.",
    }
    assert [(rejected.reason, rejected.text) for rejected in outcome.rejected] == [
        ("no gold title", "Ohio"),
        ("same title as John Huston (director)", "john huston"),
    ]
    rows = {row[0]: row[1:] for row in dualrag.table(outcome.counts).rows}
    assert rows["Entity Identifier"] == ["0", "2", "2"] and rows["Knowledge Summarizer"] == ["2", "2", "4"]
    assert rows["Reasoner"] == ["4", "0", "4"]  # the authors' code leaves the Reasoner's examples as they are


def test_later_examples_know_the_entities_that_stayed():
    names = {"Moby Dick": "Moby Dick", "the film": "Moby Dick", "Ohio": ""}
    knowledge = format.outline_lines({"the film": ["Of 1956."], "Ohio": ["A state."], "Moby Dick": ["By Huston."]})
    fields = format.identify_fields("Where?", knowledge, ["the film", "Ohio", "Moby Dick"], ["t1", "t2"])
    assert gold_titles.known_by_name(fields, names) == format.identify_fields(
        "Where?", [("Knowledge", ["Moby Dick: Of 1956. By Huston."])], ["Moby Dick"], ["t1", "t2"]
    )


def test_without_a_reranker_an_entity_matches_the_title_with_its_name():
    titles = ["Moby Dick (1956 film)", "John Huston"]
    matches = gold_titles.match_titles(["moby dick", "Huston"], titles, None)
    assert matches == {"moby dick": (titles[0], 1.0), "Huston": None}


def test_a_summary_without_supporting_sentences_becomes_the_gold_passage():
    match = gold_titles.Match("John Huston", 1.0)
    musique = GOLD.model_copy(update={"metadata": {}})
    assert gold_titles.summarized("nothing", [MAN], musique, match) == MAN.text
    assert gold_titles.summarized("nothing", [FILM], musique, match) == "nothing"


def test_judge_accepts_a_correct_answer_in_other_words():
    def judging(answer: str):
        def say(prompt: str) -> str:
            if prompt.endswith("Right:"):
                return " yes\n" if "Prediction: in the state of Nevada\n" in prompt else " no\n"
            return teacher(answer)(prompt)

        return say

    def counts(answer: str) -> dict[str, int]:
        return taught(kit(judging(answer))).counts

    assert counts("in the state of Nevada")["right by the judge"] == 1
    assert counts("NV")["right"] == 1 and counts("NV")["right by the judge"] == 0
    assert counts("Ohio")["right by the judge"] == counts("Ohio")["right"] == 0
    assert not taught(kit(judging("in the state of Nevada")), judge=False).records


def test_a_role_of_the_teacher_can_have_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    started: list[tuple[str, str]] = []

    @asynccontextmanager
    async def open_engine(model: str, config: EngineConfig):
        started.append((model, config.kind))
        yield Says(" yes\n") if model == "gpt-4o" else Says(teacher("in the state of Nevada"))

    monkeypatch.setattr("rag_train.strategies.kit.open_engine", open_engine)
    build_bm25([FILM, MAN], tmp_path / "index")
    roles = ["judge=gpt-4o,kind=chat,urls=http://h:1"]
    made = replace(
        recipe(judge=True, roles=roles),
        questions=[write(tmp_path / "q.jsonl", [QUESTION])],
        index=str(tmp_path / "index"),
        output=str(tmp_path / "t.jsonl"),
    )
    summary = asyncio.run(synthesize(dualrag.DualRAGData, made))
    assert summary.counts["right by the judge"] == 1 and started == [("t", "vllm"), ("gpt-4o", "chat")]
    wrong = replace(made, roles=["planner=x"])
    with pytest.raises(
        UserError, match="roles: planner=x: unknown role 'planner'; the roles are reasoner, identifier"
    ):
        asyncio.run(synthesize(dualrag.DualRAGData, wrong))


def test_links_entities_and_repairs_summaries():
    outcome = taught(kit(teacher("Nevada")), repair="facts")
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
    outcome = taught(kit(inventing), capabilities=["summaries"], repair="facts")
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


class Constant:
    """A cross-encoder that gives all pairs the same score."""

    def __init__(self, score: float):
        self.score = score
        self.pairs: list[tuple[str, str]] = []

    def scores(self, pairs):
        self.pairs += pairs
        return [self.score for _ in pairs]


def test_the_linker_links_entities_and_the_kits_reranker_ranks_passages(monkeypatch):
    linker, reranker = Constant(0.2), Constant(0.5)
    monkeypatch.setattr(dualrag, "_cross_encoder", lambda model: linker)
    llm = kit(teacher("Nevada"), reranker=reranker)
    outcome = taught(llm, linker="l", repair="facts")
    assert outcome.counts["similarity 0.2"] == 2 and not outcome.rejected
    assert ("Moby Dick", " moby dick.".strip()) in [pair[::-1] for pair in linker.pairs]
    assert all("Moby Dick" in text or "John Huston" in text for _, text in reranker.pairs) and reranker.pairs


def test_later_prompts_have_linked_names_and_repaired_summaries():
    """The teacher names the film twice and says nothing about it."""
    silent = teacher("Nevada", summary="nothing")
    outcome = taught(kit(silent), repair="facts")
    prompts = [record.prompt for record in by_task(outcome)["dualrag_reason"]]
    assert "Knowledge: Moby Dick: It was directed by John Huston.\n" in prompts[1]
    assert not any("moby dick." in prompt for prompt in prompts)


def test_repairs_summaries_that_contradict_or_lack_a_gold_fact():
    fields = format.summary_fields(QUESTION.question, ["who?"], "Moby Dick", ["director"], [FILM, MAN])

    def repair(summary: str) -> str | None:
        return dualrag.repaired_summary(summary, fields, QUESTION)

    assert repair("It was directed by Nevada.") == "It was directed by John Huston."
    assert repair("Moby Dick is a 1956 film.") == "Moby Dick is a 1956 film. It was directed by John Huston."
    assert repair("the director was John Huston") == "the director was John Huston"


def test_repairs_from_gold_passages_without_annotated_hops():
    """HotpotQA has gold passages and supporting sentences only."""
    film = FILM.model_copy(update={"title": "Moby Dick (film)"})
    question = QUESTION.model_copy(
        update={
            "decomposition": [],
            "gold_passages": [film, MAN],
            "metadata": {"supporting": ["It was directed by John Huston.", MAN.text]},
        }
    )

    def repair(summary: str, entity: str, question: Question) -> str | None:
        fields = format.summary_fields(QUESTION.question, ["who?"], entity, ["director"], [film, MAN])
        return dualrag.repaired_summary(summary, fields, question)

    assert repair("A 1956 film.", "Moby Dick", question) == "A 1956 film. It was directed by John Huston."
    assert repair("He made films.", "John Huston", question) == f"He made films. {MAN.text}"
    compared = question.model_copy(update={"answers": ["yes"]})
    assert repair("nothing", "John Huston", compared) == MAN.text
    assert repair("nothing", "Zazie", question) == "nothing"


def test_the_reasoner_sees_a_failed_retrieval_and_asks_again():
    def tasks(passages: dict[str, list[Passage]]) -> list[tuple[str, str]]:
        records = dualrag.gold_records(QUESTION, passages, instructions=False)
        return [(r.task.removeprefix("dualrag_"), r.prompt + r.segments[-1].text) for r in records]

    who, where = (step.subquery for step in QUESTION.decomposition)
    found_later = tasks({who: [MAN], "Moby Dick": [FILM], where: [MAN]})
    assert [task for task, _ in found_later] == ["reason", "identify", "summarize"] * 3 + ["reason", "answer"]
    assert found_later[2][1].endswith(" nothing\n") and "Knowledge: nothing" in found_later[3][1]
    assert "I still need to know: Who directed Moby Dick?" in found_later[3][1]
    assert "Knowledge: Moby Dick: It was directed by John Huston.\n" in found_later[6][1]
    never = tasks({who: [], "Moby Dick": [MAN], where: [MAN]})
    assert [task for task, _ in never] == ["reason", "identify", "reason", "identify", "summarize"]


def test_hops_are_told_as_sentences():
    step = GoldStep(subquery="Who is the director of Moby Dick?", answer="John Huston", entity="Moby Dick")
    assert dualrag.statement(step) == "The director of Moby Dick is John Huston."
    assert dualrag.statement(QUESTION.decomposition[0]) == "Who directed Moby Dick? John Huston."
    assert dualrag.evidence(step, [MAN, FILM]) == "It was directed by John Huston."
    assert dualrag.evidence(step, [MAN]) == ""  # names the director, but not the film
