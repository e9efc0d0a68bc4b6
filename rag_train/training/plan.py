"""The plan of a training: steps, memory, disk and time, computed from recipe, rows and the model's configuration.

A run prints its plan in a line and refuses to start if it does not fit; ``--dry-run`` prints the whole plan and
starts nothing.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import PartialState
from datasets import Dataset

from rag_train.errors import UserError
from rag_train.table import Table, duration, estimates, gib
from rag_train.training.data import DataReport
from rag_train.training.devices import UTILISATION, Device, device_called
from rag_train.training.epoch import Epoch, Pass, epoch
from rag_train.training.memory import (
    RUNTIME,
    Architecture,
    Memory,
    Sharding,
    architecture,
    checkpoint_bytes,
    current_sharding,
    estimate,
    result_bytes,
)
from rag_train.training.recipe import LoraRecipe, SFTRecipe, TrainRecipe


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        recipe: with ``batch_size`` and ``gradient_accumulation`` in place of ``global_batch``.
        tokens, trained: tokens of the examples of an epoch, and how many of them are trained.
        memory: peak memory of a process.
        device: the accelerator; None on a CPU, or if its speed is not known.
        available: memory of the device in bytes.
        gpu: whether the device is a GPU.
        free: free space at ``output_dir`` in bytes.
    """

    recipe: TrainRecipe
    model: Architecture
    sharding: Sharding
    epoch: Epoch
    tokens: int
    trained: int
    memory: Memory
    device: Device | None
    available: float
    gpu: bool
    free: float = math.inf

    @property
    def batch(self) -> int:
        """Examples, or packed rows, of an optimizer step."""
        return self.recipe.batch_size * self.recipe.gradient_accumulation * self.sharding.processes

    @property
    def steps(self) -> int:
        """Optimizer steps of the run, as transformers counts them."""
        return self.recipe.steps or math.ceil(self._steps_per_epoch * (self.recipe.epochs or 0))

    @property
    def _steps_per_epoch(self) -> int:
        each = math.ceil(self.epoch.passes / self.sharding.processes)
        return math.ceil(each / self.recipe.gradient_accumulation)

    @property
    def checkpoint(self) -> float:
        """Bytes of a checkpoint."""
        return checkpoint_bytes(self.recipe, self.model, self.sharding)

    @property
    def checkpoints(self) -> int:
        """Checkpoints that are written at the most; the last step has one, too."""
        best = math.ceil(self.steps / self.recipe.eval_steps) if self.recipe.keep == "best" else 0
        return math.ceil(self.steps / self.recipe.save_steps) + best

    @property
    def disk(self) -> float:
        """The most bytes that are on the disk at a time: a checkpoint is deleted when the next one is complete, of
        the best one the weights are kept, and the result is written beside them."""
        weights = checkpoint_bytes(replace(self.recipe, save_only_model=True), self.model, self.sharding)
        best = weights if self.recipe.keep == "best" and self.checkpoints > 1 else 0.0
        result = result_bytes(self.recipe, self.model, self.sharding)
        return best + self.checkpoint + max(result, self.checkpoint if self.checkpoints > 1 else 0.0)

    @property
    def operations(self) -> float:
        """Operations of the run.

        Per token and weight of a matrix: 2 forward, 2 for the gradient of the input, 2 for that of the weight if it
        is trained, and 2 if activations are recomputed; the output layer only at predicted tokens. Stage dpo begins
        with a forward pass for the reference. Attention itself is left out.
        """
        recipe, linear = self.recipe, self.model.linear
        head = self.model.hidden * self.model.vocabulary
        weights = sum(math.prod(size) for name, size in linear.items() if not name.endswith("lm_head"))
        forward = 2.0 * (weights * self.epoch.tokens + head * self.epoch.predicted)
        adapters = 6.0 * self.model.trained(recipe.lora) * self.epoch.tokens if recipe.lora else 0.0
        passes = (2 if recipe.lora else 3) + int(recipe.gradient_checkpointing)
        epochs = recipe.epochs or self.steps / self._steps_per_epoch
        return epochs * (passes * forward + adapters) + (forward if recipe.stage == "dpo" else 0.0)

    @property
    def seconds(self) -> float | None:
        """Time of the run on its devices; None if their speed is not known, for encoder-decoders, and in stage rl,
        which also samples."""
        if self.device is None or self.recipe.rl or self.model.encoder_decoder:
            return None
        return self.operations / (self.sharding.processes * self.device.peak * UTILISATION)

    @property
    def unit(self) -> str:
        stages = {"sft": "examples", "dpo": "pairs", "rl": "rollouts"}
        return "packed rows" if self.recipe.pack_tokens else stages[self.recipe.stage]

    def line(self) -> str:
        """Return the plan in a line, as a run prints it before the weights are loaded."""
        trained = self.model.trained(self.recipe.lora)
        full = f", of which {gib(self.free)} are free" if self.disk > self.free else ""
        data = "" if self.recipe.rl else f", {_short(self.tokens)} tokens per epoch, {self._share} of them trained"
        return (
            f"model {_short(self.model.parameters)}, trained {_short(trained)}, about {gib(self.memory.total)} "
            f"per device of {gib(self.available)}; {self.steps:,} steps of {self.batch:,} {self.unit}{data}; "
            f"checkpoints of {gib(self.checkpoint)}, up to {gib(self.disk)} of disk{full}"
        )

    @property
    def _share(self) -> str:
        return f"{self.trained / self.tokens:.0%}"

    def summary(self) -> dict[str, Any]:
        """Return the figures for ``--json``; sizes in bytes, times in seconds."""
        return {
            "examples": self.epoch.examples,
            "tokens_per_epoch": self.tokens,
            "trained_tokens": self.trained,
            "passes_per_epoch": self.epoch.passes,
            "computed_tokens_per_epoch": self.epoch.tokens,
            "batch": self.batch,
            "steps": self.steps,
            "processes": self.sharding.processes,
            "memory": {name: getattr(self.memory, name) for name in PARTS} | {"total": self.memory.total},
            "available": self.available,
            "checkpoint": self.checkpoint,
            "disk": self.disk,
            "free": self.free,
            "device": self.device and self.device.name,
            "seconds": self.seconds,
        }

    def table(self) -> Table:
        """Return the plan as a table, whose notes are the assumptions."""
        processes = f"{self.sharding.processes} processes" if self.sharding.processes > 1 else "one process"
        caption = f"Training of {self.recipe.model} in {processes}; nothing was loaded or started."
        return estimates(caption, [*self._counts(), *self._needs()], list(self._assumptions()))

    def _counts(self) -> Iterator[tuple[str, str]]:
        batch = f"{self.batch:,} {self.unit}"
        if self.recipe.pack_tokens:
            batch += f" (about {self.batch * self.epoch.examples / self.epoch.passes:,.0f} examples)"
        if self.recipe.rl:
            yield "questions", f"{self.epoch.examples:,}"
            yield "tokens of an epoch's rollouts, at the most", f"{self.epoch.tokens:,}"
        else:
            yield "examples", f"{self.epoch.examples:,}"
            yield "tokens per epoch", f"{self.tokens:,}"
            yield "trained", self._share
            yield "computed: shared prefixes once, with padding", f"{self.epoch.tokens:,}"
        yield "forward passes per epoch", f"{self.epoch.passes:,}"
        yield "effective batch", batch
        yield "optimizer steps", f"{self.steps:,}"

    def _needs(self) -> Iterator[tuple[str, str]]:
        parameters = self.model.parameters
        tokens, predicted = (
            max(getattr(each, name) for each in self.epoch.largest) for name in ("tokens", "predicted")
        )
        trained = self.model.trained(self.recipe.lora)
        labels = {
            "weights": f"{_short(parameters)} at {self.memory.weights / parameters:.3g} bytes",
            "gradients": f"{_short(trained)} at {self.memory.gradients / trained:.3g} bytes",
            "optimizer": f"{_short(trained)} at {self.memory.optimizer / trained:.3g} bytes",
            "activations": f"{tokens:,} tokens at {_short(self.memory.activations / tokens)} bytes",
            "logits": f"{predicted:,} tokens",
        }
        for name in PARTS:
            yield f"memory: {name}, {labels[name]}", gib(getattr(self.memory, name))
        yield "memory: libraries and workspaces", gib(RUNTIME)
        yield "memory per device, peak", f"{gib(self.memory.total)} of {gib(self.available)}"
        yield "disk: a checkpoint", gib(self.checkpoint)
        free = "" if math.isinf(self.free) else f" of {gib(self.free)} free"
        yield "disk: in all, at the most", f"{gib(self.disk)}{free}"
        if self.device and self.seconds is not None:
            yield f"time on {self.sharding.processes} × {self.device.name}", duration(self.seconds)

    def _assumptions(self) -> Iterator[str]:
        if not self.memory.accumulates:
            yield "Gradients and activations are not there at the same time: the peak counts the larger ones."
        if self.checkpoints > 1:
            yield "The newest checkpoint is kept, and the one before it until it is written."
        if self.recipe.rl:
            yield "No time: how long sampling takes is known only from a run."
        elif self.model.encoder_decoder:
            yield "No time: that of an encoder-decoder is not known. Its memory was not measured on a GPU."
        elif self.device:
            yield (
                f"Time: {self.operations:.3g} operations at {UTILISATION:.0%} "
                "(assumed: torchtitan's for 8B on 8 H100) of "
                f"{self.device.peak / 1e12:,.0f} TFLOP/s, the device's dense bf16 peak; without attention itself, "
                "loading, validation and saving."
            )
        else:
            yield "No time, because the device's speed is not known; --device names another one."


