"""A retriever as an HTTP service, so that one index serves many training and evaluation processes.

Concurrent requests are searched together, in batches of what is waiting. `RetrievalClient` is the other end.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.messages import SearchRequest, SearchResponse

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.openapi.utils import get_openapi
    from fastapi.responses import JSONResponse
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Summary, generate_latest
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
    from starlette.exceptions import HTTPException as AnyHTTPException
    from starlette.requests import ClientDisconnect
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ImportError as error:
    raise not_installed(error) from error

_log = logging.getLogger(__name__)
_PREFIX = "rag_train_retrieval"


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
        queries: most queries.
        k: most passages for each query.
        body: most bytes of the body.
    """

    queries: int = 1024
    k: int = 100
    body: int = 16 * 2**20


def app(retriever: Retriever, limits: Limits | None = None, threads: int = 1) -> FastAPI:
    """The service: ``POST /search``, ``GET /health``, ``GET /metrics`` (Prometheus), and ``/docs`` (OpenAPI).

    Errors are ``{"detail": one line}``: 413 for a body that is too large, 422 for one that is not as
    `SearchRequest` has it or exceeds the limits, 502 where the retriever itself reports a UserError, 500 where it
    fails otherwise.
    """
    limits = limits or Limits()
    # Nothing is remembered: a `CachedRetriever` does that, on disk and for several processes.
    front = AsyncRetriever(retriever, remember=0, threads=threads)
    metrics = _Metrics(front)
    api = FastAPI(title="rag-train retrieval", description=f"Searches with {retriever.name!r}.")

    api.router.routes.append(Route("/search", _Search(front, limits, metrics), methods=["POST"]))

    @api.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the service is up, what searches, and its limits."""
        return {"status": "ok", "retriever": retriever.name, "max_queries": limits.queries, "max_k": limits.k}

    @api.get("/metrics", response_class=Response)
    async def expose() -> Response:
        """Counts since the start, in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @api.exception_handler(AnyHTTPException)
    async def refuse(request: Request, error: AnyHTTPException) -> Response:
        metrics.errors.labels(error.status_code).inc()
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    @api.exception_handler(ClientDisconnect)
    async def leave(request: Request, error: ClientDisconnect) -> Response:
        metrics.errors.labels(400).inc()
        return Response(status_code=400)  # nobody reads it

    api.openapi_schema = _openapi(api)
    return api


def serve(
    retriever: Retriever,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    threads: int = 1,
) -> None:
    """Run the service until it is interrupted; the retriever is asked by ``threads`` at once.

    Raises:
        UserError: if the address cannot be listened on.
    """
    # Uvicorn raises the interruption again after it has ended in order.
    with suppress(KeyboardInterrupt), listen(host, port) as sock:
        server(app(retriever, limits, threads)).run(sockets=[sock])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from error


def server(api: FastAPI) -> uvicorn.Server:
    """Uvicorn as the service needs it: quiet, but for warnings."""
    return uvicorn.Server(uvicorn.Config(api, log_level="warning", access_log=False, ws="none"))


class _Search:
    """``POST /search``, as a plain ASGI endpoint.

    FastAPI's parameters, response models and request handling cost 0.1 ms, as much as BM25 takes to search
    a small corpus. Here pydantic's core reads the body, and writes the passages without checking them once more.
    """

    def __init__(self, front: AsyncRetriever, limits: Limits, metrics: _Metrics):
        self.front = front
        self.limits = limits
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.requests.inc()
        with self.metrics.seconds.time():
            asked = _parse(await _body(receive, self.limits), self.limits)
            try:
                found = await self.front.search_all(asked.queries, asked.k)
            except UserError as error:
                raise HTTPException(502, str(error)) from error
            except Exception as error:  # handled here, for uvicorn would also close the connection
                _log.exception("the retriever failed")
                raise HTTPException(500, "the search failed; the service's log says why") from error
            answer = SearchResponse.model_construct(passages=found).model_dump_json()
        await Response(answer, media_type="application/json")(scope, receive, send)


async def _body(receive: Receive, limits: Limits) -> bytes:
    """The body; it is not read further than the limit."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limits.body:
            raise HTTPException(413, f"the body is larger than {limits.body} bytes; send fewer queries at once")
        parts.append(part)
    return b"".join(parts)


def _parse(body: bytes, limits: Limits) -> SearchRequest:
    try:
        asked = SearchRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200] or "body"
        raise HTTPException(
            422, f'{where}: {first["msg"]}; send {{"queries": ["...", "..."], "k": 5}} as JSON in UTF-8'
        ) from None
    if len(asked.queries) > limits.queries:
        raise HTTPException(422, f"{len(asked.queries)} queries; send at most {limits.queries} at once")
    if asked.k > limits.k:
        raise HTTPException(422, f"k is more than {limits.k}; ask for fewer passages")
    return asked


class _Metrics(Collector):
    """The service's counts, in a registry of its own; queries and batches are counted by the front."""

    def __init__(self, front: AsyncRetriever):
        self.front = front
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.requests = Counter(f"{_PREFIX}_requests", "Requests to search.", registry=self.registry)
        self.errors = Counter(
            f"{_PREFIX}_errors", "Requests refused or failed, by status.", ["status"], registry=self.registry
        )
        self.seconds = Summary(f"{_PREFIX}_seconds", "Time from request to answer.", registry=self.registry)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(f"{_PREFIX}_queries", "Queries asked.", self.front.queries)
        yield CounterMetricFamily(f"{_PREFIX}_batches", "Calls of the retriever.", self.front.batches)


def _openapi(api: FastAPI) -> dict[str, Any]:
    """FastAPI's description of its own endpoints, with that of search added."""
    models = [(SearchRequest, "validation"), (SearchResponse, "serialization")]
    schemas, shared = models_json_schema(models, ref_template="#/components/schemas/{model}")
    request, response = schemas.values()
    schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(shared["$defs"])
    schema["paths"]["/search"] = {
        "post": {
            "summary": "The best passages for each query.",
            "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
            "responses": {
                "200": {"description": "Found.", "content": {"application/json": {"schema": response}}},
                "413": {"description": "The body is too large."},
                "422": {"description": "The body is not as described, or asks for more than the limits."},
                "502": {"description": "The retriever cannot be used now."},
            },
        }
    }
    return schema
