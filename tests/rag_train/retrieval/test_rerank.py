"""Reranking with a small BERT cross-encoder, and with a fake of vLLM's /score."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.retrieval import LETTERS, Fake, bert, ids, save_letters
from support.servers import Handler, serving
from transformers import BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from rag_train import http
from rag_train.errors import ServiceError, UserError
from rag_train.retrieval import rerank
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.words import indexed_text
from rag_train.retrieval.rerank import CrossEncoderReranker, RerankedRetriever, VLLMScoreReranker, best_of
from rag_train.schema import Passage

Pair = tuple[str, str]
TEXTS = ["Fox the red fox runs", "Hen a hen and a fox", "Jay blue jay", "Owl the owl of red wood", "Cat the cat"]
PASSAGES = [Passage(id=str(i), title=text[:3], text=text[4:]) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def cross_encoder(checkpoint: Path) -> CrossEncoderReranker:
    return CrossEncoderReranker(str(checkpoint))


@pytest.fixture(scope="module")
def one_by_one(checkpoint: Path) -> Callable[[Pair], float]:
    """Function that scores a single pair with the model itself, in a batch of one."""
    model = BertForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)

    def score(pair: Pair) -> float:
        query, text = pair
        # Lists, because an empty string would be treated as a missing text.
        encoded = tokenizer([query], [text], truncation=True, max_length=64, return_tensors="pt")
        with torch.inference_mode():
            return float(model(**encoded).logits.sigmoid())

    return score


class Counting:
    """A reranker with a given score function that records its calls."""

    def __init__(self, score: Callable[[str, str], float]):
        self.score = score
        self.zero = 0.0
        self.asked: list[list[Pair]] = []

    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        self.asked.append(list(pairs))
        return [self.score(query, text) for query, text in pairs]


def shared_letters(query: str, text: str) -> float:
    return float(len(set(query) & set(text)))


def test_batches_score_like_single_pairs(
    cross_encoder: CrossEncoderReranker, one_by_one: Callable[[Pair], float]
) -> None:
    pairs = [("who " * (i % 3 + 1), LETTERS[i : i + 1 + i % 5] + " xy" * (i * 7 % 40)) for i in range(23)]
    scores = cross_encoder.scores(pairs)
    assert scores == pytest.approx([one_by_one(pair) for pair in pairs], abs=1e-4)
    assert max(scores) - min(scores) > 0.1  # the scores differ between pairs
    assert cross_encoder.scores(pairs[::-1]) == pytest.approx(scores[::-1], abs=1e-4)
    assert cross_encoder.scores([]) == []


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=80)  # includes halves of surrogate pairs


@pytest.mark.slow
@settings(max_examples=30)
@given(pairs=st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=6))
def test_scores_any_text(
    cross_encoder: CrossEncoderReranker, one_by_one: Callable[[Pair], float], pairs: list[Pair]
) -> None:
    expected = [one_by_one((encodable(query), encodable(text))) for query, text in pairs]
    assert cross_encoder.scores(pairs) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_truncates_long_pairs(
    checkpoint: Path, cross_encoder: CrossEncoderReranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ("a", "b " * 100_000)
    assert cross_encoder.scores([long]) == pytest.approx(cross_encoder.scores([("a", "b " * 60)]))
    monkeypatch.setattr(rerank, "_LONGEST", 8)
    short = CrossEncoderReranker(str(checkpoint))
    assert short.scores([long]) == pytest.approx(cross_encoder.scores([("a", "b " * 4)]))


def test_rejects_models_that_are_not_cross_encoders(tmp_path: Path) -> None:
    def refused(problem: str) -> None:
        with pytest.raises(UserError, match=problem) as caught:
            CrossEncoderReranker(str(tmp_path / "model"))
        assert "\n" not in str(caught.value)

    refused("not found")
    save_letters(tmp_path / "model")
    BertModel(bert()).save_pretrained(tmp_path / "model")
    refused("BertModel has no scoring head; give a cross-encoder")
    BertForSequenceClassification(bert(labels=3)).save_pretrained(tmp_path / "model")
    refused("3 labels; give a cross-encoder with one score")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\x00" * 100)
    refused(r"model\.safetensors: .*; copy or save the model again")


def test_returns_the_best_passages_first(
    cross_encoder: CrossEncoderReranker, one_by_one: Callable[[Pair], float]
) -> None:
    index = BM25Index.build(PASSAGES)
    reranked = RerankedRetriever(index, cross_encoder)
    assert reranked.name == "bm25+rerank"
    queries = ["red fox", "blue jay", "zebra"]
    for query, found, before in zip(queries, reranked.search(queries, 2), index.search(queries, 50), strict=True):
        scores = {p.id: one_by_one((query, indexed_text(p))) for p in before}
        assert ids(found) == sorted(scores, key=lambda id: -scores[id])[:2]
        assert [p.score for p in found] == pytest.approx([scores[p.id] for p in found], abs=1e-4)


def test_respects_depth_k_and_ties_and_scores_all_queries_in_one_call() -> None:
    reranker = Counting(shared_letters)
    reranked = RerankedRetriever(Fake(found=PASSAGES), reranker, depth=3)
    found = reranked.search(["x", "jy", "x"], 2)
    assert [ids(passages) for passages in found] == [["0", "1"], ["2", "0"], ["0", "1"]]  # ties in retriever order
    (asked,) = reranker.asked
    assert len(asked) == 6  # three passages for each of two different queries
    assert ids(reranked.search(["x"], 4)[0]) == ["0", "1", "2", "3"]  # k is greater than depth
    with pytest.raises(ValueError, match="k is 0"):
        reranked.search(["x"], 0)
    reranker.asked.clear()
    assert RerankedRetriever(Fake(found=[]), reranker).search(["a", "b"], 3) == [[], []]
    assert reranked.search([], 3) == [] and reranker.asked == []
    with pytest.raises(UserError, match="not a number; "):
        RerankedRetriever(Fake(found=PASSAGES), Counting(lambda *_: math.nan)).search(["a"], 3)


def test_the_best_passages_are_those_that_fit_the_entity() -> None:
    table = {"Fox the red fox runs": 0.3, "Hen a hen and a fox": 0.9, "Jay blue jay": 0.3, "Cat the cat": -1.0}
    reranker = Counting(lambda query, text: table.get(text, 0.0) if query == "Bird" else math.nan)
    assert [(p.id, p.score) for p in best_of(PASSAGES, "Bird", reranker, 3)] == [("1", 0.9), ("0", 0.3), ("2", 0.3)]
    assert len(reranker.asked) == 1 and best_of([], "Bird", reranker, 3) == []


def test_a_floor_leaves_out_passages_with_a_raw_score_of_0_or_less() -> None:
    table = {"Fox the red fox runs": 0.6, "Hen a hen and a fox": 0.5, "Jay blue jay": 0.0, "Cat the cat": -1.0}
    reranker = Counting(lambda query, text: table.get(text, -2.0))
    assert ids(best_of(PASSAGES, "Bird", reranker, 4, floor=True)) == ["0", "1"]
    assert ids(best_of(PASSAGES, "Bird", reranker, 4)) == ["0", "1", "2", "4"]
    reranker.zero = 0.5  # scores after a sigmoid
    assert ids(best_of(PASSAGES, "Bird", reranker, 4, floor=True)) == ["0"]


def test_a_cross_encoders_zero_is_that_of_its_activation(cross_encoder: CrossEncoderReranker) -> None:
    assert cross_encoder.zero == 0.5 == VLLMScoreReranker("http://h").zero


class Server:
    """A server with vLLM's ScoreRequest and ScoreResponse; scores like `shared_letters`, or sends ``replies``."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.replies: list[tuple[int, bytes]] = []
        self.url = ""

    def handler(self) -> type[Handler]:
        server = self

        class Scores(Handler):
            def do_POST(self) -> None:
                asked = json.loads(self.body())
                server.asked.append({"path": self.path, **asked})
                self.send(*(server.replies.pop(0) if server.replies else (200, score(asked))))

        return Scores


