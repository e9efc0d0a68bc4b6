"""Web search with Bing, SearXNG or Serper: the snippets of the results are the passages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
from pydantic import ValidationError

from rag_train.errors import ServiceError, UserError, masked
from rag_train.http import open_client, retry_after, send
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.kinds import place
from rag_train.rows import parse_json
from rag_train.schema import Passage

_log = logging.getLogger(__name__)
_REJECTED = (400, 413, 414, 422)
"""Statuses that say that the query itself is invalid."""
_MAX_CHARACTERS = 1500
"""Maximum length of a query, Bing's limit; longer queries are truncated."""


@dataclass(frozen=True)
class Provider:
    """The request and response format of a web search engine.

    Attributes:
        name: name of the retriever.
        url: default address; None if every user runs their own server.
        key: environment variable of the API key; None if no key is needed.
        key_header: header for the API key.
        method: GET with query parameters, or POST with the parameters as JSON.
        parameters: function from query and number of results to parameters.
        results: path of keys to the list of results.
        fields: keys of a result's address, title and snippet.
    """

    name: str
    url: str | None
    key: str | None
    key_header: str
    method: str
    parameters: Callable[[str, int], dict[str, Any]]
    results: tuple[str, ...]
    fields: tuple[str, str, str]


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="bing",
            url="https://api.bing.microsoft.com/v7.0/search",
            key="BING_API_KEY",
            key_header="Ocp-Apim-Subscription-Key",
            method="GET",
            parameters=lambda query, k: {"q": query, "count": min(k, 50)},
            results=("webPages", "value"),
            fields=("url", "name", "snippet"),
        ),
        Provider(
            name="searxng",
            url=None,
            key=None,
            key_header="",
            method="GET",
            parameters=lambda query, k: {"q": query, "format": "json"},
            results=("results",),
            fields=("url", "title", "content"),
        ),
        Provider(
            name="serper",
            url="https://google.serper.dev/search",
            key="SERPER_API_KEY",
            key_header="X-API-KEY",
            method="POST",
            parameters=lambda query, k: {"q": query, "num": min(k, 100)},
            results=("organic",),
            fields=("link", "title", "snippet"),
        ),
    )
}


class WebRetriever:
    """A web search. A passage is a result's title and snippet; its id is the address, its score 1 / rank.

    A blank query gets an empty list. So does a query that the provider rejects, which is logged.

    Args:
        provider: a key of `PROVIDERS`.
        url: address of the search; by default the provider's.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the provider is busy or cannot be reached.
        concurrency: maximum number of concurrent queries, over all calls of `search`.

    Raises:
        UserError: if the provider is unknown, or if its address or API key is missing.
    """

    def __init__(
        self, provider: str, url: str | None = None, timeout: float = 10.0, retries: int = 3, concurrency: int = 8
    ):
        if provider not in PROVIDERS:
            raise UserError(f"unknown web search {provider!r}; give one of {', '.join(PROVIDERS)}")
        self.provider = PROVIDERS[provider]
        self.name = provider
        self.service = f"web search {provider}"
        self.url = url or self.provider.url
        if self.url is None:
            raise UserError(f"{provider}: no address; write for example {provider}+http://127.0.0.1:8080/search")
        self.identity = {"web": provider, "service": masked(self.url)}
        self.retries = retries
        self.threads = concurrency
        self._pool = ThreadPoolExecutor(concurrency)
        self._client = open_client(timeout, _key_header(self.provider))

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return at most ``k`` passages for each query, in the provider's order."""
        check_number(k)
        return list(self._pool.map(lambda query: self._search(query, k), queries))

    def _search(self, query: str, k: int) -> list[Passage]:
        query = encodable(query)[:_MAX_CHARACTERS].strip()
        if not query:
            return []
        response = self._send(self.provider.parameters(query, k))
        if response.status_code in _REJECTED:
            _log.warning("%s: status %d; no passages for %r", self.name, response.status_code, query[:200])
            return []
        try:
            results = parse_json(response.text)
        except (ValueError, RecursionError) as error:
            raise self._error("the response is not JSON") from error
        for key in self.provider.results:
            results = results.get(key) if isinstance(results, dict) else None
        if not isinstance(results, list):
            raise self._error(f"the response is without {'.'.join(self.provider.results)}")
        passages: dict[str, Passage] = {}
        for passage in filter(None, map(self._passage, results)):
            passages.setdefault(passage.id, passage)
        if results and not passages:
            raise self._error(f"the results are without {', '.join(self.provider.fields)}")
        ranked = enumerate(islice(passages.values(), k), 1)
        return [passage.model_copy(update={"score": 1 / rank}) for rank, passage in ranked]

    def _send(self, parameters: dict[str, Any]) -> httpx.Response:
        """Return the response: results, or the rejection of the query. Raises as `search` does."""
        assert self.url is not None
        content = {"params": parameters} if self.provider.method == "GET" else {"json": parameters}
        try:
            response = send(self._client, self.provider.method, self.url, self.retries, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._error(f"no response ({error or type(error).__name__})") from error
        match response.status_code:
            case 401 | 403:
                key = self.provider.key
                remedy = f"set {key} to a valid API key" if key else "enable JSON in the server's settings"
                raise UserError(f"{self.name}: {self.url} denies access (status {response.status_code}); {remedy}")
            case 429:
                wait = retry_after(response)
                when = f"in {wait:.0f} seconds" if wait else "later"
                raise ServiceError(f"{self.name}: the quota is exhausted; try again {when}")
            case status if status != 200 and status not in _REJECTED:
                raise self._error(f"status {status}")
        return response

    def _passage(self, result: Any) -> Passage | None:
        """Return a result as a passage, or None if its address or its snippet is missing."""
        if not isinstance(result, dict):
            return None
        url, title, snippet = (result.get(field) for field in self.provider.fields)
        if not url or not snippet:
            return None
        try:
            return Passage(id=url, title=title or "", text=snippet)
        except ValidationError:
            return None

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(f"{self.name}: {self.url}: {problem}; check the address and the network")


_NAMES = "|".join(PROVIDERS)
_WITH_KEY = {provider.name: provider.key for provider in PROVIDERS.values() if provider.url and provider.key}


@place(
    "searxng+http://HOST:PORT/search",
    f"web search at the given address; also {' and '.join(f'{name}+URL' for name in _WITH_KEY)}",
    rf"({_NAMES})\+https?://.*",
)
@place(", ".join(_WITH_KEY), f"web search; the API key is read from {' or '.join(_WITH_KEY.values())}", _NAMES)
def _open(text: str) -> WebRetriever:
    name, _, url = text.partition("+")
    return WebRetriever(name, url or None)


def _key_header(provider: Provider) -> dict[str, str]:
    """Return the header with the API key. The key is stored nowhere else and appears in no message."""
    if provider.key is None:
        return {}
    key = os.environ.get(provider.key, "").strip()
    if not key:
        raise UserError(f"{provider.name}: no API key; set the environment variable {provider.key}")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{provider.name}: {provider.key} contains invalid characters; set it to a valid API key")
    return {provider.key_header: key}
