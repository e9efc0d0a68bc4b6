"""The recipe's key model_preset: it fills in what the recipe leaves out; the recipe's own keys win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.errors import UserError
from rag_train.model_presets import PRESETS, fill_from_preset, find_preset
from rag_train.recipe import save_recipe
from rag_train.training.recipe import load_train_recipe


def recipe(folder: Path, **keys: Any):
    (folder / "data.jsonl").touch()
    lines = {"stage": "sft", "data": str(folder / "data.jsonl"), "output_dir": "out", "lr": 1e-5, "epochs": 1}
    text = "\n".join(f"{key}: {value}" for key, value in (lines | keys).items())
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


def test_preset_fills_what_the_recipe_leaves_out(tmp_path: Path):
    loaded = load_train_recipe(recipe(tmp_path, model_preset="qwen2.5-7b"))
    assert loaded.model == "Qwen/Qwen2.5-7B-Instruct" and loaded.lora is None
    assert (loaded.batch_size, loaded.global_batch, loaded.gradient_checkpointing) == (1, 64, True)
    adapters = load_train_recipe(recipe(tmp_path, model_preset="llama3.3-70b-lora", lora="{r: 8}"))
    assert adapters.lora and adapters.lora.r == 8 and "gate_proj" in adapters.lora.target_modules
    assert adapters.quantize == "4bit"


def test_keys_of_the_recipe_and_of_the_command_line_win(tmp_path: Path):
    file = recipe(tmp_path, model_preset="qwen2.5-7b", model="mine", batch_size=4, gradient_checkpointing="false")
    loaded = load_train_recipe(file, ["gradient_accumulation=3"])
    assert (loaded.model, loaded.batch_size, loaded.gradient_accumulation) == ("mine", 4, 3)
    assert not loaded.gradient_checkpointing
    assert load_train_recipe(file).on(2).gradient_accumulation == 8  # 64 examples per step
    named = load_train_recipe(recipe(tmp_path, model_preset="qwen2.5-7b"), ["model_preset=smollm2-135m"])
    assert named.model == "HuggingFaceTB/SmolLM2-135M-Instruct"


OWN = ("model", "batch_size", "global_batch", "gradient_checkpointing", "lora", "quantize")


@given(st.sampled_from(sorted(PRESETS)), st.sets(st.sampled_from(OWN)))
def test_no_key_of_the_recipe_is_changed_and_no_other_is_missing(name: str, own: set[str]):
    data: dict[str, Any] = {"model_preset": f"{name}-lora"} | dict.fromkeys(own)
    fill_from_preset(data)
    assert all(data[key] is None for key in own) and set(data) == {"model_preset", *OWN}


def test_model_of_another_preset_is_a_contradiction(tmp_path: Path):
    """The recipes of the systems name Qwen2.5-7B: a preset on the command line must not be ignored."""
    file = recipe(tmp_path, model="Qwen/Qwen2.5-7B-Instruct")
    with pytest.raises(
        UserError, match="is not the model of the preset smollm2-135m; remove it, or set model=Hugg"
    ):
        load_train_recipe(file, ["model_preset=smollm2-135m"])
    assert load_train_recipe(file, ["model_preset=qwen2.5-7b-lora"]).lora


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen2.5-8b", "did you mean qwen2.5-7b or"),
        ("Qwen2.5-7B-lora", "did you mean qwen2.5-7b"),
        ("gpt-4o", "the presets are smollm2-135m, "),
    ],
)
def test_unknown_preset_names_near_ones(name: str, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=f"no preset {name!r}"):
        find_preset(name)
    with pytest.raises(UserError) as caught:
        load_train_recipe(recipe(tmp_path, model_preset=name))
    assert message in str(caught.value) and "recipe.yaml, line 6" in str(caught.value)


def test_saved_recipe_has_every_key_and_is_read_as_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded = load_train_recipe(recipe(tmp_path, model_preset="qwen2.5-7b-lora"))
    save_recipe(loaded, tmp_path / "saved.yaml")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert load_train_recipe(tmp_path / "saved.yaml") == loaded
