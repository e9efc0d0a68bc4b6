"""Whether a service answers."""

from __future__ import annotations

import socket

from support.servers import Handler, serving

from rag_train.network import begin_reaching


class Missing(Handler):
    def do_HEAD(self):
        self.send(404, b"")


def test_any_status_is_an_answer():
    with serving(Missing) as url:
        assert begin_reaching(url)() is None


def test_no_service_no_address_and_silence_have_reasons():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert begin_reaching(f"http://127.0.0.1:{port}", 0.05)() in ("no answer within 0.05 s", "timed out")
    assert begin_reaching(f"http://127.0.0.1:{port}")() == "Connection refused"
    assert begin_reaching("nowhere")() == "unknown url type: 'nowhere'"
