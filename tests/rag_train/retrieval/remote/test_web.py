"""Web search with a fake server that sends valid and invalid responses in each provider's format."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers import Handler, serving

from rag_train import http
from rag_train.errors import ServiceError, UserError
from rag_train.retrieval.remote.web import PROVIDERS, WebRetriever
from rag_train.schema import Passage

SECRET = "secret-api-key"
HITS = [("https://a.org/1", "One", "The first."), ("https://b.org/2", "Two", "The second.")]
PARIS = [Passage(id="https://a.org/1", title="One", text="The first.", score=1.0)]

Reply = tuple[int, dict[str, str], bytes]


SHAPES: dict[str, tuple[tuple[str, str, str], Callable[[list[Any]], dict[str, Any]]]] = {
    "bing": (
        ("url", "name", "snippet"),
        lambda values: {"webPages": {"total": 9, "value": values}},
    ),
    "searxng": (("url", "title", "content"), lambda values: {"query": "q", "results": values, "answers": []}),
    "serper": (("link", "title", "snippet"), lambda values: {"organic": values, "peopleAlsoAsk": []}),
}


def shaped(provider: str, hits: list[tuple[Any, Any, Any]]) -> bytes:
    """Return the hits in the provider's format, with some of its other fields."""
    fields, shape = SHAPES[provider]
    return json.dumps(shape([{"position": 1, **dict(zip(fields, hit, strict=True))} for hit in hits])).encode()


class Server:
    """A server that sends ``reply(query)`` and records the requests."""

    def __init__(self) -> None:
        self.reply: Callable[[str], Reply]
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = ""

    def handler(self) -> type[Handler]:
        server = self

        class Provider(Handler):
            def do_GET(self) -> None:
                self.answer({key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()})

            def do_POST(self) -> None:
                self.answer(json.loads(self.body()))

            def answer(self, parameters: dict[str, Any]) -> None:
                server.asked.append((self.command, parameters, {k.lower(): v for k, v in self.headers.items()}))
                status, headers, body = server.reply(parameters["q"])
                self.send(status, body, headers)

        return Provider


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    with serving(server.handler()) as url:
        server.url = f"{url}/search"
        yield server


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("BING_API_KEY", SECRET)
    monkeypatch.setenv("SERPER_API_KEY", f" {SECRET}\n")
    running.asked.clear()
    running.reply = lambda query: (200, {}, shaped("serper", HITS))
    return running


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace waiting by a list of the requested seconds."""
    waits: list[float] = []
    monkeypatch.setattr(http.time, "sleep", waits.append)
    return waits


@pytest.mark.parametrize(
    ("provider", "method", "parameters", "header"),
    [
        ("bing", "GET", {"q": "Où & ça?", "count": "2"}, "ocp-apim-subscription-key"),
        ("searxng", "GET", {"q": "Où & ça?", "format": "json"}, None),
        ("serper", "POST", {"q": "Où & ça?", "num": 2}, "x-api-key"),
    ],
)
def test_uses_the_format_of_each_provider(
    server: Server, provider: str, method: str, parameters: dict[str, Any], header: str | None
) -> None:
    repeated = [*HITS[:1], *HITS, ("https://c.org", "Three", "Beyond k.")]
    server.reply = lambda query: (200, {}, shaped(provider, repeated))
    (found,) = WebRetriever(provider, server.url).search(["Où & ça?"], 2)
    assert found == [
        Passage(id=url, title=title, text=text, score=score)
        for (url, title, text), score in zip(HITS, (1.0, 0.5), strict=True)
    ]
    ((asked_by, asked, headers),) = server.asked
    assert (asked_by, asked) == (method, parameters)
    assert header is None or headers[header] == SECRET


def test_sends_queries_concurrently_and_keeps_their_order(server: Server) -> None:
    together = threading.Barrier(4)

    def reply(query: str) -> Reply:
        together.wait(20)  # passes only when four queries are pending
        return 200, {}, shaped("serper", [(f"https://{query}.org", query, query)])

    server.reply = reply
    found = WebRetriever("serper", server.url, concurrency=4).search(list("abcdefgh"), 1)
    assert [passages[0].text for passages in found] == list("abcdefgh")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b'{"organic": [{"li', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"organic": [{"link": "\\ud800", "snippet": "x"}]}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "without organic"),
        (b'{"error": "no"}', "without organic"),
        (b'{"organic": {"link": "x"}}', "without organic"),
        (b'{"organic": [1, null, {"link": "x"}, {"link": 1, "snippet": "x"}]}', "results are without link"),
    ],
)
def test_an_invalid_response_is_not_an_empty_result(server: Server, body: bytes, problem: str) -> None:
    """It gave an empty list, so a failure of the provider became the model's answer."""
    server.reply = lambda query: (200, {}, body if query == "bad" else shaped("serper", HITS))
    with pytest.raises(ServiceError, match=problem):
        WebRetriever("serper", server.url).search(["bad", "Paris"], 1)


