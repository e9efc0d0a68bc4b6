"""Lucene's query syntax on a tantivy index: the meaning of operators, and arbitrary strings as queries."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.errors import UserError
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.index.bm25 import BM25Config, BM25Index
from rag_train.retrieval.index.lucene import LuceneIndex, build_lucene
from rag_train.retrieval.index.lucene_query import MOST_CLAUSES, Clause, parse, render
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


def test_ranks_plain_questions_like_bm25():
    world = World(WorldConfig(films=40, people=40, cities=10, countries=4))
    corpus = world.corpus()
    lucene, bm25 = LuceneIndex.build(corpus), BM25Index.build(corpus, BM25Config(k1=1.2))
    for question in world.questions("train")[:50]:
        ours, theirs = (r.search([question.question], 3)[0] for r in (lucene, bm25))
        assert ours[0].score == pytest.approx(2.2 * theirs[0].score, rel=0.1)  # tantivy keeps the factor k1 + 1
        assert {p.id for p in ours} & {p.id for p in theirs}


BUILD = """
import sys
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.lucene import build_lucene

def note(done):
    if done >= 1000:
        print("reached", flush=True)
        sys.stdin.read()  # until the kill

build_lucene(read_corpus(sys.argv[1]), sys.argv[2], progress=note, shard=200)
"""


@pytest.mark.slow
def test_continues_a_killed_build(tmp_path: Path):
    corpus = World(WorldConfig(films=100, people=100, cities=10, countries=4)).corpus() * 20
    corpus = [p.model_copy(update={"id": str(i)}) for i, p in enumerate(corpus)]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(encode(passage) for passage in corpus))
    command = [sys.executable, "-c", BUILD, str(tmp_path / "corpus.jsonl"), str(tmp_path / "index")]
    killed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert killed.stdout and "reached\n" in killed.stdout
    killed.kill()
    killed.communicate()
    assert not (tmp_path / "index").exists()
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
