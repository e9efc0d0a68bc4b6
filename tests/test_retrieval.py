"""Corpora, the two BM25 engines, and the async front."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.datasets import load_questions
from rag_train.errors import UserError
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.bm25 import BM25Config, BM25Index, indexed_text, tokenizer
from rag_train.retrieval.bm25_build import build_bm25
from rag_train.retrieval.corpus import chunk, read_corpus
from rag_train.retrieval.rank_bm25 import RankBM25Index
from rag_train.schema import Passage

DATA = Path(__file__).parents[2] / "shared" / "data"

NASTY_QUERIES = [
    "",
    " ",
    "zzzz",
    "the of",
    "\x00\x07\x1b[31m",
    "\ud800",
    "?!*^~\\(",
    "x" * 100_000,
    "film " * 20_000,
]


# -- corpora --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("beir.jsonl", '{"_id": "7", "title": "A \\"b\\"", "text": "Some text.", "metadata": {}}\n'),
        ("docid.jsonl", '\ufeff{"docid": 7, "title": "A \\"b\\"", "text": "Some text."}'),
        ("flashrag.jsonl", '{"id": "7", "contents": "\\"A \\"b\\"\\"\\nSome text."}\n\n'),
        ("dpr.tsv", 'id\ttext\ttitle\r\n7\tSome text.\t"A ""b"""\r\n'),
    ],
)
def test_read_corpus_knows_the_fields_shapes(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(read_corpus(tmp_path / name)) == [Passage(id="7", title='A "b"', text="Some text.")]


GOOD = b'{"id": "1", "text": "fine"}\n'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("c.jsonl", GOOD + b'{"id": "2", "text": "cut', "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[" * 100_000, "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[1]", "line 2: not a JSON object"),
        ("c.jsonl", GOOD + b'{"id": "2", "title": "t"}', "line 2: no text"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": " "}', "line 2: the text is blank"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\\ud800"}', "surrogates not allowed"),
        ("c.jsonl", GOOD + b'{"text": "x"}', "line 2: no id"),
        ("c.jsonl", GOOD + b"\n" + GOOD, "line 3: duplicate id '1', first on line 1"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\xe9"}', "line 2: not UTF-8"),
        ("c.jsonl", b"\n\n", "empty"),
        ("c.tsv", b"", "empty"),
        ("c.tsv", b"1\tx\ty\n", "line 1: not DPR's header"),
        ("c.tsv", b"id\ttext\ttitle\n1\tx\n", "line 2: 2 fields instead of 3"),
        ("c.tsv", b'id\ttext\ttitle\n1\t"open\ty\n2\tx\ty\n', "line 3: unexpected end of data"),
        ("c.tsv", b"id\ttext\ttitle\n1\t" + b"x" * 200_000 + b"\ty\n", "line 2: field larger than field limit"),
        ("c.parquet", GOOD, "unknown extension"),
        ("missing.jsonl", None, "No such file"),
    ],
)
def test_a_bad_corpus_is_one_line_with_its_place(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_corpus(tmp_path / name))
    message = str(caught.value)
    assert problem in message and name in message and "; " in message and "\n" not in message


def test_chunk_cuts_into_disjoint_passages() -> None:
    article = Passage(id="a", title="T", text=" ".join(map(str, range(250))))
    passages = chunk(article)
    assert [p.id for p in passages] == ["a-0", "a-1", "a-2"]
    assert [len(p.text.split()) for p in passages] == [100, 100, 50]
    assert " ".join(p.text for p in passages) == article.text
    assert {p.title for p in passages} == {"T"}


# -- BM25 -----------------------------------------------------------------------------------------------------


def make_passages(count: int, seed: int) -> list[Passage]:
    """Passages of words whose frequencies fall as Zipf's law has it, with common English among them."""
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


