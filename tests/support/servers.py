"""HTTP servers for tests: a quiet request handler, servers in threads, and a fake of Elasticsearch."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.schema import Passage
from rag_train.serving.http import address, listen, server


class Handler(BaseHTTPRequestHandler):
    """A request handler that logs nothing."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a response; with status 0, close the connection instead."""
        if not status:
            return
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve ``handler`` and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()


@contextmanager
def running(api: Any) -> Iterator[str]:
    """Serve the app ``api`` with Uvicorn and yield the address."""
    with listen("127.0.0.1", 0) as sock:
        uvicorn = server(api)
        thread = threading.Thread(target=uvicorn.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield address(sock)
        finally:
            uvicorn.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


class Cluster(Handler):
    """A fake of the API of Elasticsearch with an index ``wiki``, on top of the embedded index."""

    documents: dict[str, dict[str, str]]
    asked: list[str]
    keys: list[str | None]

    def do_PUT(self):
        self.body()
        self.keys.append(self.headers.get("authorization"))
        self.answer(400, {"error": {"type": "resource_already_exists_exception"}})

    def do_POST(self):
        lines = [json.loads(x) for x in self.body().splitlines()]
        if self.path == "/wiki/_bulk":
            for action, source in zip(lines[::2], lines[1::2], strict=True):
                if not source["text"]:
                    item = {"index": {"_id": action["index"]["_id"], "error": {"reason": "no text"}}}
                    return self.answer(200, {"errors": True, "items": [item]})
                self.documents[action["index"]["_id"]] = source
            return self.answer(200, {"errors": False, "items": []})
        if self.path == "/wiki/_refresh":
            return self.answer(200, {})
        if self.path != "/wiki/_msearch":
            return self.answer(404, {"error": "no such index"})
        index = LuceneIndex.build([Passage(id=id, **source) for id, source in self.documents.items()])
        queries = [body["query"]["query_string"]["query"] for body in lines[1::2]]
        self.asked.extend(queries)
        responses = [
            {"hits": {"hits": [{"_id": p.id, "_score": p.score, "_source": self.documents[p.id]} for p in found]}}
            for found in index.search(queries, lines[1]["size"])
        ]
        self.answer(200, {"responses": responses})

    def answer(self, status: int, body: dict):
        self.send(status, json.dumps(body).encode())


@contextmanager
def elastic_cluster() -> Iterator[str]:
    """Serve an empty `Cluster` and yield the address."""
    Cluster.documents, Cluster.asked, Cluster.keys = {}, [], []
    with serving(Cluster) as url:
        yield url
