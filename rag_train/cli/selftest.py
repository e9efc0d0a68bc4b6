"""The command that tests every part of the stack on this machine."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.options import START

testing = typer.Typer()


@testing.command(rich_help_panel=START)
def selftest(
    part: Annotated[
        list[str] | None, typer.Argument(help="Text in the names of the parts to test; all if not given.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Fewer parts: about four minutes on two CPU cores.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results with versions and devices, for an issue.")
    ] = None,
) -> None:
    """Use every part of the stack once, on this machine: vLLM, search, training, retrieval, serving.

    Prints a line for each part: pass, fail, or why it is not possible here. Exit code 1 if a part fails. It needs
    no download, takes less than ten minutes, and leaves nothing behind, also after Ctrl-C.
    """
    from rag_train.progress import console
    from rag_train.selftest.registry import FAIL, NOT_HERE, PASS, choose, load
    from rag_train.selftest.runner import run
    from rag_train.table import duration

    parts, results, start = choose(load(), part or [], short), [], time.perf_counter()
    width = max(len(each.name) for each in parts)
    with console.status("") as status, closing(run(parts, begins=lambda name: status.update(name))) as found:
        for number, result in enumerate(found, 1):
            results.append(result)
            told = f"{result.name:{width}}  {result.status:{len(NOT_HERE)}}  {result.seconds:5.1f} s"
            status.stop()  # while it is shown, what is printed goes to standard error
            print(f"{number:2}/{len(parts)}  {told}  {result.detail}", flush=True)
            status.start()
    for result in results:
        if result.log:
            print(f"\n{result.name}, the last lines that it printed:\n{result.log}", file=sys.stderr)
    counts = Counter(result.status for result in results)
    told = ", ".join(f"{counts[status]} {status}" for status in (PASS, FAIL, NOT_HERE) if counts[status])
    print(f"{told}; {duration(time.perf_counter() - start)}")
    if json:
        from rag_train.selftest.report import write

        write(json, results, short, time.perf_counter() - start)
        print(json)
    raise typer.Exit(int(counts[FAIL] > 0))
