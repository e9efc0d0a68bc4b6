"""The command of synthesis. Heavy imports wait until it needs them."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_train.cli.options import DATA, Json, Overrides, announce, report
from rag_train.errors import UserError

if TYPE_CHECKING:
    from rag_train.data_synth.method import Method

synthesis = typer.Typer()


@synthesis.command(rich_help_panel=DATA, add_help_option=False)
def synth(
    context: typer.Context,
    method: Annotated[
        str | None,
        typer.Argument(help="Method; without one, they are listed. METHOD --help has the recipe's keys."),
    ] = None,
    recipe: Annotated[Path | None, typer.Argument(help="YAML recipe.")] = None,
    overrides: Overrides = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Do part I of N; the process that completes the last part writes the output."
        ),
    ] = None,
    ray: Annotated[
        int | None, typer.Option(metavar="N", help="Do N parts on a Ray cluster with a shared file system.", min=1)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Do one item in a hundred, keep nothing but engine.cache, and estimate the calls and tokens for "
            "all.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="With --dry-run: an accelerator, such as h100, whose hours for all items are estimated too."
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Upload data and card to this dataset repository.")
    ] = None,
    as_json: Json = False,
    show_help: Annotated[bool, typer.Option("--help", help="Show this message and exit.")] = False,
) -> None:
    """Synthesise training data from a recipe."""
    from rag_train.data_synth.registry import METHODS, find_method

    if method is None:
        if show_help:
            context.get_help()  # prints it
        print("Methods of `rag-train synth METHOD RECIPE`; METHOD --help says more:")
        for name, each in sorted(METHODS.items()):
            print(f"  {name:14}{(each.__doc__ or '').splitlines()[0]}")
        return
    chosen = find_method(method)
    if show_help:
        _print_help(chosen)
        return
    if recipe is None:
        raise UserError(f"synth {method}: no recipe; give one, such as recipes/{chosen.starts[0]}.yaml")
    from rag_train.data_synth.cluster import gpus_of, synthesize_on_ray
    from rag_train.data_synth.inspect.card import check_token, push, write_card
    from rag_train.data_synth.method import synthesize
    from rag_train.jobs.items import WHOLE, Shard, summary_line
    from rag_train.recipe import load_recipe

    loaded: Any = load_recipe(chosen.recipe_type, recipe, overrides or [])
    announce(f"{recipe}: output {loaded.output}")
    if dry_run:
        from rag_train.data_synth.estimate import estimate

        if shard or ray or push_to_hub:
            raise UserError("--dry-run writes nothing; give it without --shard, --ray and --push-to-hub")
        report(as_json, *estimate(chosen, loaded, device))
        return
    if device:
        raise UserError(f"--device {device}: only with --dry-run; a run takes the devices that it finds")
    if shard and ray:
        raise UserError("--shard and --ray exclude each other: --ray itself assigns the parts; give one of the two")
    if push_to_hub:
        check_token()
    if ray:
        summary = synthesize_on_ray(partial(synthesize, chosen, loaded), ray, gpus_of(loaded))
    else:
        summary = asyncio.run(synthesize(chosen, loaded, Shard.parse(shard) if shard else WHOLE))
    if not summary.records and not summary.remaining:
        raise UserError(f"{summary_line(summary)}: the file is empty; {chosen.remedy}")
    lines = [summary_line(summary)]
    if not summary.remaining:
        lines.append(f"card: {write_card(Path(summary.output))}")
        lines += [f"pushed: {push(Path(summary.output), push_to_hub)}"] if push_to_hub else []
    report(as_json, summary, *lines)


def _print_help(method: type[Method[Any, Any]]) -> None:
    """Print what a method makes, the recipes to start from, and the keys of a recipe."""
    from rag_train.recipe import describe

    print(f"rag-train synth {method.name} RECIPE [KEY=VALUE]... [OPTIONS]\n\n{inspect.getdoc(method)}\n")
    starts = " or ".join(f"recipes/{name}.yaml" for name in method.starts)
    print(f"Start from {starts}. `rag-train synth --help` has the options.\n\nKeys of a recipe:")
    for key in describe(method.recipe_type):
        print(f"  {key}")
