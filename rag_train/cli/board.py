"""The command that shows runs on a local page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.eval import named_places
from rag_train.cli.options import SERVING
from rag_train.errors import UserError

watching = typer.Typer()


@watching.command(rich_help_panel=SERVING)
def board(
    directory: Annotated[Path, typer.Argument(help="Directory of runs and results.")] = Path("runs"),
    chat: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL",
            help="A running `rag-train serve strategy` to ask on the page Chat. Repeat it to compare two.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8080,
) -> None:
    """Follow trainings, sweeps, syntheses and evaluations on a local page.

    The page is read-only and is served to this machine only, at http://127.0.0.1:PORT/. With --chat, its
    page Chat asks two services the same question.
    """
    from rag_train.eval.board.chat import Service
    from rag_train.eval.board.service import serve
    from rag_train.serving.http import address, listen

    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the directory that your runs are written to")
    services = [Service(name, url) for name, url in named_places("--chat", chat or []).items()]
    with listen("127.0.0.1", port) as sock:
        serve(directory, services, sock, f"{directory}: {address(sock)}/")
