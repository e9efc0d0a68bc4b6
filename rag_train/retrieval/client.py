"""The client of the retrieval service: a retriever like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.http import httpx, send
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.messages import SearchRequest, SearchResponse
from rag_train.schema import Passage


class RetrievalClient:
    """Searches with a retriever served by `rag_train.retrieval.service`. May be shared by threads.

    Args:
        url: where the service is, such as ``http://127.0.0.1:8000``.
        timeout: seconds to wait for a connection, and for each part of an answer.
        retries: attempts after the first, where the service is busy or cannot be reached.

    Attributes:
        name: of the retriever that is served.

    Raises:
        UserError: if no retrieval service answers there.
    """

    def __init__(self, url: str, timeout: float = 60.0, retries: int = 3):
        self.url = url.rstrip("/")
        self.retries = retries
        self._client = httpx.Client(timeout=timeout)
        health = self._ask("GET", "/health")
        try:
            self.name = str(health.json()["retriever"])
            self._most = int(health.json()["max_queries"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._error("something else than a retrieval service answers") from error

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As the retriever that is served has it; more queries than the service takes at once are sent in parts.

        Raises:
            ValueError: if ``k`` is less than 1.
            UserError: if the service cannot be reached, refuses the request, or does not answer as it should.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        parts = [queries[i : i + self._most] for i in range(0, len(queries), self._most)]
        return [passages for part in parts for passages in self._search(part, k)]

    def _search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        asked = SearchRequest.model_construct(queries=[encodable(query) for query in queries], k=k)
        response = self._ask("POST", "/search", content=asked.model_dump_json())
        try:
            found = SearchResponse.model_validate_json(response.content).passages
        except ValidationError as error:
            raise self._error("the answer is not one of a retrieval service") from error
        if len(found) != len(queries):
            raise self._error(f"{len(found)} answers to {len(queries)} queries")
        return found

    def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            response = send(self._client, method, self.url + path, self.retries, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._error(str(error) or type(error).__name__) from error
        if response.status_code != 200:
            raise self._error(f"status {response.status_code}, {_detail(response)}")
        return response

    def _error(self, problem: str) -> UserError:
        return UserError(
            f"retrieval service {self.url}: {problem}; "
            "start one with `rag-train serve retriever`, or mend the address"
        )


def _detail(response: httpx.Response) -> str:
    """The one line that the service, or whatever is there instead, says about an error."""
    try:
        text = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(text.split())[:300]
