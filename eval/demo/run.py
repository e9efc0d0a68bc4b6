"""Runs an experiment on its seeds, decides its claims, and writes a page of results.

An experiment is a recipe (`rag_train.eval.demo.recipe`): DeepRAG's stages in the mini world or in the atlas, or the
lessons of all methods. All use the same engines, indexes and trainers as any other run. Steps that were completed
earlier under the same recipe are read from the work directory.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rag_train.eval.demo import deeprag, lessons
from rag_train.eval.demo.claims import (
    CLAIMS,
    LESSONS_CLAIMS,
    MINI_WORLD_CLAIMS,
    Claim,
    Compared,
    Placed,
    clusters,
    differences,
    pooled,
    reference,
    verdict,
    verdicts,
)
from rag_train.eval.demo.page import write_report
from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.demo.results import Example, Provenance, ReportData, Timing, save_results
from rag_train.eval.demo.seed import Seed
from rag_train.eval.matrix.tables import cause_table, decision_table, main_table, parts_table
from rag_train.eval.metrics.boundary import DecisionCounts, fact_counts, paired_bootstrap_mcc
from rag_train.eval.metrics.intervals import Interval, across_seeds, paired_bootstrap
from rag_train.eval.metrics.scores import Score, score
from rag_train.eval.metrics.summary import pool
from rag_train.eval.peak_memory import peak_memory
from rag_train.progress import console
from rag_train.provenance import code_version, machine


def run_demo(
    recipe: DemoRecipe, seeds: Sequence[int], work: Path, output: Path, *, scratch: bool = False
) -> ReportData:
    """Run every seed, write ``demo.json`` and ``demo.html`` to ``output``, and print the tables."""
    start, experiment = time.perf_counter(), lessons if recipe.lessons else deeprag
    results = []
    with peak_memory() as peak:
        for number in seeds:
            results.append(Seed(recipe, number, work, scratch))
            asyncio.run(experiment.run(results[-1]))
    world = "atlas" if recipe.atlas else "mini world"
    data = ReportData(
        title=f"Every strategy in the {world}" if recipe.lessons else f"DeepRAG in the {world}",
        summary=summary(recipe, results),
        claims=claims(recipe, results),
        runs=[run for result in results for run in result.runs],
        curves=results[0].curves,
        timings=_timings([result.timings for result in results], time.perf_counter() - start),
        peak_gib=peak.gib,
        examples=_examples(results[0], experiment.STAGES),
        provenance=_provenance(recipe, seeds),
    )
    output.mkdir(parents=True, exist_ok=True)
    save_results(output / "demo.json", data)
    write_report(output / "demo.html", data)
    summaries = pool(data.runs)
    for table in (main_table, decision_table, parts_table, cause_table):
        console.print(table(summaries))
    if any(claim.placed for claim in data.claims):
        console.print("One seed cannot decide a claim: the verdicts are those of the reference seeds.")
    for claim in data.claims:
        console.print(claim.line(), markup=False)
    cost = f"{time.perf_counter() - start:.0f} s, {peak.gib:.1f} GiB at the peak"
    console.print(f"wrote {output / 'demo.html'} and demo.json ({cost})")
    return data


def _timings(seeds: Sequence[Mapping[str, float]], total: float) -> list[Timing]:
    """Return the seconds of each part over all seeds, and of everything else; together they are ``total``."""
    parts = {part: sum(timings[part] for timings in seeds) for part in seeds[0]}
    parts["everything else"] = max(0.0, total - sum(parts.values()))
    return [Timing(part=part, seconds=seconds) for part, seconds in parts.items()]


def claims(recipe: DemoRecipe, results: Sequence[Seed]) -> list[Claim]:
    """Return the experiment's claims with their verdicts, by the rules of `rag_train.eval.demo.claims`."""
    stated = LESSONS_CLAIMS if recipe.lessons else MINI_WORLD_CLAIMS if recipe.miniworld else CLAIMS
    names = {run.name for result in results for run in result.runs}
    stated = {text: claim for text, claim in stated.items() if {claim.first, claim.second} <= names}
    by_seed = differences([run for result in results for run in result.runs], stated)
    if recipe.miniworld and len(results) > 1:
        decided = verdicts(by_seed)
        return [
            Claim(text=text, verdict=decided[text], evidence=_evidence(across_seeds(values), stated[text]))
            for text, values in by_seed.items()
        ]
    found = []
    for text, claim in stated.items():
        over = difference(results, claim, one_world=recipe.miniworld is None)
        placed = None
        decided_here = verdict(over.lo, over.hi, by_seed[text], claim.margin)
        if recipe.miniworld and not math.isnan(by_seed[text][0]):
            placed = Placed(here=by_seed[text][0], seeds=reference()[text], margin=claim.margin)
            decided_here = verdicts(reference())[text]
        found.append(Claim(text=text, verdict=decided_here, evidence=_evidence(over, claim), placed=placed))
    return found


