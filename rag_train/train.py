"""Training, from a recipe to a checkpoint directory: both stages, on one process or under a launcher.

    python -m rag_train.train recipes/deeprag_sft.yaml data=sft.jsonl output_dir=runs/sft
    accelerate launch --config_file launch/accelerate/zero3.yaml -m rag_train.train recipes/deeprag_sft.yaml …

A run that was killed goes on from its newest complete checkpoint when the same command is given again, to the
weights an uninterrupted run would have had. While it runs, ``output_dir`` holds ``recipe.yaml``, ``run.json``
(what the run is: recipe and hashes of its inputs), ``metrics.jsonl`` and ``checkpoints/``; when it has finished,
the model, its tokenizer and ``training.json``, which is written last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_train.errors import OneProcessError, UserError
from rag_train.files import sha256, write_text
from rag_train.progress import console
from rag_train.provenance import code_version, machine, weights_sha256
from rag_train.recipe import describe, load_recipe, save_recipe
from rag_train.training.config import TrainRecipe

RESULT = "training.json"
IDENTITY = "run.json"
CONFIGS = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class TrainResult:
    """What ``training.json`` says of a run."""

    output_dir: str
    steps: int
    """Optimizer steps."""
    losses: list[dict[str, float]]
    """Per logged step: step, loss, learning rate; for dpo also the mean reward margin and accuracy."""
    tokens_seen: int
    """Tokens that went through the model, padding not counted."""
    trained_share: float
    """Share of the data's tokens that carry loss."""
    data: dict[str, int]
    """Counts of a DataReport."""
    seconds: float
    """Time spent in training steps by the process that finished the run."""
    resumed_from: int
    """Step at which that process took over from a killed one; 0 if there was none."""
    data_sha256: str
    model_sha256: str | None
    """Of the starting model's weights; None for a hub name."""
    code_version: str
    machine: dict[str, str]
    already_finished: bool = False
    """The run had finished before; nothing was done."""


def train(recipe: TrainRecipe) -> TrainResult:
    """Run ``recipe``, go on with it, or find that it has finished; every process of a launch calls this.

    Raises UserError if data or model cannot be used, if ``output_dir`` holds another run, or if the loss stops
    being finite.
    """
    output_dir = Path(recipe.output_dir)
    identity = _identity(recipe)
    _require_same_run(output_dir, identity)
    if (output_dir / RESULT).is_file():
        before = TrainResult(**json.loads((output_dir / RESULT).read_text()))
        return replace(before, already_finished=True)

    if recipe.report_to != "none" and find_spec(recipe.report_to) is None:
        raise UserError(
            f"report_to={recipe.report_to}: the package is not installed; pip install {recipe.report_to}"
        )
    if recipe.quantize != "none" and find_spec("bitsandbytes") is None:
        raise UserError(
            f"quantize={recipe.quantize}: bitsandbytes is not installed; run pip install bitsandbytes, or set none"
        )
    checkpoints = output_dir / "checkpoints"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir {output_dir}: {error.strerror}; choose another one") from error

    _quiet_libraries()
    from rag_train.training.failures import explained

    with explained(recipe):
        return _run(recipe, identity, output_dir, checkpoints)


