"""Components of both HTTP services: listening sockets, the server, request bodies and their validation errors."""

from __future__ import annotations

import socket

from pydantic import ValidationError

from rag_train.errors import UserError, not_installed

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import Receive
except ImportError as error:
    raise not_installed(error) from error


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


def server(api: FastAPI) -> uvicorn.Server:
    """Return a Uvicorn server for ``api`` that logs warnings only."""
    return uvicorn.Server(uvicorn.Config(api, log_level="warning", access_log=False, ws="none"))


async def read_body(receive: Receive, limit: int, remedy: str) -> bytes:
    """Read the body of a request, at most ``limit`` bytes.

    Raises:
        HTTPException: with status 413 and a message that ends with ``remedy``, if the body is larger.
        ClientDisconnect: if the client disconnects.
    """
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise HTTPException(413, f"the body is larger than {limit} bytes; {remedy}")
        parts.append(part)
    return b"".join(parts)


def first_error(error: ValidationError) -> str:
    """Return the first problem of a request body as one line: field and message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200] or 'body'}: {first['msg']}"
