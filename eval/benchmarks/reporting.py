"""Benchmarks with dev and test seeds: what is run, what is logged, and differences over seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.papers.protocol import logged, require_settings, seeds_of


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
        protocol: file with the lists ``dev`` and ``test`` of seeds, and the ``settings`` of test runs by the
            benchmark's name, null until they are chosen.
        options: ``seeds``, ``split`` and ``output`` of the command line.
        settings: what all seeds have in common.
        run: returns the result of a seed.

    Raises:
        UserError: if the seeds are not those of the split; for test seeds also if the protocol is not committed or
            has other settings.
    """
    seeds = seeds_of(protocol, options.split, options.seeds)
    name = what.split()[-1]
    if options.split == "dev":
        return run_by_seed(options.output / f"bench_{name}_dev.json", settings, seeds, run)
    chosen = yaml.safe_load(protocol.read_text(encoding="utf-8"))["settings"][name] or {}
    require_settings(protocol, {key: chosen.get(key) for key in settings if key != "split"}, settings)
    with logged(what, seeds, protocol):
        return run_by_seed(options.output / f"bench_{name}.json", settings, seeds, run)


def differences(values: Sequence[float]) -> str:
    """Return the mean difference over seeds with its 95% interval (Student's t), or that of a single seed."""
    if len(values) < 2:
        return f"{values[0]:+.3f} in one seed"
    effect = effect_across_seeds(values)
    return f"{effect.mean:+.3f} [{effect.lo:+.3f}, {effect.hi:+.3f}] over {len(values)} seeds"