def _run(recipe: TrainRecipe, identity: dict[str, Any], output_dir: Path, checkpoints: Path) -> TrainResult:
    from accelerate import PartialState

    from rag_train.training.card import write_card
    from rag_train.training.memory import check_memory
    from rag_train.training.run import MarkComplete, ProgressBar, newest_complete, remove_torn
    from rag_train.training.tracking import tracked

    tokenizer, rows, report = _load_data(recipe)
    line = check_memory(recipe, rows, report)
    if PartialState().is_main_process:
        console.print(line, soft_wrap=True)
    trainer = _build_trainer(recipe, rows, tokenizer, checkpoints)
    if PartialState().is_main_process:
        save_recipe(recipe, output_dir / "recipe.yaml")
        _write_json(output_dir / IDENTITY, identity)
        remove_torn(checkpoints)
    trainer.add_callback(MarkComplete())
    resume = newest_complete(checkpoints)
    done = int(resume.name.rpartition("-")[2]) if resume else 0
    start = time.perf_counter()
    with tracked(trainer, recipe, identity, done), ProgressBar(recipe.stage) as bar:
        trainer.add_callback(bar)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    seconds = time.perf_counter() - start

    final = _save_final(trainer, recipe, tokenizer, checkpoints)
    result = TrainResult(
        output_dir=recipe.output_dir,
        steps=trainer.state.global_step,
        losses=_losses(trainer.state.log_history),
        tokens_seen=int(trainer.state.num_input_tokens_seen),
        trained_share=report.trained_tokens / report.tokens,
        data=asdict(report),
        seconds=seconds,
        resumed_from=done,
        data_sha256=identity["data_sha256"],
        model_sha256=identity["model_sha256"],
        code_version=code_version(),
        machine=_machine(PartialState().num_processes),
    )
    if PartialState().is_main_process:
        # A directory without its configuration is no model to anyone, so that comes after the weights.
        for file in sorted(final.iterdir(), key=lambda f: f.name in CONFIGS):
            file.replace(output_dir / file.name)
        write_card(output_dir, recipe, result)
        _write_json(output_dir / RESULT, asdict(result))
        shutil.rmtree(checkpoints)
    PartialState().wait_for_everyone()
    return result


def _identity(recipe: TrainRecipe) -> dict[str, Any]:
    """What makes two runs the same: the recipe but for where things go, and the inputs' contents."""
    elsewhere = ("output_dir", "report_to", "logging_steps", "check_memory")
    fields = {key: value for key, value in asdict(recipe).items() if key not in elsewhere}
    return {
        "recipe": fields | {"data": str(recipe.data)},
        "data_sha256": _sha256(recipe.data),
        "model_sha256": weights_sha256(recipe.model),
    }


