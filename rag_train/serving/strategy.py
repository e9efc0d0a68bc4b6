"""The strategy service: `rag_train.serving.protocol` over strategies, with a page that shows answers in steps."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import fields
from typing import Any
from uuid import uuid4

from rag_train.errors import ServiceError, UserError, not_installed
from rag_train.jobs.retries import ItemState, item_state
from rag_train.pages.page import ASKING_SCRIPTS, ASKING_STYLES, page
from rag_train.schema import Question, Record, Trajectory
from rag_train.strategies.base import Kit, Run, Strategy
from rag_train.strategies.registry import STRATEGIES, build, parse_strategy

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.responses import HTMLResponse, StreamingResponse
    from starlette.requests import ClientDisconnect

    from rag_train.serving.http import Access, disconnected, read_body, server, service
    from rag_train.serving.protocol import MAX_BODY, failure, parse_request, refusal
except ImportError as error:
    raise not_installed(error) from error

_log = logging.getLogger(__name__)

Event = tuple[str, Any]
"""An event of `rag_train.strategies.base.Watcher`, or at the end ("trajectory", Trajectory)."""

MAX_SETTING = 20
"""Largest number that a client may set, unless four times the default is more."""
MAX_QUESTIONS = 256
"""Maximum number of questions in progress."""
MAX_SECONDS = 600.0
"""Time limit of a question."""
RETRY_FOR = 10.0
"""Seconds for which a question waits for a server of the engine that is down. Its client can ask again."""
ASK_AGAIN = {"Retry-After": "10"}
"""Header of a response to a question that may be answered later."""


def serve(
    opening: AbstractAsyncContextManager[Kit], name: str, sock: socket.socket, access: Access, ready: str
) -> None:
    """Run the service on a listening socket until it is interrupted; print the line ``ready`` once it answers.

    Raises:
        UserError: if the kit cannot be opened, or if it lacks what strategy ``name`` requires.
    """
    problems: list[UserError] = []

    def refuse(error: UserError) -> None:
        problems.append(error)
        runner.should_exit = True

    runner = server(app(opening, name, refuse, access), ready)
    with suppress(KeyboardInterrupt):  # Uvicorn raises it again after an orderly shutdown
        runner.run(sockets=[sock])
    if problems:
        raise problems[0]


def app(
    opening: AbstractAsyncContextManager[Kit],
    name: str,
    refuse: Callable[[UserError], None] | None = None,
    access: Access | None = None,
) -> FastAPI:
    """Return the service: ``GET /`` (the page), ``POST /v1/chat/completions``, ``GET /v1/models``, ``GET /health``.

    Errors have OpenAI's format ``{"error": {"message": one line, "type", "code": status}}``: 400 if the request is
    not a `ChatRequest`, the strategy is unknown, a setting exceeds its limit, or a prompt is refused, such as one
    that exceeds the model's context; 401, 403 or 415 if `Access` refuses the request; 408 if its body does not
    arrive; 413 if the body is too large; 502 if the engine or the retriever refuses the request; 503 if one of them
    is down or `MAX_QUESTIONS` are in progress, so that the client may ask again; 504 after `MAX_SECONDS`; 500 if
    the strategy fails otherwise.

    Args:
        opening: context manager of the kit, entered on the server's event loop because engines require it.
        name: the strategy, with settings, for requests that do not name a strategy.
        refuse: called with an error that prevents the start; Uvicorn would print it with a traceback.
        access: who may use the service.
    """
    in_progress = asyncio.Semaphore(MAX_QUESTIONS)

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

    api = service(access, refusal, title="rag-train strategies", lifespan=lifespan, openapi_url=None)
    styles, scripts = [*ASKING_STYLES, "serving/page.css"], [*ASKING_SCRIPTS, "serving/page.js"]
    html, policy = page("serving/page.html.jinja", styles, scripts)
    started = int(time.time())

    @api.api_route("/", methods=["GET", "HEAD"])
    async def show() -> Response:
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    @api.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        """Status of the service, and its strategy, model and retriever."""
        kit: Kit = request.state.kit
        searcher = kit.retriever.retriever.name
        return {"status": "ok", "strategy": name, "model": kit.llm.name, "retriever": searcher, "k": kit.passages}

    @api.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """The strategies that can run with the kit, the service's strategy first."""
        data = []
        for spec in dict.fromkeys([name, *STRATEGIES]):
            with suppress(UserError):
                strategy = build(spec, request.state.kit)
                description = (strategy.__doc__ or "").partition("\n")[0]
                extra = {"description": description, "paper": strategy.paper}
                data.append({"id": spec, "object": "model", "created": started, "owned_by": "rag-train"} | extra)
        return {"object": "list", "data": data}

    @api.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        chat_request = parse_request(await read_body(request.receive, MAX_BODY, "send fewer or shorter messages"))
        strategy = _build(chat_request.strategy or chat_request.model or name, name, request.state.kit)
        if in_progress.locked():
            raise HTTPException(503, "too many questions in progress; ask again later", ASK_AGAIN)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": strategy.name}
        events = _follow(strategy, chat_request.question, request, in_progress)
        if chat_request.stream:
            return StreamingResponse(_stream(events, head), media_type="text/event-stream")
        match [event async for event in events]:
            case [*_, ("trajectory", trajectory)]:
                return Response(_completion(trajectory, head), media_type="application/json")
        raise ClientDisconnect

    return api


