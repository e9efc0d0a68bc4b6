"""The retrieval service and its client over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from support.servers import running

from rag_train.errors import UserError
from rag_train.http import authorization
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.remote.client import RetrievalClient
from rag_train.schema import Passage
from rag_train.serving import http as serving
from rag_train.serving import retriever
from rag_train.serving.http import Access, listen, unless_gone
from rag_train.serving.retriever import Limits, app

INDEX = BM25Index.build(
    [
        Passage(id="a", title="Solaris", text="A film by “Tarkovsky” — \u2028 1972."),
        Passage(id="b", text="She directs films."),
        Passage(id="c", text="A city \x00 in Ελλάδα."),
    ]
)

LIMITS = Limits(queries=50, k=20, passages=300, body=100_000)


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
    queries = ["solaris", "film", "", "x" * 50_000, "Ελλάδα", *map(str, range(100)), "directing"]  # three requests
    assert bm25.search(queries, 2) == INDEX.search(queries, 2)
    assert bm25.search([], 2) == []
    with pytest.raises(ValueError, match="k is 0"):
        bm25.search(["film"], 0)


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=4))
def test_any_text_is_a_query(bm25: RetrievalClient, queries: list[str]) -> None:
    assert bm25.search(queries, 3) == INDEX.search(queries, 3)


@pytest.mark.slow
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


JSON = {"Content-Type": "application/json"}


def _request(
    url: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] = JSON
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body, headers)
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
    ("POST", "/search", json.dumps({"queries": ["film"] * 30, "k": 11}).encode(), 422),
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


def test_openapi_describes_search(bm25: RetrievalClient) -> None:
    assert _request(bm25.url, "GET", "/docs")[0] == 404  # it would load scripts from a network
    schema = json.loads(_request(bm25.url, "GET", "/openapi.json")[1])
    assert {"/search", "/health", "/metrics"} <= set(schema["paths"])
    assert {"SearchRequest", "SearchResponse", "Passage"} <= set(schema["components"]["schemas"])
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert referred <= set(schema["components"]["schemas"])


@pytest.mark.slow
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


PAGE = "http://page.example"
REFUSED: list[tuple[dict[str, str], int]] = [
    ({"Host": "page.example"}, 403),
    ({"Host": "127.0.0.1.page.example:8000"}, 403),
    ({"Host": "[", "Origin": PAGE}, 400),
    ({"Origin": PAGE}, 403),
    ({"Origin": "null"}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": ""}, 415),
]


@pytest.mark.parametrize(("headers", "status"), REFUSED)
def test_requests_of_foreign_pages_are_refused(bm25: RetrievalClient, headers: dict[str, str], status: int) -> None:
    got, answer = _request(bm25.url, "POST", "/search", GOOD, JSON | headers)
    assert got == status and "\n" not in json.loads(answer)["detail"]


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:8000", "10.1.2.3", socket.gethostname(), "LOCALHOST."])
def test_requests_to_addresses_and_this_machine_are_answered(bm25: RetrievalClient, host: str) -> None:
    assert _request(bm25.url, "POST", "/search", GOOD, JSON | {"Host": host, "Origin": f"http://{host}"})[0] == 200


def test_with_a_key_only_its_holders_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(app(INDEX, LIMITS, access=Access("k\u00e9y"))) as url:
        for given in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic k"}):
            assert _request(url, "GET", "/health", headers=given)[0] == 401
        with pytest.raises(UserError, match="status 401, no valid API key"):
            RetrievalClient(url)
    with running(app(INDEX, LIMITS, access=Access("secret"))) as url:
        monkeypatch.setenv("RAG_TRAIN_API_KEY", "secret")
        assert RetrievalClient(url).search(["film"], 1) == INDEX.search(["film"], 1)
        given = JSON | {"Authorization": "Bearer secret", "Host": "behind.a.proxy"}
        assert _request(url, "POST", "/search", GOOD, given)[0] == 200


def test_the_key_is_not_sent_in_clear_over_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAG_TRAIN_API_KEY", "secret")
    assert authorization("http://retriever.example:8000") == {}
    assert authorization("https://retriever.example") == {"Authorization": "Bearer secret"}


def test_the_search_of_a_client_that_left_is_cancelled() -> None:
    async def main() -> None:
        started, left = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, str]:
            await started.wait()
            return {"type": "http.disconnect"}

        async def search() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        with pytest.raises(ClientDisconnect):
            await unless_gone(receive, search())
        await left.wait()

    asyncio.run(main())


def test_a_large_request_is_searched_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retriever, "_PORTION", 4)
    monkeypatch.setattr(retriever, "_QUICK", 0.0)  # every portion is slow
    echo = Echo()
    with running(app(echo, LIMITS)) as url:
        found = RetrievalClient(url).search([f"{i}" for i in range(10)], 1)
    assert [passages[0].id for passages in found] == [f"{i}" for i in range(10)]
    assert [len(queries) for queries in echo.calls] == [4, 2, 1, 1, 1, 1]


def test_only_the_beginning_of_a_query_is_searched() -> None:
    echo = Echo()
    with running(app(echo, LIMITS)) as url:
        assert len(RetrievalClient(url).search(["x" * 20_000], 1)[0][0].text) == 10_000


def raw(url: str, content: bytes, length: int) -> socket.socket:
    """Open a connection and send a search with a body, perhaps shorter than its Content-Length."""
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}"
    sock.sendall(f"{head}\r\n\r\n".encode() + content)
    return sock


def test_requests_that_do_not_arrive_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ARRIVAL", 0.05)
    with running(app(INDEX, LIMITS)) as url:
        with raw(url, GOOD[:5], 100) as sock:
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 408 ")  # read until the service closes it
        host, port = url.removeprefix("http://").split(":")
        for sent in (b"", b"\r\n\r\n", b"POST /sea", b"POST /search HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection((host, int(port)), timeout=60) as sock:
                sock.sendall(sent)
                # Without httptools, uvicorn calls some of these an invalid request before it closes the connection.
                assert sock.makefile("rb").readline() in (b"", b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.slow
def test_half_a_request_does_not_keep_the_service_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "GRACE", 1.0)
    with running(app(INDEX, LIMITS)) as url:
        sockets = [raw(url, GOOD[:5], 100) for _ in range(3)]
        assert _request(url, "GET", "/health")[0] == 200
    for sock in sockets:
        sock.close()
