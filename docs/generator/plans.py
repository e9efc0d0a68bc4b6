"""Plans of runs that were not made, computed by the code that `--dry-run` uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from generator.markdown import number, percent, table
from generator.results import load
from rag_train.doctor.capacity import serving, sizes
from rag_train.downloads.catalogue import CATALOGUE
from rag_train.model_presets import PRESETS
from rag_train.recipe import parse_yaml
from rag_train.strategies.bounds import BOUNDS
from rag_train.table import gib
from rag_train.training.devices import UTILISATION, find_device
from rag_train.training.epoch import Epoch, Pass
from rag_train.training.memory import Sharding
from rag_train.training.plan import Plan, peak
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
        memory=peak(recipe, model, sharding, epoch.largest, gpu=True),
        device=found,
        available=found.memory,
        gpu=True,
    )


def passes(examples: int, count: int, tokens: int, predicted: int) -> Epoch:
    """Return an epoch of ``count`` equal passes, padded as trees and packed rows are."""
    each = Pass(few_lengths(tokens), few_lengths(predicted))
    return Epoch(examples, count, count * each.tokens, count * each.predicted, (each,))


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


# --- retrieval --------------------------------------------------------------------------------------------------

ENCODER = {"name": "e5-base", "weights": 12 * 12 * 768**2, "dimension": 768}
"""Layers of BERT's base size have 12 h² weights, without embeddings."""
SMALL_ENCODER_WEIGHTS = 6 * 12 * 384**2
"""Those of all-MiniLM-L6-v2's layers."""
PASSAGE_TOKENS = 130
"""Assumed tokens of a passage of 100 words."""
CENTROIDS, CODE, LINKS = 65536, 64, 32
"""Sizes of the FAISS indexes ``IVF65536,PQ64`` and ``HNSW32``: clusters, bytes of a code, links of a vector."""


def vector_bytes(count: int, dimension: int) -> dict[str, int]:
    """Return the bytes of FAISS's indexes of ``count`` vectors, whose numbers are in fp32.

    IVF-PQ stores a code and an id of 8 bytes for each vector, and the centroids and codebooks. HNSW stores each
    vector, its links of 4 bytes, and 12 bytes of positions. A vector has 2 M links on the lowest level and M links
    on each higher level. One vector in M is on the second level, one of these in M on the third, and so on.
    """
    vector = 4 * dimension
    return {
        "Flat": count * vector,
        f"IVF{CENTROIDS},PQ{CODE}": count * (CODE + 8) + (CENTROIDS + 256) * vector,
        f"HNSW{LINKS}": count * (vector + 8 * LINKS + 12 + round(4 * LINKS / (LINKS - 1))),
    }


def extrapolated(
    runs: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float], passages: int
) -> tuple[float, float | None]:
    """Return ``value`` at ``passages``, in proportion to that of the largest of ``runs``, and its error.

    The error is how far the smallest run, extrapolated in the same way, is from what the largest one measured; None
    for a single run.
    """
    first, last = (choose(runs, key=lambda run: run["passages"]) for choose in (min, max))
    scaled = value(last) * passages / last["passages"]
    error = value(first) * last["passages"] / first["passages"] / value(last) - 1
    return scaled, error if len(runs) > 1 else None


def retrieval_plan(passages: int, device: str = "h100") -> str:
    """Return what BM25 and dense retrieval take: times extrapolated from measurements, sizes computed."""
    measured = load("bench_retrieval")
    runs = measured["sizes"]
    width, found = ENCODER["dimension"], find_device(device)
    encoding = 2 * ENCODER["weights"] * PASSAGE_TOKENS * passages / (UTILISATION * found.peak)
    slower = ENCODER["weights"] / SMALL_ENCODER_WEIGHTS
    slow = passages * slower / median(measured["encoding"]["passages_per_second"])
    times = f"measured at {max(run['passages'] for run in runs):,}, in proportion"

    def row(
        what: str, value: Callable[[dict[str, Any]], float], unit: str, digits: int, how: str = times
    ) -> list[str]:
        scaled, error = extrapolated(runs, value, passages)
        return [what, f"{number(scaled, digits)} {unit}", how, _error(error)]

    rows = [
        row("BM25: building on 2 CPU cores", lambda run: run["build"]["seconds"] / 3600, "hours", 1),
        row("BM25: disk", lambda run: run["build"]["bytes"] / 2**30, "GiB", 1),
        row("BM25: memory of a search", lambda run: run["bm25"]["peak_gib"], "GiB", 1),
        row("BM25: a query on 2 CPU cores", lambda run: 1000 / median(run["bm25"]["queries_per_second"]), "ms", 0),
        [
            f"dense: encoding on one {found.name}",
            f"{number(encoding / 60, 0)} minutes",
            f"2 operations for a token and each of {ENCODER['weights'] / 1e6:.0f} M weights, "
            f"{PASSAGE_TOKENS} tokens a passage, at {UTILISATION:.0%} of {found.peak / 1e12:,.0f} TFLOP/s",
            "unknown: not measured, and a small model may reach a smaller share",
        ],
        [
            "dense: encoding on 2 CPU cores",
            f"{number(slow / 86400, 0)} days",
            f"all-MiniLM-L6-v2's passages a second, measured, over {number(slower, 0)} times the weights",
            "unknown: one encoder measured",
        ],
        row(
            "dense: 256 exact searches on 2 CPU cores",
            lambda run: median(run["dense"]["search_seconds"]) * width / run["dense"]["dimension"],
            "s",
            0,
            f"{times}, × {width} / {runs[0]['dense']['dimension']} dimensions",
        ),
    ]
    for kind, size in vector_bytes(passages, width).items():
        rows.append([f"dense: `{kind}`", gib(size), BYTES[kind], "under 1%"])
    return table(["what", f"{passages:,} passages", "computed as", "error"], rows, "lrll")


BYTES = {
    "Flat": "4 d",
    f"IVF{CENTROIDS},PQ{CODE}": f"{CODE} + 8, and 4 d for each of {CENTROIDS:,} centroids",
    f"HNSW{LINKS}": f"4 d + 8 × {LINKS} + 16",
}
"""Bytes of a vector of d dimensions (`vector_bytes`)."""


def _error(error: float | None) -> str:
    return "unknown: one size measured" if error is None else f"{percent(error)}%"


def serving_gib(preset: str) -> str:
    """Return the memory that serving a preset's model takes, in GiB."""
    return f"{serving(PRESETS[preset]) / 2**30:.0f}"


def download_gb(*names: str) -> str:
    """Return the size of public data sets in gigabytes."""
    return f"{sum(CATALOGUE[name].size or 0 for name in names) / 1e9:.1f}"


def planned_utilisation() -> float:
    """Return the share of a GPU's peak that plans assume."""
    return UTILISATION


FUNCTIONS = {
    function.__name__: function
    for function in (
        imitation_plan,
        calibration_plan,
        memory_table,
        evaluation_bounds,
        retrieval_plan,
        serving_gib,
        download_gb,
        planned_utilisation,
    )
}
"""What a page may call between ``[[=`` and ``=]]``."""
