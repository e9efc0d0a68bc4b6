"""The retrieval service: a retriever over HTTP, shared by many training and evaluation processes.

The queries of concurrent requests are searched in batches. The client is `RetrievalClient`.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.base import Retriever, corpus_sha256, key
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.words import LONGEST_QUERY
from rag_train.retrieval.remote.messages import SearchRequest, SearchResponse
from rag_train.schema import Passage

try:
    from fastapi import FastAPI, HTTPException, Response
    from fastapi.openapi.utils import get_openapi
    from fastapi.responses import JSONResponse
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Summary, generate_latest
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from rag_train.serving.http import Access, first_error, read_body, server, service, unless_gone
except ImportError as error:
    raise not_installed(error) from error

_log = logging.getLogger(__name__)
_PREFIX = "rag_train_retrieval"
_PORTION = 64
"""Queries of a request in the queue at a time, at first: a large request must not hold up others."""
_QUICK = 0.2
"""Seconds for a portion: quicker ones are followed by twice as many queries, slower ones by half as many."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        queries: maximum number of queries.
        k: maximum number of passages for each query.
        passages: maximum number of passages for all queries together.
        body: maximum size of the body in bytes.
    """

    queries: int = 1024
    k: int = 100
    passages: int = 10_240
    body: int = 16 * 2**20


def app(
    retriever: Retriever, limits: Limits | None = None, threads: int = 1, access: Access | None = None
) -> FastAPI:
    """Return the service: ``POST /search``, ``GET /health``, ``GET /metrics`` (Prometheus), ``GET /openapi.json``.

    Only the first `LONGEST_QUERY` characters of a query are searched. Errors are ``{"detail": one line}``: 401, 403
    or 415 if `Access` refuses the request, 408 if its body does not arrive, 413 if the body is too large, 422 if it
    is not a `SearchRequest` or exceeds the limits, 502 if the retriever raises a UserError, 500 if it fails
    otherwise.
    """
    limits = limits or Limits()
    # No answers are kept in memory; a `CachedRetriever` stores them on disk and shares them between processes.
    front = AsyncRetriever(retriever, remember=0, threads=threads)
    metrics = _Metrics(front)

    def refusal(status: int, detail: str) -> Response:
        metrics.errors.labels(status).inc()
        return JSONResponse({"detail": detail}, status)

    stated = key(retriever) if hasattr(retriever, "identity") else ""
    states = {"identity": stated, "corpus_sha256": corpus_sha256(retriever)}
    # The pages /docs and /redoc would load scripts from a network.
    said = f"Searches with the retriever {retriever.name!r}."
    api = service(access, refusal, title="rag-train retrieval", description=said, docs_url=None, redoc_url=None)

    api.router.routes.append(Route("/search", _Search(front, limits, metrics), methods=["POST"]))

    @api.get("/health")
    async def health() -> dict[str, Any]:
        """Status of the service, name of the retriever, hashes of its identity and of its corpus, and limits."""
        most = {"max_queries": limits.queries, "max_k": limits.k, "max_passages": limits.passages}
        return {"status": "ok", "retriever": retriever.name} | states | most

    @api.get("/metrics", response_class=Response)
    async def expose() -> Response:
        """Counts since the start of the service, in the text format of Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    schema = _openapi(api)
    api.openapi = lambda: schema
    return api


def serve(
    retriever: Retriever, sock: socket.socket, limits: Limits, threads: int, access: Access, ready: str
) -> None:
    """Run the service on a listening socket until it is interrupted, with up to ``threads`` concurrent batches.

    The line ``ready`` is printed once the service answers.
    """
    with suppress(UserError):  # a remote retriever may be down now and answer later
        retriever.search(["first"], 1)  # loads the compiled search, so that no client waits for it
    with suppress(KeyboardInterrupt):  # Uvicorn raises it again after an orderly shutdown
        server(app(retriever, limits, threads, access), ready).run(sockets=[sock])


