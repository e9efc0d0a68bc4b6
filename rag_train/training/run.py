"""A training run of any stage, from a recipe to a model directory, on one process or under a launcher.

While it runs, ``output_dir`` holds ``recipe.yaml``, ``run.json`` (the identity of the run: its recipe and the
hashes of its inputs), ``metrics.jsonl`` and ``checkpoints/``. When it has finished, ``output_dir`` holds the model,
its tokenizer, a model card and ``training.json``, which is written last.

If a run is killed and the same command is given again, training continues from the newest complete checkpoint and
ends with the weights of an uninterrupted run.

Each step of `train` is in the file of its name. Heavy libraries are imported inside the functions, so that wrong
settings are reported without waiting for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rag_train.errors import UserError
from rag_train.precision import has_bf16
from rag_train.training.load import (
    fitted,
    load_data,
    load_held_out,
    prepare_libraries,
    require_packages,
    with_precision,
)
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import TrainResult
from rag_train.training.resume import finished, identity_of, resume


def train(recipe: TrainRecipe) -> TrainResult:
    """Run ``recipe`` or continue it, or return the result of the finished run. All processes of a launch call this.

    Raises UserError if the data or the model cannot be used, if ``output_dir`` holds another run, or if the loss
    becomes infinite or NaN.
    """
    identity = identity_of(recipe)
    if result := finished(Path(recipe.output_dir), identity):
        return result
    require_packages(recipe)
    with _folder_of_checkpoints(Path(recipe.output_dir)) as checkpoints:
        prepare_libraries()
        from rag_train.llm.hub import snapshot
        from rag_train.training.build import build_trainer
        from rag_train.training.failures import explain_failures
        from rag_train.training.fit import fit
        from rag_train.training.memory import current_sharding
        from rag_train.training.plan import check, plan
        from rag_train.training.processes import check_processes, say_once
        from rag_train.training.save import save

        recipe = with_precision(recipe, has_bf16())
        with explain_failures(recipe):
            commit = identity["model_commit"]
            located = fitted(replace(recipe, model=snapshot(recipe.model, commit)) if commit else recipe)
            settled = located.on(current_sharding().processes)
            check_processes(checkpoints, identity | {"precision": recipe.precision})
            tokenizer, rows, report = load_data(located)
            held_out = load_held_out(recipe, tokenizer)
            planned = plan(located, rows, report)
            check(planned, located, rows)
            say_once(planned.line())
            trainer = build_trainer(settled, rows, tokenizer, checkpoints, held_out)
            checkpoint = resume(recipe, identity)
            seconds = fit(trainer, recipe, identity, checkpoint)
            return save(trainer, recipe, planned, report, identity, checkpoint, seconds)


def dry_run(recipe: TrainRecipe, device: str | None = None, as_json: bool = False) -> None:
    """Print what ``recipe`` would take here, or on the named ``device`` (`rag_train.training.devices`).

    The data are tokenised if they have not been yet; no weights are loaded, and ``output_dir`` is not touched.
    Raises UserError, after printing, where `train` would refuse to start.
    """
    prepare_libraries()
    from rich.console import Console

    from rag_train.training.devices import find_device
    from rag_train.training.plan import check, plan

    named = find_device(device) if device else None
    recipe = with_precision(recipe, named is not None or has_bf16())
    require_packages(recipe)
    recipe = fitted(recipe)
    _, rows, report = load_data(recipe)
    planned = plan(recipe, rows, report, named)
    if as_json:
        print(json.dumps(planned.summary()))
    else:
        Console().print(planned.table())
    check(planned, recipe, rows)


@contextmanager
def _folder_of_checkpoints(output_dir: Path) -> Iterator[Path]:
    """Create the folder, and remove it again if the run is refused before anything is in it."""
    checkpoints, made = output_dir / "checkpoints", not output_dir.exists()
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir {output_dir}: {error.strerror}; choose another directory") from error
    try:
        yield checkpoints
    except UserError:
        for folder in (checkpoints, *([output_dir] if made else [])):
            with suppress(OSError):  # only empty folders are removed
                folder.rmdir()
        raise
