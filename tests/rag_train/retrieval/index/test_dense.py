"""Dense retrieval with the embedded encoder and with small random encoders of each family."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.retrieval import edit, forge
from transformers import AutoTokenizer, BertConfig, BertModel, DPRConfig, DPRContextEncoder, DPRQuestionEncoder

from rag_train.errors import UserError
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.index import exact
from rag_train.retrieval.index.dense import DenseConfig, DenseIndex, build_dense
from rag_train.retrieval.index.encoder import EMBEDDED, Encoder, EncoderConfig, family, model_path
from rag_train.schema import Passage
from rag_train.worlds.mini.world import World, WorldConfig

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


@pytest.mark.slow
def test_finds_passages_by_meaning(index: DenseIndex):
    found = index.search(QUERIES, 4)
    assert [passages[0].id for passages in found] == ["1", "2", "4"]
    for passages in found:
        scores = [passage.score for passage in passages]
        assert len(passages) == 4 and scores == sorted(scores, reverse=True)
    assert index.search([], 3) == [] and len(index.search(["x"], 9)[0]) == 4
    with pytest.raises(ValueError, match="k is 0"):
        index.search(["x"], 0)


@pytest.mark.parametrize("query", ["", " ", "\0\x1b", "\ud800", "日本語 العربية", "a" * 100_000])
def test_answers_any_query(index: DenseIndex, query: str):
    (found,) = index.search([query], 2)
    assert len(found) == 2 and all(np.isfinite(passage.score or 0) for passage in found)


def test_control_tokens_of_queries_and_passages_are_text(index: DenseIndex):
    encode = index.encoder.encode_queries
    assert (encode(["who [SEP] where"]) == encode(["who [ SEP] where"])).all()
    texts = [Passage(id="p", title="T", text=f"a{token}b") for token in ("[CLS]", "[ CLS]")]
    assert len({vector.tobytes() for vector in index.encoder.encode_passages(texts)}) == 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of random encoders of each family's architecture, with the embedded encoder's tokenizer."""
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
def expected_vector(model, directory: Path, text: str, pooling: str, normalize: bool) -> np.ndarray:
    batch = AutoTokenizer.from_pretrained(directory)(text, truncation=True, max_length=256, return_tensors="pt")
    output = model.eval()(**batch)
    states = output.pooler_output[:, None] if pooling == "dpr" else output.last_hidden_state
    vector = states[0].mean(0) if pooling == "mean" else states[0, 0]
    return (vector / vector.norm() if normalize else vector).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pooling", "normalize", "before_query", "before_passage", "between"),
    [
        ("contriever", "mean", False, "", "", " "),
        ("e5-small", "mean", True, "query: ", "passage: ", " "),
        ("bge-small-en", "cls", True, "Represent this sentence for searching relevant passages: ", "", " "),
        ("dpr-ctx_encoder", "dpr", False, "", "", " [SEP] "),
    ],
)
def test_families_encode_as_specified(
    models: Path, name: str, pooling: str, normalize: bool, before_query: str, before_passage: str, between: str
):
    directory = models / name
    encoder = Encoder(family(str(directory)), "cpu")
    if pooling == "dpr":  # with two encoders
        asked = DPRQuestionEncoder.from_pretrained(models / "dpr-question_encoder")
        model = DPRContextEncoder.from_pretrained(directory)
    else:
        asked = model = BertModel.from_pretrained(directory)
    for vector, query in zip(encoder.encode_queries(QUERIES), QUERIES, strict=True):
        expected = expected_vector(asked, directory, before_query + query, pooling, normalize)
        assert vector == pytest.approx(expected, abs=1e-4)
    for vector, passage in zip(encoder.encode_passages(PASSAGES), PASSAGES, strict=True):
        text = before_passage + (f"{passage.title}{between}" if passage.title else "") + passage.text
        assert vector == pytest.approx(expected_vector(model, directory, text, pooling, normalize), abs=1e-4)


def test_rejects_a_directory_without_an_encoder(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be loaded"):
        Encoder(EncoderConfig(str(tmp_path)))


@pytest.fixture(scope="module")
def corpus() -> list[Passage]:
    return World(WorldConfig(films=100, people=100, cities=20, countries=5)).corpus()


@pytest.fixture(scope="module")
def small(models: Path) -> DenseConfig:
    return DenseConfig(encoder=family(str(models / "e5-small")))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "search"), [("Flat", ""), ("IVF4,Flat", "nprobe=4"), ("HNSW16", "efSearch=400")])
