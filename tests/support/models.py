"""One fake of a model server, which answers by a script: completions, chats, and lists of models."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

from support.servers import Handler

from rag_train.llm import replicas
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.chat import TURN
from rag_train.llm.engines import EngineConfig, open_engine

Body = dict[str, Any]
Reply = tuple[int, dict[str, str], Any]
"""Status, headers, and the body: bytes, a text, or what is written as JSON."""
Script = Callable[[Body], Reply | None]
CLOSED: Reply = 0, {}, b""
"""The connection is closed without a response."""
USAGE = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}


class ModelServer(ThreadingHTTPServer):
    """A server that answers a request with ``script(body)``, or plainly where that is None."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script | None = None, port: int = 0, key: str | None = None):
        self.script = script or (lambda body: None)
        self.key = key
        self.asked: list[Body] = []
        self.paths: list[str] = []
        self.authorization: str | None = None
        self.cards: Any = [{"id": "mini"}, {"id": "./mini"}]
        self.models: Reply | None = None
        """The reply with the list of models, in place of ``cards``."""
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def since(self, text: str) -> list[Body]:
        """Return the requests with a text: those of the probe have others."""
        return [body for body in self.asked if text in json.dumps(body)]

    def reply(self, path: str, body: Body) -> Reply:
        self.asked.append(body)
        self.paths.append(path)
        if self.key and self.authorization != f"Bearer {self.key}":
            return 401, {}, failed("Incorrect API key provided")
        if reply := self.script(body):
            return reply
        return (200, {}, said(polite(body["messages"]))) if "messages" in body else fine()


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_GET(self) -> None:
        self.server.authorization = self.headers["Authorization"]
        known = 200, {}, {"data": self.server.cards}
        self._send(self.server.models or (known if self.path == "/v1/models" else (404, {}, "no such page")))

    def do_POST(self) -> None:
        body = json.loads(self.body())
        self.server.authorization = self.headers["Authorization"]
        self._send(self.server.reply(self.path, body))

    def _send(self, reply: Reply) -> None:
        status, headers, body = reply
        if not status:
            self.close_connection = True
            return
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        content = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        with suppress(BrokenPipeError):
            self.send(status, content, headers | {"Content-Length": str(len(content))})


@contextmanager
def model_server(script: Script | None = None, port: int = 0, key: str | None = None) -> Iterator[ModelServer]:
    """Serve a `ModelServer`, whose clients wait for moments only after a failure."""
    with (
        patch.multiple(replicas, FIRST_WAIT=0.01, LONGEST_WAIT=0.05),
        ModelServer(script, port, key) as server,
    ):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def scripted(*replies: Reply) -> Script:
    """Return the script that gives these replies in turn, and plain ones after them."""
    left = list(replies)
    return lambda body: left.pop(0) if left else None


def on(text: str, reply: Reply) -> Script:
    """Return the script that gives ``reply`` to requests with ``text``."""
    return lambda body: reply if text in json.dumps(body) else None


def fine(**changes: Any) -> Reply:
    """Return the reply of a server of completions, with changes of the choice."""
    choice = {"text": " yes", "finish_reason": "stop", "stop_reason": "\n"} | changes
    return 200, {}, {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}


def said(content: Any, reason: str | None = "stop", **more: Any) -> Body:
    """Return the body of a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"choices": [choice], "usage": USAGE} | more


def failed(message: str, **more: Any) -> Body:
    """Return the body of an error."""
    return {"error": {"message": message} | more}


def polite(messages: list[dict[str, str]]) -> str:
    """Return a chat model's answer to the questions of `ChatEngine.probe`, and "Paris" to all others."""
    asked, last = messages[0]["content"], messages[-1]
    if asked.startswith("Is this a test?"):
        return '{"test": "no"}'
    if asked.startswith("Count"):
        return " four five six" if last["role"] == "assistant" else "one two three four five six"
    return "Paris"


