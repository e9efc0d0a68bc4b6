"""The client of the retrieval service, itself a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from rag_train.errors import ServiceError, masked, problem_in
from rag_train.http import authorization, json_of, open_client, send
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.kinds import place
from rag_train.retrieval.remote.messages import FoundResponse, HealthResponse, SearchRequest
from rag_train.schema import Passage


@place("http://HOST:PORT", "retrieval service (`rag-train serve retriever`); also https://", r"https?://.*")
class RetrievalClient:
    """A retriever served by `rag_train.serving.retriever`. Threads can share it.

    Args:
        url: address of the service, such as ``http://127.0.0.1:8000``. The key in the environment variable
            RAG_TRAIN_API_KEY is sent to it if the connection is encrypted or stays on this machine.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the service is busy or cannot be reached.

    Attributes:
        name: name of the served retriever.
        service: name of the service for messages; see `rag_train.retrieval.base.service`.
        identity: the identity that the service states for its retriever, wherever it runs; or else its address.
        corpus_sha256: SHA-256 of the served retriever's corpus, if the service states it.

    Raises:
        ServiceError: if there is no retrieval service at the address.
    """

    threads = 4
    """Number of requests at the same time: the service searches one while others are on their way."""

    def __init__(self, url: str, timeout: float = 60.0, retries: int = 3):
        self.url = url.rstrip("/")
        self.service = f"retrieval service {self.url}"
        self.retries = retries
        try:
            headers = {"Content-Type": "application/json"} | authorization(self.url)
        except ValueError as error:
            raise self._error(str(error)) from error
        self._client = open_client(timeout, headers)
        try:
            health = HealthResponse.model_validate_json(self._send("GET", "/health").content)
        except ValidationError as error:
            raise self._error("the server is not a retrieval service") from error
        self.name = health.retriever
        self.identity = {"service": health.identity or masked(self.url)}
        self.corpus_sha256 = health.corpus_sha256
        self._max_queries = health.max_queries
        self._max_passages = health.max_passages

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the passages of the served retriever; queries beyond the service's limits are sent in parts."""
        check_number(k)
        size = max(1, min(self._max_queries, self._max_passages // k))
        parts = [queries[i : i + size] for i in range(0, len(queries), size)]
        return [passages for part in parts for passages in self._search(part, k)]

    def _search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        request = SearchRequest.model_construct(queries=[encodable(query) for query in queries], k=k)
        response = self._send("POST", "/search", content=request.model_dump_json())
        try:
            passages = FoundResponse.model_validate(json_of(response.content)).passages
        except (ValueError, RecursionError) as error:
            where = f" ({problem_in(error)})" if isinstance(error, ValidationError) else ""
            raise self._error(f"the response is not that of a retrieval service{where}") from error
        found = [[each.passage() for each in query] for query in passages]
        if len(found) != len(queries):
            raise self._error(f"the response has {len(found)} results for {len(queries)} queries")
        if (most := max(map(len, found), default=0)) > k:
            raise self._error(f"the response has {most} passages for a query, but {k} were requested")
        return found

    def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            response = send(self._client, method, self.url + path, self.retries, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._error(str(error) or type(error).__name__) from error
        if response.status_code != 200:
            raise self._error(f"status {response.status_code}, {_detail(response)}")
        return response

    def _error(self, problem: str) -> ServiceError:
        remedy = "start it with `rag-train serve retriever`, or correct the address"
        return ServiceError(f"{self.service}: {problem}; {remedy}")


def _detail(response: httpx.Response) -> str:
    """Return the error message of the service, or the text of any other server, as one line."""
    try:
        text = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(text.split())[:300]