def test_indexes_find_the_largest_products(corpus, small, tmp_path: Path, kind: str, search: str):
    build_dense(corpus, tmp_path / "index", replace(small, kind=kind, search=search), shard=100)
    index = DenseIndex.load(tmp_path / "index")
    queries = index.encoder.encode_queries([passage.text for passage in corpus[::40]])
    products = queries @ index.encoder.encode_passages(corpus).T
    scores, positions = index.search_vectors(queries, 5)
    assert scores == pytest.approx(-np.sort(-products, axis=1)[:, :5], abs=1e-4)
    assert np.take_along_axis(products, positions, 1) == pytest.approx(scores, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "search", "message"),
    [
        ("Nonsense", "", "could not parse index string Nonsense"),
        ("IVF4,Flat", "probes=3", "could not set parameter probes"),
        ("IVF9999,Flat", "", "too few for 9999 clusters"),
    ],
)
def test_rejects_invalid_index_kinds(corpus, small, tmp_path: Path, kind: str, search: str, message: str):
    with pytest.raises(UserError, match=message) as caught:
        build_dense(corpus, tmp_path / "index", replace(small, kind=kind, search=search))
    assert "\n" not in str(caught.value) and not (tmp_path / "index").exists()


def rename(directory: Path, model: str) -> None:
    """Change the name of the encoder in an index."""
    config = json.loads((directory / "index.json").read_text())["config"]
    edit(directory, config=config | {"encoder": config["encoder"] | {"model": model}})


@pytest.mark.slow
def test_rejects_damage_and_a_different_encoder(corpus, small, models: Path, tmp_path: Path):
    build_dense(corpus, tmp_path / "index", small)
    (tmp_path / "index" / "vectors.faiss").open("r+b").truncate(1000)
    with pytest.raises(UserError, match="has 1000 bytes"):
        DenseIndex.load(tmp_path / "index")
    build_dense(corpus, tmp_path / "index", small)
    rename(tmp_path / "index", str(models / "bge-small-en"))
    with pytest.raises(UserError, match=r"the encoder .* has changed since it was built"):
        DenseIndex.load(tmp_path / "index")
    with pytest.raises(UserError, match="no passages to index"):
        build_dense([], tmp_path / "empty", small)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_an_index_never_makes_the_hub_be_asked(corpus, small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_dense(corpus, tmp_path / "index", small)
    rename(tmp_path / "index", "stranger/encoder")

    def connect(*arguments: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(UserError, match="encoder stranger/encoder: not on this machine, and not downloaded"):
        DenseIndex.load(tmp_path / "index")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "array"), [("vectors.faiss", b"IxFI"), ("probe.npy", b""), ("probe.npy", b"x" * 99)]
)
def test_refuses_a_forged_index(corpus, small, tmp_path: Path, name: str, array: bytes):
    build_dense(corpus, tmp_path / "index", small)
    forge(tmp_path / "index", name, array)
    with pytest.raises(UserError, match=f"the contents of {name}"):
        DenseIndex.load(tmp_path / "index")


@pytest.mark.slow
def test_positions_of_a_forged_index_outside_of_the_corpus_are_left_out(corpus, small, tmp_path: Path):
    build_dense(corpus, tmp_path / "index", replace(small, kind="IVF1,Flat"))
    index = DenseIndex.load(tmp_path / "index")
    index.search_vectors = lambda vectors, k: (np.ones((1, 3)), np.array([[-1, 2**40, 0]]))  # type: ignore[method-assign]
    assert [passage.id for passage in index.search(["query"], 3)[0]] == [corpus[0].id]