class _Search:
    """``POST /search``, as a plain ASGI endpoint.

    FastAPI's parameters, response models and request handling cost 0.1 ms, as much as a BM25 search of a small
    corpus. Here pydantic parses the body, and writes the passages without validating them again.
    """

    def __init__(self, front: AsyncRetriever, limits: Limits, metrics: _Metrics):
        self.front = front
        self.limits = limits
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.requests.inc()
        with self.metrics.seconds.time():
            request = _parse(await read_body(receive, self.limits.body, "send fewer queries at once"), self.limits)
            try:
                found = await unless_gone(receive, self._search(request.queries, request.k))
            except ClientDisconnect:
                raise
            except UserError as error:
                raise HTTPException(502, str(error)) from error
            except Exception as error:  # handled here, because Uvicorn would also close the connection
                _log.exception("the retriever failed")
                raise HTTPException(500, "the search failed; see the log of the service") from error
            response = SearchResponse.model_construct(passages=found).model_dump_json()
        await Response(response, media_type="application/json")(scope, receive, send)

    async def _search(self, queries: list[str], k: int) -> list[list[Passage]]:
        found: list[list[Passage]] = []
        size = _PORTION
        while len(found) < len(queries):
            start = time.monotonic()
            portion = [query[:LONGEST_QUERY] for query in queries[len(found) : len(found) + size]]
            found += await self.front.search_all(portion, k)
            size = 2 * size if time.monotonic() - start < _QUICK else max(1, size // 2)
        return found


def _parse(body: bytes, limits: Limits) -> SearchRequest:
    try:
        request = SearchRequest.model_validate_json(body)
    except ValidationError as error:
        example = '{"queries": ["...", "..."], "k": 5}'
        raise HTTPException(422, f"{first_error(error)}; send {example} as JSON in UTF-8") from None
    if len(request.queries) > limits.queries:
        raise HTTPException(422, f"{len(request.queries)} queries; send at most {limits.queries} at once")
    if request.k > limits.k:
        raise HTTPException(422, f"k is more than {limits.k}; ask for fewer passages")
    if len(request.queries) * request.k > limits.passages:
        most = limits.passages // request.k
        raise HTTPException(422, f"more than {limits.passages} passages; send at most {most} queries for this k")
    return request


class _Metrics(Collector):
    """Counts of the service, in a separate registry; `AsyncRetriever` counts queries and batches."""

    def __init__(self, front: AsyncRetriever):
        self.front = front
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.requests = Counter(f"{_PREFIX}_requests", "Search requests.", registry=self.registry)
        self.errors = Counter(
            f"{_PREFIX}_errors", "Rejected and failed requests, by status.", ["status"], registry=self.registry
        )
        self.seconds = Summary(f"{_PREFIX}_seconds", "Seconds from request to response.", registry=self.registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(f"{_PREFIX}_queries", "Queries received.", self.front.queries)
        yield CounterMetricFamily(f"{_PREFIX}_batches", "Calls of the retriever.", self.front.batches)


def _openapi(api: FastAPI) -> dict[str, Any]:
    """Return FastAPI's description of its endpoints, with the description of ``/search`` added."""
    models: list[Any] = [(SearchRequest, "validation"), (SearchResponse, "serialization")]
    schemas, shared = models_json_schema(models, ref_template="#/components/schemas/{model}")
    request, response = schemas.values()
    schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(shared["$defs"])
    schema["paths"]["/search"] = {
        "post": {
            "summary": "Find the best passages for each query.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
            "responses": {
                "200": {
                    "description": "The best passages.",
                    "content": {"application/json": {"schema": response}},
                },
                "401": {"description": "The API key is missing or wrong."},
                "413": {"description": "The body is too large."},
                "422": {"description": "The body is invalid or exceeds the limits."},
                "502": {"description": "The retriever is unavailable."},
            },
        }
    }
    return schema
