"""What all HTTP clients share: sending that tries again."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from rag_train.errors import not_installed

try:
    import httpx
except ImportError as error:
    raise not_installed(error) from error

BUSY = (429, 502, 503, 504)
"""Statuses that a later attempt may not meet: a quota, or a proxy whose server is restarting."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts at most; a server that asks for more is not asked again."""


def send(client: httpx.Client, method: str, url: str, retries: int, **content: Any) -> httpx.Response:
    """The response to a request, sent again up to ``retries`` times after `BUSY` statuses and connection errors.

    Waits as long as the server's Retry-After says, or twice as long before each attempt, from 0.1 s, at random
    up to half of it less, so that many clients do not come back at once.

    Returns:
        The response; of status in `BUSY` if the last attempt still was, or if it asks for more than
        `LONGEST_WAIT` seconds.

    Raises:
        httpx.TransportError: if the last attempt found no server, lost it, or timed out.
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


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of the Retry-After header, given as a number or as a date; None without a readable one."""
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # TypeError: a date without a time zone
        return None
