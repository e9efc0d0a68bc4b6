"""The training commands. Heavy libraries are imported when a command needs them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from rag_train.cli.options import TRAINING, Json, Overrides, announce, first_process, report
from rag_train.errors import UserError

training = typer.Typer()


class _TrainCommand(TyperCommand):
    """A command whose help lists the keys of a recipe."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rag_train.recipe import describe
        from rag_train.training.recipe import TrainRecipe

        super().format_help(ctx, formatter)
        formatter.write("keys of a recipe:\n")
        for key in describe(TrainRecipe):
            formatter.write(f"  {key}\n")


@training.command(cls=_TrainCommand, rich_help_panel=TRAINING)
def train(
    recipe: Annotated[Path, typer.Argument(help="YAML file, for example recipes/deeprag_sft.yaml.")],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print steps, memory, disk and time, and start nothing.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="With --dry-run: the accelerator to plan for, such as h100, instead of the one here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a controller from a recipe, in one process.

    With several GPUs, give the same arguments to `accelerate launch -m rag_train.train`, which runs this command in
    each process.
    """
    from rag_train.training.recipe import load_train_recipe
    from rag_train.training.result import summary_line
    from rag_train.training.run import dry_run as plan
    from rag_train.training.run import train as run

    if device and not dry_run:
        raise UserError(f"--device {device}: only with --dry-run; a run takes the devices that it finds")
    loaded = load_train_recipe(recipe, overrides or [])
    if dry_run:
        if first_process():
            plan(loaded, device, as_json)
        return
    announce(f"stage {loaded.stage}: {loaded.model} on {loaded.data}")
    result = run(loaded)
    from rag_train.training.processes import end_processes  # here, for it imports PyTorch

    end_processes()
    report(as_json, asdict(result), summary_line(result))


@training.command(rich_help_panel=TRAINING)
def merge(
    model: Annotated[str, typer.Argument(help="Checkpoint directory or Hub name that the adapter was trained on.")],
    adapter: Annotated[str, typer.Argument(help="Directory of a LoRA adapter.")],
    output: Annotated[Path, typer.Argument(help="Checkpoint directory to write.")],
    dtype: Annotated[str, typer.Option(help="auto (the model's), bfloat16, float16 or float32.")] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Merge even if DTYPE is too coarse for what the adapter learned.")
    ] = False,
) -> None:
    """Merge a LoRA adapter into its model: a checkpoint in safetensors for transformers and vLLM.

    An adapter's directory can be evaluated, served and trained as it is. The merge is made in float32, and the
    share of the adapter's update that DTYPE can hold is printed; less than 90% is an error.
    """
    announce(f"merging {adapter} into {model}")
    from rag_train.training.merge import merge as run

    share = run(model, adapter, output, dtype, force)
    print(f"{output}: keeps {share:.1%} of the adapter's update")


@training.command(rich_help_panel=TRAINING)
def sweep(
    file: Annotated[Path, typer.Argument(help="Sweep file of W&B, for example launch/sweeps/deeprag_dpo.yaml.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for trials, trials.csv and sweep.html; by default runs/sweeps/FILE."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(help="Simultaneous trials; by default one on each visible GPU, or one on the CPU.", min=1),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Total number of trials; by default the file's run_cap.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Search over recipe keys: `wandb sweep` and `wandb agent` with the same file, but without an account.

    If the recipe has eval_data, trials are ranked by eval/loss or eval/accuracy, on held-out examples; otherwise by
    the last logged value of train/loss, or in stage dpo also of train/rewards/accuracies or train/rewards/margins.
    If a sweep is killed, the same command continues it.
    """
    from rag_train.sweeps.file import load_sweep
    from rag_train.sweeps.page import trials_table
    from rag_train.sweeps.run import run_sweep

    checked = load_sweep(file)
    result = run_sweep(checked, output or Path("runs/sweeps") / file.stem, parallel=parallel, trials=trials)
    if not as_json:
        Console().print(trials_table(checked, result.trials))
    best = ", ".join(f"{name}={value}" for name, value in result.best.parameters.items())
    line = f"{result.output}/sweep.html: best {result.metric} {result.best.value:.6g} at {best}"
    report(as_json, asdict(result), line)
