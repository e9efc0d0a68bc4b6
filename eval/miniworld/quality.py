"""What the pretrained mini model can do by itself: recall facts, and read them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.answers import contains
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.models import checkpoint
from rag_train.llm.base import LLM, Sampling
from rag_train.miniworld.world import CHAINS, Fact, World
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.retrieval.batching import AsyncRetriever

HELD_OUT: dict[str, str] = {
    "director": "Who was {x} directed by?",
    "star": "Who played in {x}?",
    "release year": "In which year was {x} released?",
    "birthplace": "Which city was {x} born in?",
    "birth year": "Which year was {x} born in?",
    "spouse": "Who married {x}?",
    "country": "Which country is {x} in?",
}
"""Question about each relation, in a wording that the training text lacks, though it has all of its words."""
MOST = 400
"""Facts of a kind that are asked for."""
PASSAGES = 3
"""Passages to read from."""
SAMPLING = Sampling(max_tokens=8, stop=("\n",))
"""A line."""


async def run(seeds: Sequence[int], settings: Settings, output: Path) -> None:
    """Ask the model of every seed, print the shares, and write ``mini_model.json`` to ``output``."""
    rows = [row for seed in seeds for row in await measure(Lab(seed, settings))]
    for row in rows:
        console.print(json.dumps(row))
    options = {"seeds": ",".join(map(str, seeds)), "split": settings.split}
    save_result(output / "mini_model.json", {"options": options, "rows": rows})


async def measure(lab: Lab) -> list[dict[str, Any]]:
    """Return the shares of right answers of one seed's model, each with the number of facts, by kind of wording.

    ``known``, ``outdated`` and ``unknown`` facts are recalled; of an outdated fact, the old value is right.
    ``reading`` and ``reading_changed`` are unknown and outdated facts, read from the passages that a search finds;
    the true value is right, which the corpus states.
    """
    rows: list[dict[str, Any]] = []
    async with lab.serve(await checkpoint(lab, "base")) as engine:
        for wording in ("trained", "new"):
            row: dict[str, Any] = {"seed": lab.seed, "wording": wording}
            for name, values in expected(lab.world, lab.settings.split).items():
                rng = random.Random(f"{lab.seed}-{name}")
                retriever = lab.retriever if name.startswith("reading") else None
                right = [
                    _right(engine, retriever, question(*fact, wording, rng), value)
                    for fact, value in rng.sample(sorted(values.items()), min(MOST, len(values)))
                ]
                row |= {name: sum(await asyncio.gather(*right)) / len(right), f"n_{name}": len(right)}
            rows.append(row)
    return rows


def question(subject: str, relation: str, wording: str, rng: random.Random) -> str:
    """Return the question about a fact: in a random one of the text's wordings (trained), or in `HELD_OUT`'s."""
    trained = [template.format(x=subject) for template in CHAINS[(relation,)]]
    return rng.choice(trained) if wording == "trained" else HELD_OUT[relation].format(x=subject)


def expected(world: World, split: str) -> dict[str, dict[Fact, str]]:
    """Return the right answers by kind: facts about the split's films and people, and about all cities."""
    facts = {fact: value for fact, value in world.facts.items() if world.split.get(fact[0], split) == split}
    unknown = {fact: value for fact, value in facts.items() if world.recalled(fact) is None}
    changed = {fact: value for fact, value in facts.items() if fact in world.outdated}

    def mentioned(values: dict[Fact, str]) -> dict[Fact, str]:
        return {fact: value for fact, value in values.items() if fact in world.mentioned}

    return {
        "known": {fact: value for fact, value in facts.items() if fact in world.known},
        "outdated": {fact: world.outdated[fact] for fact in changed},
        "unknown": unknown,
        "reading": mentioned(unknown),
        "reading_changed": mentioned(changed),
    }


async def _right(engine: LLM, retriever: AsyncRetriever | None, question: str, value: str) -> bool:
    """Whether the answer has ``value``; with a retriever, the model reads its passages."""
    passages = await retriever.search(question, PASSAGES) if retriever else []
    lines = "".join(f"{passage.title}: {passage.text}\n" for passage in passages)
    return contains((await engine.complete(lines + question, SAMPLING)).text, [value])