def _evidence(found: Interval, claim: Compared) -> str:
    return f"{found.text(3, sign='+')} {claim.unit}"


def difference(results: Sequence[Seed], claim: Compared, *, one_world: bool) -> Interval:
    """Return the difference that a claim is about, over the questions of all seeds.

    ``one_world``: whether all seeds ask about the same entities, which is so in the atlas.
    """
    about = clusters([result.questions(claim.first) for result in results], one_world=one_world)

    def scores(name: str) -> list[Score]:
        return pooled([score(result.questions(name), result.trajectories[name]) for result in results])

    def decisions(name: str) -> list[DecisionCounts]:
        return [c for result in results for c in fact_counts(result.trajectories[name], result.known)]

    if claim.measure == "mcc":
        return paired_bootstrap_mcc(decisions(claim.first), decisions(claim.second), about)
    return paired_bootstrap(scores(claim.first), scores(claim.second), claim.measure, about)


def _examples(result: Seed, stages: Sequence[str], count: int = 6) -> list[Example]:
    """Return the first question of each type and number of hops, with the trajectories of every stage."""
    names = [name for stage in stages if (name := f"deeprag, {stage}") in result.trajectories]
    chosen: dict[tuple[str, int | None], int] = {}
    for i, question in enumerate(result.questions(names[0]) if names else []):
        chosen.setdefault((question.type, question.hops), i)
    return [
        Example(
            question=result.world.asked[i],
            trajectories={name: result.trajectories[name][i] for name in names},
            known={
                step.subquery: result.known[step.subquery]
                for name in names
                for step in result.trajectories[name][i].steps
                if step.subquery in result.known
            },
        )
        for i in list(chosen.values())[:count]
    ]


def summary(recipe: DemoRecipe, results: Sequence[Seed]) -> str:
    """Return what was run, in a few sentences."""
    facts = [
        result.known[subquery]
        for result in results
        for subquery in {step.subquery for question in result.world.asked for step in question.decomposition}
        if subquery in result.known
    ]
    share = f"{sum(facts) / len(facts):.0%}" if facts else "none"
    if recipe.miniworld is not None:
        layers = recipe.miniworld.pretrain.layers
        model = f"A {layers}-layer language model, trained from scratch on the text of a made-up world"
        knowledge = f"Of the facts behind the questions, it knows {share}."
    else:
        assert recipe.atlas is not None
        model = f"{recipe.atlas.model}, a pretrained model, and real facts about places and elements"
        knowledge = f"Of the facts behind the questions on which its answers agree, it knows {share}."
    trained = (
        f"It answers with every strategy before and after a training on examples of all methods, "
        f"{recipe.lessons.tokens:,} tokens each."
        if recipe.lessons
        else "A cold start teaches it the format, with random decisions. Tree search explores its knowledge "
        "boundary, which it then learns by imitation (Stage I) and by calibration (Stage II)."
    )
    return (
        f"{model}. {knowledge} {trained} {recipe.test_questions} multi-hop {recipe.split} questions, "
        f"{len(results)} seed{'s' if len(results) > 1 else ''}."
    )


def _provenance(recipe: DemoRecipe, seeds: Sequence[int]) -> Provenance:
    import yaml

    info = machine()
    hardware = ("processor", "cores", "memory_gib", "system")
    return Provenance(
        machine=", ".join(f"{name} {info[name]}" for name in hardware if name in info),
        code_version=code_version(),
        versions={name: value for name, value in info.items() if name not in hardware},
        seeds=list(seeds),
        recipe=yaml.safe_dump(json.loads(json.dumps(asdict(recipe))), sort_keys=False),
    )
