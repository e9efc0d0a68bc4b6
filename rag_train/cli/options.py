"""Options that several commands share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_train.errors import UserError

if TYPE_CHECKING:
    from rag_train.llm.engines import EngineConfig
    from rag_train.strategies.kit import KitConfig

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
    help="Retriever; the first is the main one. PLACE: index directory, http://HOST:PORT (service), bing, serper, "
    "searxng+URL, elastic://HOST:PORT/INDEX, milvus://HOST:PORT/COLLECTION, or a combination such as rrf(A,B), "
    "rerank(A,MODEL) or cache(A,FILE). KIND is sparse, dense or web, for strategies that use several.",
)
Indexes = Annotated[list[str], _INDEX]
OptionalIndexes = Annotated[list[str] | None, _INDEX]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ROLE=]DIR",
        help="LoRA adapter for one role (revelator, planner, classifier) or, without ROLE, for all other roles. "
        "Repeatable.",
    ),
]
Reranker = Annotated[
    str | None,
    typer.Option(
        help="Cross-encoder for strategies that rerank: directory, hub name, or address of a vLLM server."
    ),
]
Engine = Annotated[str, typer.Option(help="vllm, transformers, or openai with --url.")]
Urls = Annotated[
    list[str] | None, typer.Option(help="Address of a server that speaks OpenAI's protocol. Repeat for replicas.")
]
Passages = Annotated[int, typer.Option(help="Number of passages per retrieval.", min=1)]
Instructions = Annotated[
    bool,
    typer.Option(
        help="Begin each prompt with the instruction of the method; switch it off for models trained without it."
    ),
]

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Override recipe keys, for example lora.r=16.")
]


def report(as_json: bool, summary: Any, line: str) -> None:
    """Print the result of a command on standard output: ``summary`` as JSON, or ``line``."""
    print(json.dumps(summary, default=str) if as_json else line)


def engine_config(engine: str, url: list[str] | None) -> EngineConfig:
    """Return the engine configuration of the options.

    Raises UserError if the engine is unknown, or if --url and --engine openai are not given together.
    """
    from rag_train.llm.engines import EngineConfig

    kinds = ("vllm", "transformers", "openai")
    if engine not in kinds:
        raise UserError(f"--engine {engine}: unknown engine; choose one of {', '.join(kinds)}")
    if bool(url) != (engine == "openai"):
        raise UserError("--url and --engine openai belong together; give both or neither")
    return EngineConfig(kind=engine, urls=url or [])  # pyright: ignore[reportArgumentType]


def kit_config(
    model: str,
    index: list[str],
    adapter: list[str] | None,
    reranker: str | None,
    engine: str,
    url: list[str] | None,
    passages: int,
    instructions: bool,
) -> KitConfig:
    """Return the configuration of a strategy kit from the options. Raises UserError as `engine_config` does."""
    from rag_train.strategies.kit import KitConfig

    return KitConfig(
        model=model,
        indexes=index,
        adapters=adapter or [],
        reranker=reranker,
        engine=engine_config(engine, url),
        passages=passages,
        instructions=instructions,
    )


def numbers(option: str, text: str) -> list[int]:
    """Parse comma-separated integers. Raises UserError if ``text`` is anything else."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{option} {text}: not a list of integers; give for example {option} 0,1,2") from None
