"""The end of a run: the model, its card and its result, moved into the output directory when they are complete."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from rag_train.errors import UserError
from rag_train.jobs.files import write_json
from rag_train.llm.checkpoint import base_of
from rag_train.provenance import code_version, machine
from rag_train.training.card import write_card
from rag_train.training.checkpoints import step_of
from rag_train.training.data import DataReport
from rag_train.training.merge import merge, survival_of
from rag_train.training.plan import Plan
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import RESULT, TrainResult
from rag_train.training.resume import CONFIGS


def save(
    trainer: Any,
    recipe: TrainRecipe,
    planned: Plan,
    report: DataReport,
    identity: dict[str, Any],
    checkpoint: Path | None,
    seconds: float,
) -> TrainResult:
    """Write the model and the result of a run of ``recipe`` that took ``seconds`` from ``checkpoint`` on.

    All processes call this. Raises UserError if adapters that were to be merged are saved as they are.
    """
    output_dir = Path(recipe.output_dir)
    checkpoints = output_dir / "checkpoints"
    final, survived, problem = _save_model(trainer, planned.recipe, checkpoints)
    result = TrainResult(
        output_dir=recipe.output_dir,
        steps=trainer.state.global_step,
        losses=_losses(trainer.state.log_history),
        validation=_validation(trainer.state.log_history),
        trained_parameters=planned.model.trained(planned.recipe.lora),
        kept_step=_kept_step(trainer, recipe),
        tokens_seen=int(trainer.state.num_input_tokens_seen),
        trained_share=None if recipe.stage == "rl" else report.trained_tokens / report.tokens,
        data=asdict(report),
        seconds=seconds,
        resumed_from=step_of(checkpoint),
        data_sha256=identity["data_sha256"],
        model_sha256=identity["model_sha256"],
        model_commit=identity["model_commit"],
        survived=survived,
        code_version=code_version(),
        machine=_machine(PartialState().num_processes),
    )
    if PartialState().is_main_process:
        if result.model_commit:
            _name_base(final / "adapter_config.json", recipe.model, result.model_commit)
        # The configuration is moved after the weights: a directory without it is not taken for a model.
        for file in sorted(final.iterdir(), key=lambda f: f.name in CONFIGS):
            file.replace(output_dir / file.name)
        write_card(output_dir, recipe, result, encoder_decoder=planned.model.encoder_decoder)
        write_json(output_dir / RESULT, asdict(result))
        shutil.rmtree(checkpoints)
    PartialState().wait_for_everyone()
    [problem] = broadcast_object_list([problem])
    if problem:
        raise UserError(f"output_dir {output_dir}: holds the adapter, which is trained and complete; {problem}")
    return result


def _save_model(trainer: Any, recipe: TrainRecipe, checkpoints: Path) -> tuple[Path, float | None, str | None]:
    """Gather the trained model from all processes, and return its directory, which the first process writes.

    Also returns the share of the update that the saved weights keep, if it was measured; and why adapters that were
    to be merged are saved as they are, if they are.
    """
    final, survived = checkpoints / "final", None
    if recipe.lora is None and _kept_step(trainer, recipe) == trainer.state.global_step:
        survived = survival_of(trainer, recipe.model)
    trainer.save_model(str(final))
    if not trainer.is_world_process_zero():
        return final, None, None
    (final / "training_args.bin").unlink(missing_ok=True)
    if recipe.keep == "best":
        kept = checkpoints / f"checkpoint-{_kept_step(trainer, recipe)}"
        for file in final.iterdir():  # a checkpoint has the same files, and those that training continues from
            shutil.copyfile(kept / file.name, file)
    if recipe.lora is not None and recipe.lora.merge:  # only the adapters have been saved so far
        unset_hf_deepspeed_config()  # ZeRO-3 would shard the base model over processes that do not take part here
        merged = checkpoints / "merged"
        try:
            return merged, merge(base_of(recipe.model)[0], str(final), merged), None
        except UserError as error:
            return final, None, str(error).replace(str(final), recipe.output_dir)
    return final, survived, None


def _name_base(config: Path, model: str, commit: str) -> None:
    """Give an adapter the Hub name of its base model in place of the directory on this machine."""
    if config.exists():
        base = {"base_model_name_or_path": model, "revision": commit}
        write_json(config, json.loads(config.read_text()) | base)


def _kept_step(trainer, recipe: TrainRecipe) -> int:
    """Return the step whose weights are the result."""
    return trainer.state.best_global_step if recipe.keep == "best" else trainer.state.global_step


def _validation(history: list[dict[str, float]]) -> list[dict[str, float]]:
    names = ("step", "eval_loss", "eval_accuracy")
    return [{name: entry[name] for name in names} for entry in history if "eval_loss" in entry]


def _losses(history: list[dict[str, float]]) -> list[dict[str, float]]:
    names = ("step", "loss", "learning_rate", "rewards/margins", "rewards/accuracies", "reward", "reward_std")
    return [{name: entry[name] for name in names if name in entry} for entry in history if "loss" in entry]


def _machine(processes: int) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return machine() | {"gpu": gpu, "processes": str(processes)}
