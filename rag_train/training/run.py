"""A training run of any stage, from a recipe to a model directory, on one process or under a launcher.

While it runs, ``output_dir`` holds ``recipe.yaml``, ``run.json`` (the identity of the run: its recipe and the
hashes of its inputs), ``metrics.jsonl`` and ``checkpoints/``. When it has finished, ``output_dir`` holds the model,
its tokenizer, a model card and ``training.json``, which is written last.

If a run is killed and the same command is given again, training continues from the newest complete checkpoint and
ends with the weights of an uninterrupted run.

Heavy libraries are imported inside the functions, so that wrong settings are reported without waiting for them.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.jobs.files import sha256, write_text
from rag_train.precision import has_bf16
from rag_train.progress import console
from rag_train.provenance import code_version, machine, weights_sha256
from rag_train.recipe import save_recipe
from rag_train.retrieval.base import identity as retriever_identity
from rag_train.retrieval.open import open_retriever
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import RESULT, TrainResult
from rag_train.training.rl.rewards import Rewards

IDENTITY = "run.json"
CONFIGS = ("config.json", "adapter_config.json")


def train(recipe: TrainRecipe) -> TrainResult:
    """Run ``recipe`` or continue it, or return the result of the finished run. All processes of a launch call this.

    Raises UserError if the data or the model cannot be used, if ``output_dir`` holds another run, or if the loss
    becomes infinite or NaN.
    """
    output_dir = Path(recipe.output_dir)
    identity = _identity(recipe, output_dir)
    _require_same_run(output_dir, identity)
    if (output_dir / RESULT).is_file():
        result = TrainResult(**json.loads((output_dir / RESULT).read_text()))
        return replace(result, already_finished=True)

    _require_packages(recipe)
    checkpoints, made = output_dir / "checkpoints", not output_dir.exists()
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output_dir {output_dir}: {error.strerror}; choose another directory") from error

    prepare_libraries()
    recipe = _with_precision(recipe, has_bf16())
    from rag_train.llm.hub import snapshot
    from rag_train.training.failures import explain_failures

    try:
        with explain_failures(recipe):
            commit = identity["model_commit"]
            located = replace(recipe, model=snapshot(recipe.model, commit)) if commit else recipe
            return _run(recipe, located, identity, output_dir, checkpoints)
    except UserError:
        for folder in (checkpoints, *([output_dir] if made else [])):
            with suppress(OSError):  # only empty folders are removed
                folder.rmdir()
        raise


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
    recipe = _with_precision(recipe, named is not None or has_bf16())
    _require_packages(recipe)
    _, rows, report = load_data(recipe)
    planned = plan(recipe, rows, report, named)
    if as_json:
        print(json.dumps(planned.summary()))
    else:
        Console().print(planned.table())
    check(planned, recipe, rows)


def _with_precision(recipe: TrainRecipe, bf16: bool) -> TrainRecipe:
    """Return the recipe with its precision chosen, for a device that has instructions for ``bf16`` or not."""
    if recipe.precision == "auto":
        return replace(recipe, precision="bf16" if bf16 else "fp32")
    if recipe.precision == "bf16" and not bf16:
        console.print("precision=bf16: this machine has no instructions for bf16, fp32 would be many times faster")
    return recipe


def _run(
    recipe: TrainRecipe, located: TrainRecipe, identity: dict[str, Any], output_dir: Path, checkpoints: Path
) -> TrainResult:
    """Train ``located``, the recipe with the directory of its model in place of a name on the Hub."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    from rag_train.training.card import write_card
    from rag_train.training.checkpoints import MarkComplete, newest_to_continue, remove_unused, step_of
    from rag_train.training.memory import current_sharding
    from rag_train.training.plan import check, plan
    from rag_train.training.processes import check_processes
    from rag_train.training.tracking import tracked
    from rag_train.training.validation import Validation

    settled = located.on(current_sharding().processes)
    check_processes(checkpoints, identity | {"precision": recipe.precision})
    tokenizer, rows, report = load_data(located)
    held_out = _held_out(recipe, tokenizer)
    planned = plan(located, rows, report)
    check(planned, located, rows)
    if PartialState().is_main_process:
        console.print(planned.line(), soft_wrap=True)
    trainer = build_trainer(settled, rows, tokenizer, checkpoints, held_out)
    checkpoint = newest_to_continue(checkpoints)
    if PartialState().is_main_process:
        _tell_start(output_dir, checkpoint)
        save_recipe(recipe, output_dir / "recipe.yaml")
        _write_json(output_dir / IDENTITY, identity)
        remove_unused(checkpoints, checkpoint)
    trainer.add_callback(MarkComplete())
    trainer.add_callback(Validation(recipe))
    resumed_from = step_of(checkpoint) if checkpoint else 0
    start = time.perf_counter()
    with tracked(trainer, recipe, identity, resumed_from):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - start

    final, survived, problem = _save_model(trainer, located, tokenizer, checkpoints)
    result = TrainResult(
        output_dir=recipe.output_dir,
        steps=trainer.state.global_step,
        losses=_losses(trainer.state.log_history),
        validation=_validation(trainer.state.log_history),
        trained_parameters=planned.model.trained(recipe.lora),
        kept_step=_kept_step(trainer, recipe),
        tokens_seen=int(trainer.state.num_input_tokens_seen),
        trained_share=None if recipe.stage == "rl" else report.trained_tokens / report.tokens,
        data=asdict(report),
        seconds=seconds,
        resumed_from=resumed_from,
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
        write_card(output_dir, recipe, result)
        _write_json(output_dir / RESULT, asdict(result))
        shutil.rmtree(checkpoints)
    PartialState().wait_for_everyone()
    [problem] = broadcast_object_list([problem])
    if problem:
        raise UserError(f"output_dir {output_dir}: holds the adapter, which is trained and complete; {problem}")
    return result


def _tell_start(output_dir: Path, checkpoint: Path | None) -> None:
    """Say where a run continues that was interrupted; ``checkpoint`` is the one that it continues from."""
    from rag_train.training.checkpoints import newest_complete, step_of

    if not (output_dir / IDENTITY).exists():
        return
    if checkpoint:
        start = f"continues from step {step_of(checkpoint)}"
    elif newest_complete(output_dir / "checkpoints"):
        start = "starts again from the first step: its checkpoints have the weights only (save_only_model)"
    else:
        start = "starts again from the first step: it has no complete checkpoint yet"
    console.print(f"{output_dir}: {start}", soft_wrap=True)


def _identity(recipe: TrainRecipe, output_dir: Path) -> dict[str, Any]:
    """Return the keys of the recipe that affect the model, and the hashes of the inputs.

    Raises UserError for an input that cannot be had.
    """
    from rag_train.llm.checkpoint import base_of

    ignored = ("output_dir", "report_to", "logging_steps", "check_memory", "save_only_model")
    settings = {key: value for key, value in asdict(recipe).items() if key not in ignored}
    paths = {key: str(value) for key, value in settings.items() if isinstance(value, Path)}
    more: dict[str, Any] = {}
    if recipe.rl:
        more["retriever"] = retriever_identity(open_retriever(recipe.rl.index))
        more["rewards"] = Rewards(recipe.rl.reward, recipe.rl.price).own_code()
    base, adapter = base_of(recipe.model)
    if adapter:
        more["base_sha256"] = weights_sha256(base)
    return more | {
        "recipe": settings | paths,
        "data_sha256": _sha256(recipe.data),
        "eval_data_sha256": recipe.eval_data and _sha256(recipe.eval_data),
        "model_sha256": weights_sha256(recipe.model),
        "model_commit": _commit(recipe, output_dir),
    }


def _commit(recipe: TrainRecipe, output_dir: Path) -> str | None:
    """Return the commit of a model on the Hub, which for a run in ``output_dir`` is the one that it began with."""
    from rag_train.llm.hub import commit_of, is_hub_name

    if not is_hub_name(recipe.model):
        if recipe.revision:
            raise UserError(f"revision={recipe.revision}: model {recipe.model} is a directory; remove the revision")
        return None
    try:
        before = json.loads((output_dir / IDENTITY).read_text())
        began = {key: before["recipe"].get(key) for key in ("model", "revision")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        before, began = {}, {}
    if before.get("model_commit") and began == {"model": recipe.model, "revision": recipe.revision}:
        return before["model_commit"]
    return commit_of(recipe.model, recipe.revision)


def _sha256(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give the path of an existing file") from error


def _require_same_run(output_dir: Path, identity: dict[str, Any]) -> None:
    """Raise UserError if ``output_dir`` holds another run or a model from elsewhere."""
    try:
        before = json.loads((output_dir / IDENTITY).read_text())
    except (FileNotFoundError, NotADirectoryError):
        if any((output_dir / name).exists() for name in CONFIGS):
            raise UserError(f"output_dir {output_dir}: already holds a model; choose another directory") from None
        return
    except ValueError:
        raise UserError(f"output_dir {output_dir}: {IDENTITY} is damaged; delete the directory") from None
    if old_keys := before["recipe"].keys() - identity["recipe"].keys():
        raise UserError(
            f"output_dir {output_dir}: holds a run of an earlier version, whose recipe has other keys "
            f"({', '.join(sorted(old_keys))}); choose another output_dir or delete it"
        )
    defaults = {field.name: field.default for field in fields(TrainRecipe) if field.name in identity["recipe"]}
    differing = list(_differences(defaults | before.pop("recipe"), identity["recipe"]))
    differing += [
        f"the contents of {name.removesuffix('_sha256')}" for name in before if before[name] != identity.get(name)
    ]
    if differing:
        raise UserError(
            f"output_dir {output_dir}: holds a run that differs in {', '.join(differing)}; "
            "choose another output_dir or delete it"
        )


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Describe each key whose values differ, nested keys dotted."""
    for key in old | new:
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differences(was, now, f"{prefix}{key}.")
        elif was != now:
            yield f"{prefix}{key} (was {was!r}, is {now!r})"


def _require_packages(recipe: TrainRecipe) -> None:
    if recipe.report_to != "none" and find_spec(recipe.report_to) is None:
        raise UserError(
            f"report_to={recipe.report_to}: the package is not installed; run pip install {recipe.report_to}"
        )
    if recipe.quantize != "none" and find_spec("bitsandbytes") is None:
        raise UserError(
            f"quantize={recipe.quantize}: bitsandbytes is not installed; run pip install bitsandbytes, or set "
            "quantize=none"
        )


def prepare_libraries() -> None:
    """Silence the libraries' logs and progress bars, turn off usage reports, and let memory segments grow."""
    import logging
    import warnings

    # Batches differ in size, and PyTorch reserves a block of a GPU's memory for each size unless segments can grow.
    # For packed rows on an H200 (two layers as wide as Qwen2.5-7B), 11.9 GB were reserved for 6.8 GB in use, and
    # 7.6 GB with growing segments. PyTorch reads the variable when it is imported or first used.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name of the same variable
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed warns on import that it found no GPU

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


def load_data(recipe: TrainRecipe):
    """Return the tokenizer, the rows of token ids and the `DataReport`."""
    from rag_train.llm.checkpoint import base_of, check_checkpoint, check_vocabulary, load_tokenizer
    from rag_train.training.rows import largest_token
    from rag_train.training.setup import check_adapters, model_config

    base, adapter = base_of(recipe.model)
    check_checkpoint(base)
    if adapter:
        check_vocabulary(adapter, base)
        check_adapters(recipe, adapter)
    tokenizer = load_tokenizer(adapter if adapter and (Path(adapter) / "tokenizer.json").is_file() else base)
    for problem, valid in (
        ("is not a fast tokenizer, which the loss mask needs; use a model with tokenizer.json", tokenizer.is_fast),
        (
            "has no end-of-text token; set eos_token in tokenizer_config.json",
            tokenizer.eos_token_id is not None,
        ),
        ("has no chat template; set chat=auto", tokenizer.chat_template or recipe.chat is not True),
    ):
        if not valid:
            raise UserError(f"model {recipe.model}: the tokenizer {problem}")
    if recipe.rl:
        from rag_train.training.rl.trainer import question_rows

        return tokenizer, *question_rows(recipe.data, tokenizer, Rewards(recipe.rl.reward, recipe.rl.price))
    rows, report = _read(recipe, recipe.data, tokenizer, balance=recipe.balance)
    largest = largest_token(rows)
    vocabulary = model_config(recipe).get_text_config().vocab_size
    if largest >= vocabulary:
        raise UserError(
            f"model {recipe.model}: the tokenizer gives token {largest}, but the model's vocabulary ends at "
            f"{vocabulary - 1}; copy the tokenizer files of the model's own base there"
        )
    return tokenizer, rows, report


def _read(recipe: TrainRecipe, path: Path, tokenizer: Any, *, balance: bool = False):
    """Return the rows of token ids in ``path`` and their `DataReport`."""
    from rag_train.training.data import dpo_rows, sft_rows

    chat = bool(tokenizer.chat_template) if recipe.chat == "auto" else recipe.chat
    read = sft_rows if recipe.stage == "sft" else dpo_rows
    return read(path, tokenizer, max_tokens=recipe.max_tokens, chat=chat, balance=balance)


def _held_out(recipe: TrainRecipe, tokenizer: Any) -> Any:
    """Return the rows of ``eval_data``, or None if the recipe has none."""
    from rag_train.training.validation import require_disjoint

    if recipe.eval_data is None:
        return None
    rows, _ = _read(recipe, recipe.eval_data, tokenizer)
    require_disjoint(recipe.data, recipe.eval_data)
    return rows


def build_trainer(recipe: TrainRecipe, rows: Any, tokenizer: Any, checkpoints: Path, held_out: Any = None):
    """Return the trainer of the recipe's stage and layout, its model loaded; it is evaluated on ``held_out``.

    Raises UserError if TRL, PEFT or the Hub refuse a setting.
    """
    from transformers import PrinterCallback

    from rag_train.training.merge import valid_generation

    try:
        if recipe.stage == "sft":
            from rag_train.training.sft import sft_trainer

            trainer = sft_trainer(recipe, rows, tokenizer, checkpoints, held_out)
        elif recipe.stage == "rl":
            from rag_train.training.rl.trainer import rl_trainer

            trainer = rl_trainer(recipe, rows, tokenizer, checkpoints)
        elif recipe.trees:
            from rag_train.training.tree_dpo import tree_trainer

            trainer = tree_trainer(recipe, rows, tokenizer, checkpoints, held_out)
        else:
            from rag_train.training.dpo import dpo_trainer

            trainer = dpo_trainer(recipe, rows, tokenizer, checkpoints, held_out)
    except (OSError, ImportError, ValueError) as error:
        raise UserError(f"model {recipe.model}: {str(error).splitlines()[0]}") from error
    valid_generation(trainer.model)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _save_model(
    trainer, recipe: TrainRecipe, tokenizer, checkpoints: Path
) -> tuple[Path, float | None, str | None]:
    """Gather the trained model from all processes, and return its directory, which the first process writes.

    Also returns the share of the update that the saved weights keep, if it was measured; and why adapters that were
    to be merged are saved as they are, if they are.
    """
    from rag_train.training.merge import merge, survival_of

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
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        from rag_train.llm.checkpoint import base_of

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
        _write_json(config, json.loads(config.read_text()) | base)


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
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return machine() | {"gpu": gpu, "processes": str(processes)}


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")
