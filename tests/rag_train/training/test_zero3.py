"""DeepSpeed ZeRO-3 on two CPU processes: the same losses and weights as in one process."""

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
from support.training import recipe_in

from rag_train.recipe import save_recipe
from rag_train.training.recipe import DPORecipe
from rag_train.training.run import train


@pytest.mark.parametrize("stage", ["sft", "dpo"])
@pytest.mark.slow
def test_zero3_on_two_processes_equals_one(work: Path, tmp_path: Path, stage: str):
    """dpo uses the tree layout, whose rows do not depend on the number of processes."""
    pytest.importorskip("deepspeed")
    tree = {"dpo": DPORecipe(layout="tree"), "lr": 1e-3} if stage == "dpo" else {}
    recipe = recipe_in(work, tmp_path / "two", stage=stage, batch_size=2, precision="fp32", epochs=2, **tree)
    single = {"gradient_accumulation": 2} if stage == "dpo" else {"batch_size": 4}
    one = train(replace(recipe, output_dir=str(tmp_path / "one"), **single))
    save_recipe(recipe, tmp_path / "recipe.yaml")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    config = ["--config_file", str(ROOT / "launch" / "accelerate" / "zero3_cpu.yaml")]
    subprocess.run(
        [*launch, *config, "-m", "rag_train.train", str(tmp_path / "recipe.yaml")],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    two = json.loads((tmp_path / "two" / "training.json").read_text())
    for name in ("loss", "rewards/margins") if stage == "dpo" else ("loss",):
        assert [e[name] for e in two["losses"]] == pytest.approx([e[name] for e in one.losses], rel=1e-3, abs=1e-5)
    assert two["tokens_seen"] == one.tokens_seen
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert first.keys() == second.keys()
    # Attention does not depend on the bias of the keys: its gradient is rounding error, which AdamW scales up.
    names = [name for name in first if not name.endswith("k_proj.bias")]
    far = {name: float((first[name] - second[name]).abs().max()) for name in names}
    assert {name: value for name, value in far.items() if value > 1e-4} == {}
