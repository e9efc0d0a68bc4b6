"""The command that examines the machine."""

from __future__ import annotations

import json

import typer

from rag_train.cli.options import START, Json

examination = typer.Typer()


@examination.command(rich_help_panel=START)
def doctor(as_json: Json = False) -> None:
    """Show what this machine has, which models that is enough for, and what to install.

    The model sizes are estimates for packed rows of 4,096 tokens in bf16, sharded over all accelerators.
    """
    from rag_train.doctor.examine import examine

    findings = {}
    for finding in examine():
        findings[finding.name] = finding.value
        if not as_json:
            first, *more = finding.text.split("\n")
            print(f"{finding.name:22} {first}", *(f"{'':22} {line}" for line in more), sep="\n", flush=True)
    if as_json:
        print(json.dumps(findings))
