"""The command line. Heavy imports are inside the commands, so that help and errors appear at once."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rag_train.cli.board import watching
from rag_train.cli.data import records
from rag_train.cli.doctor import examination
from rag_train.cli.eval import evaluation
from rag_train.cli.index import indexing
from rag_train.cli.options import DATA, SERVING, START, Json, Overrides, announce, first_process, numbers, report
from rag_train.cli.real import real
from rag_train.cli.serve import serving
from rag_train.cli.synth import synthesis
from rag_train.cli.train import training
from rag_train.errors import OneProcessError, UserError
from rag_train.package_files import packaged, write_working_files

app = typer.Typer(
    name="rag-train",
    help="Train the controller of a retrieval-augmented language model: synthesise data, train, evaluate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(examination)
app.add_typer(real)
app.add_typer(indexing)
app.add_typer(synthesis)
app.add_typer(records, name="data", rich_help_panel=DATA)
app.add_typer(training)
app.add_typer(evaluation)
app.add_typer(serving, name="serve", rich_help_panel=SERVING)
app.add_typer(watching)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rag-train {version('rag-train')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a UserError is printed as one line on standard error, with exit code 2.

    So is the failure of a file or directory: a full disk, a place that cannot be written, a name that is too long.
    What a run had finished before is kept. Under a launcher, the first process reports for all, except for errors
    that only one process met.
    """
    try:
        app(arguments, prog_name="rag-train")
    except UserError as error:
        if not (first_process() or isinstance(error, OneProcessError)):
            sys.exit(2)
        _fail(str(error))
    except OSError as error:
        if error.errno not in _FILE_ERRORS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        remedy = "choose a place that can be written and has free space, and give the command again"
        if error.errno == errno.EFBIG:
            remedy = "raise the limit on the size of files (ulimit -f), and give the command again"
        _fail(f"{place}{error.strerror}; {remedy}")


_FILE_ERRORS = {
    getattr(errno, name)
    for name in (
        "EACCES",
        "EPERM",
        "EROFS",
        "ENOSPC",
        "EDQUOT",
        "EFBIG",
        "ENAMETOOLONG",
        "ENOTDIR",
        "EISDIR",
        "EEXIST",
        "EIO",
    )
}


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


@app.command(rich_help_panel=START)
def init(
    directory: Annotated[Path, typer.Argument(help="Directory to create or extend.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write the recipes and launch files that come with the package into a working directory.

    recipes/README.md has the commands of a first run, with a model that this machine is enough for.
    """
    from rag_train.doctor.guide import write_guide

    written = write_working_files(directory)
    announce("looking for accelerators, to choose a model for the first run")
    guide = write_guide(directory / "recipes")
    listed = [str(path) for path in [*written, guide]]
    report(as_json, listed, f"{directory}: wrote {len(listed)} files to recipes/ and launch/; begin with {guide}")


@app.command(rich_help_panel=START)
def demo(
    seeds: Annotated[
        str, typer.Option(help="Comma-separated seeds: of the world, its questions and the training.")
    ] = "0",
    atlas: Annotated[
        bool, typer.Option("--atlas", help="A real model and real facts, in place of the mini world.")
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe of the demo; default: recipes/demo.yaml or recipes/demo_atlas.yaml.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Directory for models and data, kept between runs; default: runs/demo.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Directory for demo.html and demo.json; default: the working directory.")
    ] = None,
    scratch: Annotated[
        bool, typer.Option("--scratch", help="Pretrain the mini model instead of using the shipped checkpoint.")
    ] = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Run the whole of DeepRAG: cold start, search, both training stages, evaluation, and a results page.

    The mini world takes minutes on two cores, the atlas (--atlas) nearly an hour.
    """
    from rag_train.eval.demo.recipe import DemoRecipe
    from rag_train.recipe import load_recipe

    name = "demo_atlas" if atlas else "demo"
    chosen = load_recipe(DemoRecipe, recipe or packaged(f"recipes/{name}.yaml"), overrides or [])
    work = work or Path("runs") / name.replace("_", "-")
    chosen_seeds = numbers("--seeds", seeds)
    announce(f"{name}, seeds {seeds}: models and data in {work}")
    from rag_train.eval.demo.run import run_demo

    results = run_demo(chosen, chosen_seeds, work, output or work, scratch=scratch)
    if as_json:
        print(results.model_dump_json())


@app.command(rich_help_panel=START)
def world(
    output: Annotated[Path, typer.Argument(help="Directory to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the world.")] = 0,
    as_json: Json = False,
) -> None:
    """Write a mini world: corpus, questions (lessons, train, dev, test) and knowledge boundary, as JSON Lines."""
    announce(f"{output}: making the mini world of seed {seed}")
    from rag_train.worlds.mini.world import World, WorldConfig, write_world

    counts = write_world(World(WorldConfig(seed=seed)), output)
    report(as_json, counts, f"{output}: {counts}")


@app.command(rich_help_panel=START)
def strategies(as_json: Json = False) -> None:
    """List the inference strategies with their sources, requirements, roles (for --role) and settings."""
    from rag_train.strategies.registry import listing

    listed = listing()
    if as_json:
        print(json.dumps(listed))
        return
    for strategy in listed:
        print(f"{strategy['name']}\n  {strategy['summary']}\n  {strategy['paper']}")
        if strategy["needs"]:
            print(f"  needs: {'; '.join(strategy['needs'])}")
        if strategy["roles"]:
            print(f"  roles: {', '.join(strategy['roles'])}")
        if strategy["settings"]:
            settings = (f"{key}={json.dumps(value)}" for key, value in strategy["settings"].items())
            print(f"  settings: {', '.join(settings)}")
