"""Dry runs: what a synthesis would take, from one item in a hundred."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_train.data_synth.cluster import gpus_of
from rag_train.data_synth.method import Method, SynthesisRecipe, synthesize
from rag_train.errors import UserError
from rag_train.jobs.items import Shard
from rag_train.table import Table, estimates


def estimate(
    method: type[Method[Any, Any]], recipe: SynthesisRecipe, device: str | None
) -> tuple[dict[str, float], Table]:
    """Do one item in a hundred, and return what all would take, on the named ``device`` in hours, and as a table.

    Nothing is kept but the engine's cache. Raises UserError for an unknown device, and for a recipe whose model is
    not in this process.
    """
    hours = _hours_on(device, recipe) if device else None
    with tempfile.TemporaryDirectory() as folder:
        sample = replace(recipe, output=str(Path(folder) / "sample.jsonl"))
        done = asyncio.run(synthesize(method, sample, Shard(1, 100)))
    factor = done.items / max(1, done.items_done)
    names = ("engine_calls", "prompt_tokens", "completion_tokens")
    calls, read, written = (round(done.counts.get(name, 0) * factor) for name in names)
    found: dict[str, float] = {"items": done.items, "items_done": done.items_done, "engine_calls": calls}
    found |= {"prompt_tokens": read, "completion_tokens": written}
    rows = [("items", f"{done.items:,}"), ("engine calls", f"{calls:,}")]
    rows += [("tokens read", f"{read:,}"), ("tokens written", f"{written:,}")]
    notes = [f"Means of {done.items_done:,} items, one in a hundred, times all."]
    engine = getattr(recipe, "engine", None)
    if engine and engine.input_price + engine.output_price:
        found["dollars"] = (read * engine.input_price + written * engine.output_price) / 1e6
        rows.append(("dollars", f"{found['dollars']:,.2f}"))
    if device and engine and hours:
        from rag_train.training.devices import UTILISATION

        found["gpu_hours"] = hours(read, written)
        rows.append((f"{device.upper()} hours", f"{found['gpu_hours']:,.2f}"))
        notes.append(
            f"Hours: operations at {UTILISATION:.0%} of the peak, weights in bf16 read once a token of "
            f"{engine.max_sequences} calls in flight, no tokens read from the prefix cache, no searches."
        )
    return found, estimates(f"What all items would take; nothing was kept. Output: {recipe.output}.", rows, notes)


def _hours_on(device: str, recipe: Any) -> Callable[[int, int], float]:
    """Return the hours of ``device`` for tokens read and written by the recipe's engine."""
    from rag_train.llm.checkpoint import base_of, check_checkpoint
    from rag_train.training.devices import engine_seconds, find_device
    from rag_train.training.memory import architecture

    found = find_device(device)
    if not gpus_of(recipe):
        raise UserError(f"--device {device}: the recipe starts no engine; leave the option out")
    check_checkpoint(base_of(recipe.model)[0])
    parameters, sequences = architecture(recipe.model).parameters, recipe.engine.max_sequences
    return lambda read, written: engine_seconds(found, parameters, read, written, sequences) / 3600
