"""A server of completions with scripted replies."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]
FINE = {
    "choices": [{"text": " yes", "finish_reason": "stop", "stop_reason": "\n"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}


def fine(**changes: Any) -> Reply:
    return 200, {}, json.dumps(FINE | {"choices": [FINE["choices"][0] | changes]}).encode()


def logprobs_of(**changes: Any) -> dict[str, Any]:
    return {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{}, {}]} | changes


class CompletionServer(ThreadingHTTPServer):
    """A server that answers completions with ``script``, given the request's body; None closes the connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Callable[[dict[str, Any]], Reply | None], port: int = 0):
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.authorization: str | None = None
        self.cards: Any = [{"id": "mini"}, {"id": "./mini"}]
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CompletionServer

    def do_GET(self) -> None:
        self.server.authorization = self.headers["Authorization"]
        served = self.path == "/v1/models"
        self._reply(
            (
                200 if served else 404,
                {},
                json.dumps({"data" if served else "detail": self.server.cards}).encode(),
            )
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        reply = self.server.script(body)
        if reply is None:
            self.close_connection = True
        else:
            self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        status, headers, content = reply
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def serving(script: Callable[[dict[str, Any]], Reply | None], port: int = 0) -> Iterator[CompletionServer]:
    with CompletionServer(script, port) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def scripted(*replies: Reply | None) -> Callable[[dict[str, Any]], Reply | None]:
    """A script that gives these replies in turn, and then valid completions."""
    left = list(replies)
    return lambda body: left.pop(0) if left else fine()
