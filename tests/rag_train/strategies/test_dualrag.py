"""DualRAG retrieves, reranks and summarizes as the authors' code does."""

import asyncio
import json
from collections import Counter

import pytest
from support.fakes import Found, Says

from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build

ADA, BOB = (Passage(id=name, title=name, text=f"{name} was here.") for name in ("Ada", "Bob"))
UNTITLED = Passage(id="u", text="Someone was here.")
ASKED = Question(id="q", question="Who?", answers=["Ada"])


class Modules(Says):
    """An engine that reasons until a thought, names entities in each round, and keeps its prompts."""

    def __init__(self, last: int, *entities: dict[str, list[str]], summary: str = "x"):
        self.asked: list[str] = []
        self.last, self.entities, self.summary = last, entities, summary
        super().__init__(self._text)

    def _text(self, prompt: str) -> str:
        self.asked.append(prompt)
        thoughts = prompt.count("Thought:")
        match prompt.rstrip().rpartition("\n")[2]:
            case "Reasoner:":
                return json.dumps({"thought": f"t{thoughts}", "retrieve": thoughts < self.last})
            case "Next thought:":
                return f" So the answer is t{thoughts}." if thoughts >= self.last else f" t{thoughts}"
            case "Entities:":
                named = self.entities[min(thoughts, len(self.entities)) - 1]
                return json.dumps([{"entity": entity, "queries": queries} for entity, queries in named.items()])
            case "Summary:":
                return f" {self.summary}"
        return " Ada"

    def told(self, marker: str) -> list[str]:
        """The prompts with this marker at their end, without it."""
        return [prompt.removesuffix(marker) for prompt in self.asked if prompt.endswith(marker)]


def ask(spec: str, llm: Says, *passages: Passage, **more) -> tuple[Trajectory, Found]:
    found = Found(passages or (ADA, BOB))
    kit = Kit(llm, found, instructions=False, **more)
    return asyncio.run(build(spec, kit).answer(ASKED)), found


def calls(got: Trajectory) -> Counter[str]:
    return Counter(call.module.removeprefix("dualrag_") for call in got.calls)


@pytest.mark.parametrize("last", [0, 1, 2, 4])
def test_without_the_trigger_it_retrieves_until_a_thought_states_the_answer(last: int):
    got, found = ask("dualrag,trigger=false", Modules(last, {"Ada": ["a"]}))
    assert len(found.queries) == got.rounds == last
    assert calls(got)["think"] == last + 1 and calls(got)["identify"] == last and "reason" not in calls(got)
    assert got.reasoning.endswith(f"So the answer is t{last}.") and "cut" not in got.notes


def test_without_the_trigger_it_ends_after_the_last_round():
    got, found = ask("dualrag,trigger=false", Modules(9, {"Ada": ["a"]}))
    assert len(found.queries) == got.rounds == calls(got)["think"] == 5
    assert got.notes["cut"] == "ended after max_iterations=5"


def test_a_summary_reads_the_new_passages_all_thoughts_and_the_queries():
    llm = Modules(2, {"Ada": ["who", "where"]}, {"Ada": ["when"]})
    _, found = ask("dualrag", llm, ADA)
    found.passages.append(BOB)
    [summary] = llm.told("Summary:")
    assert summary == (
        "Question: Who?\nThought: t0\nQuery: who\nQuery: where\nContext: Ada: Ada was here.\nEntity: Ada\n"
    )
    llm = Modules(2, {"Ada": ["who"]}, {"Ada": ["when"], "Bob": ["who is Bob"]})
    got, _ = ask("dualrag", llm, ADA)
    assert llm.told("Summary:")[1:] == [
        "Question: Who?\nThought: t0\nThought: t1\nQuery: who is Bob\nContext: Ada: Ada was here.\nEntity: Bob\n"
    ]
    assert calls(got) == {"reason": 3, "identify": 2, "summarize": 2, "answer": 1}


