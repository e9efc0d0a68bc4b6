"""Plans of runs that were not made, computed by the code that `--dry-run` uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from generator.markdown import table
from rag_train.doctor.capacity import serving, sizes
from rag_train.downloads.catalogue import CATALOGUE
from rag_train.model_presets import PRESETS
from rag_train.recipe import parse_yaml
from rag_train.strategies.bounds import BOUNDS
from rag_train.training.devices import find_device
from rag_train.training.epoch import Epoch, Pass
from rag_train.training.memory import Sharding, estimate
from rag_train.training.plan import Plan
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.tree import few_lengths

ROOT = Path(__file__).parents[2]
SECTIONS = {"sft": SFTRecipe, "dpo": DPORecipe, "lora": LoraRecipe}


def training_plan(
    name: str,
    epoch: Epoch,
    tokens: int,
    trained: int,
    *,
    preset: str = "qwen2.5-7b",
    device: str = "h100",
    processes: int = 8,
    **keys: Any,
) -> Plan:
    """Return the plan of a shipped recipe under ZeRO-3 for an epoch with these tokens, so many of them trained."""
    given = parse_yaml((ROOT / f"recipes/{name}.yaml").read_text(encoding="utf-8"))
    given |= {"model": PRESETS[preset].hub} | keys
    sections = {key: kind(**given[key]) for key, kind in SECTIONS.items() if key in given}
    recipe = TrainRecipe(**(given | sections)).on(processes)
    model, sharding, found = sizes(PRESETS[preset]), Sharding(3, processes, deepspeed=True), find_device(device)
    return Plan(
        recipe=recipe,
        model=model,
        sharding=sharding,
        epoch=epoch,
        tokens=tokens,
        trained=trained,
        memory=estimate(recipe, model, sharding, *epoch.largest, gpu=True),
        device=found,
        available=found.memory,
        gpu=True,
    )


def passes(examples: int, count: int, tokens: int, predicted: int) -> Epoch:
    """Return an epoch of ``count`` equal passes, padded as trees and packed rows are."""
    each = Pass(few_lengths(tokens), few_lengths(predicted))
    return Epoch(examples, count, count * each.tokens, count * each.predicted, each)


def imitation_plan(*, examples: int, tokens: int, trained: float, **keys: Any) -> Plan:
    """Return the plan of DeepRAG's Stage I for examples of ``tokens``, a share of them trained, in full rows."""
    budget, every = 8192, examples * tokens
    epoch = passes(examples, math.ceil(every / budget), budget, round(budget * trained))
    return training_plan("deeprag_sft", epoch, every, round(every * trained), **keys)


def calibration_plan(*, pairs: int, tokens: int, snippet: int, **keys: Any) -> Plan:
    """Return the plan of Stage II, where a question's two pairs begin at the middle of its ``tokens`` on average.

    A tree of 8 pairs has the tokens of 4 questions once, and 16 snippets.
    """
    epoch = passes(pairs, math.ceil(pairs / 8), 4 * tokens, 16 * snippet)
    trained = 2 * pairs * snippet
    return training_plan("deeprag_dpo", epoch, pairs * tokens + trained, trained, **keys)


def memory_table(examples: int, tokens: int, trained: float) -> str:
    """Return the memory of Stage I by part on 1 to 8 devices, for all parameters and for adapters."""
    rows = []
    for title, keys in (("all parameters", {}), ("adapters", {"lora": {}})):
        for processes in (1, 2, 4, 8):
            memory = imitation_plan(
                examples=examples, tokens=tokens, trained=trained, processes=processes, **keys
            ).memory
            parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.logits)
            rows.append([title, str(processes), *(f"{part / 2**30:.1f}" for part in (*parts, memory.total))])
    columns = ["trained", "GPUs", "weights", "gradients", "optimizer", "activations", "logits", "peak"]
    return table(columns, rows, "lr")


def evaluation_bounds(strategies: list[str], questions: int) -> str:
    """Return the most calls and searches of an evaluation, from the strategies' stated bounds."""
    rows = [
        [f"`{name}`", *(f"{each:,}" for each in BOUNDS[name]), *(f"{each * questions:,}" for each in BOUNDS[name])]
        for name in strategies
    ]
    columns = ["strategy", "calls of a question", "searches", f"calls of {questions:,}", "searches"]
    return table(columns, rows, "l")


def serving_gib(preset: str) -> str:
    """Return the memory that serving a preset's model takes, in GiB."""
    return f"{serving(PRESETS[preset]) / 2**30:.0f}"


def download_gb(*names: str) -> str:
    """Return the size of public data sets in gigabytes."""
    return f"{sum(CATALOGUE[name].size or 0 for name in names) / 1e9:.1f}"


FUNCTIONS = {
    function.__name__: function
    for function in (imitation_plan, calibration_plan, memory_table, evaluation_bounds, serving_gib, download_gb)
}
"""What a page may call between ``[[=`` and ``=]]``."""
