"""BM25 indexes: ranking, resumable builds, damage; compared with rank-bm25 and bm25s."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import bm25s
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import DATA
from support.retrieval import LuceneFrequencies, edit, forge

from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index import bm25
from rag_train.retrieval.index.bm25 import BM25Index, build_bm25
from rag_train.retrieval.index.words import LONGEST_QUERY, Words, indexed_text
from rag_train.schema import Passage

UNUSUAL_QUERIES = ["", "zzzz", "the of", "\x00\x07\x1b[31m", "\ud800", "?!*^~\\(", "x" * 100_000, "film " * 20_000]


def make_passages(count: int, seed: int) -> list[Passage]:
    """Return passages of random and common English words with frequencies according to Zipf's law."""
    rng = random.Random(seed)
    stems = ["the", "of", "was", "born", "films", "director", "directed", "city"]
    words = stems + ["".join(rng.choices("abcdefgilmnorstu", k=rng.randint(2, 9))) for _ in range(1500)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [
        Passage(
            id=str(i),
            title=" ".join(rng.choices(words, weights, k=2)).title(),
            text=" ".join(rng.choices(words, weights, k=rng.randint(5, 100))) + ".",
        )
        for i in range(count)
    ]


PASSAGES = make_passages(300, seed=0)


@pytest.fixture(scope="module")
def index() -> BM25Index:
    return BM25Index.build(PASSAGES)


def assert_same_ranking(passages: list[Passage], queries: list[str], language: str) -> None:
    """Assert that rank-bm25 gives the same scores, and so the same order up to swaps within float32's precision."""
    words = Words(language)
    reference = LuceneFrequencies([words(indexed_text(p)) for p in passages], k1=1.5, b=0.75)
    positions = {passage.id: i for i, passage in enumerate(passages)}
    for query, found in zip(queries, BM25Index.build(passages, language).search(queries, 10), strict=True):
        scores = reference.get_scores([word for word in words(query) if word in reference.idf])
        best = sorted(scores[scores > 0], reverse=True)[:10]
        assert [p.score for p in found] == pytest.approx(best, rel=1e-5)
        assert [p.score for p in found] == pytest.approx([scores[positions[p.id]] for p in found], rel=1e-5)


@pytest.mark.parametrize("language", ["english", "none"])
def test_rank_bm25_ranks_alike(language: str) -> None:
    queries = [p.text[:40] for p in make_passages(60, seed=1)]
    assert_same_ranking(PASSAGES, [*queries, "The directors of Films"], language)


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "corpus.jsonl").exists(), reason="needs the corpus of Wikipedia passages")
def test_rank_bm25_ranks_alike_on_wikipedia() -> None:
    passages = [p for p, _ in zip(read_corpus(DATA / "corpus.jsonl"), range(3000), strict=False)]
    questions = load_questions(DATA / "hotpotqa" / "train_100.json")
    assert_same_ranking(passages, [q.question for q in questions[:40]], "english")


@pytest.mark.parametrize("k", [1, 7, 130])
def test_equal_scores_are_in_corpus_order(k: int) -> None:
    texts = {0: "other text", 1: "same words here", 2: "same words here", 3: "same words here"}
    passages = [Passage(id=str(i), text=texts[i % 4]) for i in range(1000)]
    passages[990] = Passage(id="990", text="same words, same words")
    found = BM25Index.build(passages).search(["same words", "other"] * 20, k)
    expected = [990, *(i for i in range(1000) if i % 4 and i != 990)][:k]
    assert [[int(p.id) for p in each] for each in found] == [expected, list(range(0, 1000, 4))[:k]] * 20


def test_indexes_a_corpus_without_words(tmp_path: Path) -> None:
    build_bm25([Passage(id="1", text="?"), Passage(id="2", text="the")], tmp_path / "index")
    assert BM25Index.load(tmp_path / "index").search(UNUSUAL_QUERIES, 3) == [[] for _ in UNUSUAL_QUERIES]
    with pytest.raises(UserError, match="no passages"):
        BM25Index.build([])


