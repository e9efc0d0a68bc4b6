"""A server of chat completions as OpenAI and gateways serve it, with their limits and errors."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from support.servers import Handler

KNOWN = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"}
"""Fields that every server knows."""
ALL = frozenset({"json_schema", "json_object", "logprobs", "prefix"})
"""Abilities: response formats, log-probabilities, and continuing the assistant's turn."""
Failure = tuple[int, dict[str, str], str]
"""Status, headers, and the error's message or a whole body."""


@dataclass
class ChatServer:
    """The state of a server: ``answer`` writes the text; ``failures`` are sent first, one a call."""

    answer: Callable[[list[dict[str, str]]], str]
    can: frozenset[str] = ALL
    failures: list[Failure] = field(default_factory=list)
    reasoning: bool = False
    """Whether the model takes max_completion_tokens only and no temperature, as OpenAI's reasoning models."""
    ignores: bool = False
    """Whether fields that the server does not know are ignored rather than rejected."""
    key: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def reply(self, body: dict[str, Any], authorization: str | None) -> Failure:
        """Answer a call, as status, headers and body."""
        self.asked.append(body)
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {}, error("Incorrect API key provided")
        if self.failures:
            status, headers, text = self.failures.pop(0)
            return status, headers, text if text.startswith("{") else error(text)
        if field := self._unsupported(body):
            return 400, {}, error(f"Unsupported parameter: '{field}' is not supported with this model.")
        return 200, {}, json.dumps(self._completion(body))

    def _unsupported(self, body: dict[str, Any]) -> str | None:
        known = set(KNOWN)
        known |= {"logprobs", "top_logprobs"} if "logprobs" in self.can else set()
        known |= {"response_format"} if self.can & {"json_schema", "json_object"} else set()
        known |= {"continue_final_message", "add_generation_prompt"} if "prefix" in self.can else set()
        known -= {"max_tokens", "temperature"} if self.reasoning else set()
        if not self.ignores and (unknown := sorted(body.keys() - known)):
            return unknown[0]
        kind = body.get("response_format", {}).get("type", "json_object")
        return "response_format" if "response_format" in known and kind not in self.can else None

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
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
        choice: dict[str, Any] = {
            "message": {"role": "assistant", "content": "".join(tokens)},
            "finish_reason": "length" if len(words) > limit else "stop",
        }
        if "logprobs" in self.can and body.get("logprobs"):
            each = [
                {"token": t, "logprob": -0.1, "top_logprobs": [{"token": "?", "logprob": -3.0}]} for t in tokens
            ]
            choice["logprobs"] = {"content": each}
        read = sum(len(message["content"].split()) for message in body["messages"])
        return {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": len(tokens)}}


def error(message: str) -> str:
    """Return an error's body."""
    return json.dumps({"error": {"message": message, "type": "invalid_request_error"}})


def polite(messages: list[dict[str, str]]) -> str:
    """A chat model's answers to the questions of `ChatEngine.probe`, and "Paris" to all others."""
    asked, last = messages[0]["content"], messages[-1]
    if asked.startswith("Is this a test?"):
        return '{"test": "no"}'
    if asked.startswith("Count"):
        return " four five six" if last["role"] == "assistant" else "one two three four five six"
    return "Paris"


@contextmanager
def chat_server(**state: Any) -> Iterator[ChatServer]:
    """Serve a `ChatServer`, at its ``url``."""
    server = ChatServer(**{"answer": polite} | state)

    class Chat(Handler):
        def do_POST(self) -> None:
            body = json.loads(self.body())
            status, headers, text = server.reply(body, self.headers["Authorization"])
            if self.path != "/v1/chat/completions":
                status, headers, text = 404, {}, error("no such path")
            self.send(status, text.encode(), headers)

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        server.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield server
        finally:
            http.shutdown()