def assert_alike(passages: list[Passage], queries: list[str], config: BM25Config) -> None:
    """Both engines give the same passages in the same order, but for swaps within float32's rounding."""
    ours = BM25Index.build(passages, config).search(queries, 10)
    reference = RankBM25Index(passages, config).search(queries, len(passages))
    for found, expected in zip(ours, reference, strict=True):
        scores = {p.id: p.score for p in expected}
        assert [p.score for p in found] == pytest.approx([p.score for p in expected[:10]], rel=1e-5)
        assert [p.score for p in found] == pytest.approx([scores[p.id] for p in found], rel=1e-5)


@pytest.mark.parametrize(
    "config",
    [BM25Config(), BM25Config(lowercase=False, stopwords=None, stemmer=None), BM25Config(k1=0.9, b=0.4)],
)
def test_the_two_engines_rank_alike(config: BM25Config) -> None:
    queries = [p.text[:40] for p in make_passages(60, seed=1)]
    assert_alike(PASSAGES, [*queries, "The directors of Films"], config)


@pytest.mark.skipif(not (DATA / "corpus.jsonl").exists(), reason="no real corpus beside this checkout")
def test_the_two_engines_rank_alike_on_wikipedia() -> None:
    passages = [p for p, _ in zip(read_corpus(DATA / "corpus.jsonl"), range(3000), strict=False)]
    questions = load_questions(DATA / "hotpotqa" / "train_100.json")
    assert_alike(passages, [q.question for q in questions[:40]], BM25Config())


def test_search_finds_by_stem_and_title_and_leaves_out_what_does_not_match() -> None:
    passages = [
        Passage(id="a", title="Solaris", text="A film."),
        Passage(id="b", text="She directs films."),
        Passage(id="c", text="A city."),
    ]
    for retriever in (BM25Index.build(passages), RankBM25Index(passages)):
        found = retriever.search(["directing", "SOLARIS", "film", "the"], 5)
        assert [[p.id for p in ps] for ps in found] == [["b"], ["a"], ["a", "b"], []]
        assert found[0][0].text == passages[1].text and found[0][0].score


def test_equal_scores_come_in_corpus_order() -> None:
    passages = [Passage(id=str(i), text="same words here" if i % 3 else "other text") for i in range(200)]
    for retriever in (BM25Index.build(passages), RankBM25Index(passages)):
        (found,) = retriever.search(["same words"], 7)
        assert [p.id for p in found] == ["1", "2", "4", "5", "7", "8", "10"]


def test_a_corpus_without_any_token(tmp_path: Path) -> None:
    passages = [Passage(id="1", text="?"), Passage(id="2", text="the")]
    build_bm25(passages, tmp_path / "index")
    for retriever in (BM25Index.load(tmp_path / "index"), RankBM25Index(passages)):
        assert retriever.search(NASTY_QUERIES, 3) == [[] for _ in NASTY_QUERIES]
    for build in (BM25Index.build, RankBM25Index):
        with pytest.raises(UserError, match="no passages"):
            build([])


def test_nasty_queries_get_an_answer(index: BM25Index) -> None:
    for retriever in (index, RankBM25Index(PASSAGES)):
        found = retriever.search(NASTY_QUERIES, 10**6)
        assert [bool(passages) for passages in found] == [False] * 8 + [True]
        with pytest.raises(ValueError, match="k is 0"):
            retriever.search(["film"], 0)


@pytest.mark.parametrize(("field", "value"), [("k1", 0.0), ("k1", float("nan")), ("b", 1.5)])
def test_bad_parameters(field: str, value: float) -> None:
    with pytest.raises(UserError, match=f"{field} is"):
        replace(BM25Config(), **{field: value})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bm25") / "index"
    build_bm25(PASSAGES, directory, shard=70)
    return directory


@pytest.fixture(scope="module")
def reloaded(saved: Path) -> list[BM25Index]:
    return [BM25Index.load(saved), BM25Index.load(saved, mmap=False)]


VOCABULARY = sorted({word for p in PASSAGES for word in p.text.split()})


