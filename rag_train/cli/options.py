"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from typer.core import TyperCommand

from rag_train.errors import UserError

if TYPE_CHECKING:
    from rag_train.llm.engines import EngineConfig
    from rag_train.strategies.kit import KitConfig

START, DATA, TRAINING, EVALUATION, SERVING = "Start here", "Data", "Training", "Evaluation", "Serving"
"""Groups of commands in `rag-train --help`."""

Json = Annotated[bool, typer.Option("--json", help="Print a summary as JSON on standard output.")]
Model = Annotated[
    str,
    typer.Option(
        help="Checkpoint directory, Hugging Face Hub name, or the name under which a server serves the model."
    ),
]
_INDEX = typer.Option(
    "--index",
    metavar="[KIND=]PLACE",
    help="Retriever; the first is the main one. PLACE: index directory, http://HOST:PORT (service), or what else "
    "`rag-train serve retriever --help` lists, such as rrf(A,B). KIND is sparse, dense or web, for strategies that "
    "use several.",
)
Indexes = Annotated[list[str], _INDEX]
OptionalIndexes = Annotated[list[str] | None, _INDEX]
Adapter = Annotated[str | None, typer.Option(metavar="DIR", help="LoRA adapter of the model.")]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE=PLACE[,KEY=VALUE...]",
        help="Model for one role of the strategies: revelator (hanrag), planner (planrag), classifier "
        "(adaptive-rag, uar), reasoner, identifier, summarizer (dualrag), or reader (it answers, in most others). "
        "PLACE: an adapter of the model, a checkpoint, a hub name, or a server's model, with engine settings: "
        "planner=gpt-4o,kind=chat,urls=https://api.openai.com,key=OPENAI_API_KEY. Repeatable.",
    ),
]
Reranker = Annotated[
    str | None,
    typer.Option(
        help="Cross-encoder for strategies that rerank: directory, hub name, or address of a vLLM server."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="KIND[,KEY=VALUE...]",
        help="vllm, transformers, openai (a server's completions) or chat (chat completions of closed models), "
        "with settings as in recipes, such as vllm,tensor_parallel=2 or chat,key=OPENAI_API_KEY, and vLLM's or the "
        "server's own, such as vllm,extra.quantization=fp8.",
    ),
]
Urls = Annotated[
    list[str] | None,
    typer.Option(help="Address of a server, for the engines openai and chat. Repeat for replicas."),
]
Passages = Annotated[int, typer.Option(help="Number of passages per retrieval.", min=1)]
Instructions = Annotated[
    bool,
    typer.Option(
        help="Begin each prompt with the instruction of the method; switch it off for models trained without it."
    ),
]

Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Files in place of the package's instructions, by name; `rag-train prompts` lists and copies them.",
    ),
]

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Override recipe keys, for example lora.r=16.")
]


class ListsRetrievers(TyperCommand):
    """A command whose help ends with the kinds of retrievers; other commands need not wait for their import."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rag_train.retrieval.kinds import indexes, listing

        rows = [(f"--kind {kind.name}", kind.about) for kind in indexes().values()] if self.name == "index" else []
        self.epilog = "\n\n".join(f"{form}: {about}" for form, about in rows or listing())
        super().format_help(ctx, formatter)


def first_process() -> bool:
    """Whether this is the first process of a launch, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def report(as_json: bool, result: Any, *shown: Any) -> None:
    """Print the result of a command on standard output, in the first process of a launch.

    It is ``result`` as JSON, or the texts and tables ``shown``.
    """
    if not first_process():
        return
    if as_json:
        print(json.dumps(result, default=_plain))
        return
    console = Console()  # standard output; progress and notes are on standard error
    for each in shown:
        if isinstance(each, str):
            print(each)
        else:
            console.print(each)


def _plain(value: Any) -> Any:
    """Return records and dataclasses as JSON values, and anything else, such as a path, as text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def announce(text: str) -> None:
    """Say on standard error what a command does, in the first process, before it imports libraries for seconds."""
    from rag_train.progress import say

    if first_process():
        say(text)


def engine_config(engine: str, url: list[str] | None) -> EngineConfig:
    """Return the engine configuration of the options, ``KIND[,KEY=VALUE...]`` and addresses.

    Raises UserError if the engine or a setting is unknown, or if they do not fit together.
    """
    from rag_train.llm.engines import EngineConfig, parse_settings

    kind, *pairs = engine.split(",")
    config = EngineConfig(**parse_settings(f"--engine {engine}", [f"kind={kind}", *pairs]))
    if bool(config.urls or url) != (config.kind in ("openai", "chat")):
        raise UserError("--url belongs to --engine openai and --engine chat; give both or neither")
    return replace(config, urls=config.urls + (url or []))


def kit_config(
    model: str,
    index: list[str],
    adapter: str | None,
    role: list[str] | None,
    reranker: str | None,
    engine: str,
    url: list[str] | None,
    passages: int,
    instructions: bool,
    strategies: Iterable[str] = (),
    prompts: Path | None = None,
) -> KitConfig:
    """Return the configuration of a kit for the strategies from the options.

    Raises UserError as `engine_config`, `parse_strategy`, `parse_roles` and `given` do.
    """
    from rag_train.formats.instructions import given
    from rag_train.strategies.kit import KitConfig, parse_roles
    from rag_train.strategies.registry import parse_strategy

    main = engine_config(engine, url)
    known = dict.fromkeys(name for strategy in strategies for name in parse_strategy(strategy)[0].roles)
    return KitConfig(
        model=model,
        indexes=index,
        adapter=adapter,
        roles=parse_roles("--role", role or [], known, main),
        reranker=reranker,
        engine=main,
        passages=passages,
        given=given("--prompts", instructions, prompts),
    )
