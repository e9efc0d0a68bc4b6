"""Runs that are killed, run out of memory or disk space, or get a loss that is not finite, and what they leave."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.training import kill_at, recipe_in, same_weights
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from rag_train.errors import UserError
from rag_train.recipe import save_recipe
from rag_train.train import main
from rag_train.training.checkpoints import MarkComplete, newest_complete, newest_to_continue, remove_unused
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.run import train

STAGES = [
    {"stage": "sft"},
    {"stage": "sft", "batch_size": 1, "sft": SFTRecipe(pack_tokens=400)},
    {"stage": "dpo", "dpo": DPORecipe(layout="pairs")},
    {"stage": "dpo", "dpo": DPORecipe(layout="tree")},
]
NAMES = ["sft", "packed", "pairs", "tree"]


def recipe_for(work: Path, output: Path, keys: dict) -> TrainRecipe:
    return recipe_in(work, output, **({"batch_size": 2, "epochs": 3, "save_steps": 4} | keys))


def rows_of(output: Path) -> list[dict]:
    """Return the rows of metrics.jsonl that have a loss, without times and without TRL's ``num_tokens``, which a
    resumed run counts from 0."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    own = [{name: row[name] for name in row if name[:6] != "train_" and name != "num_tokens"} for row in rows]
    return [row for row in own if "loss" in row]


@pytest.mark.parametrize("changes", STAGES, ids=NAMES)
@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(work: Path, tmp_path: Path, changes: dict, monkeypatch, capsys):
    """The run is killed at a step that is neither logged nor saved. Weights and metrics are identical."""
    whole = recipe_for(work, tmp_path / "whole", changes | {"logging_steps": 3})
    expected = train(whole)
    recipe = replace(whole, output_dir=str(tmp_path / "killed"))
    kill_at(monkeypatch, recipe, 7)
    capsys.readouterr()
    resumed = train(recipe)
    assert "killed: continues from step 4" in capsys.readouterr().err
    assert resumed.resumed_from == 4 and resumed.steps == expected.steps > 7
    assert resumed.losses == expected.losses and resumed.tokens_seen == expected.tokens_seen
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    assert [row["step"] for row in rows_of(tmp_path / "killed")][:3] == [3, 4, 6]
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert "attn_implementation" not in (tmp_path / "whole/config.json").read_text()


@pytest.mark.slow
def test_run_whose_checkpoints_have_the_weights_only_starts_again(work: Path, tmp_path: Path, monkeypatch, capsys):
    recipe = recipe_for(work, tmp_path / "out", {"stage": "sft", "save_only_model": True})
    whole = train(replace(recipe, output_dir=str(tmp_path / "whole")))
    for step, start in ((3, "it has no complete checkpoint yet"), (7, "its checkpoints have the weights only")):
        kill_at(monkeypatch, recipe, step)
        checkpoint = newest_complete(tmp_path / "out" / "checkpoints")
        capsys.readouterr()
        kill_at(monkeypatch, recipe, 1)
        assert f"out: starts again from the first step: {start}" in capsys.readouterr().err
    assert checkpoint and not checkpoint.exists()
    resumed = train(recipe)
    assert resumed.resumed_from == 0 and resumed.losses == whole.losses


@pytest.mark.slow
def test_newest_checkpoint_alone_has_what_training_continues_from(work: Path, tmp_path: Path, monkeypatch):
    recipe = recipe_for(work, tmp_path / "out", {"stage": "sft"})
    kill_at(monkeypatch, recipe, 9)
    checkpoints = tmp_path / "out" / "checkpoints"
    assert list(checkpoints.glob("checkpoint-*")) == [checkpoints / "checkpoint-8"]
    continued = replace(recipe, save_only_model=True)
    kill_at(monkeypatch, continued, 9)
    assert newest_to_continue(checkpoints) == checkpoints / "checkpoint-8"
    assert train(continued).resumed_from == 8


@pytest.mark.slow
@pytest.mark.parametrize("changes", STAGES, ids=NAMES)
def test_infinite_loss_stops_run_and_saves_batch(work: Path, tmp_path: Path, changes: dict):
    recipe = recipe_for(work, tmp_path / "out", changes | {"lr": 1e20, "warmup_ratio": 0.0})
    with pytest.raises(UserError, match=r"^step \d+: the loss is infinite or NaN; lower lr") as caught:
        train(recipe)
    [path] = (tmp_path / "out" / "checkpoints").glob("nan-step-*.json")
    assert str(path) in str(caught.value)
    batch = json.loads(path.read_text())
    assert batch["text"][0].startswith("Question: Where was ")
    assert batch["input_ids"]


