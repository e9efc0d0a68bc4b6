"""Limits on the responses of servers."""

from __future__ import annotations

import httpx
import pytest
from support.servers import Handler, serving

from rag_train import http
from rag_train.errors import UserError, masked
from rag_train.http import send


class Large(Handler):
    def do_GET(self) -> None:
        compressed = {"Content-Encoding": "gzip"} if self.path == "/gzip" else {}
        self.send(200, b"x" * int(self.path.strip("/gzip") or 1), compressed)


def test_responses_are_limited_in_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LARGEST", 2**20)
    with serving(Large) as url, httpx.Client() as client:
        assert len(send(client, "GET", f"{url}/{2**20}", 0).content) == 2**20
        with pytest.raises(httpx.DecodingError, match="larger than 1 MiB"):
            send(client, "GET", f"{url}/{2**20 + 1}", 0)
        with pytest.raises(httpx.DecodingError, match="compressed"):
            send(client, "GET", f"{url}/gzip", 0)


def test_passwords_in_addresses_are_masked():
    assert masked("a http://u:p@ss@h:1/x b https://h/y@z") == "a http://***@h:1/x b https://h/y@z"
    assert str(UserError("http://u:p@h: no")) == "http://***@h: no"
