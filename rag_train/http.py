"""Sending HTTP requests with retries, for all clients."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rag_train.errors import not_installed

try:
    import httpx
except ImportError as error:
    raise not_installed(error) from error

BUSY = (429, 502, 503, 504)
"""Statuses of temporary failures: an exceeded rate limit, or a proxy whose server is restarting."""
LONGEST_WAIT = 30.0
"""Maximum wait between two attempts in seconds; if a server asks for a longer wait, there is no further attempt."""


def send(client: httpx.Client, method: str, url: str, retries: int, **content: Any) -> httpx.Response:
    """Send a request, with up to ``retries`` further attempts after `BUSY` statuses and connection errors.

    The wait before an attempt is 0.1 s, doubled for each further attempt and reduced at random by up to a half, so
    that many clients do not return at the same moment; or the server's Retry-After, if that is longer.

    Returns:
        The response. Its status is in `BUSY` if the last attempt failed, or if the server asks for a wait of more
        than `LONGEST_WAIT` seconds.

    Raises:
        httpx.TransportError: if the last attempt cannot connect, loses the connection, or times out.
    """
    for attempt in range(retries + 1):
        wait = min(LONGEST_WAIT, 0.1 * 2**attempt) * random.uniform(0.5, 1)
        try:
            response = client.request(method, url, **content)
        except httpx.TransportError:
            if attempt == retries:
                raise
        else:
            wait = max(wait, retry_after(response) or 0.0)
            if response.status_code not in BUSY or attempt == retries or wait > LONGEST_WAIT:
                return response
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def open_client(timeout: float, headers: dict[str, str] | None = None) -> httpx.Client:
    """Return a client whose responses take at most ``timeout`` seconds to begin, and as long again to arrive."""

    def limit(response: httpx.Response) -> None:
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _TimedStream(response.stream, time.monotonic() + timeout)

    return httpx.Client(timeout=timeout, headers=headers, event_hooks={"response": [limit]})


class _TimedStream(httpx.SyncByteStream):
    """A body that has to arrive before a deadline; httpx itself limits only the wait for each part."""

    def __init__(self, stream: httpx.SyncByteStream, deadline: float):
        self._stream = stream
        self._deadline = deadline

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            if time.monotonic() > self._deadline:
                raise httpx.ReadTimeout("timed out: the response arrives too slowly")
            yield part

    def close(self) -> None:
        self._stream.close()


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the Retry-After header, a number or a date; None if it is missing or invalid."""
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # TypeError: a date without a time zone
        return None
