"""Dense retrieval on the embedded encoder and on small random ones of the families' architectures."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig, BertModel, DPRConfig, DPRContextEncoder, DPRQuestionEncoder

from rag_train.errors import UserError
from rag_train.miniworld.world import World, WorldConfig
from rag_train.retrieval import exact
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.dense import DenseConfig, DenseIndex, build_dense
from rag_train.retrieval.encoder import EMBEDDED, Encoder, EncoderConfig, family, model_path
from rag_train.schema import Passage

PASSAGES = [
    Passage(id="1", title="Paris", text="Paris is the capital of France."),
    Passage(id="2", title="Photosynthesis", text="Plants turn light into chemical energy."),
    Passage(id="3", title="", text="The stock market fell sharply on Monday."),
    Passage(id="4", title="Ada Lovelace", text="She wrote the first program for a machine. " * 40),
]
QUERIES = ["What is the capital of France?", "How do plants make energy?", "Who was the first programmer?"]


@pytest.fixture(scope="module")
def index() -> DenseIndex:
    return DenseIndex.build(PASSAGES)


def test_meaning_is_found(index: DenseIndex):
    found = index.search(QUERIES, 4)
    assert [passages[0].id for passages in found] == ["1", "2", "4"]
    for passages in found:
        scores = [passage.score for passage in passages]
        assert len(passages) == 4 and scores == sorted(scores, reverse=True)
    assert index.search([], 3) == [] and len(index.search(["x"], 9)[0]) == 4
    with pytest.raises(ValueError, match="k is 0"):
        index.search(["x"], 0)


@pytest.mark.parametrize("query", ["", " ", "\0\x1b", "\ud800", "日本語 العربية", "a" * 100_000])
def test_any_query_gets_an_answer(index: DenseIndex, query: str):
    (found,) = index.search([query], 2)
    assert len(found) == 2 and all(np.isfinite(passage.score or 0) for passage in found)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random encoders of each family's architecture, with the embedded encoder's tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = AutoTokenizer.from_pretrained(model_path(EMBEDDED))
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "intermediate_size": 32, "initializer_range": 0.5}
    for name in ("contriever", "e5-small", "bge-small-en"):
        BertModel(BertConfig(**shape)).save_pretrained(root / name)
    DPRContextEncoder(DPRConfig(**shape)).save_pretrained(root / "dpr-ctx_encoder")
    DPRQuestionEncoder(DPRConfig(**shape)).save_pretrained(root / "dpr-question_encoder")
    for directory in root.iterdir():
        tokenizer.save_pretrained(directory)
    return root


@torch.no_grad()
def by_hand(model, directory: Path, text: str, pooling: str, normalize: bool) -> np.ndarray:
    batch = AutoTokenizer.from_pretrained(directory)(text, truncation=True, max_length=256, return_tensors="pt")
    output = model.eval()(**batch)
    states = output.pooler_output[:, None] if pooling == "dpr" else output.last_hidden_state
    vector = states[0].mean(0) if pooling == "mean" else states[0, 0]
    return (vector / vector.norm() if normalize else vector).numpy()


@pytest.mark.parametrize(
    ("name", "pooling", "normalize", "before_query", "before_passage"),
    [
        ("contriever", "mean", False, "", ""),
        ("e5-small", "mean", True, "query: ", "passage: "),
        ("bge-small-en", "cls", True, "Represent this sentence for searching relevant passages: ", ""),
    ],
)
def test_families_as_by_hand(models: Path, name, pooling, normalize, before_query, before_passage):
    directory = models / name
    encoder, model = Encoder(family(str(directory)), "cpu"), BertModel.from_pretrained(directory)
    queries = encoder.encode_queries(QUERIES)
    for vector, query in zip(queries, QUERIES, strict=True):
        expected = by_hand(model, directory, before_query + query, pooling, normalize)
        assert vector == pytest.approx(expected, abs=1e-4)
    passages = encoder.encode_passages(PASSAGES)
    for vector, passage in zip(passages, PASSAGES, strict=True):
        text = before_passage + f"{passage.title} {passage.text}".strip()
        assert vector == pytest.approx(by_hand(model, directory, text, pooling, normalize), abs=1e-4)


def test_dpr_has_two_encoders(models: Path):
    config = family(str(models / "dpr-ctx_encoder"))
    encoder = Encoder(config, "cpu")
    asker = DPRQuestionEncoder.from_pretrained(models / "dpr-question_encoder")
    context = DPRContextEncoder.from_pretrained(models / "dpr-ctx_encoder")
    expected = by_hand(asker, models / "dpr-question_encoder", QUERIES[0], "dpr", False)
    assert encoder.encode_queries(QUERIES[:1])[0] == pytest.approx(expected, abs=1e-4)
    text = "Paris [SEP] Paris is the capital of France."
    expected = by_hand(context, models / "dpr-ctx_encoder", text, "dpr", False)
    assert encoder.encode_passages(PASSAGES[:1])[0] == pytest.approx(expected, abs=1e-4)


def test_an_encoder_that_cannot_be_loaded(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be loaded"):
        Encoder(EncoderConfig(str(tmp_path)))


@pytest.fixture(scope="module")
def corpus() -> list[Passage]:
    return World(WorldConfig(films=100, people=100, cities=20, countries=5)).corpus()


@pytest.fixture(scope="module")
def small(models: Path) -> DenseConfig:
    return DenseConfig(encoder=family(str(models / "e5-small")))


@pytest.mark.parametrize(("kind", "search"), [("Flat", ""), ("IVF4,Flat", "nprobe=4"), ("HNSW16", "efSearch=400")])
def test_kinds_find_the_largest_products(corpus, small, tmp_path: Path, kind: str, search: str):
    build_dense(corpus, tmp_path / "index", replace(small, kind=kind, search=search), shard=100)
    index = DenseIndex.load(tmp_path / "index")
    queries = index.encoder.encode_queries([passage.text for passage in corpus[::40]])
    products = queries @ index.encoder.encode_passages(corpus).T
    scores, positions = index.search_vectors(queries, 5)
    assert scores == pytest.approx(-np.sort(-products, axis=1)[:, :5], abs=1e-4)
    assert np.take_along_axis(products, positions, 1) == pytest.approx(scores, abs=1e-4)


def test_compressed_vectors_find_most(corpus, small, tmp_path: Path):
    build_dense(corpus, tmp_path / "index", replace(small, kind="IVF2,PQ8x6", search="nprobe=2"))
    index = DenseIndex.load(tmp_path / "index")
    queries = index.encoder.encode_queries([passage.text for passage in corpus[::10]])
    best = (queries @ index.encoder.encode_passages(corpus).T).argmax(1)
    assert np.mean([b in row for b, row in zip(best, index.search_vectors(queries, 20)[1], strict=True)]) > 0.8


@pytest.mark.parametrize(
    ("kind", "search", "message"),
    [
        ("Nonsense", "", "could not parse index string Nonsense"),
        ("IVF4,Flat", "probes=3", "could not set parameter probes"),
        ("IVF9999,Flat", "", "too few for 9999 clusters"),
    ],
)
def test_wrong_kinds(corpus, small, tmp_path: Path, kind: str, search: str, message: str):
    with pytest.raises(UserError, match=message) as caught:
        build_dense(corpus, tmp_path / "index", replace(small, kind=kind, search=search))
    assert "\n" not in str(caught.value) and not (tmp_path / "index").exists()


def test_damage_and_another_encoder_are_refused(corpus, small, models: Path, tmp_path: Path):
    build_dense(corpus, tmp_path / "index", small)
    (tmp_path / "index" / "vectors.faiss").open("r+b").truncate(1000)
    with pytest.raises(UserError, match="has 1000 bytes"):
        DenseIndex.load(tmp_path / "index")
    build_dense(corpus, tmp_path / "index", small)
    manifest = json.loads((tmp_path / "index" / "index.json").read_text())
    manifest["config"]["encoder"]["model"] = str(models / "bge-small-en")
    (tmp_path / "index" / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="made with another encoder"):
        DenseIndex.load(tmp_path / "index")
    with pytest.raises(UserError, match="no passages to index"):
        build_dense([], tmp_path / "empty", small)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


BUILD = """
import sys; from rag_train.retrieval.corpus import read_corpus; from rag_train.retrieval.dense import *
from rag_train.retrieval.encoder import family
build_dense(read_corpus(sys.argv[1]), sys.argv[2], DenseConfig(encoder=family(sys.argv[3])), shard=50)
"""


def test_processes_share_the_work_and_a_kill_loses_a_shard(corpus, small, models: Path, tmp_path: Path):
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(encode(passage) for passage in corpus))
    (tmp_path / "build.py").write_text(BUILD)
    arguments = [str(tmp_path / "build.py"), str(tmp_path / "corpus.jsonl"), str(tmp_path / "index")]
    arguments.append(str(models / "e5-small"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen([sys.executable, *arguments], env=environment)
    work = tmp_path / ".index.building"
    while not list(work.glob("000001-*.npy")) and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("00000[01]-????????????????.npy")}
    assert len(kept) == 2

    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run([*launch, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not work.exists()
    build_dense(corpus, tmp_path / "other", small, shard=50)
    together, alone = DenseIndex.load(tmp_path / "index"), DenseIndex.load(tmp_path / "other")
    assert together.corpus_sha256 == alone.corpus_sha256
    assert together.search(QUERIES, 5) == alone.search(QUERIES, 5)


MATRIX = st.integers(1, 40).flatmap(
    lambda rows: st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=rows, max_size=rows)
)


@settings(deadline=None)  # the first example compiles
@given(queries=MATRIX, vectors=MATRIX, k=st.integers(1, 12), block=st.integers(1, 50))
def test_largest_products_as_by_sorting(queries, vectors, k: int, block: int):
    """Of small whole numbers, so that many products are equal."""
    a, b = np.array(queries, np.float32), np.array(vectors, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_VECTORS", block)
        patch.setattr(exact, "_QUERIES", 2)
        products, positions = exact.largest_products(a, b, k)
    expected = np.argsort(-(a @ b.T), axis=1, kind="stable")[:, :k]
    found = min(k, len(b))
    assert (positions[:, :found] == expected).all() and (positions[:, found:] == -1).all()
    assert (products[:, :found] == np.take_along_axis(a @ b.T, expected, 1)).all()
