"""The client of the retrieval service, itself a retriever."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from rag_train.errors import UserError, masked, problem_in
from rag_train.http import authorization, json_of
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.kinds import place
from rag_train.retrieval.remote.messages import FoundResponse, HealthResponse, SearchRequest
from rag_train.retrieval.remote.service import ServiceClient
from rag_train.schema import Passage


@place("http://HOST:PORT", "retrieval service (`rag-train serve retriever`); also https://", r"https?://.*")
class RetrievalClient(ServiceClient):
    """A retriever served by `rag_train.serving.retriever`.

    Args:
        url: address of the service, such as ``http://127.0.0.1:8000``. The key in the environment variable
            RAG_TRAIN_API_KEY is sent to it if the connection is encrypted or stays on this machine.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the service is busy or cannot be reached.

    Attributes:
        name: name of the served retriever.
        identity: the identity that the service states for its retriever, wherever it runs; or else its address.
        corpus_sha256: SHA-256 of the served retriever's corpus, if the service states it.

    Raises:
        ServiceError: if there is no retrieval service at the address.
    """

    def __init__(self, url: str, timeout: float = 60.0, retries: int = 3):
        url, remedy = url.rstrip("/"), "start it with `rag-train serve retriever`, or correct the address"
        try:
            headers = {"Content-Type": "application/json"} | authorization(url)
        except ValueError as error:
            raise UserError(f"retrieval service {url}: {error}; {remedy}") from error
        super().__init__(f"retrieval service {url}", url, remedy, timeout, retries, headers)
        try:
            health = HealthResponse.model_validate_json(self.send("GET", "/health").content)
        except ValidationError as error:
            raise self.error("the server is not a retrieval service") from error
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
        response = self.send("POST", "/search", content=request.model_dump_json())
        try:
            passages = FoundResponse.model_validate(json_of(response.content)).passages
        except (ValueError, RecursionError) as error:
            where = f" ({problem_in(error)})" if isinstance(error, ValidationError) else ""
            raise self.error(f"the response is not that of a retrieval service{where}") from error
        found = [[each.passage() for each in query] for query in passages]
        if len(found) != len(queries):
            raise self.error(f"the response has {len(found)} results for {len(queries)} queries")
        if (most := max(map(len, found), default=0)) > k:
            raise self.error(f"the response has {most} passages for a query, but {k} were requested")
        return found
