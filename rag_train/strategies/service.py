"""Strategies as an HTTP service: a page that shows an answer in the making, and OpenAI's chat protocol.

The last user message is the question, the strategy's answer is the reply, and beside OpenAI's fields the service
sends what was done: ``trajectory``, and while it streams, each ``step`` as soon as it is finished, a ``plan``
and the ``outline`` as they come to be.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, Field, ValidationError

from rag_train.errors import UserError, not_installed
from rag_train.llm.base import EngineError
from rag_train.schema import Question, Record, Trajectory
from rag_train.strategies import STRATEGIES, build
from rag_train.strategies.base import Kit, Strategy, watcher

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.exceptions import HTTPException as AnyHTTPException
    from starlette.requests import ClientDisconnect

    from rag_train.retrieval.service import listen, server
except ImportError as error:
    raise not_installed(error) from error

_log = logging.getLogger(__name__)

Event = tuple[str, Any]
"""What is shown (see `rag_train.strategies.base.watcher`), or at the end ("trajectory", Trajectory)."""

MAX_BODY = 2**20
"""Most bytes of a request's body."""


class Part(BaseModel):
    """A part of a message; only those of type ``text`` have any."""

    type: str
    text: str = ""


class Message(BaseModel):
    role: str
    content: str | list[Part] | None = None


class ChatRequest(BaseModel):
    """What is read of OpenAI's request; sampling parameters are the strategy's own matter, and ignored."""

    messages: list[Message]
    model: str = Field("", max_length=200)
    """A strategy, as ``GET /v1/models`` lists them; the service's own if not given."""
    strategy: str = Field("", max_length=200)
    """A strategy with settings, such as ``dualrag,outline=flat``; goes before ``model``."""
    stream: bool = False

    @property
    def question(self) -> str:
        """The text of the last user message, empty if there is none."""
        content = next((m.content for m in reversed(self.messages) if m.role == "user"), None) or ""
        return (content if isinstance(content, str) else "\n".join(part.text for part in content)).strip()


def serve(opening: AbstractAsyncContextManager[Kit], name: str, host: str, port: int) -> None:
    """Run the service until it is interrupted.

    Raises:
        UserError: if the address cannot be listened on, the kit cannot be opened, or strategy ``name`` cannot be
            built with it.
    """
    problems: list[UserError] = []

    def refuse(error: UserError) -> None:
        problems.append(error)
        runner.should_exit = True

    # Uvicorn raises the interruption again after it has ended in order.
    with suppress(KeyboardInterrupt), listen(host, port) as sock:
        runner = server(app(opening, name, refuse))
        runner.run(sockets=[sock])
    if problems:
        raise problems[0]


