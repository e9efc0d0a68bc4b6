"""The model card (README.md, as on the Hugging Face Hub): what was trained, on which data, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from rag_train.files import write_text
from rag_train.templates import template
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import TrainResult


def write_card(directory: Path, recipe: TrainRecipe, result: TrainResult) -> None:
    """Write README.md into ``directory``. The licence is left to the user, who knows the licence of the data."""
    base = _hub_name(recipe.model)
    adapter = recipe.lora is not None and not recipe.lora.merge
    head = ModelCardData(
        base_model=base,
        base_model_relation=base and ("adapter" if adapter else "finetune"),
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["rag-train", "retrieval-augmented-generation", recipe.stage, *(["lora"] if recipe.lora else [])],
    )
    body = template("training/card.md.jinja").render(
        recipe=recipe,
        recipe_yaml=(Path(recipe.output_dir) / "recipe.yaml").read_text(encoding="utf-8").rstrip(),
        result=result,
        base=base or recipe.model,
        adapter=adapter,
        ends=_ends(result.losses),
    )
    write_text(directory / "README.md", f"---\n{head.to_yaml()}\n---\n\n{body}")


def _hub_name(model: str) -> str | None:
    """Return the Hub name of ``model``: itself, or for a directory the base model that its card names."""
    card = Path(model) / "README.md"
    if not Path(model).exists():
        return model
    base = ModelCard(card.read_text(encoding="utf-8")).data.get("base_model") if card.is_file() else None
    return base if isinstance(base, str) else None


def _ends(losses: list[dict[str, float]]) -> list[tuple[str, Any, Any]]:
    """Return the name, the first and the last logged value of every metric."""
    if not losses:
        return []
    first, last = losses[0], losses[-1]
    return [(name, value, last[name]) for name, value in first.items() if name in last]
