"""Limits on the responses of servers."""

from __future__ import annotations

import zlib

import httpx
import pytest
from support.servers import Handler, serving

from rag_train import http
from rag_train.http import open_client, send


def server_of(body: bytes, encoding: str = "identity") -> type[Handler]:
    """A server that answers every request with ``body``."""

    class Answer(Handler):
        def do_GET(self) -> None:
            self.send(200, body, {"Content-Encoding": encoding})

    return Answer


def fetched(body: bytes, encoding: str = "identity") -> httpx.Response:
    with serving(server_of(body, encoding)) as url:
        return send(open_client(60.0), "GET", url, 0)


def compressed(body: bytes, wbits: int) -> bytes:
    compressor = zlib.compressobj(wbits=wbits)
    return compressor.compress(body) + compressor.flush()


GZIP, ZLIB, BARE = 31, 15, -15


def test_responses_are_limited_in_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LARGEST", 2**20)
    assert len(fetched(b"x" * 2**20).content) == 2**20
    with pytest.raises(httpx.DecodingError, match="larger than 1 MiB"):
        fetched(b"x" * (2**20 + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", GZIP), ("deflate", ZLIB), ("deflate", BARE)])
def test_servers_may_compress_although_they_are_asked_not_to(
    encoding: str, wbits: int, monkeypatch: pytest.MonkeyPatch
):
    response = fetched(compressed(b'{"text": "yes"}', wbits), encoding)
    assert response.json() == {"text": "yes"} and "content-encoding" not in response.headers
    with pytest.raises(httpx.DecodingError, match=r"cannot be read: .*(too early|incorrect|incomplete)"):
        fetched(compressed(b"text", wbits)[:-3], encoding)
    monkeypatch.setattr(http, "LARGEST", 2**20)
    assert len(fetched(compressed(b"x" * 2**20, wbits), encoding).content) == 2**20
    bomb = compressed(b"x" * 2**24, wbits)
    assert len(bomb) < 2**16
    with pytest.raises(httpx.DecodingError, match="larger than 1 MiB"):
        fetched(bomb, encoding)


def test_other_encodings_and_damaged_bodies_are_refused():
    with pytest.raises(httpx.DecodingError, match="compressed with 'br', not with gzip or deflate"):
        fetched(b"x", "br")
    with pytest.raises(httpx.DecodingError, match="cannot be read"):
        fetched(b"not gzip", "gzip")
