"""What the clients of HTTP services share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import httpx

from rag_train.errors import ServiceError
from rag_train.http import open_client, send


class ServiceClient:
    """A client of a service: its requests have retries, and its errors are one line. Threads can share it.

    Args:
        service: name of the service for messages; see `rag_train.retrieval.base.service`.
        url: address of the service.
        remedy: what to do about an error.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the service is busy or cannot be reached.
        headers: headers of every request.
    """

    threads = 4
    """Number of requests at the same time: the service works on one while others are on their way."""

    def __init__(
        self,
        service: str,
        url: str,
        remedy: str,
        timeout: float,
        retries: int,
        headers: dict[str, str] | None = None,
    ):
        self.service, self.url, self.remedy, self.retries = service, url, remedy, retries
        self._client = open_client(timeout, headers)

    def send(
        self, method: str, path: str = "", allowed: Collection[int] = (200, 201), **content: Any
    ) -> httpx.Response:
        """Return the response to a request. Raises ServiceError without a response, or if its status is another."""
        try:
            response = send(self._client, method, self.url + path, self.retries, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self.error(str(error) or type(error).__name__) from error
        if response.status_code not in allowed:
            raise self.error(f"status {response.status_code}, {_detail(response)}")
        return response

    def error(self, problem: str) -> ServiceError:
        """Return the error for a problem with the service."""
        return ServiceError(f"{self.service}: {problem}; {self.remedy}")


def _detail(response: httpx.Response) -> str:
    """Return the error message of a service of rag-train, or the text of any other server, as one line."""
    try:
        text = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(text.split())[:300]
