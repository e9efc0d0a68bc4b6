"""The board: a local, read-only page that follows the runs below a directory.

``GET /`` is the page, and ``GET /events`` streams what it shows as server-sent events. ``GET /chat`` is the page
that asks running strategy services, see `rag_train.eval.board.chat`. The pages about a run are those of
`rag_train.eval.report` and `rag_train.data_synth.inspect`: they are made when they are asked for, or read from the
directory. Nothing is written, and no path leads out of the directory.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rag_train.errors import UserError, not_installed
from rag_train.eval.board.chat import Service, add_chat
from rag_train.eval.board.commands import before_chat
from rag_train.eval.board.watch import Board, Reader
from rag_train.eval.report.matrix import write_matrix_report
from rag_train.pages.page import ASKING_SCRIPTS, ASKING_STYLES, page

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException

    from rag_train.serving.http import Access, Gate, server
    from rag_train.serving.protocol import refusal
except ImportError as error:
    raise not_installed(error) from error

EVERY = 1.0
"""Seconds between two looks at the files."""
SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the pages about runs: they have no network and no access to the board."""


def serve(directory: Path, services: Sequence[Service], sock: socket.socket, ready: str) -> None:
    """Run the board on a listening socket until it is interrupted; print the line ``ready`` once it answers."""
    runner = server(app(Board(directory, EVERY), services, over=lambda: runner.should_exit), ready)
    with suppress(KeyboardInterrupt):  # Uvicorn raises it again after an orderly shutdown
        runner.run(sockets=[sock])


def app(board: Board, services: Sequence[Service] = (), *, over: Callable[[], bool] = lambda: False) -> FastAPI:
    """Return the service for ``board`` and the chat with ``services``; its streams end when ``over`` is True."""
    api = FastAPI(title="rag-train board", openapi_url=None)
    api.add_middleware(Gate, access=Access(), refuse=lambda status, text: PlainTextResponse(text, status))
    runs, chat = _pages(board.root, services)

    @api.api_route("/", methods=["GET", "HEAD"])
    async def show() -> Response:
        return HTMLResponse(*runs)

    @api.api_route("/chat", methods=["GET", "HEAD"])
    async def show_chat() -> Response:
        return HTMLResponse(*chat)

    add_chat(api, services)

    @api.get("/events")
    async def events() -> Response:
        return StreamingResponse(_stream(board, over), media_type="text/event-stream")

    @api.get("/report/{name:path}")
    def report(name: str) -> Response:
        return _drawn(lambda output: write_matrix_report(output, inside(board.root, name)))

    @api.get("/records/{name:path}")
    def records(name: str) -> Response:
        from rag_train.data_synth.inspect.view import write_page  # imports transformers, which takes seconds

        return _drawn(lambda output: write_page(inside(board.root, name), output))

    @api.get("/page/{name:path}")
    def written(name: str) -> Response:
        path = inside(board.root, name)
        if path.suffix != ".html" or not path.is_file():
            raise UserError(f"{name}: no such page; reload the board")
        return _sandboxed(path)

    @api.exception_handler(UserError)
    async def refuse(request: Request, error: UserError) -> Response:
        return PlainTextResponse(str(error), 404)

    @api.exception_handler(HTTPException)
    async def answer(request: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, error.detail)

    return api


def inside(root: Path, name: str) -> Path:
    """Return the path ``name`` below ``root``. Raises UserError if it leads elsewhere, also through links."""
    with suppress(ValueError):  # a name that cannot be a path
        path = (root / name).resolve()
        if path.is_relative_to(root.resolve()):
            return path
    raise UserError(f"{name[:200]!r}: not inside the directory of the board; give the board that directory")


def _drawn(write: Callable[[Path], object]) -> Response:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write(path)
        return _sandboxed(path)


def _sandboxed(path: Path) -> Response:
    return HTMLResponse(path.read_bytes(), headers={"Content-Security-Policy": SANDBOX})


async def _stream(board: Board, over: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield an event with all that there is, then one whenever something is new, and else comments."""
    reader = Reader()
    now: dict[str, float] = {"now": time.time()}
    while not over():
        news = now | await run_in_threadpool(board.news, reader)
        yield f"data: {json.dumps(news, allow_nan=False)}\n\n" if news else ": nothing new\n\n"
        now = {}
        await asyncio.sleep(EVERY)


def _pages(root: Path, services: Sequence[Service]) -> list[tuple[str, int, dict[str, str]]]:
    """Return text, status and headers of two pages: the runs below ``root``, and the chat with ``services``."""
    scripts = ("pages/elements.js", "eval/board/plots.js", "eval/board/command.js", "eval/board/board.js")
    runs = page("eval/board/board.html.jinja", ["pages/base.css", "eval/board/board.css"], scripts, root=str(root))
    chat = page(
        "eval/board/chat.html.jinja",
        [*ASKING_STYLES, "eval/board/board.css", "eval/board/chat.css"],
        [*ASKING_SCRIPTS, "eval/board/command.js", "eval/board/chat.js"],
        root=str(root),
        services=[service.name for service in services],
        commands=before_chat(root),
    )
    return [(text, 200, {"Content-Security-Policy": policy}) for text, policy in (runs, chat)]
