"""The commands that serve over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sized
from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.options import (
    SERVING,
    Adapter,
    Engine,
    Indexes,
    Instructions,
    ListsRetrievers,
    Model,
    Passages,
    Prompts,
    Reranker,
    Roles,
    Urls,
    announce,
    kit_config,
)
from rag_train.errors import UserError
from rag_train.named_places import named_places

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")]
ApiKey = Annotated[
    str,
    typer.Option(
        envvar="RAG_TRAIN_API_KEY",
        help="Key that clients must send as `Authorization: Bearer KEY`. Give one if others can reach the address.",
    ),
]

watching = typer.Typer()
serving = typer.Typer(no_args_is_help=True, help="Serve over HTTP.")


@serving.command("retriever", cls=ListsRetrievers)
def serve_retriever(
    place: Annotated[str, typer.Argument(help="The retriever to serve; the kinds are listed below.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
    max_k: Annotated[int, typer.Option(help="Maximum number of passages for a query.")] = 100,
    threads: Annotated[int, typer.Option(help="Most batches searched at once.", min=1)] = min(
        4, os.cpu_count() or 1
    ),
) -> None:
    """Serve a retriever: POST /search, GET /health, /metrics and /openapi.json."""
    from rag_train.retrieval.open import open_retriever

    retriever = open_retriever(place)
    announce(f"{retriever.name}: starting the service")
    from rag_train.serving.http import Access, address, listen
    from rag_train.serving.retriever import Limits, serve

    size = f"{len(retriever):,} passages, " if isinstance(retriever, Sized) else ""
    with listen(host, port) as sock:
        ready = f"{retriever.name}: {size}{address(sock)}/search"
        serve(retriever, sock, Limits(k=max_k), threads, Access(api_key, host), ready)


@serving.command("strategy")
def serve_strategy(
    name: Annotated[str, typer.Argument(help="Strategy with settings, such as dualrag,outline=flat.")],
    model: Model,
    index: Indexes,
    adapter: Adapter = None,
    role: Roles = None,
    reranker: Reranker = None,
    engine: Engine = "vllm",
    url: Urls = None,
    passages: Passages = 3,
    instructions: Instructions = True,
    prompts: Prompts = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = "",
) -> None:
    """Answer questions: a web page at /, and OpenAI's POST /v1/chat/completions with the steps of each answer."""
    from rag_train.serving.http import Access, address, listen
    from rag_train.serving.strategy import serve
    from rag_train.strategies.kit import open_kit, open_retrievers

    config = kit_config(model, index, adapter, role, reranker, engine, url, passages, instructions, [name], prompts)
    announce(f"opening {', '.join(index)} and {model}")
    retrievers = open_retrievers(index)
    with listen(host, port) as sock:
        ready = f"{name} with {model} and {next(iter(retrievers.values())).name}: {address(sock)}/"
        serve(open_kit(config, retrievers), name, sock, Access(api_key, host), ready)


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
