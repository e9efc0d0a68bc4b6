"""The README of a working directory: the first commands, with a model that the machine is enough for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rag_train.doctor.machine import Accelerator
from rag_train.doctor.packages import accelerators
from rag_train.jobs.files import write_text
from rag_train.model_presets import LORA, PRESETS, find_preset
from rag_train.templates import template

SMALLEST = "smollm2-135m"
"""The preset for machines without an accelerator: larger ones take days there, even if they fit."""
USUAL = "qwen2.5-7b"
"""The model of the papers; larger ones are not suggested for a first run."""


@dataclass(frozen=True)
class Choice:
    """A model for the first run, and the number of processes that train it."""

    preset: str
    processes: int


def choose(devices: list[Accelerator]) -> Choice:
    """Return the largest preset, up to `USUAL`, whose adapters the accelerators can train."""
    memory = [device.memory for device in devices if device.memory]
    if not memory:
        return Choice(SMALLEST, 1)
    from rag_train.doctor.capacity import largest

    found = largest(min(memory), len(memory))["lora"] or SMALLEST
    usual = PRESETS[USUAL].parameters()
    return Choice(USUAL if PRESETS[found].parameters() > usual else found, len(memory))


def write_readme(folder: Path) -> Path:
    """Write README.md for this machine into ``folder`` and return its path."""
    write_text(folder / "README.md", readme(accelerators().devices))
    return folder / "README.md"


def readme(devices: list[Accelerator]) -> str:
    """Return the README for a machine with these accelerators, in Markdown."""
    choice = choose(devices)
    hub = find_preset(choice.preset).hub
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    here = f"{len(devices)} accelerators ({names})" if devices else "no accelerator"
    launch = "rag-train train"
    if choice.processes > 1:
        sharded = f"--config_file launch/accelerate/ddp.yaml --num_processes {choice.processes}"
        launch = f"accelerate launch {sharded} -m rag_train.train"
    return template("doctor/readme.md.jinja").render(
        here=here, preset=choice.preset, hub=hub, launch=launch, key=f"model_preset={choice.preset}{LORA}"
    )
