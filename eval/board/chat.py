"""The board's chat: asks running strategy services for the page, so that the page asks nobody but the board.

A service may be anything that listens at the address that the user gave. What it sends is read within limits of
size and time, checked against `rag_train.serving.protocol`, and written anew; redirects are not followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from rag_train.errors import ServiceError, UserError, not_installed
from rag_train.http import authorization

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.responses import StreamingResponse

    from rag_train.serving.http import read_body
    from rag_train.serving.protocol import (
        MAX_BODY,
        ChatRequest,
        Event,
        Failure,
        Health,
        Models,
        parse_request,
        refusal,
    )
except ImportError as error:
    raise not_installed(error) from error

Reply = TypeVar("Reply", bound=BaseModel)

MAX_REPLY = 16 * 2**20
"""Maximum size in bytes of what a service sends for one request."""
CONNECT = 5.0
"""Seconds in which a service must accept a connection, and answer a question about itself."""
ANSWER = 630.0
"""Seconds for an answer; the services' own limit is less."""


class Service:
    """A running strategy service.

    Raises:
        UserError: if ``url`` is not the address of a service.
    """

    def __init__(self, name: str, url: str):
        if not _is_address(url):
            raise UserError(f"--chat {name}={url}: not the address of a service; write {name}=http://HOST:PORT")
        self.name, self.url = name, url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity"} | authorization(url)

    async def about(self, path: str, kind: type[Reply]) -> Reply:
        """Return what the service says of itself at ``path``. Raises ServiceError."""
        async with self._parts("GET", path, CONNECT) as parts:
            return self._checked(kind, b"".join([part async for part in parts]))

    async def answer(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of an answer. Raises ServiceError."""
        asked = request.model_copy(update={"stream": True}).model_dump()
        async with self._parts("POST", "/v1/chat/completions", ANSWER, json=asked) as parts:
            async for block in _blocks(parts):
                if block.startswith(b"data: {"):
                    yield self._checked(Event, block.removeprefix(b"data: "))

    @asynccontextmanager
    async def _parts(
        self, method: str, path: str, seconds: float, **content: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request, and open its reply as parts, all of which must arrive within ``seconds``."""
        deadline = asyncio.get_running_loop().time() + seconds
        timeout = httpx.Timeout(None, connect=CONNECT)
        try:
            # No proxy of the environment: the key would pass it.
            async with httpx.AsyncClient(headers=self._headers, timeout=timeout, trust_env=False) as client:
                request = client.build_request(method, self.url + path, **content)
                async with asyncio.timeout_at(deadline):
                    response = await client.send(request, stream=True)
                async with aclosing(response):
                    parts = _within(response.aiter_raw(), deadline)
                    if response.status_code != 200:
                        raise self._refused(response.status_code, b"".join([part async for part in parts]))
                    yield parts
        except TimeoutError:
            raise ServiceError(f"{self.url}: no answer within {seconds:g} s; ask again") from None
        except (httpx.RequestError, httpx.InvalidURL, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise ServiceError(
                f"{self.url}: {reason}; start `rag-train serve strategy` there, or correct the address"
            ) from error

    def _refused(self, status: int, body: bytes) -> ServiceError:
        """Return the error for a reply with another status than 200."""
        try:
            refused = Event.model_validate_json(body).error
        except ValidationError:
            refused = None
        if refused is None:
            return ServiceError(f"{self.url}: status {status}; give the address of a `rag-train serve strategy`")
        remedy = "; start the board with the service's key in RAG_TRAIN_API_KEY" if status == 401 else ""
        return ServiceError(f"{' '.join(refused.message.split())[:500]}{remedy}")

    def _checked(self, kind: type[Reply], text: bytes) -> Reply:
        try:
            return kind.model_validate_json(text)
        except ValidationError:
            problem = "not the reply of a `rag-train serve strategy` of this version"
            raise ServiceError(f"{self.url}: {problem}; correct the address, or use the same version") from None


def _is_address(url: str) -> bool:
    """Return whether ``url`` is an HTTP address without a user, a password and a query."""
    try:
        parts = urlsplit(url)
        plain = parts.port != 0 and not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


async def _within(parts: AsyncIterator[bytes], deadline: float) -> AsyncIterator[bytes]:
    """Yield ``parts`` as they arrive. Raises TimeoutError after ``deadline``, ValueError beyond `MAX_REPLY`."""
    size, part = 0, b" "
    while part:
        async with asyncio.timeout_at(deadline):
            part = await anext(parts, b"")
        size += len(part)
        if size > MAX_REPLY:
            raise ValueError(f"the reply is larger than {MAX_REPLY // 2**20} MiB")
        yield part


async def _blocks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events of a stream of server-sent events, without the blank lines after them."""
    waiting, start = bytearray(), 0
    async for part in parts:
        waiting += part
        while (end := waiting.find(b"\n\n", start)) >= 0:
            yield bytes(waiting[:end])
            del waiting[: end + 2]
            start = 0
        start = max(0, len(waiting) - 1)


def add_chat(api: FastAPI, services: Sequence[Service]) -> None:
    """Add the paths of ``services`` to ``api``, by number: those of the services themselves that the page needs."""

    def chosen(number: int) -> Service:
        if not 0 <= number < len(services):
            raise HTTPException(404, "no such service; reload the page")
        return services[number]

    @api.get("/chat/{number}/health")
    async def health(number: int) -> Response:
        return await _about(chosen(number), "/health", Health)

    @api.get("/chat/{number}/v1/models")
    async def models(number: int) -> Response:
        return await _about(chosen(number), "/v1/models", Models)

    @api.post("/chat/{number}/v1/chat/completions")
    async def chat(number: int, request: Request) -> Response:
        service = chosen(number)
        asked = parse_request(await read_body(request.receive, MAX_BODY, "ask a shorter question"))
        return StreamingResponse(_stream(service, asked), media_type="text/event-stream")


async def _about(service: Service, path: str, kind: type[BaseModel]) -> Response:
    try:
        reply = await service.about(path, kind)
    except ServiceError as error:
        return refusal(502, str(error))
    return Response(reply.model_dump_json(), media_type="application/json")


async def _stream(service: Service, request: ChatRequest) -> AsyncIterator[str]:
    """Yield the events of an answer; a failure is the last."""
    try:
        async with aclosing(service.answer(request)) as events:
            async for event in events:
                yield f"data: {event.model_dump_json()}\n\n"
    except ServiceError as error:
        yield f"data: {Event(error=Failure(message=str(error))).model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"
