"""Launch configurations: Accelerate and DeepSpeed accept them, and their sharding is recognised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from support.paths import LAUNCH
from support.training import recipe_in

from rag_train.recipe import save_recipe
from rag_train.training.memory import Sharding, current_sharding
from rag_train.training.recipe import SFTRecipe
from rag_train.training.run import train

SHARDING = {
    "single": Sharding(),
    "ddp": Sharding(),
    "fsdp2": Sharding(3, fsdp=True),
    "zero2": Sharding(2, deepspeed=True),
    "zero3": Sharding(3, deepspeed=True),
    "zero3_cpu": Sharding(3, deepspeed=True),
    "zero3_offload": Sharding(3, deepspeed=True, offload_optimizer=True, offload_weights=True),
}
"""Sharding of each configuration, for one process: the environment does not contain the number of processes."""


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((LAUNCH / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_recognises_sharding_of_accelerate_configurations(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Uses the environment that `accelerate launch` would give to its processes."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig) and config.mixed_precision == "no"
    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "x.py"])
    arguments, defaults, _ = launch._validate_launch_command(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    environment = {}
    if arguments.use_deepspeed:
        pytest.importorskip("deepspeed")
        _, environment = prepare_deepspeed_cmd_env(arguments)
    elif config.num_processes > 1:
        environment = prepare_multi_gpu_env(arguments)
    for name, value in environment.items():
        if name.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.setenv(name, value)
    assert current_sharding() == SHARDING[path.stem]


@pytest.mark.parametrize("path", sorted((LAUNCH / "deepspeed").glob("*.json")), ids=lambda path: path.stem)
def test_recognises_sharding_of_deepspeed_configurations(path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    assert current_sharding() == SHARDING[path.stem]


def test_counts_the_processes_of_a_launcher(monkeypatch: pytest.MonkeyPatch):
    """Before TrainingArguments exist, PartialState counts a single process on CPUs."""
    assert current_sharding() == Sharding()
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert current_sharding() == Sharding(processes=8)


@pytest.mark.parametrize("script", ["torchrun.sh", "slurm/train.sbatch"])
def test_scripts_have_valid_bash_syntax(script: str):
    subprocess.run(["bash", "-n", LAUNCH / script], check=True)


@pytest.mark.slow
def test_torchrun_with_two_processes_gives_losses_of_one(work: Path, tmp_path: Path):
    """The recipe has packed rows, which are divided among the processes."""
    keys = {"batch_size": 1, "sft": SFTRecipe(pack_tokens=300), "precision": "fp32", "lr": 1e-3}
    recipe = recipe_in(work, tmp_path / "two", **keys)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    one = train(replace(recipe, output_dir=str(tmp_path / "one"), gradient_accumulation=2))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = {"NPROC_PER_NODE": "2", "RDZV_ENDPOINT": "localhost:0", "OMP_NUM_THREADS": "1", "PATH": path}
    script = [LAUNCH / "torchrun.sh", tmp_path / "recipe.yaml"]
    subprocess.run(script, env=os.environ | run, check=True, capture_output=True)
    two = json.loads((tmp_path / "two" / "training.json").read_text())
    assert two["machine"]["processes"] == "2" and two["tokens_seen"] == one.tokens_seen
    assert [e["loss"] for e in two["losses"]] == pytest.approx([e["loss"] for e in one.losses], rel=1e-4)