PARTS = ("weights", "gradients", "optimizer", "activations", "logits")
"""Parts of `Memory`, in the order of the table."""


def plan(recipe: TrainRecipe, rows: Dataset, report: DataReport, device: Device | None = None) -> Plan:
    """Return the plan of ``recipe`` on these rows, for the devices that are here or for the named ``device``."""
    sharding = current_sharding()
    if device is None and not torch.cuda.is_available():  # offloaded states are in the same memory
        sharding = replace(sharding, offload_optimizer=False, offload_weights=False)
    available = device.memory if device else _memory()
    if device is None and torch.cuda.is_available():
        device = device_called(torch.cuda.get_device_name())
    settled, model = recipe.on(sharding.processes), architecture(recipe.model)
    passes = epoch(settled, rows)
    gpu = device is not None or torch.cuda.is_available()
    if gpu and recipe.rl and recipe.rl.engine == "vllm":
        available *= 1 - recipe.rl.gpu_memory
    return Plan(
        recipe=settled,
        model=model,
        sharding=sharding,
        epoch=passes,
        tokens=report.tokens,
        trained=report.trained_tokens,
        memory=peak(settled, model, sharding, passes.largest, gpu=gpu),
        device=device,
        available=available,
        gpu=gpu,
        free=_free(Path(recipe.output_dir)),
    )


