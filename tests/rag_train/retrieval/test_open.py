"""Opening every kind of retriever by its specification."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.retrieval import Fake
from support.servers import Cluster, Handler, elastic_cluster, running, serving
from transformers import BertForSequenceClassification

from rag_train.errors import UserError
from rag_train.retrieval import kinds
from rag_train.retrieval.base import corpus_sha256, identity, key
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.dense import DenseIndex
from rag_train.retrieval.index.encoder import EMBEDDED, model_path
from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.retrieval.open import build_index, load_index, open_retriever
from rag_train.retrieval.rerank import CrossEncoderReranker, RerankedRetriever
from rag_train.schema import Passage
from rag_train.serving.retriever import app
from rag_train.strategies.kit import open_retrievers

PASSAGES = [
    Passage(id="1", title="Paris", text="Paris is the capital of France."),
    Passage(id="2", title="London", text="London is the capital of England."),
    Passage(id="3", title="Film", text="A film about the capital of France."),
    Passage(id="4", title="Photosynthesis", text="Plants turn light into chemical energy."),
]
QUERIES = ["capital of France", "film", "energy of plants"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with corpus.jsonl and the indexes bm25, lucene and dense."""
    root = tmp_path_factory.mktemp("open")
    (root / "corpus.jsonl").write_bytes(b"".join(map(encode, PASSAGES)))
    for kind in ("bm25", "lucene", "dense"):
        build_index(kind, root / "corpus.jsonl", root / kind, lambda _: None)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "index"), [("bm25", BM25Index), ("lucene", LuceneIndex), ("dense", DenseIndex)])
def test_index_directories(root: Path, kind: str, index: type) -> None:
    opened = open_retriever(str(root / kind))
    assert isinstance(opened, index)
    assert opened.search(QUERIES, 2) == load_index(root / kind).search(QUERIES, 2)
    assert corpus_sha256(opened) == load_index(root / "bm25").corpus_sha256


@pytest.mark.parametrize("place", ["{root}/bm25", "rrf({root}/bm25,{root}/lucene)"])
def test_a_service_serves_any_retriever(root: Path, place: str) -> None:
    served = open_retriever(place.format(root=root))
    with running(app(served)) as url:
        opened = open_retriever(url)
        assert opened.search(QUERIES, 2) == served.search(QUERIES, 2)
        assert (opened.name, corpus_sha256(opened)) == (served.name, corpus_sha256(served))


def test_web_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Search(Handler):
        def do_GET(self) -> None:
            result = {"url": "https://a.org", "title": self.path, "content": "text"}
            self.send(200, json.dumps({"results": [result]}).encode())

    with serving(Search) as url:
        ((passage,),) = open_retriever(f"searxng+{url}/search").search(["q"], 3)
    assert (passage.id, passage.title) == ("https://a.org", "/search?q=q&format=json")
    monkeypatch.setenv("BING_API_KEY", "key")
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    assert open_retriever("bing").name == "bing"
    with pytest.raises(UserError, match="serper: no API key; set the environment variable SERPER_API_KEY"):
        open_retriever("serper")
    with pytest.raises(UserError, match=r"searxng: no address; write for example searxng\+http://"):
        open_retriever("searxng")


def test_elasticsearch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_API_KEY", "secret")
    corpus = root / "corpus.jsonl"
    with elastic_cluster() as url:
        place = f"{url.replace('http', 'elastic')}/wiki"
        reached: list[int] = []
        assert build_index("bm25", root / "corpus.jsonl", place, reached.append) == 4 == reached[-1]
        opened = open_retriever(place)
        assert opened.search(QUERIES, 2) == load_index(root / "lucene").search(QUERIES, 2)
        assert corpus_sha256(opened) == "" and Cluster.keys == ["ApiKey secret"]
        assert open_retriever(place.replace("elastic", "elastic+http")).search(QUERIES, 1)
        for kind, output, options, problem in (
            ("dense", place, {}, "--kind is for directories"),
            ("bm25", place, {"encoder": "e5", "language": "english"}, "--encoder is for dense indexes"),
            ("bm25", "searxng+http://a:1/search", {}, "nothing can be indexed there; give a directory"),
        ):
            with pytest.raises(UserError, match=problem):
                build_index(kind, corpus, output, reached.append, **options)


@pytest.mark.slow
def test_milvus(root: Path) -> None:
    place = f"milvus:{root}/lite.db/wiki"
    with pytest.raises(UserError, match="the collection does not exist"):
        open_retriever(place).search(QUERIES, 1)
    reached: list[int] = []
    assert build_index("bm25", root / "corpus.jsonl", place, reached.append) == 4 == reached[-1]
    found, expected = open_retriever(place).search(QUERIES, 3), load_index(root / "dense").search(QUERIES, 3)
    assert [[p.id for p in passages] for passages in found] == [[p.id for p in passages] for passages in expected]
    with pytest.raises(UserError, match="its metric is ip, not cosine"):
        open_retriever(f"{place}?encoder={model_path(EMBEDDED)}&metric=cosine")