def test_an_encoder_with_code_of_its_own_is_refused_without_a_question(models: Path, tmp_path: Path):
    shutil.copytree(models / "e5-small", tmp_path / "evil")
    config = json.loads((tmp_path / "evil/config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "evil/config.json").write_text(json.dumps(config))
    (tmp_path / "evil/evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be loaded") as caught:
        Encoder(EncoderConfig(str(tmp_path / "evil")))
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


BUILD = """
import sys; from rag_train.retrieval.corpus import read_corpus; from rag_train.retrieval.index.dense import *
from rag_train.retrieval.index.encoder import family

build_dense(read_corpus(sys.argv[1]), sys.argv[2], DenseConfig(encoder=family(sys.argv[3])), shard=50)
"""


def stop(done: int) -> None:
    """End a build like a kill in its third shard of 50 passages."""
    if done > 100:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_processes_share_the_shards_and_continue_a_killed_build(corpus, small, models: Path, tmp_path: Path):
    corpus = corpus[:220]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(encode(passage) for passage in corpus))
    (tmp_path / "build.py").write_text(BUILD)
    arguments = [tmp_path / "build.py", tmp_path / "corpus.jsonl", tmp_path / "index", models / "e5-small"]
    with pytest.raises(KeyboardInterrupt):
        build_dense(corpus, tmp_path / "index", small, stop, shard=50)
    work = tmp_path / ".index.building"
    assert [int(path.stem.partition("-")[0]) for path in sorted(work.glob("[0-9]*"))] == [50, 100]

    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *map(str, arguments)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not work.exists()
    build_dense(corpus, tmp_path / "other", small, shard=50)
    together, alone = DenseIndex.load(tmp_path / "index"), DenseIndex.load(tmp_path / "other")
    assert together.corpus_sha256 == alone.corpus_sha256
    assert together.search(QUERIES, 5) == alone.search(QUERIES, 5)


@pytest.fixture
def two_encoders(models: Path, tmp_path: Path) -> Callable[[float], DenseConfig]:
    """Put an encoder at one place, its weights scaled by a factor, and return the settings of an index with it."""

    def put(factor: float) -> DenseConfig:
        shutil.rmtree(tmp_path / "e5-own", ignore_errors=True)
        shutil.copytree(models / "e5-small", tmp_path / "e5-own")
        model = BertModel.from_pretrained(models / "e5-small")
        model.embeddings.word_embeddings.weight.data.mul_(factor)
        model.save_pretrained(tmp_path / "e5-own")
        return DenseConfig(encoder=family(str(tmp_path / "e5-own")))

    return put


@pytest.mark.slow
def test_a_build_does_not_continue_with_the_vectors_of_another_encoder(
    corpus, two_encoders: Callable[[float], DenseConfig], tmp_path: Path
):
    """Half of the vectors came from the weights that were at the encoder's place before."""
    with pytest.raises(KeyboardInterrupt):
        build_dense(corpus, tmp_path / "index", two_encoders(1), stop, shard=50)
    other = two_encoders(3)
    build_dense(corpus, tmp_path / "index", other, shard=50)
    build_dense(corpus, tmp_path / "fresh", other, shard=50)
    vectors = [(tmp_path / name / "vectors.faiss").read_bytes() for name in ("index", "fresh")]
    assert vectors[0] == vectors[1]


@pytest.mark.slow
def test_an_encoder_that_was_trained_a_little_more_is_another_one(
    corpus, two_encoders: Callable[[float], DenseConfig], tmp_path: Path
):
    """The vector of a fixed query was compared with a tolerance."""
    build_dense(corpus, tmp_path / "index", two_encoders(1))
    before = DenseIndex.load(tmp_path / "index").identity
    config = two_encoders(1.0001)
    with pytest.raises(UserError, match=r"the encoder .* has changed since it was built"):
        DenseIndex.load(tmp_path / "index")
    build_dense(corpus, tmp_path / "index", config)
    assert DenseIndex.load(tmp_path / "index").identity != before


MATRIX = st.integers(1, 40).flatmap(
    lambda rows: st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=rows, max_size=rows)
)


@pytest.mark.slow
@given(queries=MATRIX, vectors=MATRIX, k=st.integers(1, 12), block=st.integers(1, 50))
def test_largest_products_equal_those_of_sorting(queries, vectors, k: int, block: int):
    """The vectors are small whole numbers, so that many products are equal."""
    a, b = np.array(queries, np.float32), np.array(vectors, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_VECTORS", block)
        patch.setattr(exact, "_QUERIES", 2)
        products, positions = exact.largest_products(a, b, k)
    expected = np.argsort(-(a @ b.T), axis=1, kind="stable")[:, :k]
    found = min(k, len(b))
    assert (positions[:, :found] == expected).all() and (positions[:, found:] == -1).all()
    assert (products[:, :found] == np.take_along_axis(a @ b.T, expected, 1)).all()
