"""Trainings of Stages I and II: under each launch file, with adapters, in 4 bits, and continued after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.package_files import packaged
from rag_train.selftest.registry import NotHere, part
from rag_train.selftest.work import CONTROLLER, Work

SINGLE = "training, one process"
STEPS = 5
"""Optimizer steps of a training."""
CLOSE = 0.01
"""Most by which a loss in fp32 may differ from that of one process, as a share. In bf16, DeepSpeed's weights are
coarser than those of one process, and losses of the first steps differ by a tenth."""


@part(SINGLE, short=True)
def single(work: Work) -> str:
    """Stage I on packed rows and Stage II on trees, all parameters."""
    return _both(work, "single", _launched("single"))


@part("training, DDP", after=[SINGLE])
def ddp(work: Work) -> str:
    """The same in a process for each GPU."""
    return _sharded(work, "ddp", least=2)


@part("training, ZeRO-2", after=[SINGLE])
def zero2(work: Work) -> str:
    """The same with gradients and optimizer states sharded."""
    return _sharded(work, "zero2", least=1)


@part("training, ZeRO-3", after=[SINGLE])
def zero3(work: Work) -> str:
    """The same with weights sharded, without GPUs in two processes of the CPU."""
    if work.gpus:
        return _sharded(work, "zero3", least=1)
    return _both(work, "zero3_cpu", _launched("zero3_cpu"), DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")


@part("training, FSDP2", after=[SINGLE])
def fsdp2(work: Work) -> str:
    """The same with weights sharded by PyTorch."""
    return _sharded(work, "fsdp2", least=2)


@part("training, LoRA", short=True)
def lora(work: Work) -> str:
    """Stage II on trees with adapters, which are saved."""
    result = work.train(
        "deeprag_dpo", *_dpo(work, "lora", str(CONTROLLER)), "lora.r=8", "lr=1e-4", "precision=auto"
    )
    output = Path(result["output_dir"])
    assert (output / "adapter_model.safetensors").is_file(), "no adapter was saved"
    return f"{result['trained_parameters']:,} parameters trained; {_told(result)}"


@part("training, 4-bit", short=True)
def quantized(work: Work) -> str:
    """Stage I with adapters over weights in 4 bits."""
    if not work.gpus:
        raise NotHere("weights in 4 bits need a GPU")
    return _told(work.train("deeprag_sft", *_sft(work, "4bit"), "lora.r=8", "quantize=4bit", "precision=auto"))


@part("training, resumed after a kill", short=True, after=[SINGLE])
def resumed(work: Work) -> str:
    """Kill a training after its second step, and continue it: its losses are those of a run without a kill."""
    output, keys = work.folder / "resumed", [*_sft(work, "resumed"), "save_steps=2"]
    recipe = packaged("recipes/deeprag_sft.yaml")
    command = [sys.executable, "-m", "rag_train.cli", "train", str(recipe), *keys]
    process = subprocess.Popen(command, start_new_session=True)
    while not (output / "checkpoints/checkpoint-2/complete.json").exists():
        assert process.poll() is None, "the training ended before its first checkpoint"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (output / "training.json").exists(), "the training was done before it was killed"
    result = work.train("deeprag_sft", *keys)
    assert result["resumed_from"] >= 2, "the training began again from its first step"
    far = _far(result, _result(work, "single-sft"))
    assert far < CLOSE, f"the losses differ by {far:.1%} from those of a run without a kill"
    return f"from step {result['resumed_from']} of {result['steps']}; losses differ by {far:.2%}"


def _launched(name: str, processes: int | None = None) -> list[str]:
    """Return the options of Accelerate for a launch file."""
    number = ["--num_processes", str(processes)] if processes else []
    file = packaged(f"launch/accelerate/{name}.yaml")
    return ["--main_process_port", "0", "--config_file", str(file), *number]


def _sharded(work: Work, name: str, least: int) -> str:
    """Train under a launch file that is made for ``least`` GPUs, in as many processes as divide a step."""
    if work.gpus < least:
        raise NotHere(f"needs {'two GPUs' if least == 2 else 'a GPU'}, this machine has {work.gpus or 'none'}")
    processes = max(number for number in (1, 2, 4, 8) if number <= work.gpus)
    return _both(work, name, _launched(name, processes))


def _both(work: Work, name: str, launcher: Sequence[str], **environment: str) -> str:
    """Train Stage I on packed rows, then Stage II on trees, and compare the losses with those of one process."""
    sft = work.train("deeprag_sft", *_sft(work, f"{name}-sft"), launcher=launcher, **environment)
    dpo = work.train("deeprag_dpo", *_dpo(work, f"{name}-dpo", sft["output_dir"]), launcher=launcher, **environment)
    told = f"Stage I: {_told(sft)}; Stage II: {_told(dpo)}"
    if name == "single":
        return told
    far = max(_far(result, _result(work, f"single-{stage}")) for stage, result in (("sft", sft), ("dpo", dpo)))
    assert far < CLOSE, f"the losses differ by {far:.0%} from those of one process"
    return f"{sft['machine']['processes']} processes, losses within {far:.1%} of one process; {told}"


def _sft(work: Work, name: str) -> list[str]:
    """Return the keys of a training of Stage I into the folder ``name``."""
    own = ["lr=1e-4", "sft.pack_tokens=256"]
    return [f"model={CONTROLLER}", f"data={work.examples('sft')}", *_keys(work, name), *own]


def _dpo(work: Work, name: str, model: str) -> list[str]:
    """Return the keys of a training of Stage II into the folder ``name``."""
    return [f"model={model}", f"data={work.examples('dpo')}", *_keys(work, name), "lr=1e-5", "batch_size=2"]


def _keys(work: Work, name: str) -> list[str]:
    length = [f"steps={STEPS}", "epochs=null", "save_steps=1000"]
    return [f"output_dir={work.folder / name}", *length, "warmup_ratio=0", "max_tokens=256", "precision=fp32"]


def _result(work: Work, name: str) -> dict[str, Any]:
    return json.loads((work.folder / name / "training.json").read_text(encoding="utf-8"))


def _far(result: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between the losses of two trainings, as a share; all steps are compared."""
    first, second = ({entry["step"]: entry["loss"] for entry in each["losses"]} for each in (result, other))
    assert first.keys() == second.keys(), f"losses of the steps {sorted(first)} and {sorted(second)}"
    return max(abs(first[step] - second[step]) / abs(second[step]) for step in first)


def _told(result: dict[str, Any]) -> str:
    first, *_, last = (entry["loss"] for entry in result["losses"])
    return f"loss {first:.3f} to {last:.3f}, {result['tokens_seen'] / result['seconds']:,.0f} tokens/s"