@pytest.mark.slow
def test_fusion_and_reranking(root: Path, checkpoint: Path) -> None:
    bm25, dense = load_index(root / "bm25"), load_index(root / "dense")
    weighted = open_retriever(f"weighted(0.25*{root}/bm25, {root}/dense)")
    expected = FusedRetriever([bm25, dense], "weighted", [0.25, 1.0])
    assert weighted.search(QUERIES, 3) == expected.search(QUERIES, 3)
    assert (weighted.name, corpus_sha256(weighted)) == ("weighted(bm25, dense)", bm25.corpus_sha256)
    with pytest.raises(UserError, match="one positive number for each"):
        open_retriever(f"rrf(0*{root}/bm25, {root}/dense)")
    opened = open_retriever(f"rerank(rrf({root}/bm25, {root}/dense), {checkpoint})")
    reranked = RerankedRetriever(FusedRetriever([bm25, dense]), CrossEncoderReranker(str(checkpoint)))
    assert opened.search(QUERIES, 3) == reranked.search(QUERIES, 3)
    assert (opened.name, corpus_sha256(opened)) == ("rrf(bm25, dense)+rerank", bm25.corpus_sha256)


def test_a_cache_does_not_answer_for_an_index_of_another_corpus(variants: Path, tmp_path: Path) -> None:
    place = f"cache({tmp_path}/index, {tmp_path}/cache.sqlite)"
    found = []
    for corpus in ("corpus", "other", "corpus"):
        build_index("bm25", variants / f"{corpus}.jsonl", tmp_path / "index", lambda _: None)
        opened: Any = open_retriever(place)
        found.append(opened.search(QUERIES, 2))
        assert corpus_sha256(opened) == load_index(tmp_path / "index").corpus_sha256
    assert found[0] == found[2] and [len(passages) for passages in found[1]] == [2, 0, 0]


def test_a_retriever_is_declared_where_it_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PLACES", "_COMBINATIONS"):
        monkeypatch.setattr(kinds, name, getattr(kinds, name).copy())
    kinds.place("shelf:NAME", "a shelf", r"shelf:.*")(lambda text: load_index(root / text.partition(":")[2]))
    kinds.combination("alias", "alias(A, NAME)", "A", most_places=1)(lambda retriever, name: retriever)
    assert open_retriever("alias(shelf:bm25, x)").search(QUERIES, 2) == load_index(root / "bm25").search(QUERIES, 2)
    assert {("shelf:NAME", "a shelf"), ("alias(A, NAME)", "A")} < set(kinds.listing())
    for text in ("borda(a)", "ftp://a", "gone"):
        with pytest.raises(UserError, match=r"alias\(A, NAME\)|shelf:NAME"):
            open_retriever(text)


def test_the_kinds_are_listed_without_slow_libraries() -> None:
    slow = {"torch", "transformers", "faiss", "pymilvus", "tantivy", "numba", "bm25s"}
    code = "import sys; from rag_train.retrieval.kinds import listing; list(listing())"
    code += f"; print({slow} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def identified(place: str) -> str:
    return key(open_retriever(place))


@pytest.fixture
def variants(root: Path, tmp_path: Path) -> Path:
    """A directory with the corpus, and with another corpus and its index."""
    shutil.copy(root / "corpus.jsonl", tmp_path)
    (tmp_path / "other.jsonl").write_bytes(b"".join(map(encode, PASSAGES[:2])))
    build_index("bm25", tmp_path / "other.jsonl", tmp_path / "other", lambda _: None)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{root}/bm25", "{root}/lucene"),
        ("{root}/bm25", "{own}/other"),
        ("weighted(0.9*{root}/bm25,0.1*{root}/lucene)", "weighted(0.1*{root}/bm25,0.9*{root}/lucene)"),
        ("rrf({root}/bm25,{root}/lucene)", "weighted({root}/bm25,{root}/lucene)"),
        ("rrf({root}/bm25,{root}/lucene)", "rrf({root}/lucene,{root}/bm25)"),
        ("rerank({root}/bm25,http://a:1)", "rerank({root}/bm25,http://b:1)"),
        ("rerank({root}/bm25,http://a:1)", "rerank({root}/bm25,http://a:1,other)"),
        ("rerank({root}/bm25,http://a:1)", "{root}/bm25"),
        ("elastic://a:1/wiki", "elastic://a:1/news"),
        ("elastic://a:1/wiki", "elastic://b:1/wiki"),
        ("searxng+http://a:1/search", "searxng+http://b:1/search"),
        ("searxng+http://a:1/search?index=x", "searxng+http://a:1/search?index=y"),
        ("milvus:{own}/a.db/wiki", "milvus:{own}/a.db/news"),
        ("milvus:{own}/a.db/wiki", "milvus:{own}/a.db/wiki?metric=cosine"),
        ("milvus:{own}/a.db/wiki", "milvus:{own}/a.db/wiki?encoder={own}/e5-encoder"),
    ],
)
def test_retrievers_that_differ_in_one_setting(root: Path, variants: Path, first: str, second: str) -> None:
    (variants / "e5-encoder").symlink_to(model_path(EMBEDDED))  # with the prefixes of its family
    places = [text.format(root=root, own=variants) for text in (first, second)]
    one, other = map(identified, places)
    assert one != other and identified(places[0]) == one
    assert identified(f"cache({places[0]}, {variants}/cache)") == one


