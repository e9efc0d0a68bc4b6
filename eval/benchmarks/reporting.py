"""Benchmarks with dev and test seeds: what is run, what is logged, and differences over seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.papers.protocol import logged, seeds_of


def recorded(
    what: str,
    protocol: Path,
    options: argparse.Namespace,
    settings: dict[str, Any],
    run: Callable[[int], dict[str, Any]],
) -> dict[int, dict[str, Any]]:
    """Run the seeds of ``options`` and return the results of all seeds so far.

    A run with ``options.split`` test is on test seeds and is entered in the log of such runs.

    Args:
        what: name of the benchmark in the log; its last word names the file.
        protocol: file with the lists ``dev`` and ``test`` of seeds.
        options: ``seeds``, ``split`` and ``output`` of the command line.
        settings: what all seeds have in common.
        run: returns the result of a seed.

    Raises:
        UserError: if the seeds are not those of the split, or the protocol is not committed.
    """
    seeds = seeds_of(protocol, options.split, options.seeds)
    name = f"bench_{what.split()[-1]}"
    if options.split == "dev":
        return run_by_seed(options.output / f"{name}_dev.json", settings, seeds, run)
    with logged(what, seeds, protocol):
        return run_by_seed(options.output / f"{name}.json", settings, seeds, run)


def differences(values: Sequence[float]) -> str:
    """Return the mean difference over seeds with its 95% interval (Student's t), or that of a single seed."""
    if len(values) < 2:
        return f"{values[0]:+.3f} in one seed"
    effect = effect_across_seeds(values)
    return f"{effect.mean:+.3f} [{effect.lo:+.3f}, {effect.hi:+.3f}] over {len(values)} seeds"
