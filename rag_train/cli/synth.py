"""The commands of data: synthesis, checks and the viewer. Heavy imports wait until a command needs them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from rag_train.cli.options import Json, Overrides, announce, report
from rag_train.errors import UserError

if TYPE_CHECKING:
    from rag_train.jobs.items import Shard, Summary

synthesis = typer.Typer(no_args_is_help=True, help="Synthesise training data from a recipe.")
records = typer.Typer(no_args_is_help=True, help="Download public data sets; check and view files of records.")

RecipeFile = Annotated[Path, typer.Argument(help="YAML recipe.")]
RecordFile = Annotated[
    Path, typer.Argument(help="JSON Lines file of training examples, preference pairs, trajectories or questions.")
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do part I of N; the process that completes the last part writes the output.",
    ),
]
RayOption = Annotated[
    int | None,
    typer.Option("--ray", metavar="N", help="Do N parts on a Ray cluster with a shared file system.", min=1),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Do one item in a hundred, keep nothing but engine.cache, and estimate the calls and tokens for all.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="With --dry-run: an accelerator, such as h100, whose hours for all items are estimated too."),
]
PushOption = Annotated[
    str | None,
    typer.Option("--push-to-hub", metavar="REPO", help="Upload data and card to this dataset repository."),
]


@synthesis.command()
def deeprag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """DeepRAG: cold-start examples (stage=cold_start), optimal trajectories (sft) or preference pairs (pairs).

    Start from recipes/deeprag_synth.yaml.
    """
    from rag_train.data_synth.deeprag.recipe import DeepRAGRecipe
    from rag_train.data_synth.deeprag.run import synthesize

    remedy = "set search.guided=true, or fine-tune the model on cold-start examples first (stage=cold_start)"
    _synthesize(
        DeepRAGRecipe, synthesize, recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json, remedy
    )


@synthesis.command()
def dualrag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """DualRAG: examples of its modules, from gold annotations or by a teacher.

    Start from recipes/gold.yaml or recipes/dualrag_teacher.yaml.
    """
    _synthesize_modules("dualrag", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


@synthesis.command()
def hanrag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """HANRAG: examples of its modules, from gold annotations or by a teacher.

    Start from recipes/gold.yaml or recipes/hanrag_teacher.yaml.
    """
    _synthesize_modules("hanrag", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


@synthesis.command()
def levelrag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """LevelRAG: examples of its modules, from gold annotations.

    Start from recipes/gold.yaml.
    """
    _synthesize_modules("levelrag", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


@synthesis.command()
def planrag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """PlanRAG: examples of its modules, from gold annotations or by a teacher.

    Start from recipes/gold.yaml or recipes/planrag_teacher.yaml.
    """
    _synthesize_modules("planrag", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


@synthesis.command()
def compound(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """HANRAG's benchmark of compound questions, built by a teacher from an index.

    Start from recipes/compound.yaml.
    """
    from rag_train.data_synth.compound import CompoundRecipe, synthesize_compound

    _synthesize(
        CompoundRecipe, synthesize_compound, recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json
    )


@synthesis.command("adaptive-rag")
def adaptive_rag(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """Adaptive-RAG: complexity labels for its classifier.

    Start from recipes/adaptive_rag_synth.yaml.
    """
    _synthesize_classifier("adaptive-rag", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


@synthesis.command()
def uar(
    recipe: RecipeFile,
    overrides: Overrides = None,
    shard: ShardOption = None,
    ray: RayOption = None,
    dry_run: DryRun = False,
    device: DeviceOption = None,
    push_to_hub: PushOption = None,
    as_json: Json = False,
) -> None:
    """UAR: labels of its four judgements.

    Start from recipes/uar_synth.yaml.
    """
    _synthesize_classifier("uar", recipe, overrides, shard, ray, dry_run, device, push_to_hub, as_json)


def _synthesize_modules(method: str, *arguments: Any) -> None:
    from rag_train.data_synth.modules.registry import FACTORIES
    from rag_train.data_synth.modules.run import synthesize_modules

    factory = FACTORIES[method]
    _synthesize(factory.recipe, partial(synthesize_modules, factory), *arguments)


def _synthesize_classifier(method: Literal["adaptive-rag", "uar"], *arguments: Any) -> None:
    from rag_train.data_synth.classifiers import ClassifierRecipe, synthesize_classifier

    _synthesize(ClassifierRecipe, partial(synthesize_classifier, method), *arguments)


def _synthesize(
    recipe_type: type[Any],
    synthesize: Callable[[Any, Shard], Coroutine[Any, Any, Summary]],
    recipe: Path,
    overrides: list[str] | None,
    shard: str | None,
    ray: int | None,
    dry_run: bool,
    device: str | None,
    repo: str | None,
    as_json: bool,
    remedy: str = "check the questions, the index and the model",
) -> None:
    """Load the recipe, write its output in this process or on Ray, then the card, and upload both to ``repo``.

    Raises UserError with ``remedy`` if no item gave a record.
    """
    from rag_train.recipe import load_recipe

    loaded = load_recipe(recipe_type, recipe, overrides or [])
    announce(f"{recipe}: output {loaded.output}")
    from rag_train.data_synth.inspect.card import check_token, push, write_card
    from rag_train.jobs.items import WHOLE, Shard, summary_line

    if dry_run:
        if shard or ray or repo:
            raise UserError("--dry-run writes nothing; give it without --shard, --ray and --push-to-hub")
        _estimate(synthesize, loaded, device, as_json)
        return
    if device:
        raise UserError(f"--device {device}: only with --dry-run; a run takes the devices that it finds")
    work = partial(synthesize, loaded)
    if shard and ray:
        raise UserError("--shard and --ray exclude each other: --ray itself assigns the parts; give one of the two")
    if repo:
        check_token()
    if ray:
        from rag_train.data_synth.cluster import gpus_of, synthesize_on_ray

        summary = synthesize_on_ray(work, ray, gpus_of(loaded))
    else:
        summary = asyncio.run(work(Shard.parse(shard) if shard else WHOLE))
    if not summary.records and not summary.remaining:
        raise UserError(f"{summary_line(summary)}: the file is empty; {remedy}")
    lines = [summary_line(summary)]
    if not summary.remaining:
        lines.append(f"card: {write_card(Path(summary.output))}")
        lines += [f"pushed: {push(Path(summary.output), repo)}"] if repo else []
    report(as_json, asdict(summary), "\n".join(lines))


def _estimate(
    synthesize: Callable[[Any, Shard], Coroutine[Any, Any, Summary]], recipe: Any, device: str | None, as_json: bool
) -> None:
    """Do one item in a hundred, and print what all would take, on the named ``device`` in hours."""
    from rag_train.jobs.items import Shard
    from rag_train.table import estimates

    hours = _hours_on(device, recipe) if device else None
    with tempfile.TemporaryDirectory() as folder:
        sample = replace(recipe, output=str(Path(folder) / "sample.jsonl"))
        done = asyncio.run(synthesize(sample, Shard(1, 100)))
    factor = done.items / max(1, done.items_done)
    names = ("engine_calls", "prompt_tokens", "completion_tokens")
    calls, read, written = (round(done.counts.get(name, 0) * factor) for name in names)
    estimate: dict[str, Any] = {"items": done.items, "items_done": done.items_done, "engine_calls": calls}
    estimate |= {"prompt_tokens": read, "completion_tokens": written}
    rows = [("items", f"{done.items:,}"), ("engine calls", f"{calls:,}")]
    rows += [("tokens read", f"{read:,}"), ("tokens written", f"{written:,}")]
    engine = getattr(recipe, "engine", None)
    if engine and engine.input_price + engine.output_price:
        estimate["dollars"] = (read * engine.input_price + written * engine.output_price) / 1e6
        rows.append(("dollars", f"{estimate['dollars']:,.2f}"))
    notes = [f"Means of {done.items_done:,} items, one in a hundred, times all."]
    if device and engine and hours:
        from rag_train.training.devices import UTILISATION

        estimate["gpu_hours"] = hours(read, written)
        rows.append((f"{device.upper()} hours", f"{estimate['gpu_hours']:,.2f}"))
        notes.append(
            f"Hours: operations at {UTILISATION:.0%} of the peak, weights in bf16 read once a token of "
            f"{engine.max_sequences} calls in flight, no tokens read from the prefix cache, no searches."
        )
    if as_json:
        print(json.dumps(estimate))
        return
    caption = f"What all items would take; nothing was kept. Output: {recipe.output}."
    Console().print(estimates(caption, rows, notes))


def _hours_on(device: str, recipe: Any) -> Callable[[int, int], float]:
    """Return the hours of ``device`` for tokens read and written by the recipe's engine.

    Raises UserError for an unknown device, and for a recipe whose model is not in this process.
    """
    from rag_train.data_synth.cluster import gpus_of
    from rag_train.training.devices import engine_seconds, find_device

    found = find_device(device)
    if not gpus_of(recipe):
        raise UserError(f"--device {device}: the recipe starts no engine; leave the option out")
    from rag_train.llm.checkpoint import base_of, check_checkpoint
    from rag_train.training.memory import architecture

    check_checkpoint(base_of(recipe.model)[0])
    parameters, sequences = architecture(recipe.model).parameters, recipe.engine.max_sequences
    return lambda read, written: engine_seconds(found, parameters, read, written, sequences) / 3600


@records.command("check")
def check_data(
    file: RecordFile,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer (directory or hub name) to measure lengths in tokens, not in characters."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Question file kept for evaluation: report records that leak it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check schema, duplicates, leaked questions and lengths.

    Exit code 0: no problems; 1: problems found; 2: the file cannot be read.
    """
    from rag_train.data_synth.inspect.check import check, render_report

    result = check(file, tokenizer, against)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        Console().print(render_report(result))
    raise typer.Exit(bool(result.findings))


@records.command("view")
def view_data(
    file: RecordFile,
    output: Annotated[Path | None, typer.Option(help="HTML file to write; default: FILE.html.")] = None,
    most: Annotated[
        int, typer.Option(help="Maximum number of records shown, spread evenly over the file.", min=1)
    ] = 2000,
) -> None:
    """Write an HTML page that shows the records, and the rejected items, one by one."""
    from rag_train.data_synth.inspect.view import write_page

    print(write_page(file, output or Path(f"{file}.html"), most))