@pytest.mark.slow
def test_out_of_memory_error_names_settings_to_change(work: Path, tmp_path: Path, monkeypatch, capsys):
    """Covers a real failure of the allocator and CUDA's exception."""
    save_recipe(recipe_for(work, tmp_path / "out", STAGES[0]), tmp_path / "recipe.yaml")

    def cuda() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for fail in (lambda: torch.empty(2**60, dtype=torch.uint8), cuda):
        monkeypatch.setattr(Trainer, "compute_loss", lambda *_, fail=fail, **__: fail())
        monkeypatch.setattr("rag_train.training.sft.ImitationTrainer.compute_loss", Trainer.compute_loss)
        assert main([str(tmp_path / "recipe.yaml")]) == 2
        [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
        assert line == (
            "error: out of memory with batch_size=2 and max_tokens=4096; set one or more of "
            "gradient_checkpointing=true, batch_size=1 gradient_accumulation=2, lora.r=16, a smaller max_tokens, "
            "or shard the model over more devices (launch/accelerate/zero3.yaml)"
        )


@pytest.mark.slow
def test_full_disk_keeps_earlier_checkpoints(work: Path, tmp_path: Path, monkeypatch):
    recipe = recipe_for(work, tmp_path / "out", STAGES[0])
    whole = train(replace(recipe, output_dir=str(tmp_path / "whole")))
    save = Trainer._save_rng_state

    def full(trainer, directory):
        if trainer.state.global_step == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(trainer, directory)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_rng_state", full)
        with pytest.raises(UserError, match=r"no space left on its disk; .*, which continues from step 4$"):
            train(recipe)
    checkpoints = tmp_path / "out" / "checkpoints"
    assert {path.name for path in checkpoints.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-8"}
    assert newest_complete(checkpoints) == checkpoints / "checkpoint-4"
    resumed = train(recipe)
    assert resumed.resumed_from == 4 and resumed.losses == whole.losses


@pytest.mark.release
@pytest.mark.slow
def test_run_continues_after_real_disk_was_full(work: Path, tmp_path: Path):
    """Trains on a file system of 2 MB in its own mount namespace; most of it is freed before the second run."""
    recipe = recipe_for(work, tmp_path / "disk" / "out", STAGES[0])
    save_recipe(recipe, tmp_path / "recipe.yaml")
    (tmp_path / "disk").mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path / 'disk'}"
    if not shutil.which("unshare") or subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted")
    runs = (
        "import os, shutil; from rag_train.train import main; assert main(['recipe.yaml']) == 2; "
        "os.remove('disk/ballast'); assert main(['recipe.yaml']) == 0; shutil.copy('disk/out/training.json', '.')"
    )
    fill = "head -c 1500000 /dev/zero > disk/ballast"
    script = f'{mount} && cd {tmp_path} && {fill} && {sys.executable} -c "{runs}"'
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*namespace, script], env=environment, check=True, capture_output=True, text=True)
    assert f"error: output_dir {recipe.output_dir}: no space left on its disk" in done.stderr
    assert 0 < json.loads((tmp_path / "training.json").read_text())["resumed_from"] < 12


MARKERS = [None, "", "{", "{}", "[]", "null", "[1]", '{"weights": null}', '{"weights": 4}', '{"other": 3}']


@pytest.mark.parametrize("marker", MARKERS)
def test_a_checkpoint_that_its_marker_does_not_prove_complete_is_removed(tmp_path: Path, marker: str | None):
    for step in (1, 2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/weights").write_text("abc")
        if step < 10:  # the newest one alone is kept
            arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
            MarkComplete().on_save(arguments, TrainerState(global_step=step), TrainerControl())
    assert not (tmp_path / "checkpoint-1").exists()
    if marker is not None:
        (tmp_path / "checkpoint-10/complete.json").write_text(marker)
    assert newest_complete(tmp_path) == tmp_path / "checkpoint-2"
    assert newest_to_continue(tmp_path) is None
    remove_unused(tmp_path, tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


@pytest.mark.slow
def test_resumed_run_continues_its_wandb_run(work: Path, tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    recipe = replace(recipe_for(work, tmp_path / "out", STAGES[0]), report_to="wandb")
    kill_at(monkeypatch, recipe, 6)
    name = (tmp_path / "out" / "wandb_run_id").read_text().strip()
    result = train(recipe)
    assert result.resumed_from == 4
    assert (tmp_path / "out" / "wandb_run_id").read_text().strip() == name
    logs = list((tmp_path / "out" / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))
    assert len(logs) == 2
    assert all(result.data_sha256.encode() in log.read_bytes() for log in logs)


def test_tensorboard_receives_all_metrics(work: Path, tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(recipe_for(work, tmp_path / "out", STAGES[0]), report_to="tensorboard"))
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    rows = rows_of(tmp_path / "out")
    assert [event.step for event in events.Scalars("train/loss")] == [row["step"] for row in rows]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx([row["loss"] for row in rows])


def test_trains_adapters_on_four_bit_weights(work: Path, tmp_path: Path):
    pytest.importorskip("bitsandbytes")
    recipe = replace(recipe_for(work, tmp_path / "out", STAGES[0]), quantize="4bit", lora=LoraRecipe(r=4), epochs=8)
    losses = [entry["loss"] for entry in train(recipe).losses]
    assert losses[-1] < 0.9 * losses[0]