def test_answers_unusual_queries(index: BM25Index) -> None:
    found = index.search(UNUSUAL_QUERIES, 10**6)
    assert [bool(passages) for passages in found] == [False] * 7 + [True]
    with pytest.raises(ValueError, match="k is 0"):
        index.search(["film"], 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bm25") / "index"
    build_bm25(PASSAGES, directory, shard=70)
    return directory


@pytest.fixture(scope="module")
def reloaded(saved: Path) -> BM25Index:
    return BM25Index.load(saved)


VOCABULARY = sorted({word for p in PASSAGES for word in p.text.split()})


@pytest.mark.slow
@settings(max_examples=100)
@given(
    queries=st.lists(st.text() | st.lists(st.sampled_from(VOCABULARY)).map(" ".join), max_size=4),
    k=st.integers(1, 400),
)
def test_any_text_is_a_query_and_a_saved_index_returns_the_same(
    index: BM25Index, reloaded: BM25Index, queries: list[str], k: int
) -> None:
    found = index.search(queries, k)
    assert len(found) == len(queries)
    for passages in found:
        order = [(-(p.score or 0), int(p.id)) for p in passages]
        assert order == sorted(order) and len(order) <= k and all(score < 0 for score, _ in order)
    assert reloaded.search(queries, k) == found


@pytest.mark.parametrize("threads", [1, 2])
def test_scores_are_those_of_bm25s_to_the_bit(
    index: BM25Index, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "_pool", lambda: (ThreadPoolExecutor(threads), threads))
    words = Words("english")
    reference = bm25s.BM25(backend="numba")
    reference.index([words(indexed_text(p)) for p in PASSAGES], show_progress=False)
    queries = [p.text[:40] for p in make_passages(100, seed=2)]
    scores = reference.retrieve([words(query) for query in queries], k=20, show_progress=False).scores
    for query, found, expected in zip(queries, index.search(queries, 20), scores, strict=True):
        assert [p.score for p in found] == [score for score in expected.tolist() if score > 0], query


def test_refuses_a_corpus_for_which_bm25s_would_need_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    with pytest.raises(UserError, match="--kind lucene"):
        build_bm25(PASSAGES, tmp_path / "index")
    build_bm25(PASSAGES[:50], tmp_path / "index")


class Killed(BaseException):
    """Ends a build like a kill: the code under test does not catch it."""


@settings(max_examples=15)
@given(after=st.integers(0, 89), shard=st.integers(1, 40))
@pytest.mark.slow
def test_resumed_build_writes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, after: int, shard: int
) -> None:
    root, corpus = tmp_path_factory.mktemp("killed"), PASSAGES[:90]
    build_bm25(corpus, root / "whole", shard=shard)

    def stream(passages: list[Passage], until: int) -> Iterator[Passage]:
        yield from passages[:until]
        raise Killed

    with pytest.raises(Killed):
        build_bm25(stream(corpus, after), root / "index", shard=shard)
    assert not (root / "index").exists()
    seen: list[int] = []
    with patch.object(bm25, "_write_ids", side_effect=bm25._write_ids) as written:
        build_bm25(corpus, root / "index", progress=seen.append, shard=shard)
    assert written.call_count == len(seen) - after // shard
    for file in (root / "whole").iterdir():
        assert file.read_bytes() == (root / "index" / file.name).read_bytes()
    assert sorted(path.name for path in root.iterdir()) == ["index", "whole"]


def test_a_build_that_fails_leaves_the_index_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_bm25(PASSAGES[:10], tmp_path / "index")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(UserError, match="No space left"):
        build_bm25(PASSAGES, tmp_path / "index")
    assert len(BM25Index.load(tmp_path / "index")) == 10
    with pytest.raises(UserError, match="is a file; choose another directory"):
        build_bm25(PASSAGES, tmp_path / "index" / "passages.jsonl")


def altered(name: str, at: int, value: int) -> Callable[[Path], None]:
    """Return the forgery that changes one number of an array."""

    def forgery(directory: Path) -> None:
        array = np.load(directory / name)
        array[at] = value
        forge(directory, name, array)

    return forgery