def test_accepts_empty_and_incomplete_results(server: Server) -> None:
    hits = {
        "none": [],
        "some": [("https://x.org", None, None), ("https://a.org/1", "One", "The first."), (1, 2, 3)],
    }
    server.reply = lambda query: (200, {}, shaped("serper", hits[query]))
    assert WebRetriever("serper", server.url).search(["none", "some"], 3) == [[], PARIS]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["results", "url", "title", "content"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def searxng(running: Server) -> WebRetriever:
    return WebRetriever("searxng", running.url, retries=0)


@pytest.mark.slow
@settings(max_examples=60)
@given(payload=st.lists(json_values, max_size=3).map(lambda hits: {"results": hits}) | json_values, query=st.text())
def test_survives_any_json(running: Server, searxng: WebRetriever, payload: object, query: str) -> None:
    running.reply = lambda _: (200, {}, json.dumps(payload).encode())
    try:
        (found,) = searxng.search([query], 2)
    except ServiceError:
        return
    assert len(found) <= 2 and all(passage.id and passage.text for passage in found)


def test_answers_unusual_queries(server: Server) -> None:
    queries = ["", " \n", "\x00\x1b[31m", "\ud800", "x" * 100_000, '"', "\u202e"]
    for provider in ("bing", "serper"):
        server.asked.clear()
        server.reply = lambda query, provider=provider: (200, {}, shaped(provider, HITS))
        found = WebRetriever(provider, server.url).search(queries, 1)
        assert [len(passages) for passages in found] == [0, 0, 1, 1, 1, 1, 1]
        assert len(server.asked) == 5 and max(len(asked["q"]) for _, asked, _ in server.asked) == 1500
    with pytest.raises(ValueError, match="k is 0"):
        WebRetriever("serper", server.url).search(["q"], 0)


def test_retries_busy_servers(server: Server, waits: list[float]) -> None:
    good = (200, {}, shaped("serper", HITS))
    date = formatdate(0, usegmt=True)  # in the past
    replies = [(429, {"Retry-After": "7"}, b""), (503, {"Retry-After": date}, b""), (0, {}, b""), good]
    server.reply = lambda query: replies.pop(0)
    assert WebRetriever("serper", server.url, retries=3).search(["Paris"], 1) == [PARIS]
    assert waits[0] == 7 and 0.1 <= waits[1] <= 0.2 and 0.2 <= waits[2] <= 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "message", "attempts"),
    [
        ((429, {"Retry-After": "3600"}, b""), "quota is exhausted; try again in 3600 seconds", 1),
        ((429, {"Retry-After": "soon"}, b""), "quota is exhausted; try again later", 3),
        ((503, {}, b""), "status 503; check", 3),
        ((500, {}, b""), "status 500; check", 1),
        ((404, {}, b""), "status 404; check", 1),
        ((302, {"Location": "http://127.0.0.1:9/"}, b""), "status 302; check", 1),
        ((0, {}, b""), "no response", 3),
        ((401, {}, SECRET.encode()), "set SERPER_API_KEY to a valid API key", 1),
        ((200, {"Content-Encoding": "gzip"}, b"no gzip"), "no response", 1),
    ],
)
def test_failures_of_the_service(
    server: Server, waits: list[float], caplog: pytest.LogCaptureFixture, reply: Reply, message: str, attempts: int
) -> None:
    caplog.set_level(logging.DEBUG)
    server.reply = lambda query: reply
    with pytest.raises(UserError, match=message) as caught:
        WebRetriever("serper", server.url, retries=2).search(["Paris"], 1)
    assert len(server.asked) == attempts
    assert "\n" not in str(caught.value) and SECRET not in str(caught.value) + caplog.text


@pytest.mark.parametrize("status", [400, 414])
def test_rejected_query_gives_an_empty_list_and_is_logged(
    server: Server, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    server.reply = lambda query: (status, {}, b"")
    assert WebRetriever("bing", server.url).search(["bad"], 1) == [[]]
    assert f"status {status}; no passages for 'bad'" in caplog.text


@pytest.mark.parametrize(
    ("provider", "key", "message"),
    [
        ("altavista", SECRET, "give one of bing, searxng, serper"),
        ("searxng", SECRET, "no address"),
        ("serper", "", "set the environment variable SERPER_API_KEY"),
        ("serper", SECRET + "\nX-Evil: 1", "contains invalid characters"),
        ("serper", SECRET + "é", "contains invalid characters"),
    ],
)
def test_rejects_bad_settings(monkeypatch: pytest.MonkeyPatch, provider: str, key: str, message: str) -> None:
    monkeypatch.setenv("SERPER_API_KEY", key)
    with pytest.raises(UserError, match=message) as caught:
        WebRetriever(provider)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:9/search", "http://["])
def test_reports_an_unreachable_address_without_the_api_key(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SERPER_API_KEY", SECRET)
    web = WebRetriever("serper", url, retries=0)
    with pytest.raises(UserError, match="check the address") as caught:
        web.search(["q"], 1)
    assert SECRET not in str(caught.value) + repr(vars(web)) + repr(PROVIDERS)
