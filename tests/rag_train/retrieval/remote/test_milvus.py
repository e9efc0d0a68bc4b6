"""Dense retrieval with Milvus Lite, compared with exact products in NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymilvus import MilvusClient

from rag_train.errors import UserError
from rag_train.retrieval.remote.milvus import Metric, MilvusRetriever
from rag_train.schema import Passage

DIMENSION = 16


def vector(text: str, dimension: int = DIMENSION) -> np.ndarray:
    """Return a random vector of random length, determined by the text."""
    rng = np.random.default_rng(zlib.crc32(text.encode("utf-8", "surrogatepass")))
    return (rng.normal(size=dimension) * rng.uniform(0.5, 3)).astype(np.float32)


class Vectors:
    """An encoder whose vectors are random."""

    identity = "random vectors"

    def __init__(self, dimension: int = DIMENSION):
        self.dimension = dimension

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        return np.stack([vector(query, self.dimension) for query in queries])

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray:
        return self.encode_queries([passage.text for passage in passages])


def passages_named(ids: Sequence[str]) -> list[Passage]:
    return [Passage(id=id, title=f"Title {id}"[:20], text=f"text of {id}"[:50]) for id in ids]


PASSAGES = passages_named([f"p{i}" for i in range(1500)])
VECTORS = Vectors().encode_passages(PASSAGES)
QUERIES = ["who", "", "x" * 10_000, "\x00\ud800", "où 東京 🦊", 'a\' or "b" == {c}']


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("milvus") / "lite.db")


@pytest.fixture(scope="module", params=["ip", "cosine"])
def indexed(uri: str, request: pytest.FixtureRequest) -> MilvusRetriever:
    retriever = MilvusRetriever(uri, f"all_{request.param}", Vectors(), request.param)
    assert retriever.index_passages(PASSAGES) == len(PASSAGES)
    return retriever


def exact(queries: Sequence[str], metric: str) -> np.ndarray:
    """Return exact scores of shape (queries, passages)."""
    vectors = Vectors().encode_queries(queries)
    products = vectors @ VECTORS.T
    if metric == "ip":
        return products
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(VECTORS, axis=1)
    return products / lengths


def test_search_is_exact(indexed: MilvusRetriever) -> None:
    queries = [*QUERIES, *(f"question {i}" for i in range(300))]  # more than fit into one request
    for row, found in zip(exact(queries, indexed.metric), indexed.search(queries, 10), strict=True):
        best = np.argsort(-row)[:10]
        assert [p.id for p in found] == [PASSAGES[i].id for i in best]
        assert [p.score for p in found] == pytest.approx(row[best], rel=1e-4)
        assert found[0].model_copy(update={"score": None}) == PASSAGES[best[0]]
    assert indexed.search([], 3) == []
    assert sorted(p.id for p in indexed.search(["who"], 2000)[0]) == sorted(p.id for p in PASSAGES)
    for k in (0, 16_385):
        with pytest.raises(ValueError, match=f"k is {k}"):
            indexed.search(["who"], k)


def test_opens_an_existing_collection_and_checks_it(indexed: MilvusRetriever) -> None:
    again = MilvusRetriever(indexed.uri, indexed.collection, Vectors(), indexed.metric)
    assert again.search(QUERIES, 5) == indexed.search(QUERIES, 5)
    other: Metric = "cosine" if indexed.metric == "ip" else "ip"
    with pytest.raises(UserError, match=f"its metric is {indexed.metric}, not {other}; open it with"):
        MilvusRetriever(indexed.uri, indexed.collection, Vectors(), other)
    narrow = MilvusRetriever(indexed.uri, indexed.collection, Vectors(8), indexed.metric)
    with pytest.raises(UserError, match="its vectors have 16 dimensions, not 8; "):
        narrow.search(["who"], 3)
    with pytest.raises(UserError, match="its vectors have 16 dimensions, not 8; "):
        narrow.index_vectors(PASSAGES[:1], np.ones((1, 8), np.float32))


def test_indexing_again_replaces_passages(uri: str) -> None:
    retriever = MilvusRetriever(uri, "twice", Vectors())
    retriever.index_vectors(PASSAGES[:30], VECTORS[:30])
    before = retriever.search(QUERIES, 100)
    retriever.index_vectors(PASSAGES[:30], VECTORS[:30])
    assert retriever.search(QUERIES, 100) == before and len(before[0]) == 30
    changed = PASSAGES[7].model_copy(update={"text": "other"})
    retriever.index_vectors([changed], 100 * Vectors().encode_queries(["who"]))
    (found,) = retriever.search(["who"], 100)
    assert (found[0].id, found[0].text, len(found)) == (changed.id, "other", 30)


def test_ids_can_be_any_text(uri: str) -> None:
    ids = ["a", "A", "a ", " a", "", "é", "e\u0301", "x" * 1001, "\x00", 'key == "a" or 1', "東京/../🦊"]
    passages = passages_named(ids)
    vectors = Vectors().encode_queries(ids)
    retriever = MilvusRetriever(uri, "ids", Vectors(), "cosine")
    retriever.index_vectors(passages, vectors)
    assert [found[0].id for found in retriever.search(ids, 1)] == ids
    assert len(retriever.search(["a"], 100)[0]) == len(ids)


def test_another_process_can_create_the_collection(uri: str) -> None:
    reader = MilvusRetriever(uri, "late", Vectors())
    with pytest.raises(UserError, match="the collection does not exist; index passages first"):
        reader.search(["who"], 1)
    MilvusRetriever(uri, "late", Vectors()).index_vectors(PASSAGES[:3], VECTORS[:3])
    assert len(reader.search(["who"], 5)[0]) == 3


@pytest.mark.parametrize(
    ("passages", "vectors", "problem"),
    [
        (PASSAGES[:3], VECTORS[:2], "vectors of shape (2, 16) for 3 texts; "),
        (PASSAGES[:1], VECTORS[0], "vectors of shape (16,) for 1 texts; "),
        (PASSAGES[:1], np.full((1, DIMENSION), np.nan, np.float32), "not finite; "),
        ([PASSAGES[0], Passage(id="long", text="é" * 40_000)], VECTORS[:2], "passage 'long' is longer than 65,535"),
    ],
)
def test_rejects_invalid_input_before_writing(
    uri: str, passages: list[Passage], vectors: np.ndarray, problem: str
) -> None:
    retriever = MilvusRetriever(uri, "refused", Vectors())
    with pytest.raises(UserError) as caught:
        retriever.index_vectors(passages, vectors)
    assert problem in str(caught.value) and "refused" in str(caught.value)
    assert not MilvusClient(uri).has_collection("refused")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"uri": "http://127.0.0.1:1"}, "Fail connecting to server"),
        ({"uri": "no/such/directory/lite.db"}, "not exists"),
        ({"uri": "lite.sqlite"}, "illegal"),
        ({"metric": "l2"}, "unknown metric 'l2'; give ip or cosine"),
    ],
)
def test_reports_bad_settings_in_one_line(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    given = {"uri": str(tmp_path / "lite.db"), "collection": "c", "encoder": Vectors(), **settings}
    with pytest.raises(UserError) as caught:
        MilvusRetriever(**given)
    message = str(caught.value)
    assert problem in message and "; " in message and "\n" not in message


def test_a_collection_that_is_foreign_or_dropped_is_refused_in_one_line(uri: str) -> None:
    MilvusClient(uri).create_collection("foreign", dimension=4)
    with pytest.raises(UserError, match="'foreign': not a collection of rag-train; choose another name"):
        MilvusRetriever(uri, "foreign", Vectors())
    retriever = MilvusRetriever(uri, "dropped", Vectors())
    retriever.index_vectors(PASSAGES[:1], VECTORS[:1])
    MilvusClient(uri).drop_collection("dropped")
    with pytest.raises(UserError, match=r"'dropped': collection .* does not exist; check the server") as caught:
        retriever.search(["who"], 1)
    assert "\n" not in str(caught.value)