def resaved(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda directory: forge(directory, name, change(np.load(directory / name)))


FORGERIES: dict[str, Callable[[Path], None]] = {
    "index above": altered("indices.npy", 0, 300),
    "index below": altered("indices.npy", -1, -1),
    "column start above": altered("indptr.npy", 5, 2**40),
    "column start below": altered("indptr.npy", 0, -(2**40)),
    "column end": altered("indptr.npy", -1, 2**40),
    "line start": altered("offsets.npy", 3, 2**40),
    "line end": altered("offsets.npy", -1, 1),
    "fewer lines": resaved("offsets.npy", lambda a: a[:-1]),
    "fewer scores": resaved("data.npy", lambda a: a[:-1]),
    "fewer columns": resaved("indptr.npy", lambda a: a[1:]),
    "another type": resaved("indices.npy", lambda a: a.astype(np.int64)),
    "another shape": resaved("indices.npy", lambda a: a.reshape(1, -1)),
    "a pickle": resaved("data.npy", lambda a: np.array([Path], dtype=object)),
    "no array": lambda d: forge(d, "data.npy", b"PK\x03\x04 not an archive"),
    "an empty file": lambda d: forge(d, "data.npy", b""),
    "no token list": lambda d: forge(d, "vocabulary.json", b'{"a": 1}'),
    "tokens that are no text": lambda d: forge(d, "vocabulary.json", b"[[1]]"),
    "deep JSON": lambda d: forge(d, "vocabulary.json", b"[" * 10**5),
    "unknown language": lambda d: edit(d, config={"language": "klingon", "k1": 1.5, "b": 0.75}),
    "another formula": lambda d: edit(d, config={"language": "english", "k1": 0.9, "b": 0.75}),
    "unknown setting": lambda d: edit(d, config={"language": "english", "k1": 1.5, "b": 0.75, "shell": "true"}),
    "negative size": lambda d: edit(d, passages=-1),
    "a pipe": lambda d: ((d / "data.npy").unlink(), os.mkfifo(d / "data.npy")),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_refuses_a_forged_index_in_one_line(saved: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved, tmp_path / "index")
    FORGERIES[name](tmp_path / "index")
    with pytest.raises(UserError) as caught:
        BM25Index.load(tmp_path / "index")
    assert "\n" not in str(caught.value) and "rag-train index" in str(caught.value)


def test_a_forged_passage_is_refused_when_it_is_found(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "index")
    lines = (saved / "passages.jsonl").read_bytes()
    forge(tmp_path / "index", "passages.jsonl", b"x" * len(lines))
    with pytest.raises(UserError, match="of the index is damaged"):
        BM25Index.load(tmp_path / "index").search(["of the film director city"], 300)


def test_repetitions_and_what_follows_the_longest_query_cost_no_time(index: BM25Index) -> None:
    once, often = (index.search([word], 10)[0] for word in ("films", "films " * 1000))
    assert [p.id for p in once] == [p.id for p in often]
    assert [p.score for p in often] == pytest.approx([10 * (p.score or 0) for p in once])
    assert index.search(["films " + "x" * LONGEST_QUERY + " city"], 10)[0] == once


DAMAGE: dict[str, Callable[[Path], object]] = {
    "has 5 bytes, not": lambda d: (d / "passages.jsonl").write_bytes(b"short"),
    "data.npy was changed": lambda d: (d / "data.npy").write_bytes(bytes((d / "data.npy").stat().st_size)),
    "offsets.npy: No such file": lambda d: (d / "offsets.npy").unlink(),
    "index.json is not JSON": lambda d: (d / "index.json").write_text('{"format": "rag'),
    "no readable index.json": lambda d: (d / "index.json").unlink(),
    "version 0, but": lambda d: edit(d, version=0),
    "not a rag-train-bm25 index": lambda d: edit(d, format="faiss"),
    "index.json was changed": lambda d: edit(d, config={"k1": "high"}),
    "does not list": lambda d: edit(d, files={}),
}


UNKNOWN = {"index.json is not JSON", "no readable index.json", "not a rag-train-bm25 index", "does not list"}


@pytest.mark.slow
@pytest.mark.parametrize("problem", DAMAGE)
def test_rejects_a_damaged_index_which_can_be_rebuilt_while_its_manifest_tells_what_it_is(
    saved: Path, tmp_path: Path, problem: str
) -> None:
    shutil.copytree(saved, tmp_path / "index")
    DAMAGE[problem](tmp_path / "index")
    with pytest.raises(UserError) as caught:
        BM25Index.load(tmp_path / "index")
    message = str(caught.value)
    assert problem in message and "rag-train index" in message and "\n" not in message
    if problem in UNKNOWN:
        with pytest.raises(UserError, match="not part of an index"):
            build_bm25(PASSAGES, tmp_path / "index")
    else:
        build_bm25(PASSAGES, tmp_path / "index")
        assert len(BM25Index.load(tmp_path / "index")) == len(PASSAGES)