@pytest.mark.slow
def test_a_reranker_that_was_trained_again_is_another_one(root: Path, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "ce")
    place = f"rerank({root}/bm25, {tmp_path}/ce)"
    before = identified(place)
    assert identified(f"rerank({root}/bm25, {checkpoint})") == before, "wherever it lies"
    model = BertForSequenceClassification.from_pretrained(tmp_path / "ce")
    model.classifier.bias.data += 1
    model.save_pretrained(tmp_path / "ce")
    assert identified(place) != before


def test_a_service_states_the_identity_of_its_index_wherever_they_are(root: Path, variants: Path) -> None:
    """A service whose corpus was indexed again was taken for the same retriever."""
    shutil.copytree(root / "bm25", variants / "copy")
    found = []
    for place in (root / "bm25", variants / "copy", variants / "other"):
        with running(app(load_index(place))) as url:
            found.append((identified(str(place)), identified(url), corpus_sha256(open_retriever(url))))
    assert found[0] == found[1], "at another address, of an index in another place"
    assert all(one != other for one, other in zip(found[0], found[2], strict=True))

    class Stranger(Handler):
        def do_GET(self) -> None:
            self.send(200, json.dumps({"retriever": "bm25", "max_queries": 8}).encode())

    with serving(Stranger) as first, serving(Stranger) as second:
        assert identified(first) != identified(second) and identified(first) == identified(f"{first}/")


def test_no_secret_is_in_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "hidden")
    monkeypatch.setenv("ELASTIC_API_KEY", "hidden")
    places = ("serper", "elastic://me:hidden@host:1/wiki", "searxng+http://me:hidden@host/search?api_key=hidden")
    for place in (*places, "rerank(serper, http://me:hidden@host:1)"):
        assert "hidden" not in json.dumps(identity(open_retriever(place)))
    changed = open_retriever("searxng+http://me:other@host/search?api_key=other")
    assert identity(changed) == identity(open_retriever(places[2])), "another password, the same service"


@pytest.mark.parametrize("method", ["rrf({})", "weighted({})", "rerank(rrf({}),http://a:1)"])
def test_indexes_of_different_corpora_are_not_fused(root: Path, variants: Path, method: str) -> None:
    """The first passage of one corpus was taken for the first of the other, because both have the id 1."""
    message = "bm25 and bm25 search different corpora, in which one id can stand for different passages; index the"
    with pytest.raises(UserError, match=message):
        open_retriever(method.format(f"{root}/bm25,{variants}/other"))
    with running(app(load_index(variants / "other"))) as url, pytest.raises(UserError, match=message):
        open_retriever(method.format(f"{root}/bm25,{url}"))
    with pytest.raises(UserError, match=message):
        open_retrievers([f"sparse={root}/bm25", f"dense={variants}/other"])
    assert corpus_sha256(FusedRetriever([load_index(root / "bm25"), Fake()])) == "", "one corpus is not known"
    assert len(open_retrievers([f"sparse={root}/bm25", f"web={variants}/other"])) == 2
    assert len(open_retrievers([f"web={variants}/other"])) == 1


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("indexes/gone", "no such directory; give an index directory"),
        ("altavista", "give an index directory, or one of bing, serper, elastic://HOST:PORT/INDEX, "),
        ("ftp://host/index", "unknown kind of address"),
        ("searxng+ftp://host/search", "unknown kind of address"),
        ("elastic://host:9200", "no index name; write elastic://HOST:PORT/INDEX"),
        ("elastic://host:9200/", "no index name"),
        ("elastic+ftp://host/wiki", "unknown transport 'ftp'; write +http or +https"),
        ("milvus://host:19530", "no collection; write milvus://HOST:PORT/COLLECTION"),
        ("milvus:wiki.db", "no collection"),
        ("milvus:wiki.db/wiki?encode=x", "unknown option 'encode'; the options are encoder and metric"),
        ("http://127.0.0.1:9", "retrieval service"),
    ],
)
def test_errors_are_one_line(place: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_train.http.time.sleep", lambda seconds: None)
    for text in (place, f"rrf({place})"):
        with pytest.raises(UserError) as caught:
            open_retriever(text)
        assert problem in str(caught.value) and "; " in str(caught.value) and "\n" not in str(caught.value)
