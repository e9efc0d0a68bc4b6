"""Whether a service answers."""

from __future__ import annotations

import socket

import pytest
from support.servers import Handler, serving

from rag_train.network import begin_reaching, begin_reaching_hub


class Missing(Handler):
    def do_HEAD(self):
        self.send(404, b"")


def test_no_service_no_address_and_silence_have_reasons():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert begin_reaching(f"http://127.0.0.1:{port}", 0.05)() in ("no answer within 0.05 s", "timed out")
    assert begin_reaching(f"http://127.0.0.1:{port}")() == "Connection refused"
    assert begin_reaching("nowhere")() == "unknown url type: 'nowhere'"


def test_hub_is_not_asked_if_the_user_forbids_it(monkeypatch: pytest.MonkeyPatch):
    with serving(Missing) as url:
        monkeypatch.setenv("HF_ENDPOINT", f"{url}/")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        assert begin_reaching_hub()() is None
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert begin_reaching_hub()() == "HF_HUB_OFFLINE is set"