def app(
    opening: AbstractAsyncContextManager[Kit], name: str, refuse: Callable[[UserError], None] | None = None
) -> FastAPI:
    """The service: ``GET /`` (the page), ``POST /v1/chat/completions``, ``GET /v1/models`` and ``GET /health``.

    Errors are OpenAI's ``{"error": {"message": one line, "type"}}``: 400 for a request that is not as
    `ChatRequest` has it, an unknown strategy, or a prompt that outgrows the model's context; 413 for a body that is
    too large; 502 where the engine or the retriever cannot do it now; 500 where the strategy fails otherwise.

    Args:
        opening: entered on the server's event loop, which engines need, and left when it ends.
        name: the strategy that answers where a request names none, with its settings.
        refuse: told what keeps the service from starting, for uvicorn would print it with its traceback.
    """

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            state = {}
            try:
                state["kit"] = await stack.enter_async_context(opening)
                build(name, state["kit"])
            except UserError as error:
                if refuse is None:
                    raise
                refuse(error)
            yield state

    api = FastAPI(title="rag-train strategies", lifespan=lifespan, openapi_url=None)
    page, policy = _page()
    started = int(time.time())

    @api.get("/")
    async def show() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @api.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        """Whether the service is up, and what answers."""
        kit: Kit = request.state.kit
        searcher = kit.retriever.retriever.name
        return {"status": "ok", "strategy": name, "model": kit.llm.name, "retriever": searcher, "k": kit.passages}

    @api.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """The strategies that the kit has everything for, the service's own first."""
        data = []
        for spec in dict.fromkeys([name, *STRATEGIES]):
            with suppress(UserError):
                strategy = build(spec, request.state.kit)
                about = {"description": (strategy.__doc__ or "").partition("\n")[0], "paper": strategy.paper}
                data.append({"id": spec, "object": "model", "created": started, "owned_by": "rag-train"} | about)
        return {"object": "list", "data": data}

    @api.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = _parse(await _body(request))
        strategy = _build(asked.strategy or asked.model or name, request.state.kit)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": strategy.name}
        done = _follow(strategy, asked.question, request)
        if asked.stream:
            return StreamingResponse(_stream(done, head), media_type="text/event-stream")
        match [one async for one in done]:
            case [*_, ("trajectory", trajectory)]:
                return Response(_completion(trajectory, head), media_type="application/json")
        raise ClientDisconnect

    @api.exception_handler(AnyHTTPException)
    async def answer(request: Request, error: AnyHTTPException) -> Response:
        return JSONResponse(_error(error), error.status_code, error.headers)

    @api.exception_handler(ClientDisconnect)
    async def leave(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it

    return api


async def _follow(strategy: Strategy, question: str, request: Request) -> AsyncIterator[Event]:
    """What the strategy shows as it goes, and then ("trajectory", Trajectory).

    Ends early if the client goes away; the strategy's work is cancelled then. Raises HTTPException if it fails.
    """
    shown: asyncio.Queue[Event | None] = asyncio.Queue()

    async def work() -> Trajectory:
        # In this task's own context: no other request's steps come here.
        watcher.set(lambda kind, what: shown.put_nowait((kind, what)))
        try:
            # A Question has answers, which no strategy looks at.
            return await strategy.answer(Question(id=uuid4().hex, question=question, answers=["?"]))
        finally:
            shown.put_nowait(None)

    async def cancel_when_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    task = asyncio.create_task(work())
    listening = asyncio.create_task(cancel_when_gone())
    try:
        while (event := await shown.get()) is not None:
            yield event
        await asyncio.wait({task})
        if not task.cancelled():
            yield "trajectory", task.result()
    except Exception as error:
        raise _problem(error) from error
    finally:
        task.cancel()
        listening.cancel()


def _problem(error: Exception) -> HTTPException:
    """What the client is told of a strategy that failed."""
    line = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return HTTPException(400, line)
    if isinstance(error, (EngineError, UserError)):
        return HTTPException(502, line)
    _log.error("the strategy failed", exc_info=error)
    return HTTPException(500, "the strategy failed; the service's log says why")


async def _stream(done: AsyncIterator[Event], head: dict[str, Any]) -> AsyncIterator[str]:
    """Server-sent events in the shape of OpenAI's chunks."""

    def chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(head | {"object": "chat.completion.chunk", "choices": [choice]} | more)

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for kind, what in done:
            if kind != "trajectory":
                yield chunk({"content": ""}, **{kind: what})
            else:
                yield chunk({"content": what.answer or ""})
                yield chunk({}, "stop", trajectory=what, usage=_usage(what))
    except HTTPException as error:
        yield _event(_error(error))
    yield "data: [DONE]\n\n"


def _completion(trajectory: Trajectory, head: dict[str, Any]) -> str:
    message = {"role": "assistant", "content": trajectory.answer or ""}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    more = {"choices": [choice], "usage": _usage(trajectory), "trajectory": trajectory}
    return _json(head | {"object": "chat.completion"} | more)


def _usage(trajectory: Trajectory) -> dict[str, int]:
    read = sum(call.prompt_tokens for call in trajectory.calls)
    written = sum(call.completion_tokens for call in trajectory.calls)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _error(error: AnyHTTPException) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return {"error": {"message": error.detail, "type": kind}}


def _event(data: dict[str, Any]) -> str:
    return f"data: {_json(data)}\n\n"


def _json(data: dict[str, Any]) -> str:
    """In ASCII, for some readers of events also split lines at Unicode's other line ends."""

    def fields(record: Record) -> dict[str, Any]:
        return record.model_dump(mode="json")

    return json.dumps(data, default=fields)


async def _body(request: Request) -> bytes:
    """The body; it is not read further than the limit."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"the body is larger than {MAX_BODY} bytes; send fewer or shorter messages")
    return body


def _parse(body: bytes) -> ChatRequest:
    try:
        asked = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200] or "body"
        example = '{"messages": [{"role": "user", "content": "..."}]}'
        raise HTTPException(400, f"{where}: {first['msg']}; send {example} as JSON in UTF-8") from None
    if not asked.question:
        raise HTTPException(400, "messages: no question; send a message with role user and some text")
    return asked


def _build(spec: str, kit: Kit) -> Strategy:
    try:
        return build(spec, kit)
    except (UserError, ValueError) as error:
        raise HTTPException(400, " ".join(str(error).removeprefix("--strategy ").split())) from None


def _page() -> tuple[str, str]:
    """The page, and the policy that lets a browser run the page's own script and nothing else."""
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page, (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