@settings(max_examples=100, deadline=None)
@given(
    queries=st.lists(st.text() | st.lists(st.sampled_from(VOCABULARY)).map(" ".join), max_size=4),
    k=st.integers(1, 400),
)
def test_any_text_is_a_query_and_a_saved_index_answers_the_same(
    index: BM25Index, reloaded: list[BM25Index], queries: list[str], k: int
) -> None:
    found = index.search(queries, k)
    assert len(found) == len(queries)
    for passages in found:
        order = [(-(p.score or 0), int(p.id)) for p in passages]
        assert order == sorted(order) and len(order) <= k and all(score < 0 for score, _ in order)
    for other in reloaded:
        assert other.search(queries, k) == found


def test_the_index_is_that_of_bm25s(index: BM25Index) -> None:
    tokenize = tokenizer(BM25Config())
    reference = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    reference.index([tokenize(indexed_text(p)) for p in PASSAGES], show_progress=False)
    for query in (p.text[:40] for p in make_passages(30, seed=2)):
        scores = reference.get_scores(tokenize(query))
        assert [scores[int(p.id)] for p in index.search([query], 20)[0]] == pytest.approx(
            sorted(scores[scores > 0], reverse=True)[:20], rel=1e-5
        )


def test_build_reports_progress_and_reads_a_stream(tmp_path: Path) -> None:
    seen: list[int] = []
    stream = (Passage(id=str(i), text="a few words") for i in range(2500))
    assert build_bm25(stream, tmp_path / "index", progress=seen.append, shard=2200) == 2500
    assert seen == [1000, 2000, 2200, 2500]


class Killed(BaseException):
    """Stops a build as a kill does: nothing of ours catches it."""


@settings(max_examples=15, deadline=None)
@given(after=st.integers(0, 299), shard=st.integers(1, 120))
def test_a_killed_build_goes_on_to_the_same_index(
    tmp_path_factory: pytest.TempPathFactory, after: int, shard: int
) -> None:
    root = tmp_path_factory.mktemp("killed")
    build_bm25(PASSAGES, root / "whole", shard=shard)

    def stream(passages: list[Passage], until: int) -> Iterator[Passage]:
        yield from passages[:until]
        raise Killed

    with pytest.raises(Killed):
        build_bm25(stream(PASSAGES, after), root / "index", shard=shard)
    assert not (root / "index").exists()
    if after >= shard:
        with pytest.raises(UserError, match="another corpus"):
            build_bm25(PASSAGES[1:], root / "index", shard=shard)
    build_bm25(PASSAGES, root / "index", shard=shard)
    for file in (root / "whole").iterdir():
        assert file.read_bytes() == (root / "index" / file.name).read_bytes()
    assert sorted(path.name for path in root.iterdir()) == ["index", "whole"]


def test_building_replaces_an_index_and_nothing_else(
    index: BM25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "index"
    build_bm25(PASSAGES, directory)
    build_bm25(PASSAGES[:10], directory, BM25Config(k1=0.9))
    smaller = BM25Index.load(directory)
    assert len(smaller) == 10 and smaller.config == BM25Config(k1=0.9)
    assert smaller.corpus_sha256 != index.corpus_sha256

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(UserError, match="No space left"):
        build_bm25(PASSAGES, directory)
    monkeypatch.undo()
    assert len(BM25Index.load(directory)) == 10

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "passages.jsonl").write_text("precious")
    for path in (tmp_path / "mine", tmp_path / "mine" / "passages.jsonl"):
        with pytest.raises(UserError):
            build_bm25(PASSAGES, path)
    assert (tmp_path / "mine" / "passages.jsonl").read_text() == "precious"


def edit(directory: Path, **changes: object) -> None:
    manifest = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps(manifest | changes))


