"""Processes of a launch that do not have the same directory or the same inputs are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.training import recipe_in

from rag_train.training.build import build_trainer
from rag_train.training.load import load_data, prepare_libraries
from rag_train.training.processes import check_processes
from rag_train.training.recipe import DPORecipe, SFTRecipe

SCRIPT = """
import sys
from pathlib import Path
from accelerate import PartialState
from rag_train.errors import UserError
from rag_train.training import processes

processes.PATIENCE = 0
rank = PartialState(cpu=True).process_index
shared = Path(sys.argv[1])
own = shared / str(rank)
own.mkdir()
for folder, data in ((shared, "same"), (own, "same"), (shared, f"data of {rank}")):
    try:
        processes.check_processes(folder, {"recipe": {"lr": 1e-5}, "data_sha256": data})
        said = "agreed"
    except UserError as error:
        said = str(error)
    (shared / f"{rank}.txt").open("a").write(said + "\\n")
processes.end_processes()
"""


def test_a_lock_that_deepspeed_would_wait_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (lock := tmp_path / "deepspeed_shm_comm" / "lock").parent.mkdir()
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    prepare_libraries()
    assert not capsys.readouterr().err
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    prepare_libraries()
    assert f"{lock}: another process compiles" in capsys.readouterr().err and lock.exists()


def test_one_process_agrees_with_itself(tmp_path: Path):
    check_processes(tmp_path, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_with_other_directories_or_data_are_refused(tmp_path: Path):
    script, shared = tmp_path / "check.py", tmp_path / "checkpoints"
    script.write_text(SCRIPT)
    shared.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, str(shared)], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    first, second = ((shared / f"{rank}.txt").read_text().splitlines() for rank in range(2))
    assert first == second
    agreed, directory, data = first
    assert agreed == "agreed"
    assert "cannot see the files of" in directory and "that all machines share" in directory
    assert "differ in data_sha256; copy the same recipe" in data
    assert {file.name for file in shared.iterdir()} == {"0", "1", "0.txt", "1.txt"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "dpo"])
@pytest.mark.parametrize("rows", ["trees", "padded"])
def test_a_single_process_trains_on_one_of_several_gpus(
    stage: str, rows: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layouts = {"sft": {"sft": SFTRecipe(pack_tokens=300)}, "dpo": {"dpo": DPORecipe(layout="tree")}}
    keys = {"batch_size": 1} | layouts[stage] if rows == "trees" else {}
    recipe = recipe_in(work, tmp_path, stage=stage, precision="fp32", **keys)
    prepare_libraries()
    monkeypatch.setattr(
        "transformers.TrainingArguments.n_gpu", property(lambda args: args.__dict__.get("_n_gpu") or 8)
    )
    tokenizer, data, _ = load_data(recipe)
    trainer = build_trainer(recipe, data, tokenizer, tmp_path)
    assert trainer.args.n_gpu == 1 and trainer.args.train_batch_size == trainer.args.per_device_train_batch_size
