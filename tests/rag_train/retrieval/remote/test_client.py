"""The client of the retrieval service with servers that fail or are not the service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from support.servers import Handler, serving

from rag_train import http
from rag_train.errors import ServiceError, UserError
from rag_train.jobs.retries import VARIABLE
from rag_train.retrieval.remote.client import RetrievalClient
from rag_train.schema import Passage


@contextmanager
def scripted(*answers: tuple[int, bytes]) -> Iterator[str]:
    """Serve the given responses in turn, and repeat the last one."""
    remaining = list(answers)

    class Scripted(Handler):
        def do_GET(self) -> None:
            self.body()
            self.send(*(remaining.pop(0) if len(remaining) > 1 else remaining[0]))

        do_POST = do_GET

    with serving(Scripted) as url:
        yield url


HEALTHY = (200, b'{"retriever": "r", "max_queries": 2}')
FOUND = (200, b'{"passages": [[]]}')


@pytest.mark.parametrize(
    ("passage", "wanted"),
    [
        (
            '{"id": 1, "title": "T", "text": "a", "score": 1.0, "metadata": {}}',
            Passage(id="1", title="T", text="a", score=1),
        ),
        ('{"id": "1", "title": null, "text": "a", "score": NaN}', Passage(id="1", text="a")),
        ('{"id": "1", "text": "a", "score": -Infinity}', Passage(id="1", text="a")),
        ('{"id": 2.5, "text": "a", "score": 1e999}', Passage(id="2.5", text="a")),
        ('{"id": "1", "text": "a\\ud83d"}', Passage(id="1", text="a?")),
    ],
)
def test_passages_of_other_services_are_read(passage: str, wanted: Passage) -> None:
    with scripted(HEALTHY, (200, f'{{"passages": [[{passage}]], "took": 3}}'.encode())) as url:
        [[got]] = RetrievalClient(url).search(["q"], 1)
    assert got == wanted
    assert "NaN" not in got.model_dump_json()


def test_retries_after_temporary_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(http.time, "sleep", waits.append)
    with scripted(HEALTHY, (503, b""), (0, b""), (504, b""), FOUND) as url:
        assert RetrievalClient(url, retries=3).search(["q"], 1) == [[]]
    assert [0.05 * 2**i <= wait <= 0.1 * 2**i for i, wait in enumerate(waits)] == [True] * 3
    with scripted(HEALTHY, (503, b"<h1>\nno\n</h1>")) as url:
        client = RetrievalClient(url, retries=2)
        with pytest.raises(ServiceError, match="status 503, <h1> no </h1>"):
            client.search(["q"], 1)
    assert len(waits) == 5


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, b"[]"),
        (404, b""),
        (200, b'{"retriever": "r", "max_queries": 0}'),  # search raised ValueError
        (200, b'{"retriever": "r", "max_queries": "2"}'),
    ],
)
def test_rejects_other_servers(answer: tuple[int, bytes]) -> None:
    with scripted(answer) as url, pytest.raises(UserError, match="retrieval service"):
        RetrievalClient(url)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"passages": [[], []]}', "2 results for 1 queries"),
        (b'{"passages": [[{"id": "1", "contents": "a"}]]}', r"passages\.0\.0\.text: Field required"),
        (b'{"passages": [[{"id": "1", "text": ""}, {"id": "2", "text": ""}]]}', "2 passages for a query, but 1"),
        (b"", "the response is not"),
        (b"\xff", "the response is not"),
    ],
)
def test_rejects_invalid_responses(body: bytes, problem: str) -> None:
    with scripted(HEALTHY, (200, body)) as url, pytest.raises(ServiceError, match=problem) as caught:
        RetrievalClient(url).search(["q"], 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", "ftp://127.0.0.1"])
def test_reports_an_unreachable_service(url: str) -> None:
    with pytest.raises(UserError, match="rag-train serve retriever"):
        RetrievalClient(url, retries=0)


@pytest.mark.parametrize(
    ("head", "timeout", "patience"),
    [
        (b"", 60.0, "0.2"),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", 60.0, "0.2"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", 60.0, "0.2"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", 1.0, "600"),
    ],
)
def test_a_response_that_does_not_end_is_given_up(
    head: bytes, timeout: float, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers nothing, or sends head or body a byte at a time, is not read for ever."""
    over = threading.Event()

    class Slow(Handler):
        def do_GET(self) -> None:
            self.send(*HEALTHY)

        def do_POST(self) -> None:
            with suppress(OSError):
                self.wfile.write(head)
                while not over.wait(0.01):
                    self.wfile.write(b" " if head else b"")

    with serving(Slow) as url:
        client = RetrievalClient(url, timeout=timeout, retries=0)
        monkeypatch.setenv(VARIABLE, patience)
        with pytest.raises(ServiceError, match="timed out: no whole response"):
            client.search(["q"], 1)
        over.set()
