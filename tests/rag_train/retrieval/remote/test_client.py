"""The client of the retrieval service with servers that fail or are not the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.servers import Handler, serving

from rag_train import http
from rag_train.errors import ServiceError, UserError
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
        ('{"id": "1", "text": "a", "score": 1e999}', Passage(id="1", text="a")),
        ('{"id": "1", "text": "a\\ud83d"}', Passage(id="1", text="a?")),
    ],
)
def test_passages_of_other_services_are_read(passage: str, wanted: Passage) -> None:
    with scripted(HEALTHY, (200, f'{{"passages": [[{passage}]]}}'.encode())) as url:
        [[got]] = RetrievalClient(url).search(["q"], 1)
    assert got == wanted
    assert "NaN" not in got.model_dump_json()


def test_a_passage_without_text_is_named_by_its_field() -> None:
    with (
        scripted(HEALTHY, (200, b'{"passages": [[{"id": "1"}]]}')) as url,
        pytest.raises(ServiceError, match=r"passages\.0\.0\.text: Field required"),
    ):
        RetrievalClient(url).search(["q"], 1)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        (200, b"{}"),
        (200, b"<html>"),
        (200, b"[]"),
        (404, b""),
        (200, b'{"retriever": "r", "max_queries": 0}'),  # R11: search raised ValueError, "too long" to its callers
        (200, b'{"retriever": "r", "max_queries": "2"}'),
    ],
)
def test_rejects_other_servers(answer: tuple[int, bytes]) -> None:
    with scripted(answer) as url, pytest.raises(UserError, match="retrieval service"):
        RetrievalClient(url)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b'{"passages": [[], []]}',
        b'{"passages": [[{"id": 1}]]}',
        b'{"passages": [[{"id": "1", "text": ""}, {"id": "2", "text": ""}]]}',  # more than requested
        b"",
        b"\xff",
    ],
)
def test_rejects_invalid_responses(body: bytes) -> None:
    with scripted(HEALTHY, (200, body)) as url, pytest.raises(ServiceError, match="the response") as caught:
        RetrievalClient(url).search(["q"], 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", "ftp://127.0.0.1"])
def test_reports_an_unreachable_service(url: str) -> None:
    with pytest.raises(UserError, match="rag-train serve retriever"):
        RetrievalClient(url, retries=0)


def test_a_body_that_arrives_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """R11: a server that sent a byte at a time was read for ever: only the wait for each part was limited."""
    now = [0.0]
    monkeypatch.setattr(http.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(http.time, "sleep", lambda seconds: None)
    sent: list[int] = []

    class Slow(Handler):
        def do_GET(self) -> None:
            self.send(*HEALTHY)

        def do_POST(self) -> None:
            self.body()
            self.send(200, b"{")
            while True:
                sent.append(1)
                now[0] += 30.0
                try:
                    self.wfile.write(b" " * 2**20)
                except OSError:
                    return

    with serving(Slow) as url:
        client = RetrievalClient(url, timeout=60.0, retries=0)
        with pytest.raises(ServiceError, match="the response arrives too slowly"):
            client.search(["q"], 1)
