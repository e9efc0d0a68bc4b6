"""Sending HTTP requests with retries and a limit on the size of responses, for all clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
import time
import zlib
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from rag_train.jobs.retries import longest

LARGEST = 64 * 2**20
"""Maximum size of a response in bytes, as sent and as decompressed."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
LONGEST_WAIT = 30.0
"""Maximum wait between two attempts in seconds; if a server asks for a longer wait, there is no further attempt."""


def is_busy(status: int) -> bool:
    """Whether a status is that of a temporary failure: a rate limit, a conflict, or a server that is restarting."""
    return status in (408, 409, 425, 429) or 502 <= status < 600


def send(client: httpx.AsyncClient, method: str, url: str, retries: int, **content: Any) -> httpx.Response:
    """Send a request, with up to ``retries`` further attempts after connection errors and temporary failures.

    An attempt takes at most the client's timeout, and all attempts together at most the patience of a run
    (`rag_train.jobs.retries`).

    The wait before an attempt is 0.1 s, doubled for each further attempt and reduced at random by up to a half, so
    that many clients do not return at the same moment; or the server's Retry-After, if that is longer.

    Returns:
        The response. Its status is a temporary failure's (`is_busy`) if the last attempt failed, or if the server
        asks for a wait of more than `LONGEST_WAIT` seconds.

    Raises:
        httpx.TransportError: if the last attempt cannot connect, loses the connection, or times out.
        httpx.DecodingError: if the response is larger than `LARGEST`, or compressed but not with gzip or deflate.
    """
    deadline = time.monotonic() + longest()
    for attempt in range(retries + 1):
        wait = min(LONGEST_WAIT, 0.1 * 2**attempt) * random.uniform(0.5, 1)
        try:
            response = _read(client, client.build_request(method, url, **content), deadline)
        except httpx.TransportError:
            if attempt == retries or time.monotonic() + wait >= deadline:
                raise
        else:
            wait = max(wait, retry_after(response) or 0.0)
            last = attempt == retries or time.monotonic() + wait >= deadline
            if not is_busy(response.status_code) or last or wait > LONGEST_WAIT:
                return response
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def authorization(url: str) -> dict[str, str]:
    """Return the header with the key of rag-train's services; none if it could be read on the way to ``url``."""
    key, address = os.environ.get("RAG_TRAIN_API_KEY", ""), urlsplit(url)
    private = address.scheme == "https" or address.hostname in ("127.0.0.1", "::1", "localhost")
    return {"Authorization": f"Bearer {key}"} if key and private else {}


def open_client(timeout: float, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client for `send` whose attempts take at most ``timeout`` seconds. Threads can share it."""
    return httpx.AsyncClient(timeout=timeout, headers=headers)


_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The event loop that sends the requests of all threads, by process: a forked process has no threads."""
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
        return _loops[os.getpid()]


def _read(client: httpx.AsyncClient, request: httpx.Request, deadline: float) -> httpx.Response:
    """Return the whole response.

    httpx limits only the wait for each part of it. On an event loop, the limit is on the whole attempt, also if the
    server sends the head of its response byte by byte.
    """
    limit = max(0.0, min(client.timeout.read or longest(), deadline - time.monotonic()))

    async def read() -> httpx.Response:
        try:
            async with asyncio.timeout(limit):
                return await read_async(client, request)
        except TimeoutError:
            raise httpx.ReadTimeout(f"timed out: no whole response within {limit:.3g} s", request=request) from None

    return asyncio.run_coroutine_threadsafe(read(), _loop()).result()


async def read_async(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Send a request and return the whole response. Raises as `send` does."""
    request.headers["Accept-Encoding"] = "identity"
    response = await client.send(request, stream=True)
    async with aclosing(response):
        body = bytearray()
        async for part in response.aiter_raw():
            _check_size(response, len(body) + len(part))
            body += part
        return _with_body(response, body)


def _check_size(response: httpx.Response, size: int) -> None:
    """Raise httpx.DecodingError if ``size``, that of the response, is more than `LARGEST`."""
    if size > LARGEST:
        raise httpx.DecodingError(f"the response is larger than {LARGEST // 2**20} MiB", request=response.request)


def _with_body(response: httpx.Response, body: bytes | bytearray) -> httpx.Response:
    """Return the response with its body, decompressed: some servers compress although they are asked not to."""
    headers = httpx.Headers(response.headers)
    headers.pop("content-length", None)
    encoding = headers.pop("content-encoding", "identity").lower()
    try:
        content = _decompressed(encoding, body)
    except (zlib.error, ValueError) as error:
        raise httpx.DecodingError(f"the response cannot be read: {error}", request=response.request) from error
    _check_size(response, len(content))
    return httpx.Response(response.status_code, headers=headers, content=content, request=response.request)


def _decompressed(encoding: str, body: bytes | bytearray) -> bytes:
    """Decompress ``body``, but not more than a byte above `LARGEST`."""
    if encoding == "identity" or not body:
        return bytes(body)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"compressed with {encoding[:20]!r}, not with gzip or deflate")
    # 47 reads zlib's and gzip's formats; some servers send deflate without zlib's header.
    bare = encoding == "deflate" and body[0] & 15 != 8
    decoder = zlib.decompressobj(-15 if bare else 47)
    content = decoder.decompress(body, LARGEST + 1)
    if not decoder.eof and len(content) <= LARGEST:
        raise ValueError("the compressed data end too early")
    return content


def json_of(content: bytes) -> Any:
    """Parse a server's JSON. NaN is read as null, and half of a surrogate pair as a question mark.

    Raises ValueError if it is not JSON, RecursionError if it is nested too deeply.
    """
    value = json.loads(content.decode("utf-8-sig", "replace"), parse_constant=lambda _: None)
    if not _SURROGATE.search(content):
        return value
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the Retry-After header, a number or a date; None if it is missing or invalid."""
    value = response.headers.get("retry-after", "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", value.strip()):
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # TypeError: a date without a time zone
        return None