async def _follow(
    strategy: Strategy, question: str, request: Request, in_progress: asyncio.Semaphore
) -> AsyncIterator[Event]:
    """Yield the events of a running strategy, and at the end ("trajectory", Trajectory).

    If the client disconnects, the strategy is cancelled and the events end. Raises HTTPException if it fails.
    """
    shown: asyncio.Queue[Event | None] = asyncio.Queue()  # None: the strategy has ended

    async def work() -> Trajectory:
        item_state.set(ItemState(retry_for=RETRY_FOR))  # of this task only, not of other requests
        try:
            # A Question requires gold answers; strategies do not read them.
            asked = Question(id=uuid4().hex, question=question, answers=["?"])
            async with in_progress, asyncio.timeout(MAX_SECONDS):
                return await Run(strategy, asked, lambda kind, what: shown.put_nowait((kind, what))).answer()
        finally:
            shown.put_nowait(None)

    async def cancel_when_gone() -> None:
        await disconnected(request.receive)
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
    """Return the HTTP error for a strategy that failed."""
    line = " ".join(str(error).split())
    if isinstance(error, TimeoutError):
        return HTTPException(504, f"the question took more than {MAX_SECONDS:g} s; ask a simpler one")
    if isinstance(error, ValueError):
        return HTTPException(400, line)
    if isinstance(error, ServiceError):
        return HTTPException(503, line, ASK_AGAIN)
    if isinstance(error, UserError):
        return HTTPException(502, line)
    _log.error("the strategy failed", exc_info=error)
    return HTTPException(500, "the strategy failed; see the log of the service")


async def _stream(events: AsyncIterator[Event], head: dict[str, Any]) -> AsyncIterator[str]:
    """Yield server-sent events in the format of OpenAI's chunks."""

    def chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(head | {"object": "chat.completion.chunk", "choices": [choice]} | more)

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for kind, value in events:
            if kind != "trajectory":
                yield chunk({"content": ""}, **{kind: value})
            else:
                yield chunk({"content": value.answer or ""})
                yield chunk({}, _finish(value), trajectory=value, usage=_usage(value))
    except HTTPException as error:
        yield _event(failure(error.status_code, error.detail))
    yield "data: [DONE]\n\n"


def _completion(trajectory: Trajectory, head: dict[str, Any]) -> str:
    message = {"role": "assistant", "content": trajectory.answer or ""}
    choice = {"index": 0, "message": message, "finish_reason": _finish(trajectory)}
    more = {"choices": [choice], "usage": _usage(trajectory), "trajectory": trajectory}
    return _json(head | {"object": "chat.completion"} | more)


def _finish(trajectory: Trajectory) -> str:
    """Return why the answer ended; an answer that was cut is empty."""
    return "length" if trajectory.answer is None and trajectory.cut else "stop"


def _usage(trajectory: Trajectory) -> dict[str, int]:
    prompt = sum(call.prompt_tokens for call in trajectory.calls)
    completion = sum(call.completion_tokens for call in trajectory.calls)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(data: dict[str, Any]) -> str:
    return f"data: {_json(data)}\n\n"


def _json(data: dict[str, Any]) -> str:
    """Return JSON in ASCII, because some clients also split events at Unicode's other line separators."""

    def fields(record: Record) -> dict[str, Any]:
        return record.model_dump(mode="json")

    return json.dumps(data, default=fields)


def _build(spec: str, own: str, kit: Kit) -> Strategy:
    """Build the strategy that a client names; only ``own``, the service's, is exempt from the limits."""
    try:
        if spec != own:
            _check_settings(spec)
        return build(spec, kit)
    except (UserError, ValueError) as error:
        raise HTTPException(400, " ".join(str(error).removeprefix("--strategy ").split())) from None


def _check_settings(spec: str) -> None:
    """Raise UserError if a number among a strategy's settings is too large for a client to set."""
    cls, settings = parse_strategy(spec)
    defaults = {field.name: field.default for field in fields(cls)}
    for key, value in settings.items():
        default: Any = defaults[key]
        most = max(MAX_SETTING, 4 * default) if isinstance(default, int | float) else MAX_SETTING
        if isinstance(value, int | float) and not abs(value) <= most:
            raise UserError(f"{spec}: {key} may be at most {most} here; give a smaller number")