def test_passages_about_which_nothing_was_said_are_read_again():
    got, _ = ask("dualrag", Modules(2, {"Ada": ["who"]}, summary="nothing"), ADA)
    assert calls(got)["summarize"] == 2 and got.outline == {}


def test_the_identifier_is_told_the_known_entities_as_a_list():
    llm = Modules(2, {"Ada": ["who"], 'B "o" b': ["who"]}, {"Ada": ["when"]})
    ask("dualrag", llm)
    first, second = llm.told("Entities:\n")
    assert first == "Question: Who?\nKnowledge: nothing\nThought: t0\n"
    assert second == (
        'Question: Who?\nKnowledge: Ada: x\nKnowledge: B "o" b: x\nKnown entities: ["Ada", "B \\"o\\" b"]\n'
        "Thought: t0\nThought: t1\n"
    )


def test_a_round_without_entities_searches_nothing():
    got, found = ask("dualrag", Modules(2, {}, {"Ada": ["who"]}))
    assert found.queries == ["who"] and got.answer == "Ada"


class ByName:
    """A reranker that scores the passages of the query's name 1, and others as given."""

    def __init__(self, other: float):
        self.other, self.queries = other, []

    def scores(self, pairs):
        self.queries += [query for query, _ in pairs]
        return [1.0 if text.startswith(query) else self.other for query, text in pairs]


def test_passages_are_reranked_by_the_entitys_name_and_those_with_a_score_of_0_or_less_go():
    llm, reranker = Modules(1, {"Bob": ["who", "where"]}), ByName(0.0)
    ask("dualrag", llm, reranker=reranker)
    assert set(reranker.queries) == {"Bob"}
    assert "Context: Bob: Bob was here.\nEntity" in llm.told("Summary:")[0] and "Ada" not in llm.told("Summary:")[0]
    llm = Modules(1, {"Bob": ["who"]})
    ask("dualrag,floor=false", llm, reranker=ByName(0.0))
    assert "Context: Bob: Bob was here.\nContext: Ada" in llm.told("Summary:")[0]
    got, _ = ask("dualrag", Modules(1, {"Carl": ["who"]}), reranker=ByName(-1.0))
    assert "summarize" not in calls(got) and got.retrievals == 1


def test_without_the_entity_identifier_passages_are_summarized_by_title():
    llm, reranker = Modules(1), ByName(0.5)
    got, found = ask("dualrag,identifier=false", llm, ADA, BOB, UNTITLED, reranker=reranker)
    assert found.queries == ["t0"] and got.retrievals == 1 and set(reranker.queries) == {"t0"}
    summaries = [prompt.partition("Context: ")[2] for prompt in llm.told("Summary:")]
    titled = [f"{title}: {title} was here.\nEntity: {title}\n" for title in ("Ada", "Bob")]
    assert summaries == [*titled, "Someone was here.\n"]
    assert all("Query: t0\n" in prompt for prompt in llm.told("Summary:"))
    assert llm.told("Answer:") == [
        "Question: Who?\nKnowledge: Ada: x\nKnowledge: Bob: x\nKnowledge: x\nThought: t0\nThought: t1\n"
    ]


def test_without_the_outline_the_passages_are_read_one_after_another():
    llm = Modules(1, {"Ada": ["who"], "Bob": ["where"]})
    got, _ = ask("dualrag,outline=none", llm)
    assert "Context: Ada: Ada was here.\nContext: Bob: Bob was here.\nThought" in llm.told("Answer:")[0]
    assert calls(got) == {"reason": 2, "identify": 1, "answer": 1}


def test_searches_although_its_first_thought_does_not_parse():
    """A thought that was cut at its limit would end in an answer without a search."""
    llm = Says(lambda prompt: " Ada\n" if prompt.endswith("Answer:") else '{"thought":"Who wrote')
    got, found = ask("dualrag", llm)
    assert found.queries == ["Who?"] and got.answer == "Ada" and got.unparsed