DAMAGE = {
    "has 5 bytes, not": lambda d: (d / "passages.jsonl").write_bytes(b"short"),
    "data.npy was changed": lambda d: (d / "data.npy").write_bytes(bytes((d / "data.npy").stat().st_size)),
    "offsets.npy: No such file": lambda d: (d / "offsets.npy").unlink(),
    "index.json is not JSON": lambda d: (d / "index.json").write_text('{"format": "rag'),
    "no readable index.json": lambda d: (d / "index.json").unlink(),
    "of version 0": lambda d: edit(d, version=0),
    "not a rag-train-bm25 index": lambda d: edit(d, format="faiss"),
    "index.json was changed": lambda d: edit(d, config={"k1": "high"}),
    "index.json lists other files": lambda d: edit(d, files={}),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_a_damaged_index_is_refused_and_can_be_rebuilt(index: BM25Index, tmp_path: Path, problem: str) -> None:
    directory = tmp_path / "index"
    build_bm25(PASSAGES, directory)
    DAMAGE[problem](directory)
    with pytest.raises(UserError) as caught:
        BM25Index.load(directory)
    message = str(caught.value)
    assert problem in message and "rag-train index" in message and "\n" not in message
    if (directory / "index.json").exists():
        build_bm25(PASSAGES, directory)
        assert len(BM25Index.load(directory)) == len(index)


# -- the async front ------------------------------------------------------------------------------------------


class Recorder:
    """Answers every query with a passage of that text, once ``gate`` is open; fails on the query "bad"."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append((list(queries), k))
        assert self.gate.wait(30)
        if "bad" in queries:
            raise RuntimeError("the retriever failed")
        return [[Passage(id=query, text=query)] for query in queries]


def test_concurrent_queries_become_batches_and_equal_ones_are_searched_once() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder, max_batch=3)

    async def main() -> None:
        asked = [("a", 1), ("b", 1), ("a", 1), ("c", 2), ("d", 1), ("e", 1), ("a", 2)]
        found = await asyncio.gather(*(front.search(query, k) for query, k in asked))
        assert [passages[0].id for passages in found] == [query for query, _ in asked]
        found[0].clear()
        assert len(await front.search("a", 1)) == 1  # remembered, and not the list that was cleared

    asyncio.run(main())
    assert recorder.calls == [(["a", "b", "d"], 1), (["c", "a"], 2), (["e"], 1)]
    assert (front.queries, front.distinct, front.batches) == (8, 6, 3)


def test_queries_gather_while_the_retriever_is_busy() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        first = asyncio.create_task(front.search("first", 1))
        while not recorder.calls:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(front.search(str(i), 1)) for i in range(50)]
        await asyncio.sleep(0)
        recorder.gate.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert [len(queries) for queries, _ in recorder.calls] == [1, 50]


def test_cancelling_a_caller_leaves_the_others_alone() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        callers = [asyncio.create_task(front.search("same", 1)) for _ in range(3)]
        while not recorder.calls:
            await asyncio.sleep(0.001)
        callers[0].cancel()
        await asyncio.sleep(0)
        recorder.gate.set()
        found = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1] == found[2] == [Passage(id="same", text="same")]

    asyncio.run(main())
    assert front.distinct == 1


def test_a_failure_reaches_every_caller_and_is_not_remembered() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder)

    async def main() -> None:
        found = await asyncio.gather(*(front.search(q, 1) for q in ("bad", "bad", "x")), return_exceptions=True)
        assert [str(error) for error in found] == ["the retriever failed"] * 3
        assert (await front.search("x", 1))[0].id == "x"

    asyncio.run(main())


def test_the_least_recently_used_answer_is_forgotten() -> None:
    recorder = Recorder()
    front = AsyncRetriever(recorder, remember=2)

    async def main() -> None:
        for query in ("a", "b", "a", "c", "a", "b"):
            await front.search(query, 1)

    asyncio.run(main())
    assert [queries for queries, _ in recorder.calls] == [["a"], ["b"], ["c"], ["b"]]
