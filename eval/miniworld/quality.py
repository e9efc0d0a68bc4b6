"""What the pretrained mini model can do by itself.

It recalls facts, reads them, says what a question asks for, and has a state that tells how much it knows.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.answers import contains
from rag_train.eval.miniworld.familiarity import familiarity
from rag_train.eval.miniworld.lab import PASSAGES, Lab, Settings, multi_hop
from rag_train.eval.miniworld.models import pretrained_model
from rag_train.llm.base import LLM, Sampling
from rag_train.miniworld.text import ASKED, ASKS, asked_for
from rag_train.miniworld.world import CHAINS, RELATIONS, Fact, World, subquery
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question

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
"""Facts of a kind that are asked for, and questions of several hops."""
SAMPLING = Sampling(max_tokens=32, stop=("\n",))
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
    the true value is right, which the corpus states. ``decomposition`` is of the split's questions of two to four
    hops, in the only wordings that they have: the relations and films or people that they ask for, in order.
    ``familiarity`` is that of `rag_train.eval.miniworld.familiarity`.
    """
    rows: list[dict[str, Any]] = []
    model = pretrained_model(lab)
    async with lab.serve(model) as engine:
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
        asked = multi_hop(lab.world.questions(lab.settings.split))[:MOST]
        right = await asyncio.gather(*(_decomposes(engine, question) for question in asked))
        rows[0] |= {"decomposition": sum(right) / len(right), "n_decomposition": len(right)}
    area, count = familiarity(model, lab.world, lab.settings.split)
    rows[0] |= {"familiarity": area, "n_familiarity": count}
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


def meaning(question: Question) -> str:
    """Return what a question asks for, in the words of the training text."""
    plan: list[tuple[str, list[str]]] = []
    end = ""
    for step in question.decomposition:
        relation = next(relation for relation in RELATIONS if step.subquery == subquery(relation, step.entity))
        if step.entity != end:
            plan.append((step.entity, []))
        plan[-1][1].append(relation)
        end = step.value
    return asked_for(plan)


async def _decomposes(engine: LLM, question: Question) -> bool:
    """Whether the model says what the question asks for."""
    completion = await engine.complete(f"{ASKED} {question.question} {ASKS}", SAMPLING)
    return completion.text.strip() == f"{meaning(question)}."


async def _right(engine: LLM, retriever: AsyncRetriever | None, question: str, value: str) -> bool:
    """Whether the answer has ``value``; with a retriever, the model reads its passages."""
    passages = await retriever.search(question, PASSAGES) if retriever else []
    lines = "".join(f"{passage.title}: {passage.text}\n" for passage in passages)
    return contains((await engine.complete(lines + question, SAMPLING)).text, [value])
