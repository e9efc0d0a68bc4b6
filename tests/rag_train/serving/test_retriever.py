"""The retrieval service and its client over real sockets."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers import running

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.remote.client import RetrievalClient
from rag_train.schema import Passage
from rag_train.serving.http import listen
from rag_train.serving.retriever import Limits, app

INDEX = BM25Index.build(
    [
        Passage(id="a", title="Solaris", text="A film by “Tarkovsky” — \u2028 1972."),
        Passage(id="b", text="She directs films."),
        Passage(id="c", text="A city \x00 in Ελλάδα."),
    ]
)
LIMITS = Limits(queries=50, k=20, body=100_000)


class Echo:
    """A retriever that returns each query as a passage once ``gate`` is open, and fails on certain queries."""

    name = "echo"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append(list(queries))
        assert self.gate.wait(30)
        if "broken" in queries:
            raise RuntimeError("secret details")
        if "unusable" in queries:
            raise UserError("echo: the engine is down; start it")
        return [[Passage(id=query, text=query, score=1 / 3)][:k] for query in queries if query != "lost"]


@pytest.fixture(scope="module")
def bm25() -> Iterator[RetrievalClient]:
    with running(app(INDEX, LIMITS)) as url:
        yield RetrievalClient(url)


def test_client_returns_the_results_of_the_retriever(bm25: RetrievalClient) -> None:
    assert bm25.name == "bm25"
    queries = [
        "solaris",
        "film",
        "",
        "x" * 50_000,
        "Ελλάδα",
        *map(str, range(100)),
        "directing",
    ]  # more than two requests
    assert bm25.search(queries, 2) == INDEX.search(queries, 2)
    assert bm25.search([], 2) == []
    with pytest.raises(ValueError, match="k is 0"):
        bm25.search(["film"], 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=4))
def test_any_text_is_a_query(bm25: RetrievalClient, queries: list[str]) -> None:
    assert bm25.search(queries, 3) == INDEX.search(queries, 3)


def test_batches_and_counts_concurrent_requests() -> None:
    echo = Echo()
    with running(app(echo, LIMITS)) as url, ThreadPoolExecutor(20) as pool:
        client = RetrievalClient(url)
        echo.gate.clear()
        found = [pool.submit(client.search, [f"{i}", f"{i}'"], 1) for i in range(20)]
        while _metric(url, "queries") < 40:
            time.sleep(0.01)
        echo.gate.set()
        for i, future in enumerate(found):
            assert [passages[0].id for passages in future.result(30)] == [f"{i}", f"{i}'"]
        assert len(echo.calls) <= 3  # the first requests, then all that waited
        assert (_metric(url, "requests"), _metric(url, "queries")) == (20, 40)
        assert _metric(url, "batches") == len(echo.calls)
        assert _metric(url, "seconds_count") == 20 and _metric(url, "seconds_sum") > 0


def _metric(url: str, name: str) -> float:
    status, body = _request(url, "GET", "/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    key = f"rag_train_retrieval_{name}"
    return float(values[f"{key}_total"] if f"{key}_total" in values else values.get(key, 0))


def _request(url: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


GOOD = json.dumps({"queries": ["film"], "k": 2}).encode()
BAD: list[tuple[str, str, bytes, int]] = [
    ("POST", "/search", GOOD[:-9], 422),
    ("POST", "/search", b"", 422),
    ("POST", "/search", b"\x00\xff\xfe" * 50, 422),
    ("POST", "/search", b'{"queries": ["\xe9"]}', 422),
    ("POST", "/search", rb'{"queries": ["\ud800"]}', 422),
    ("POST", "/search", b"[" * 50_000, 422),
    ("POST", "/search", b'{"queries": "film"}', 422),
    ("POST", "/search", b'{"queries": [1, null]}', 422),
    ("POST", "/search", b'{"queries": ["film"], "k": 0}', 422),
    ("POST", "/search", b'{"queries": ["film"], "k": 21}', 422),
    ("POST", "/search", b'{"queries": ["film"], "k": "2"}', 422),
    ("POST", "/search", b'{"queries": ["film"], "k": 1e999}', 422),
    ("POST", "/search", b'{"queries": ["film"], "k": 1' + b"0" * 5000 + b"}", 422),
    ("POST", "/search", b'{"queries": ["film"], "depth": 2}', 422),
    ("POST", "/search", json.dumps({"queries": ["film"] * 51}).encode(), 422),
    ("POST", "/search", json.dumps({"queries": ["film " * 40_000]}).encode(), 413),
    ("PUT", "/search", GOOD, 405),
    ("GET", "/search", b"", 405),
    ("POST", "/health", GOOD, 405),
    ("POST", "/../../etc/passwd", GOOD, 404),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), BAD)
def test_a_bad_request_gets_an_error_of_one_line(
    bm25: RetrievalClient, method: str, path: str, body: bytes, status: int
) -> None:
    got, answer = _request(bm25.url, method, path, body)
    detail = json.loads(answer)["detail"]
    assert got == status and detail and "\n" not in detail and len(detail) < 400


def test_survives_a_thousand_bad_requests(bm25: RetrievalClient) -> None:
    rng = random.Random(0)
    errors = _errors(bm25.url)
    host, port = bm25.url.removeprefix("http://").split(":")
    refused = 0
    for i in range(1000):
        if i % 5:
            method, path, body, status = rng.choice(BAD)
            assert _request(bm25.url, method, path, body)[0] == status
            refused += 1
            continue
        with socket.create_connection((host, int(port)), timeout=30) as sock:  # not HTTP, or incomplete
            head = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
            sock.sendall(rng.choice([rng.randbytes(300), head[:20], head, head + GOOD, b"\r\n\r\n"]))
    assert _request(bm25.url, "POST", "/search", GOOD)[0] == 200
    assert bm25.search(["film"], 2) == INDEX.search(["film"], 2)
    assert _errors(bm25.url) - errors >= refused


def _errors(url: str) -> float:
    lines = _request(url, "GET", "/metrics")[1].decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("rag_train_retrieval_errors_total")
    )


def test_openapi_describes_search(bm25: RetrievalClient) -> None:
    assert _request(bm25.url, "GET", "/docs")[0] == 200
    schema = json.loads(_request(bm25.url, "GET", "/openapi.json")[1])
    assert {"/search", "/health", "/metrics"} <= set(schema["paths"])
    for reference in _references(schema):
        assert reference.removeprefix("#/components/schemas/") in schema["components"]["schemas"]
    assert {"SearchRequest", "SearchResponse", "Passage"} <= set(schema["components"]["schemas"])


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "$ref")
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [("unusable", "502", "the engine is down"), ("broken", "500", "see the log"), ("lost", "500", "see the log")],
)
def test_a_failing_retriever_does_not_stop_the_service(query: str, status: str, said: str) -> None:
    with running(app(Echo(), LIMITS)) as url:
        client = RetrievalClient(url, retries=0)
        with pytest.raises(UserError, match=f"status {status}.*{said}") as caught:
            client.search([query], 1)
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
        assert client.search(["fine"], 1)[0][0].text == "fine"


def test_rejects_an_address_in_use_or_invalid() -> None:
    with listen("127.0.0.1", 0) as sock:
        for port in (sock.getsockname()[1], 10**6):
            with pytest.raises(UserError, match="choose another"):
                listen("127.0.0.1", port)
