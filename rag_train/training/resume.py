"""Which run a directory holds: what its result depends on, whether it has finished, and where it continues.

Heavy libraries are imported inside the functions, so that wrong settings are reported without waiting for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.formats.instructions import OURS
from rag_train.identity import files
from rag_train.jobs.files import write_json
from rag_train.progress import say
from rag_train.provenance import weights_sha256
from rag_train.recipe import save_recipe
from rag_train.retrieval.base import identity as retriever_identity
from rag_train.retrieval.open import open_retriever
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import RESULT, TrainResult
from rag_train.training.rl.rewards import Rewards

IDENTITY = "run.json"
CONFIGS = ("config.json", "adapter_config.json")


def identity_of(recipe: TrainRecipe) -> dict[str, Any]:
    """Return the keys of the recipe that affect the model, and the hashes of the inputs.

    Raises UserError for an input that cannot be had.
    """
    from rag_train.llm.checkpoint import base_of

    ignored = ("output_dir", "report_to", "logging_steps", "check_memory", "save_only_model")
    settings = {key: value for key, value in asdict(recipe).items() if key not in ignored}
    paths = {key: str(value) for key, value in settings.items() if isinstance(value, Path)}
    data, *held_out = files(path for path in (recipe.data, recipe.eval_data) if path)
    more: dict[str, Any] = {}
    if recipe.rl:
        more["retriever"] = retriever_identity(open_retriever(recipe.rl.index))
        more["rewards"] = Rewards(recipe.rl.reward, recipe.rl.price).own_code()
        more["prompts"] = {each.name: each.text for each in (recipe.rl.given or OURS).values() if each.own}
    base, adapter = base_of(recipe.model)
    if adapter:
        more["base_sha256"] = weights_sha256(base)
    return more | {
        "recipe": settings | paths,
        "data_sha256": data,
        "eval_data_sha256": held_out[0] if held_out else None,
        "model_sha256": weights_sha256(recipe.model),
        "model_commit": _commit(recipe),
    }


def _commit(recipe: TrainRecipe) -> str | None:
    """Return the commit of a model on the Hub, which for a run that continues is the one that it began with."""
    from rag_train.llm.hub import commit_of, is_hub_name

    if not is_hub_name(recipe.model):
        if recipe.revision:
            raise UserError(f"revision={recipe.revision}: model {recipe.model} is a directory; remove the revision")
        return None
    try:
        before = json.loads((Path(recipe.output_dir) / IDENTITY).read_text())
        began = {key: before["recipe"].get(key) for key in ("model", "revision")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        before, began = {}, {}
    if before.get("model_commit") and began == {"model": recipe.model, "revision": recipe.revision}:
        return before["model_commit"]
    return commit_of(recipe.model, recipe.revision)


def finished(output_dir: Path, identity: dict[str, Any]) -> TrainResult | None:
    """Return the result of the run in ``output_dir``; None if there is no run yet, or one to continue.

    Raises UserError if ``output_dir`` holds another run or a model from elsewhere.
    """
    _require_same_run(output_dir, identity)
    if not (output_dir / RESULT).is_file():
        return None
    return replace(TrainResult(**json.loads((output_dir / RESULT).read_text())), already_finished=True)


def _require_same_run(output_dir: Path, identity: dict[str, Any]) -> None:
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


def resume(recipe: TrainRecipe, identity: dict[str, Any]) -> Path | None:
    """Return the checkpoint that the run continues from, and say so; None if it begins.

    The first process writes the recipe and the identity of the run, and deletes later and incomplete checkpoints.
    """
    from accelerate import PartialState

    from rag_train.training.checkpoints import newest_to_continue, remove_unused

    output_dir = Path(recipe.output_dir)
    checkpoint = newest_to_continue(output_dir / "checkpoints")
    if PartialState().is_main_process:
        if (output_dir / IDENTITY).exists():
            _tell_start(output_dir, checkpoint)
        save_recipe(recipe, output_dir / "recipe.yaml")
        write_json(output_dir / IDENTITY, identity)
        remove_unused(output_dir / "checkpoints", checkpoint)
    return checkpoint


def _tell_start(output_dir: Path, checkpoint: Path | None) -> None:
    """Say where a run continues that was interrupted; ``checkpoint`` is the one that it continues from."""
    from rag_train.training.checkpoints import newest_complete, step_of

    if checkpoint:
        start = f"continues from step {step_of(checkpoint)}"
    elif newest_complete(output_dir / "checkpoints"):
        start = "starts again from the first step: its checkpoints have the weights only (save_only_model)"
    else:
        start = "starts again from the first step: it has no complete checkpoint yet"
    say(f"{output_dir}: {start}")
