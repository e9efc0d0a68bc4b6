"""The measurement of first lines: every command is in its lists, and what it says of a command's end."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from typer.main import get_command

from rag_train.cli.app import app
from rag_train.errors import UserError
from rag_train.eval.benchmarks.first_hour import COMMANDS, run
from rag_train.eval.benchmarks.first_lines import MAY_FAIL, TO_THE_END, TO_THE_FIRST_LINE


def names(command: click.Command, name: str) -> list[str]:
    """The names of a command's subcommands, or its own if it has none."""
    parts = getattr(command, "commands", {})
    return [leaf for part, sub in parts.items() for leaf in names(sub, f"{name} {part}")] or [name]


def test_every_command_is_measured():
    measured = [*COMMANDS, *TO_THE_END, *MAY_FAIL, *TO_THE_FIRST_LINE]
    missing = [
        name
        for name in names(get_command(app), "rag-train")
        if not any(command == name or command.startswith(f"{name} ") for command in measured)
    ]
    assert missing == []


def test_a_step_has_first_line_bar_and_output(tmp_path: Path):
    step = run("sh -c 'printf \"\\033[2K\\n\"; echo a; echo $MODEL ━'", tmp_path)
    assert step.ended == "end" and step.output == "a\n$MODEL ━"
    assert step.first_bar and 0 < step.first_line <= step.first_bar <= step.seconds


def test_a_command_can_be_stopped_after_its_first_line(tmp_path: Path):
    step = run("sh -c 'echo a; exec sleep 3600'", tmp_path, stop=True)
    assert (step.ended, step.output, step.first_bar) == ("first line", "a", None)


def test_only_an_error_message_is_accepted_as_an_error(tmp_path: Path):
    step = run("sh -c 'echo no; exit 2'", tmp_path, may_fail=True)
    assert (step.ended, step.output) == ("error", "no")
    for code, may_fail in ((2, False), (1, True)):
        with pytest.raises(UserError, match=f"exit code {code}: no"):
            run(f"sh -c 'echo no; exit {code}'", tmp_path, may_fail=may_fail)