ALL = frozenset({"json_schema", "json_object", "logprobs", "prefix"})
"""Abilities: response formats, log-probabilities, and continuing the assistant's turn."""


@dataclass
class Chat:
    """The script of a server of chat completions as OpenAI and gateways serve it, with their limits."""

    answer: Callable[[list[dict[str, str]]], str] = polite
    can: frozenset[str] = ALL
    failures: list[Reply] = field(default_factory=list)
    """Replies that are sent first, one a call."""
    reasoning: bool = False
    """Whether the model takes max_completion_tokens only and no temperature, as OpenAI's reasoning models."""
    ignores: bool = False
    """Whether fields that the server does not know are ignored rather than rejected."""

    def __call__(self, body: Body) -> Reply:
        if self.failures:
            return self.failures.pop(0)
        if unsupported := self._unsupported(body):
            return 400, {}, failed(f"Unsupported parameter: '{unsupported}' is not supported with this model.")
        return 200, {}, self._completion(body)

    def _unsupported(self, body: Body) -> str | None:
        known = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"}
        known |= {"logprobs", "top_logprobs"} if "logprobs" in self.can else set()
        known |= {"response_format"} if self.can & {"json_schema", "json_object"} else set()
        known |= {"continue_final_message", "add_generation_prompt"} if "prefix" in self.can else set()
        known -= {"max_tokens", "temperature"} if self.reasoning else set()
        if not self.ignores and (unknown := sorted(body.keys() - known)):
            return unknown[0]
        kind = body.get("response_format", {}).get("type", "json_object")
        return "response_format" if "response_format" in known and kind not in self.can else None

    def _completion(self, body: Body) -> Body:
        messages = body["messages"]
        if "prefix" not in self.can and messages[-1]["role"] == "assistant":
            messages = [*messages, {"role": "user", "content": ""}]  # the model sees a finished turn
        text = self.answer(messages)
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        if "json_schema" in self.can and "test" in schema.get("properties", {}):  # the model is guided
            text = '{"test": "yes"}'
        elif "json_schema" in self.can and "answer" in schema.get("properties", {}):
            allowed = schema["properties"]["answer"].get("enum")
            text = json.dumps({"answer": allowed[0] if allowed else json.loads(text)})
        words = text.split(" ")
        limit = body.get("max_completion_tokens") or body["max_tokens"]
        tokens = [" " + word if i else word for i, word in enumerate(words)][:limit]
        read = sum(len(message["content"].split()) for message in body["messages"])
        usage = {"prompt_tokens": read, "completion_tokens": len(tokens)}
        reply = said("".join(tokens), "length" if len(words) > limit else "stop", usage=usage)
        if "logprobs" in self.can and body.get("logprobs"):
            others = [{"token": "?", "logprob": -3.0}]
            each = [{"token": token, "logprob": -0.1, "top_logprobs": others} for token in tokens]
            reply["choices"][0]["logprobs"] = {"content": each}
        return reply


def opened(work: Callable[[LLM], Any], *urls: str, kind: Any = "chat", **settings: Any) -> Any:
    """Open an engine over servers, run ``work(engine)`` and return the result."""

    async def go() -> Any:
        async with open_engine("mini", EngineConfig(kind=kind, urls=list(urls), **settings)) as engine:
            return await work(engine)

    return asyncio.run(go())


def asks(text: str = "What?", **sampling: Any) -> Callable[[LLM], Any]:
    """Return a function that asks an engine a question."""
    return lambda engine: engine.complete(f"{text}{TURN}", Sampling(**sampling))


def asks_all(*texts: str) -> Callable[[LLM], Any]:
    """Return a function that asks an engine several questions and returns their answers or errors."""

    async def go(engine: LLM) -> list[Any]:
        made = (engine.complete(f"{text}{TURN}", Sampling()) for text in texts)
        return await asyncio.gather(*made, return_exceptions=True)

    return go
