"""The plan of a training: what a run prints, what `--dry-run` prints, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest
from support.commands import call
from support.training import TOKENIZER, kill_at, recipe_in

from rag_train.doctor.capacity import sizes
from rag_train.errors import UserError
from rag_train.model_presets import PRESETS
from rag_train.recipe import save_recipe
from rag_train.train import main as launched
from rag_train.training.data import sft_rows
from rag_train.training.devices import DEVICES, UTILISATION, device_called, engine_seconds, find_device
from rag_train.training.epoch import Epoch, Pass, epoch
from rag_train.training.memory import Sharding, architecture
from rag_train.training.plan import Plan, check, peak, plan
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.run import train

GIB = 2.0**30


@pytest.mark.usefixtures("no_gpu")
def test_refuses_run_that_does_not_fit_and_names_remedy(work: Path, tmp_path: Path, monkeypatch):
    recipe = recipe_in(work, tmp_path / "out", batch_size=8, precision="fp32")
    rows, report = sft_rows(recipe.data, TOKENIZER, max_tokens=500, chat=False)
    model = architecture(recipe.model)

    def need(candidate: TrainRecipe) -> float:
        return peak(candidate, model, Sharding(), epoch(candidate, rows).largest, gpu=False).total

    def check_on_machine_with(size: float, candidate: TrainRecipe) -> str:
        monkeypatch.setattr("rag_train.training.plan.psutil.virtual_memory", lambda: Namespace(total=size))
        planned = plan(candidate, rows, report)
        check(planned, candidate, rows)
        return planned.line()

    line = check_on_machine_with(2.0**34, recipe)
    assert "model 20,672, trained 20,672, about 1.0 GiB per device of 16.0 GiB; 3 steps of 8 examples" in line
    single = replace(recipe, batch_size=1, gradient_accumulation=8)
    with pytest.raises(UserError, match=r"set batch_size=1 gradient_accumulation=8, or shard over more devices"):
        check_on_machine_with(need(single) + 1, recipe)
    assert check_on_machine_with(need(single) + 1, single)
    with pytest.raises(UserError, match=r"set batch_size=1, or shard over more devices"):
        check_on_machine_with(need(single) + 1, replace(recipe, global_batch=8))
    with pytest.raises(UserError, match="no setting is enough for one device: shard over more devices"):
        check_on_machine_with(2.0**29, recipe)
    with pytest.raises(UserError, match="check_memory=false skips this check"):
        train(recipe)
    assert not (tmp_path / "out" / "training.json").exists()
    assert check_on_machine_with(2.0**29, replace(recipe, check_memory=False))


def test_refuses_run_whose_first_checkpoint_does_not_fit_on_the_disk(work: Path, tmp_path: Path, monkeypatch):
    """T5: a run wrote for hours, until the disk was full."""
    recipe = recipe_in(work, tmp_path / "out")
    rows, report = sft_rows(recipe.data, TOKENIZER, max_tokens=500, chat=False)
    enough = plan(recipe, rows, report)
    disk = Namespace(free=enough.checkpoint - 1)
    monkeypatch.setattr("rag_train.training.plan.shutil.disk_usage", lambda place: disk)
    with pytest.raises(UserError, match=r"out: a checkpoint takes about .* free; free space, choose another disk"):
        train(recipe)
    assert not (tmp_path / "out").exists()
    disk.free += 1
    tight = plan(recipe, rows, report)
    check(tight, recipe, rows)
    assert "are free" in tight.line() and "are free" not in enough.line()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"lora": LoraRecipe(r=64)}, {"save_only_model": True}], ids=str)
def test_size_of_a_checkpoint_is_that_on_the_disk(work: Path, tmp_path: Path, monkeypatch, keys: dict[str, Any]):
    recipe = recipe_in(work, tmp_path / "out", precision="fp32", save_steps=1, **keys)
    rows, report = sft_rows(recipe.data, TOKENIZER, max_tokens=500, chat=False)
    kill_at(monkeypatch, recipe, 2)
    written = tmp_path / "out/checkpoints/checkpoint-1"
    states = [file.stat().st_size for name in ("*.safetensors", "optimizer.pt") for file in written.glob(name)]
    assert len(states) == (1 if recipe.save_only_model else 2)
    overhead = 2500 * 14 * (2 if recipe.lora else 1)  # headers, for each of the tensors
    assert 0 <= sum(states) - plan(recipe, rows, report).checkpoint < overhead


def seven_billion(processes: int, **keys: Any) -> Plan:
    """The plan of Qwen2.5-7B with 1,024 rows of 8,192 tokens, half of them trained, under ZeRO-3 on H100s."""
    keys = {"stage": "sft", "sft": SFTRecipe(pack_tokens=8192), "gradient_checkpointing": True} | keys
    recipe = TrainRecipe(
        model="7b",
        data=Path(),
        output_dir="",
        lr=1e-5,
        epochs=1,
        precision="bf16",
        global_batch=8,
        save_steps=50,
        **keys,
    ).on(processes)
    model, sharding = sizes(PRESETS["qwen2.5-7b"]), Sharding(3, processes, deepspeed=True)
    passes = Epoch(6990, 1024, 1024 * 8192, 1024 * 4096, (Pass(8192, 4096),))
    memory = peak(recipe, model, sharding, passes.largest, gpu=True)
    device = DEVICES["h100"]
    return Plan(recipe, model, sharding, passes, 1024 * 8192, 1024 * 4096, memory, device, device.memory, gpu=True)


def test_checkpoints_of_seven_billion_parameters_take_what_was_seen():
    """About 107 GB each under ZeRO-3. One is kept while the next is written; of the best one the weights."""
    planned = seven_billion(8)
    assert planned.checkpoint == pytest.approx(107e9, rel=0.01) and planned.checkpoints == 3
    assert planned.disk == pytest.approx(2 * 107e9, rel=0.01)
    best = seven_billion(8, keep="best", eval_data=Path())
    assert best.disk == pytest.approx(2 * 107e9 + 15.2e9, rel=0.01)
    light = seven_billion(8, save_only_model=True)
    assert light.checkpoint == pytest.approx(15.2e9, rel=0.01) and light.disk == pytest.approx(2 * 15.2e9, rel=0.01)
    assert (kept := seven_billion(8, lora=LoraRecipe())).disk == pytest.approx(2 * kept.checkpoint, rel=0.01)
    adapted = seven_billion(8, lora=LoraRecipe(merge=True))
    assert adapted.disk == pytest.approx(adapted.checkpoint + 15.2e9, rel=0.01)


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_steps_are_the_same_on_any_number_of_devices_and_time_is_divided(processes: int):
    one, many = seven_billion(1), seven_billion(processes)
    assert many.steps == 128 and many.batch == 8
    assert one.seconds and many.seconds == pytest.approx(one.seconds / processes)


def test_assumed_speed_is_that_of_a_published_measurement():
    """Llama 3.1 8B on 8 H100 with torchtitan: 5,762 tokens a second on each, 6,667 when compiled."""
    model, passes = sizes(PRESETS["llama3.1-8b"]), Epoch(1024, 1024, 1024 * 8192, 1024 * 8192, (Pass(8192, 8192),))
    planned = replace(seven_billion(8, gradient_checkpointing=False), model=model, epoch=passes)
    assert planned.seconds and 5762 < passes.tokens / planned.seconds / 8 < 6667


def test_operations_are_six_for_a_weight_and_token_and_two_more_when_recomputed():
    stored = seven_billion(8, gradient_checkpointing=False)
    head, tokens = 3584 * 152064, 1024 * 8192
    inner = stored.model.parameters - 2 * head  # embeddings and head; biases and norms are few
    assert stored.operations == pytest.approx(6 * tokens * (inner + head / 2), rel=1e-3)
    assert seven_billion(8).operations / stored.operations == pytest.approx(8 / 6)
    for length in ({"epochs": 2}, {"epochs": None, "steps": 2 * stored.steps}):
        twice = replace(stored, recipe=replace(stored.recipe, **length))
        assert twice.steps == 2 * stored.steps and twice.operations == pytest.approx(2 * stored.operations)
    paired = replace(stored, recipe=replace(stored.recipe, stage="dpo", sft=None, dpo=DPORecipe(layout="tree")))
    assert paired.operations / stored.operations == pytest.approx(8 / 6)  # a forward pass for the reference
    adapted = seven_billion(8, gradient_checkpointing=False, lora=LoraRecipe())
    assert 4 / 6 < adapted.operations / stored.operations < 4 / 6 + 0.01


def test_devices_are_found_by_both_names():
    assert device_called("NVIDIA H100 80GB HBM3") == find_device("H100") == DEVICES["h100"]
    assert device_called("NVIDIA L40S") == DEVICES["l40s"] and device_called("NVIDIA A100-SXM4-80GB")
    assert device_called("AMD Instinct MI300X") is None
    with pytest.raises(UserError, match="--device h10: not in the table; give h200, h100"):
        find_device("h10")


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if weights are loaded."""

    def loaded(*arguments: Any, **keys: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", loaded)
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("no_weights")
def test_dry_run_prints_the_plan_and_starts_nothing(work: Path, tmp_path: Path, capsys):
    file, output = tmp_path / "r.yaml", tmp_path / "out"
    save_recipe(recipe_in(work, output, batch_size=1, sft=SFTRecipe(pack_tokens=600), global_batch=2), file)
    command = ["train", str(file), "--dry-run", "--device", "h100"]
    assert call(*command, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 8 and found["batch"] == 2 and found["device"] == "H100"
    assert found["steps"] == 3 * -(-found["passes_per_epoch"] // 2) and 0 < found["seconds"] < 1
    assert found["memory"]["total"] < found["available"] == 80e9 and found["disk"] < found["free"]
    assert call(*command) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("optimizer steps", "effective batch", "weights, 20,672 at", "a checkpoint", "time on 1 × H100"):
        assert part in text
    assert "30% (assumed: torchtitan's for 8B on 8 H100)" in text
    assert call("train", str(file), "--device", "h100") == 2
    assert "only with --dry-run" in capsys.readouterr().err and not output.exists()


@pytest.mark.usefixtures("no_weights", "no_gpu")
def test_dry_run_under_a_launcher_counts_its_processes_and_one_of_them_prints(
    work: Path, tmp_path: Path, monkeypatch, capsys
):
    file = tmp_path / "r.yaml"
    save_recipe(recipe_in(work, tmp_path / "out", batch_size=1, global_batch=8), file)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched([str(file), "--dry-run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "in 4 processes" in text and "8 examples" in text and "No time" in text
    monkeypatch.setenv("RANK", "1")
    assert launched([str(file), "--dry-run"]) == 0 and capsys.readouterr().out == ""


@pytest.mark.usefixtures("no_weights", "no_gpu")
def test_dry_run_of_a_run_that_does_not_fit_is_refused_as_the_run(work: Path, tmp_path: Path, monkeypatch, capsys):
    file = tmp_path / "r.yaml"
    save_recipe(recipe_in(work, tmp_path / "out"), file)
    monkeypatch.setattr("rag_train.training.plan.psutil.virtual_memory", lambda: Namespace(total=2.0**29))
    assert call("train", str(file), "--dry-run") == 2
    printed = capsys.readouterr()
    assert "memory per device, peak" in printed.out
    error = printed.err.partition("error: ")[2]  # before it, a warning where the processor has no bf16
    assert "no setting is enough for one device" in error and error.count("\n") == 1


def test_an_engine_is_bound_by_operations_or_by_its_weights():
    h100, parameters = DEVICES["h100"], 7_000_000_000
    operations = 2 * parameters / (989e12 * UTILISATION)
    assert engine_seconds(h100, parameters, 10**9, 0, 256) == pytest.approx(operations * 10**9)
    alone = engine_seconds(h100, parameters, 0, 1000, 1)
    assert alone == pytest.approx(1000 * 14e9 / 3.35e12)  # each token reads all weights
    assert engine_seconds(h100, parameters, 0, 1000, 4) == pytest.approx(alone / 4)
    assert engine_seconds(h100, parameters, 0, 1000, 10**6) == pytest.approx(operations * 1000)