def peak(
    recipe: TrainRecipe, model: Architecture, sharding: Sharding, passes: Sequence[Pass], *, gpu: bool
) -> Memory:
    """Return the estimate for the pass that takes the most memory."""
    estimated = (estimate(recipe, model, sharding, *each, gpu=gpu) for each in passes)
    return max(estimated, key=lambda memory: memory.total)


def _memory() -> float:
    """Return the bytes of this process's device; the processes of a machine share its main memory."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(PartialState().device).total_memory
    return psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _free(directory: Path) -> float:
    """Return the free bytes of the disk on which ``directory`` is, or will be."""
    place = directory.absolute()
    return shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.is_dir())).free


def check(found: Plan, recipe: TrainRecipe, rows: Dataset) -> None:
    """Raise UserError, with the settings to change, if ``recipe``, whose plan is ``found``, does not fit.

    The memory is compared if ``recipe.check_memory`` is true, and the disk with the first checkpoint, where a run
    without space for it would end.
    """
    if recipe.check_memory and found.memory.total > found.available:
        raise UserError(
            f"model {recipe.model}: training needs about {gib(found.memory.total)} per device, which has "
            f"{gib(found.available)}; {_remedy(found, recipe, rows)} shard over more devices "
            "(launch/accelerate/zero3.yaml, zero3_offload.yaml); check_memory=false skips this check"
        )
    if found.checkpoint > found.free:
        remedies = ["free space", "choose another disk"]
        if not recipe.save_only_model:
            remedies.append("keep the weights only (save_only_model=true: a killed run starts again)")
        if not recipe.lora:
            remedies.append("train adapters (lora.r=16)")
        raise UserError(
            f"output_dir {recipe.output_dir}: a checkpoint takes about {gib(found.checkpoint)}, and its disk has "
            f"{gib(found.free)} free; {', '.join(remedies[:-1])}, or {remedies[-1]}"
        )


def _remedy(found: Plan, recipe: TrainRecipe, rows: Dataset) -> str:
    """Return the smallest change of the recipe that makes it fit, as the beginning of an advice."""

    largest: dict[tuple[int, int | None], tuple[Pass, ...]] = {}

    def fits(candidate: TrainRecipe) -> bool:
        settled = candidate.on(found.sharding.processes)
        layout = settled.batch_size, settled.pack_tokens
        if layout not in largest:
            largest[layout] = epoch(settled, rows).largest
        needed = peak(settled, found.model, found.sharding, largest[layout], gpu=found.gpu)
        return needed.total <= found.available

    remedy = next((text for text, changed in _remedies(recipe) if fits(changed)), None)
    return f"set {remedy}, or" if remedy else "no setting is enough for one device:"


def _remedies(recipe: TrainRecipe) -> Iterator[tuple[str, TrainRecipe]]:
    """Yield changes of the recipe that save memory: each alone, then more and more together."""
    changes = savings(recipe)
    together = [changes[:count] for count in range(2, len(changes) + 1)]
    for each in [*([change] for change in changes), *together]:
        keys = {name: value for _, change in each for name, value in change.items()}
        yield " ".join(text for text, _ in each), replace(recipe, **keys)


def savings(recipe: TrainRecipe) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings that save memory, the smallest change first: each as text, and as keys of the recipe."""
    small = {"batch_size": 1}
    if recipe.global_batch is None:
        small["gradient_accumulation"] = recipe.batch_size * recipe.gradient_accumulation
    packed = SFTRecipe(pack_tokens=recipe.max_tokens)
    changes: list[tuple[bool, str, dict[str, Any]]] = [
        (not recipe.gradient_checkpointing, "gradient_checkpointing=true", {"gradient_checkpointing": True}),
        (recipe.batch_size > 1, " ".join(f"{key}={value}" for key, value in small.items()), small),
        ((recipe.pack_tokens or 0) > recipe.max_tokens, f"sft.pack_tokens={recipe.max_tokens}", {"sft": packed}),
        (recipe.precision == "fp32", "precision=bf16", {"precision": "bf16"}),
        (recipe.lora is None, "lora.r=16", {"lora": LoraRecipe()}),
        (recipe.lora is not None and recipe.quantize == "none", "quantize=4bit", {"quantize": "4bit"}),
    ]
    return [(text, keys) for saves, text, keys in changes if saves]


def _short(count: float) -> str:
    for letter, power in (("B", 1e9), ("M", 1e6)):
        if count >= power:
            return f"{count / power:.1f} {letter}"
    return f"{count:,.0f}"
