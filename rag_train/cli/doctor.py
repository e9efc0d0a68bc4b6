"""The command that examines the machine."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from rag_train.cli.options import START, Json

Job = Literal["train", "serve", "dense"]
examination = typer.Typer()


@examination.command(rich_help_panel=START)
def doctor(
    job: Annotated[
        Job | None, typer.Argument(help="Exit with code 1 if this cannot run: training, vLLM, or dense indexes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what this machine has, which models that is enough for, and what to install.

    Packages are imported, not only looked for. The model sizes are estimates for packed rows of 4,096 tokens in
    bf16, sharded over all accelerators.
    """
    from rag_train.doctor.examine import examine

    findings = {}
    for finding in examine(job):
        findings[finding.name] = finding.value
        if not as_json:
            first, *more = finding.text.split("\n")
            print(f"{finding.name:22} {first}", *(f"{'':22} {line}" for line in more), sep="\n", flush=True)
    if as_json:
        print(json.dumps(findings))
    if findings.get("job"):
        raise typer.Exit(1)
