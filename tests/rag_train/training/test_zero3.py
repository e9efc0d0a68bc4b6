"""DeepSpeed ZeRO-3 on two CPU processes: the same losses, evaluations and kept weights as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.paths import ROOT
from support.training import pair, recipe_in, sft_record, write

from rag_train.recipe import save_recipe
from rag_train.training.recipe import DPORecipe, SFTRecipe, TrainRecipe
from rag_train.training.run import train


def launch(recipe: TrainRecipe) -> dict:
    """Train on two processes and return the contents of training.json."""
    output = Path(recipe.output_dir)
    save_recipe(recipe, output.with_suffix(".yaml"))
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    config = ["--config_file", str(ROOT / "launch" / "accelerate" / "zero3_cpu.yaml")]
    subprocess.run(
        [*launcher, *config, "-m", "rag_train.train", str(output.with_suffix(".yaml"))],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    return json.loads((output / "training.json").read_text())


@pytest.mark.release
@pytest.mark.parametrize("stage", ["sft", "dpo"])
@pytest.mark.slow
def test_zero3_on_two_processes_equals_one(work: Path, tmp_path: Path, stage: str):
    """dpo uses the tree layout, whose rows do not depend on the number of processes."""
    pytest.importorskip("deepspeed")
    keys = {"dpo": DPORecipe(layout="tree"), "lr": 1e-3} if stage == "dpo" else {}
    make = sft_record if stage == "sft" else pair
    held_out = write(tmp_path / "held_out.jsonl", [make(i) for i in range(100, 105)])
    keys |= {"eval_data": held_out, "eval_steps": 1, "keep": "best"}
    recipe = recipe_in(work, tmp_path / "two", stage=stage, batch_size=2, precision="fp32", epochs=2, **keys)
    single = {"gradient_accumulation": 2} if stage == "dpo" else {"batch_size": 4}
    one = train(replace(recipe, output_dir=str(tmp_path / "one"), **single))
    two = launch(recipe)
    for name in ("loss", "rewards/margins") if stage == "dpo" else ("loss",):
        assert [e[name] for e in two["losses"]] == pytest.approx([e[name] for e in one.losses], rel=1e-3, abs=1e-5)
    assert two["tokens_seen"] == one.tokens_seen
    assert two["kept_step"] == one.kept_step
    for ours, theirs in zip(two["validation"], one.validation, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert first.keys() == second.keys()
    # Attention does not depend on the bias of the keys: its gradient is rounding error, which AdamW scales up.
    names = [name for name in first if not name.endswith("k_proj.bias")]
    far = {name: float((first[name] - second[name]).abs().max()) for name in names}
    assert {name: value for name, value in far.items() if value > 1e-4} == {}


@pytest.mark.parametrize(
    "keys",
    [
        {"stage": "sft", "global_batch": 2, "batch_size": 1, "sft": SFTRecipe(pack_tokens=300)},
        {"stage": "dpo", "global_batch": 4, "batch_size": 2, "dpo": DPORecipe(layout="tree")},
    ],
    ids=["packed", "tree"],
)
@pytest.mark.slow
def test_zero3_trains_as_the_recipes_of_deeprag_do(work: Path, tmp_path: Path, keys: dict):
    """In bf16 with gradient checkpointing; one process keeps fp32 weights, so that losses are close, not equal."""
    pytest.importorskip("deepspeed")
    make = sft_record if keys["stage"] == "sft" else pair
    held_out = write(tmp_path / "held_out.jsonl", [make(i) for i in range(100, 105)])
    keys = keys | {"eval_data": held_out, "eval_steps": 1, "epochs": 2, "lr": 1e-3}
    recipe = recipe_in(work, tmp_path / "two", gradient_checkpointing=True, **keys)
    assert recipe.precision == "bf16"
    one = train(replace(recipe, output_dir=str(tmp_path / "one")))
    two = launch(recipe)
    assert two["steps"] == one.steps
    assert [e["loss"] for e in two["losses"]] == pytest.approx([e["loss"] for e in one.losses], rel=0.05)
    ours, theirs = ([e["eval_loss"] for e in validation] for validation in (two["validation"], one.validation))
    assert ours == pytest.approx(theirs, rel=0.05)
    weights = load_file(tmp_path / "two" / "model.safetensors")
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.bfloat16"}
    assert one.survived is None and 0.5 < two["survived"] < 1.5  # of the update that the fp32 weights have
    assert f"saved weights keep | {two['survived']:.1%} |" in (tmp_path / "two/README.md").read_text()
