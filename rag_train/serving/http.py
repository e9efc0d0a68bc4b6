"""Components of both HTTP services: sockets, who may use a service, time limits, and request bodies."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from rag_train.errors import UserError, not_installed
from rag_train.progress import say

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException as AnyHTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as error:
    raise not_installed(error) from error

T = TypeVar("T")

ARRIVAL = 30.0
"""Seconds in which the head of a request must arrive, and then its body."""
UNREAD = 60.0
"""Seconds for which a client may leave an answer unread."""
GRACE = 10.0
"""Seconds for requests in progress at a shutdown; what is left then is cancelled."""


@dataclass(frozen=True)
class Access:
    """Who may use a service.

    Foreign web pages may not: their requests have another Origin, or after a change of their own DNS entry the name
    of their site as Host.

    Attributes:
        key: key that every request except ``GET /`` must send as ``Authorization: Bearer KEY``; "" for none. With a
            key, any Host is accepted, as a foreign page does not know the key.
        host: the name or address that the service listens on, accepted as Host like this machine's name and any IP
            address.
    """

    key: str = ""
    host: str = "localhost"

    def problem(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and message of the refusal, or None for a request that may pass."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.key and host and not self._ours(host):
            return 403, f"Host {host[:100]!r} is not this service; use its IP address, or start it with --api-key"
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, f"Origin {origin[:100]!r} is another site's page; use the service's own"
        if self.key and scope["path"] != "/" and not self._authorized(headers.get("authorization", "")):
            return 401, "no valid API key; send the header Authorization: Bearer KEY"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return 415, f"Content-Type {kind[:100]!r} is not accepted; send application/json"
        return None

    def _ours(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        machine = socket.gethostname().lower()
        return name in {"localhost", self.host.lower(), machine, machine.partition(".")[0]} or _is_address(name)

    def _authorized(self, header: str) -> bool:
        return hmac.compare_digest(header.encode("latin-1"), f"Bearer {self.key}".encode())


class Gate:
    """Middleware that passes on what `Access` allows, and answers the rest with ``refuse(status, message)``."""

    def __init__(self, api: ASGIApp, access: Access, refuse: Callable[[int, str], Response]):
        self.api = api
        self.access = access
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := _problem(self.access, scope)):
            response = self.refuse(*problem)
            response.headers["Connection"] = "close"  # the body is not read
            return await response(scope, receive, send)
        with suppress(asyncio.CancelledError):  # at a shutdown, after `GRACE`: Uvicorn would print a traceback
            await self.api(scope, receive, send)


def service(access: Access | None, refuse: Callable[[int, str], Response], **settings: Any) -> FastAPI:
    """Return an application; ``refuse`` writes what ``access`` refuses, and each HTTPException."""
    api = FastAPI(**settings)
    api.add_middleware(Gate, access=access or Access(), refuse=refuse)

    @api.exception_handler(AnyHTTPException)
    async def answer(request: Request, error: AnyHTTPException) -> Response:
        response = refuse(error.status_code, error.detail)
        response.headers.update(error.headers or {})
        return response

    @api.exception_handler(ClientDisconnect)
    async def leave(request: Request, error: ClientDisconnect) -> Response:
        return refuse(400, "the client has disconnected")  # and does not receive it

    return api


def _problem(access: Access, scope: Scope) -> tuple[int, str] | None:
    try:
        return access.problem(scope)
    except ValueError:  # a Host or Origin that is not one
        return 400, "Host or Origin is not valid; send the service's address"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port. Raises UserError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from error


def address(sock: socket.socket) -> str:
    """Return the HTTP address of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_Protocol: Any = AutoHTTPProtocol


class _Impatient(_Protocol):
    """Uvicorn's protocol, which also closes connections of clients that send no request or read no answer."""

    _arrival: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def connection_lost(self, error: Exception | None) -> None:
        self._arrival = _stopped(self._arrival)
        self._unread = _stopped(self._unread)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        self._unread = _stopped(self._unread)
        super().resume_writing()

    def _await_request(self) -> None:
        """Start the time for the head of a request, unless it runs; stop it if a request is in progress."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._arrival = _stopped(self._arrival)
        elif self._arrival is None:
            self._arrival = self.loop.call_later(ARRIVAL, self.transport.close)


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _Server(uvicorn.Server):
    """Uvicorn's server, which prints a line once it answers."""

    def __init__(self, config: uvicorn.Config, ready: str):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready and self.started and not self.should_exit:
            say(self._ready)


def server(api: FastAPI, ready: str = "") -> uvicorn.Server:
    """Return a Uvicorn server for ``api`` with time limits, which prints ``ready``, if given, once it answers.

    It logs warnings only.
    """
    config = uvicorn.Config(
        api,
        http=_Impatient,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=int(GRACE),
    )
    return _Server(config, ready)


async def read_body(receive: Receive, limit: int, remedy: str) -> bytes:
    """Read the body of a request, at most ``limit`` bytes.

    Raises:
        HTTPException: with status 413 and a message that ends with ``remedy``, if the body is larger; with status
            408 if it does not arrive in time.
        ClientDisconnect: if the client disconnects.
    """
    try:
        async with asyncio.timeout(ARRIVAL):
            return await _body(receive, limit, remedy)
    except TimeoutError:
        late = f"the body took more than {ARRIVAL:g} s; send it at once"
        raise HTTPException(408, late, {"Connection": "close"}) from None


async def _body(receive: Receive, limit: int, remedy: str) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= limit:  # the rest is read all the same: a client that is still sending would miss the answer
            parts.append(part)
    if size > limit:
        raise HTTPException(413, f"the body is larger than {limit} bytes; {remedy}")
    return b"".join(parts)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns. If the client disconnects, cancel it and raise ClientDisconnect."""
    task, gone = asyncio.create_task(work), asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def first_error(error: ValidationError) -> str:
    """Return the first problem of a request body as one line: field and message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200] or 'body'}: {first['msg']}"