def _sha256(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give the path of an existing file") from error


def _require_same_run(output_dir: Path, identity: dict[str, Any]) -> None:
    try:
        before = json.loads((output_dir / IDENTITY).read_text())
    except (FileNotFoundError, NotADirectoryError):
        if any((output_dir / name).exists() for name in CONFIGS):
            raise UserError(f"output_dir {output_dir}: holds a model already; choose another one") from None
        return
    except ValueError:
        raise UserError(f"output_dir {output_dir}: {IDENTITY} cannot be read; delete the directory") from None
    defaults = {field.name: field.default for field in fields(TrainRecipe)}  # of keys that there were not yet
    old, new = defaults | before.pop("recipe"), identity["recipe"]
    differing = [f"{k} (was {old.get(k)!r}, is {new[k]!r})" for k in new if old.get(k) != new[k]]
    differing += [f"the contents of {k.partition('_')[0]}" for k in before if before[k] != identity[k]]
    if differing:
        raise UserError(
            f"output_dir {output_dir}: holds a run that differs in {', '.join(differing)}; "
            "choose another output_dir or delete it"
        )


def _quiet_libraries() -> None:
    """Leave the terminal to the progress bar, and report no usage to anyone."""
    import logging
    import warnings

    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed, once imported, warns that it found no GPU

    import datasets
    import huggingface_hub.constants
    import transformers

    os.environ["TQDM_DISABLE"] = "1"
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


def _load_data(recipe: TrainRecipe):
    from transformers import AutoConfig

    from rag_train.llm.checkpoint import check_checkpoint, load_tokenizer
    from rag_train.training.data import dpo_rows, sft_rows

    check_checkpoint(recipe.model)
    tokenizer = load_tokenizer(recipe.model)
    for problem, present in (
        ("is not a fast one, which has no offsets for the loss mask", tokenizer.is_fast),
        ("has no end-of-text token", tokenizer.eos_token_id is not None),
        ("has no chat template; set chat=auto", tokenizer.chat_template or recipe.chat is not True),
    ):
        if not present:
            raise UserError(f"model {recipe.model}: the tokenizer {problem}")
    chat = bool(tokenizer.chat_template) if recipe.chat == "auto" else recipe.chat
    rows_of = sft_rows if recipe.stage == "sft" else dpo_rows
    rows, report = rows_of(recipe.data, tokenizer, max_tokens=recipe.max_tokens, chat=chat, balance=recipe.balance)
    largest = max(max(ids) for row in rows for key, ids in row.items() if key != "labels")
    vocabulary = AutoConfig.from_pretrained(recipe.model).get_text_config().vocab_size
    if largest >= vocabulary:
        raise UserError(
            f"model {recipe.model}: the tokenizer gives token {largest}, the model's vocabulary ends at "
            f"{vocabulary - 1}; copy the tokenizer files of the model's own base there"
        )
    return tokenizer, rows, report


def _build_trainer(recipe: TrainRecipe, rows, tokenizer, checkpoints: Path):
    from transformers import PrinterCallback

    try:
        if recipe.stage == "sft":
            from rag_train.training.sft import sft_trainer

            trainer = sft_trainer(recipe, rows, tokenizer, checkpoints)
        elif recipe.layout == "tree":
            from rag_train.training.calibration import tree_trainer

            trainer = tree_trainer(recipe, rows, tokenizer, checkpoints)
        else:
            from rag_train.training.dpo import dpo_trainer

            trainer = dpo_trainer(recipe, rows, tokenizer, checkpoints)
    except (OSError, ImportError, ValueError) as error:  # what TRL, PEFT and the hub raise for a wrong setting
        raise UserError(f"model {recipe.model}: {str(error).splitlines()[0]}") from error
    trainer.remove_callback(PrinterCallback)
    return trainer


def _save_final(trainer, recipe: TrainRecipe, tokenizer, checkpoints: Path) -> Path:
    """The trained model as a directory of safetensors; gathered from all processes, written by the first."""
    final = checkpoints / "final"
    trainer.save_model(str(final))
    if not trainer.is_world_process_zero():
        return final
    if recipe.lora is not None and recipe.lora.merge:  # it is the adapters that were saved
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        from rag_train.training.merge import merged

        unset_hf_deepspeed_config()  # or ZeRO-3 would shard the base model over processes that are not here
        adapter, final = final, checkpoints / "merged"
        merged(recipe.model, str(adapter)).save_pretrained(final)
        tokenizer.save_pretrained(final)
    (final / "training_args.bin").unlink(missing_ok=True)
    return final


def _losses(history: list[dict[str, float]]) -> list[dict[str, float]]:
    names = ("step", "loss", "learning_rate", "rewards/margins", "rewards/accuracies")
    return [{name: entry[name] for name in names if name in entry} for entry in history if "loss" in entry]


def _machine(processes: int) -> dict[str, str]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return machine() | {"gpu": gpu, "processes": str(processes)}


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, 2 where the user can mend it."""
    keys = "\n".join(f"  {key.name} ({key.type}, {key.default}): {key.help}" for key in describe(TrainRecipe))
    parser = argparse.ArgumentParser(
        prog="python -m rag_train.train",
        description="Train a controller from a recipe.",
        epilog=f"keys of a recipe:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a key of the recipe")
    options = parser.parse_args(arguments)
    first = os.environ.get("RANK", "0") == "0"
    try:
        recipe = load_recipe(TrainRecipe, options.recipe, options.overrides)
        if "WANDB_SWEEP_ID" in os.environ:  # `wandb agent` gives all its runs the same output_dir
            recipe = replace(recipe, output_dir=f"{recipe.output_dir}/{os.environ['WANDB_RUN_ID']}")
        result = train(recipe)
    except UserError as error:
        if first or isinstance(error, OneProcessError):
            print(f"error: {error}", file=sys.stderr)
        return 2
    if first:
        print(summary_line(result))
    return 0


def summary_line(result: TrainResult) -> str:
    if result.already_finished:
        return f"{result.output_dir}: finished already ({result.steps} steps); nothing to do"
    loss = f", loss {result.losses[-1]['loss']:.4f}" if result.losses else ""
    dropped = result.data["too_long"] + result.data["untrained"]
    return (
        f"{result.output_dir}: {result.steps} steps on {result.data['examples']} examples{loss}, "
        f"{result.trained_share:.0%} of the tokens trained, {result.data['shortened']} shortened, "
        f"{dropped} dropped, {result.seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
