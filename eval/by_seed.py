"""Results seed by seed: a file that is written after each seed, to which other days and machines add theirs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.peak_memory import peak_memory
from rag_train.files import write_text
from rag_train.progress import console
from rag_train.provenance import code_version, machine


def run_by_seed(
    path: Path, settings: dict[str, Any], seeds: Sequence[int], run: Callable[[int], dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Run each seed, write its result to ``path``, and return the results of all seeds in the file.

    Args:
        path: results file (JSON).
        settings: what all seeds have in common; JSON values.
        seeds: seeds to run. Seeds that the file has are not run again: their time and code version would be lost.
        run: returns the result of a seed as JSON values. The machine, the code version, and the seconds and the
            peak memory of this process are added.

    Raises:
        UserError: if the file has results of other settings.
    """
    settings = json.loads(json.dumps(settings))
    for seed in seeds:
        if seed in _earlier(path, settings):
            console.print(f"{path}: has seed {seed}; delete it there to run it again", markup=False, soft_wrap=True)
            continue
        code, began = code_version(), time.perf_counter()
        with peak_memory() as peak:
            found = run(seed)
        cost = {"seconds": time.perf_counter() - began, "peak_gib": peak.gib}
        result = {"machine": machine(), "code_version": code} | cost | found
        results = _earlier(path, settings) | {seed: result}  # another process may have added a seed meanwhile
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"settings": settings, "seeds": {str(seed): results[seed] for seed in sorted(results)}}
        write_text(path, json.dumps(whole, indent=1) + "\n")
    return _earlier(path, settings)


def _earlier(path: Path, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    before = found.get("settings", {})
    if before != settings:
        changed = ", ".join(key for key in before | settings if before.get(key) != settings.get(key))
        raise UserError(
            f"{path}: made with other settings ({changed}), and only seeds with the same are compared; give "
            f"another --output, or delete the file"
        )
    return {int(seed): result for seed, result in found["seeds"].items()}
