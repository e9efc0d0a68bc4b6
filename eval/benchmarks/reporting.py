"""Benchmarks with dev and test seeds: what is run, what is logged, differences over seeds, and verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rag_train.errors import UserError
from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.papers.protocol import logged, require_settings, seeds_of

Results = dict[int, dict[str, Any]]
"""The results of each seed."""


def recorded(
    what: str,
    protocol: Path,
    options: argparse.Namespace,
    settings: dict[str, Any],
    run: Callable[[int], dict[str, Any]],
    verdict: Callable[[Results], str],
) -> Results:
    """Run the seeds of ``options`` and return the results of all seeds so far.

    A run with ``options.split`` test is on test seeds and is entered in the log of such runs.

    Args:
        what: name of the benchmark in the log; its last word names the file.
        protocol: file with the lists ``dev`` and ``test`` of seeds, and the ``settings`` of test runs by the
            benchmark's name, null until they are chosen.
        options: the command line, with ``seeds``, ``split`` and ``output``. All options but seeds and paths are
            settings, too.
        settings: all else that determines the results, as far as it is the same for all seeds; JSON values.
        run: returns the result of a seed.
        verdict: returns what the results say about the claim.

    Raises:
        UserError: if the seeds are not those of the split; for test seeds also if the protocol is not committed,
            does not name each option, or has other settings.
    """
    seeds = seeds_of(protocol, options.split, options.seeds)
    name = what.split()[-1]
    given = {key: value for key, value in vars(options).items() if key != "seeds" and not isinstance(value, Path)}
    settings = given | settings
    if options.split == "dev":
        return run_by_seed(options.output / f"bench_{name}_dev.json", settings, seeds, run)
    chosen = yaml.safe_load(protocol.read_text(encoding="utf-8"))["settings"][name] or {}
    if missing := ", ".join(sorted(given.keys() - chosen.keys() - {"split"})):
        raise UserError(
            f"{protocol.name}: settings.{name} does not name {missing}; choose settings on dev seeds and commit "
            f"them in the protocol"
        )
    require_settings(protocol, chosen, settings)
    with logged(what, seeds, protocol) as outcome:
        results = run_by_seed(options.output / f"bench_{name}.json", settings, seeds, run)
        outcome.text = verdict(results)
    return results


def judged(protocol: Path, seeds: Collection[int], found: Mapping[str, Sequence[float]]) -> str:
    """Return the differences that a claim is about, and its verdict, in one line.

    The claim holds if the 95% interval of each difference is above 0, and fails if each is below 0. It is open
    before all test seeds have been run.

    Args:
        protocol: file with the list ``test`` of seeds.
        seeds: the seeds so far.
        found: the differences of these seeds, by what is compared.
    """
    verdict = "open"
    if sorted(seeds) == sorted(seeds_of(protocol, "test")):
        effects = [effect_across_seeds(values) for values in found.values()]
        above, below = all(effect.lo > 0 for effect in effects), all(effect.hi < 0 for effect in effects)
        verdict = "holds" if above else "fails" if below else "cannot be told apart"
    told = "; ".join(f"{name}: {differences(values)}" for name, values in found.items())
    return f"{verdict}; seeds {', '.join(map(str, sorted(seeds)))}; {told}"


def differences(values: Sequence[float]) -> str:
    """Return the mean difference over seeds with its 95% interval (Student's t), or that of a single seed."""
    if len(values) < 2:
        return f"{values[0]:+.3f} in one seed"
    effect = effect_across_seeds(values)
    return f"{effect.mean:+.3f} [{effect.lo:+.3f}, {effect.hi:+.3f}] over {len(values)} seeds"
