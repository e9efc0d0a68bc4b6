"""Lucene's query syntax on a tantivy index: the meaning of operators, and arbitrary strings as queries."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.retrieval import LuceneFrequencies

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.lucene import LuceneIndex, build_lucene
from rag_train.retrieval.index.lucene_query import MOST_CLAUSES, Clause, parse, render
from rag_train.retrieval.index.words import Words, indexed_text
from rag_train.schema import Passage
from rag_train.worlds.mini.world import World, WorldConfig

PASSAGES = [
    Passage(id="1", title="Paris", text="Paris is the capital of France."),
    Passage(id="2", title="London", text="London is the capital of England, and has a film's length of history."),
    Passage(id="3", title="Film", text="The capital of the film France"),
    Passage(id="4", title="दिल्ली", text="दिल्ली भारत की राजधानी है"),
]


@pytest.fixture(scope="module")
def index() -> LuceneIndex:
    return LuceneIndex.build(PASSAGES)


def ids(index: LuceneIndex, query: str) -> list[str]:
    return [passage.id for passage in index.search([query], 4)[0]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("capitals", ["1", "3", "2"]),  # stemmed
        ('"capital of France"', ["1"]),
        ('"France capital"', []),
        ('"capital of a film"', ["3"]),  # the position of a stop word counts, but not the word
        ("capital -france", ["2"]),
        ("capital NOT france", ["2"]),
        ('capital -"capital of England"', ["1", "3"]),
        ("+france capital", ["1", "3"]),
        ("+france AND (capital OR film)", ["3", "1"]),
        ("title:film", ["3"]),
        ("text:film", ["3", "2"]),
        ("england film^9", ["3", "2"]),
        ("england^9 film", ["2", "3"]),
        ("राजधानी", ["4"]),
        ("-france", []),
        ("the", []),
        ('"', []),
    ],
)
def test_operators(index: LuceneIndex, query: str, expected: list[str]):
    assert ids(index, query) == expected


OPERATORS = ['"', "+", "-", "^", "^2", "~", "*", "?", ":", "title:", "(", ")", "[", "AND", "NOT", "\\", "/", " "]
QUERIES = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=60),
    st.lists(st.sampled_from([*OPERATORS, "capital", "France", "film's", "x"]), max_size=20).map("".join),
)


@pytest.mark.slow
@given(query=QUERIES)
def test_answers_any_string_and_parse_inverts_render(index: LuceneIndex, query: str):
    found, clauses = index.search([query], 2), parse(query)
    assert len(found) == 1 and len(found[0]) <= 2 and parse(render(clauses)) == clauses


@pytest.mark.parametrize("query", ["", "\0" * 1000, "a " * 50_000, '"' * 99_999, '"a' * 50_000, "-" * 100_000])
def test_limits_long_queries(index: LuceneIndex, query: str):
    assert index.search([query], 1) and len(parse(query)) <= MOST_CLAUSES


def test_parses_clauses():
    assert parse('title:"Blade Runner"^2 -1982 film\'s') == [
        Clause(("Blade", "Runner"), field="title", boost=2.0),
        Clause(("1982",), "must_not"),
        Clause(("film's",)),
    ]
    assert render(parse('say "AND" -(x) c++^2')) == 'say "AND" -x "c++"^2'


def test_ranks_plain_questions_like_rank_bm25():
    world = World(WorldConfig(films=40, people=40, cities=10, countries=4))
    corpus = world.corpus()
    lucene, words = LuceneIndex.build(corpus), Words("english")
    reference = LuceneFrequencies([words(indexed_text(passage)) for passage in corpus], k1=1.2, b=0.75)
    for question in world.questions("train")[:50]:
        scores = reference.get_scores([word for word in words(question.question) if word in reference.idf])
        found = lucene.search([question.question], 3)[0]
        assert found[0].score == pytest.approx(2.2 * max(scores), rel=0.1)  # tantivy keeps the factor k1 + 1
        assert {p.id for p in found} & {corpus[i].id for i in scores.argsort()[-3:]}


def killed_build(corpus: list[Passage], directory: Path) -> None:
    """Build an index, and kill this process at the fifth commit."""

    def kill(done: int) -> None:
        if done >= 1000:
            os.kill(os.getpid(), signal.SIGKILL)

    build_lucene(corpus, directory, progress=kill, shard=200)


@pytest.mark.slow
def test_continues_a_killed_build(tmp_path: Path):
    corpus = World(WorldConfig(films=100, people=100, cities=10, countries=4)).corpus() * 20
    corpus = [p.model_copy(update={"id": str(i)}) for i, p in enumerate(corpus)]
    # A fork, so that no signal and no clean-up of this process ends the build, but SIGKILL at its fifth commit.
    process = multiprocessing.get_context("fork").Process(target=killed_build, args=(corpus, tmp_path / "index"))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "index").exists()
    progress: list[int] = []
    with pytest.raises(UserError, match="another corpus"):
        build_lucene(corpus[::-1], tmp_path / "index", progress=progress.append, shard=200)
    build_lucene(corpus, tmp_path / "index", progress=progress.append, shard=200)
    assert progress[-1] == len(corpus)
    build_lucene(corpus, tmp_path / "other", shard=200)
    resumed, whole = LuceneIndex.load(tmp_path / "index"), LuceneIndex.load(tmp_path / "other")
    assert len(resumed) == len(corpus) and resumed.corpus_sha256 == whole.corpus_sha256
    asked = [f"title:{corpus[7].title}", "director -film"]
    assert [p.score for p in resumed.search(asked, 9)[0]] == [p.score for p in whole.search(asked, 9)[0]]
    assert not (tmp_path / ".index.building").exists()


def test_rejects_damaged_and_foreign_indexes(tmp_path: Path):
    build_lucene(PASSAGES, tmp_path / "index")
    store = next((tmp_path / "index" / "tantivy").glob("*.idx"))
    store.write_bytes(store.read_bytes()[:-1])
    with pytest.raises(UserError, match="rebuild it"):
        LuceneIndex.load(tmp_path / "index")
    with pytest.raises(UserError, match="not a rag-train-bm25 index"):
        BM25Index.load(tmp_path / "index")
    with pytest.raises(UserError, match="no passages"):
        build_lucene([], tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
