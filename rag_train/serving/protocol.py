"""OpenAI's chat protocol with what a strategy adds to it, for the service of strategies and those who ask it.

The last user message is the question, and the strategy's answer is the reply. A stream also contains each ``step``
when it is completed, the ``plan`` and the ``outline`` when they change, and at the end the ``trajectory``.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rag_train.errors import not_installed
from rag_train.schema import Plan, Step, Trajectory

try:
    from fastapi import HTTPException, Response
    from fastapi.responses import JSONResponse

    from rag_train.serving.http import first_error
except ImportError as error:
    raise not_installed(error) from error

MAX_BODY = 2**20
"""Maximum size of a request body in bytes."""
MAX_QUESTION = 10_000
"""Maximum length of a question in characters."""


class Part(BaseModel):
    """A part of a message; only parts of type ``text`` have text."""

    type: str
    text: str = ""


class Message(BaseModel):
    """A message of the conversation."""

    role: str
    content: str | list[Part] | None = None


class ChatRequest(BaseModel):
    """The fields used of OpenAI's request; sampling parameters are ignored, because the strategy sets them."""

    messages: list[Message]
    model: str = Field("", max_length=200)
    """A strategy from ``GET /v1/models``; by default the service's strategy."""
    strategy: str = Field("", max_length=200)
    """A strategy with settings, such as ``dualrag,outline=flat``; takes precedence over ``model``."""
    stream: bool = False

    @property
    def question(self) -> str:
        """Text of the last user message, or "" if there is no such message."""
        content = next((m.content for m in reversed(self.messages) if m.role == "user"), None) or ""
        return (content if isinstance(content, str) else "\n".join(part.text for part in content)).strip()


def parse_request(body: bytes) -> ChatRequest:
    """Return the request in ``body``. Raises HTTPException with status 400 if it is not valid."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        example = '{"messages": [{"role": "user", "content": "..."}]}'
        raise HTTPException(400, f"{first_error(error)}; send {example} as JSON in UTF-8") from None
    if not request.question:
        raise HTTPException(400, "messages: no question; send a message with role user and the question as text")
    if len(request.question) > MAX_QUESTION:
        raise HTTPException(400, f"messages: the question is longer than {MAX_QUESTION} characters; shorten it")
    return request


class Health(BaseModel):
    """What answers questions: the reply to ``GET /health``."""

    strategy: str
    model: str
    retriever: str
    k: int
    """Passages per retrieval."""


class Available(BaseModel):
    """A strategy that the service can run."""

    id: str
    description: str = ""
    paper: str = ""


class Models(BaseModel):
    """The strategies of a service: the reply to ``GET /v1/models``."""

    data: list[Available]


class Delta(BaseModel):
    """The next part of the reply."""

    content: str = ""


class Choice(BaseModel):
    """OpenAI's container of `Delta`."""

    delta: Delta = Delta()


class Failure(BaseModel):
    """Why there is no answer."""

    message: str


class Event(BaseModel):
    """An event of a stream."""

    choices: list[Choice] = []
    step: Step | None = None
    plan: Plan | None = None
    outline: dict[str, list[str]] | None = None
    trajectory: Trajectory | None = None
    error: Failure | None = None


def failure(status: int, message: str) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def refusal(status: int, message: str) -> Response:
    """Return the response to a request that fails."""
    return JSONResponse(failure(status, message), status)
