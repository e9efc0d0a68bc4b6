"""The model card (README.md, as on the Hugging Face Hub): what was trained, on which data, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from rag_train.jobs.files import placed_records, write_text
from rag_train.llm.checkpoint import base_of
from rag_train.schema import SFTRecord
from rag_train.templates import template
from rag_train.training.data import REMEDY
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import TrainResult

PIPELINES = {False: "text-generation", True: "text2text-generation"}
"""Task by its name on the Hub, by whether the model is an encoder-decoder."""


def write_card(directory: Path, recipe: TrainRecipe, result: TrainResult, *, encoder_decoder: bool = False) -> None:
    """Write README.md into ``directory``. The licence is left to the user, who knows the licence of the data."""
    base = _hub_name(recipe.model)
    adapter = (directory / "adapter_config.json").is_file()
    head = ModelCardData(
        base_model=base,
        base_model_relation=base and ("adapter" if adapter else "finetune"),
        library_name="peft" if adapter else "transformers",
        pipeline_tag=PIPELINES[encoder_decoder],
        tags=["rag-train", "retrieval-augmented-generation", recipe.stage, *(["lora"] if recipe.lora else [])],
    )
    body = template("training/card.md.jinja").render(
        recipe=recipe,
        recipe_yaml=(Path(recipe.output_dir) / "recipe.yaml").read_text(encoding="utf-8").rstrip(),
        result=result,
        base=base or base_of(recipe.model)[0],
        adapter=adapter,
        encoder_decoder=encoder_decoder,
        tasks=_tasks(recipe),
        ends=_ends(result.losses),
    )
    write_text(directory / "README.md", f"---\n{head.to_yaml()}\n---\n\n{body}")


def write_merged_card(
    directory: Path, model: str, adapter: Path, dtype: str, survived: float, *, encoder_decoder: bool = False
) -> None:
    """Write README.md for ``model`` with the ``adapter`` merged into it, with what the adapter's card says.

    ``survived`` is the share of the adapter's update that is left in the weights, which are saved as ``dtype``.
    """
    card = ModelCard(text) if (text := _read(adapter / "README.md")) else None
    tags = card.data.get("tags") if card else None
    base = _hub_name(model)
    head = ModelCardData(
        base_model=base,
        base_model_relation=base and "finetune",
        library_name="transformers",
        pipeline_tag=PIPELINES[encoder_decoder],
        tags=tags or ["rag-train", "retrieval-augmented-generation", "lora"],
    )
    body = f"# `{base or Path(model).name}` with an adapter trained by rag-train, merged\n\n"
    body += f"{dtype} keeps {survived:.1%} of the adapter's update of the weights.\n\n"
    if card:
        body += "What follows is about the adapter.\n\n#" + card.text.strip()
    write_text(directory / "README.md", f"---\n{head.to_yaml()}\n---\n\n{body}\n")


def _tasks(recipe: TrainRecipe) -> list[str]:
    """Return the tasks of the data's examples; none for DeepRAG's controller."""
    if recipe.stage != "sft":
        return []
    tasks = {record.task for _, record in placed_records(recipe.data, SFTRecord, REMEDY)}
    return [] if "" in tasks else sorted(tasks)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _hub_name(model: str) -> str | None:
    """Return the Hub name of ``model``: itself, or for a directory the base model that its card names."""
    if not Path(model).exists():
        return model
    text = _read(Path(model) / "README.md")
    base = ModelCard(text).data.get("base_model") if text else None
    return base if isinstance(base, str) else None


def _ends(losses: list[dict[str, float]]) -> list[tuple[str, Any, Any]]:
    """Return the name, the first and the last logged value of every metric."""
    if not losses:
        return []
    first, last = losses[0], losses[-1]
    return [(name, value, last[name]) for name, value in first.items() if name in last]
