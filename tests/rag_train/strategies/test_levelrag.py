"""LevelRAG's searchers search as often, and read what, as the authors' code does."""

import asyncio
import re
from itertools import count

import pytest
from support.fakes import Says

from rag_train.formats import levelrag
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.registry import build

ASKED = Question(id="q", question="Who wrote it?", answers=["x"])


class Each:
    """A retriever that finds one passage for each query, and keeps the queries."""

    identity = "each"

    def __init__(self, kind: str):
        self.kind = kind
        self.queries: list[str] = []

    async def search_all(self, queries: list[str], k: int) -> list[list[Passage]]:
        self.queries += queries
        return [[Passage(id=f"{self.kind} {query}", text=f"{self.kind} found {query}")] for query in queries]


class Never(Says):
    """An engine that finds nothing sufficient, and asks for a new word each time; it keeps its prompts."""

    def __init__(self, **said: str):
        self.asked: list[str] = []
        self.said = said
        made = count()
        super().__init__(lambda prompt: self._text(prompt, next(made)))

    def _text(self, prompt: str, n: int) -> str:
        self.asked.append(prompt)
        match prompt.rstrip().rpartition("\n")[2]:
            case "Sufficient:":
                return " no"
            case "Keywords:":
                return '["novel"]'
            case "Queries:":
                return self.said.get("queries", f'["q{n}?"]')
        return f" w{n}"


def ask(spec: str, llm: Never, *kinds: str) -> tuple[Trajectory, dict[str, Each]]:
    found = {kind: Each(kind) for kind in kinds}
    kit = Kit(llm, found[kinds[0]], instructions=False, retrievers=found)
    return asyncio.run(build(spec, kit).answer(ASKED)), found


def ending(llm: Never, marker: str) -> list[str]:
    return [prompt for prompt in llm.asked if prompt.endswith(marker)]


def test_the_sparse_searcher_makes_40_searches_at_depth_3():
    llm = Never()
    got, found = ask("levelrag-sparse", llm, "sparse")
    queries = found["sparse"].queries
    assert len(queries) == len(set(queries)) == got.retrievals == 1 + 3 + 9 + 27
    assert (len(got.calls), got.retrievals) == STRATEGIES["levelrag-sparse"].bound
    assert [len(ending(llm, marker)) for marker in ("Keyword:", "Excluded:", "Emphasized:")] == [13, 13, 13]


@pytest.mark.parametrize(("depth", "searches"), [(0, 1), (1, 4), (2, 13)])
def test_each_depth_has_three_times_the_searches(depth: int, searches: int):
    assert ask(f"levelrag-sparse,depth={depth}", Never(), "sparse")[0].retrievals == searches


def test_the_passages_of_the_last_query_are_read_if_none_suffices():
    llm = Never()
    _, found = ask("levelrag-sparse,depth=1", llm, "sparse")
    [read] = ending(llm, "So the final answer is:")
    assert re.findall("found (.*)", read) == [found["sparse"].queries[-1]]
    llm = Never()
    _, found = ask("levelrag-dense", llm, "dense")
    [read] = ending(llm, "So the final answer is:")
    assert re.findall("found (.*)", read) == [found["dense"].queries[-1]]


def test_the_raw_query_can_be_searched_before_the_keywords():
    assert ask("levelrag-sparse,depth=0", Never(), "sparse")[1]["sparse"].queries == ["novel"]
    assert ask("levelrag-sparse,depth=0,raw_first=true", Never(), "sparse")[1]["sparse"].queries == [
        ASKED.question,
        "novel",
    ]
    llm = Says(" yes")
    got, found = ask("levelrag-sparse,raw_first=true", llm, "sparse")
    assert found["sparse"].queries == [ASKED.question]
    assert [call.module for call in got.calls] == ["levelrag_sufficient", "reader"]


def test_the_first_pseudo_document_is_written_without_passages():
    llm = Never()
    got, found = ask("levelrag-dense,max_rewrites=3", llm, "dense")
    first, *later = ending(llm, "Passage:")
    assert first == f"Query: {ASKED.question}\nPassage:"
    queries = found["dense"].queries
    assert later == [
        f"Context: dense found {queries[1]}\nQuery: {ASKED.question}\nPassage:",
        f"Context: dense found {queries[2]}\nQuery: {ASKED.question}\nPassage:",
    ]
    assert got.retrievals == 4


def test_the_dense_searcher_makes_three_searches_as_released():
    got, _ = ask("levelrag-dense", Never(), "dense")
    assert (len(got.calls), got.retrievals) == STRATEGIES["levelrag-dense"].bound == (5, 3)


def test_the_searchers_passages_are_read_one_searcher_after_another():
    llm = Never()
    ask("levelrag-hybrid,feedback=false", llm, "dense", "web", "sparse")
    [read] = ending(llm, "So the final answer is:")
    assert re.findall("(.*) found", read) == ["Context: sparse", "Context: web", "Context: dense"]


def test_the_high_level_searcher_ends_after_100_rounds():
    got, found = ask("levelrag,feedback=false", Never(), "web")
    assert len(found["web"].queries) == 100
    assert got.notes["cut"] == "ended after max_rounds=100"
    assert len(ask("levelrag,max_rounds=3", Never(), "web")[1]["web"].queries) == 3


@pytest.mark.parametrize(
    ("query", "keyword", "filtered", "emphasized"),
    [
        ("moby whale", "whale", "moby", "moby whale^2"),
        ("moby whale", "film", "moby whale -film", '"film" moby whale'),
        ("moby whale", "Whale", "moby", "moby whale^2"),
        ("moby whale^2", "whale", "moby", "moby whale^3"),
        ("moby whale^3", "whale", "moby", "moby whale^4"),
        ('"moby dick" whale', "moby dick", "whale", '"moby dick"^2 whale'),
        ('"moby dick" whale', "dick", "moby whale", '"moby dick"^2 whale'),
        ("whale", "moby dick", 'whale -"moby dick"', '"moby dick" whale'),
        ("moby -whale", "whale", "moby -whale", "moby -whale"),
        ("whale", "whale", "", "whale^2"),
        ("whale", " ?", "whale", "whale"),
    ],
)
def test_feedback_on_words_that_a_query_has_and_lacks(query: str, keyword: str, filtered: str, emphasized: str):
    assert levelrag.exclude(query, keyword) == filtered
    assert levelrag.emphasize(query, keyword) == emphasized