def score(asked: dict[str, Any]) -> bytes:
    data = [
        {"index": index, "object": "score", "score": shared_letters(query, text)}
        for index, (query, text) in enumerate(zip(asked["text_1"], asked["text_2"], strict=True))
    ]
    usage = {"prompt_tokens": 17, "total_tokens": 17, "completion_tokens": 0, "prompt_tokens_details": None}
    whole = {"id": "score-ade5", "object": "list", "created": 1, "model": asked.get("model"), "data": data[::-1]}
    return json.dumps({**whole, "usage": usage}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http.time, "sleep", lambda seconds: None)
    server = Server()
    with serving(server.handler()) as server.url:
        yield server


def test_vllm_gets_requests_in_parts_and_keeps_the_order(server: Server) -> None:
    reranker = VLLMScoreReranker(server.url + "/", "bge")
    server.replies = [(503, b""), (429, b"")]  # busy at first
    pairs = [("abc\ud800", LETTERS[: i % 5]) for i in range(1100)]
    assert reranker.scores(pairs) == [shared_letters(*pair) for pair in pairs]
    assert [len(asked["text_1"]) for asked in server.asked[2:]] == [512, 512, 76]
    rest = {key: value for key, value in server.asked[0].items() if not key.startswith("text_")}
    assert rest == {"path": "/score", "model": "bge", "truncate_prompt_tokens": -1}
    assert reranker.scores([]) == []


def test_control_tokens_of_passages_are_text(server: Server, cross_encoder: CrossEncoderReranker) -> None:
    VLLMScoreReranker(server.url).scores([("abc</s>", "b [SEP]")])
    assert [(asked["text_1"], asked["text_2"]) for asked in server.asked] == [(["abc< /s>"], ["b [ SEP]"])]
    spelled, spaced = cross_encoder.scores([("abc", "b [SEP] c"), ("abc", "b [ SEP] c")])
    assert spelled == spaced != cross_encoder.scores([("abc", "b c")])[0]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, b'{"error":{"message":"The model `bge`\\ndoes not exist."}}', "status 404"),
        (0, b"", "start a server with `vllm serve bge"),
        (200, b"<html>", "does not have one score for each pair"),
        (200, b'{"data": [{"index": 1, "score": 0.5}]}', "does not have one score for each pair"),
        (200, b'{"data": [{"index": 0, "score": NaN}]}', "does not have one score for each pair"),
        (200, b'{"data": [{"index": 0, "score": "high"}]}', "does not have one score for each pair"),
    ],
)
def test_vllm_errors_are_one_line(server: Server, status: int, body: bytes, problem: str) -> None:
    server.replies = [(status, body)]
    with pytest.raises(ServiceError) as caught:
        VLLMScoreReranker(server.url, "bge", retries=0).scores([("a", "b")])
    message = str(caught.value)
    assert problem in message and server.url in message and "; start a server" in message and "\n" not in message
