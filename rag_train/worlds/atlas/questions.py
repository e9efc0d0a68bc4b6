"""Questions over the atlas: chains of one to four hops, comparisons, yes/no and compound questions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from rag_train.jobs.files import write_records
from rag_train.schema import GoldStep, Question
from rag_train.worlds.atlas.facts import SHARES, Atlas, Entity, Split, Value, load_atlas
from rag_train.worlds.atlas.passages import corpus, is_mentioned
from rag_train.worlds.atlas.wordings import CHAINS, COMPARISONS, RELATIONS, Comparison, Relation

T = TypeVar("T")
SIZES: dict[Split, int] = {"train": 4500, "dev": 400, "test": 1200}
"""Questions of each split, compound ones included."""
COMPARED, COMPOUND = 0.2, 0.1
"""Shares of the comparisons and of the compound questions."""


def questions(atlas: Atlas, split: Split, seed: int = 0) -> list[Question]:
    """Return the questions of a split in a seeded random order.

    Every entity of a question, bridging ones included, is of the split. Each chain has about as many questions as
    any other, as far as there are entities, and so has each country within a chain: large countries, which have
    most of the cities and are better known, are not in all splits. Yes and no are equally frequent.
    """
    rng = random.Random(f"atlas {seed} {split}")
    size = SIZES[split]
    compared, compound = round(COMPARED * size), round(COMPOUND * size)
    made = [
        *_chains(atlas, split, rng, size - compared - compound),
        *_comparisons(atlas, split, rng, compared),
        *_compounds(atlas, split, rng, compound),
    ]
    rng.shuffle(made)
    return [question.model_copy(update={"id": f"atlas-{split}-{i}"}) for i, question in enumerate(made)]


def write_atlas(directory: Path, seed: int = 0) -> dict[str, int]:
    """Write corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl, and return how many records each has.

    Raises UserError if a package with facts is not installed.
    """
    atlas = load_atlas()
    records = {"corpus": corpus(atlas)} | {split: questions(atlas, split, seed) for split in SHARES}
    for name, lines in records.items():
        write_records(directory / f"{name}.jsonl", lines)
    return {name: len(lines) for name, lines in records.items()} | {"facts": len(atlas.facts)}


def subquery(atlas: Atlas, subject: str, relation: str) -> str:
    """Return the subquery for one fact."""
    entity = atlas.entities[subject]
    return RELATIONS[entity.kind, relation].questions[0].format(x=entity.phrase)


def home(atlas: Atlas, entity: Entity) -> Entity:
    """Return the country in which an entity lies or was discovered; the entity itself if there is none."""
    for relation in ("city", "country"):
        if (value := atlas.facts.get((entity.id, relation))) and value.entity:
            entity = atlas.entities[value.entity]
    return entity


Hop = tuple[Entity, str, Value]
"""Subject, relation and object."""


def _follow(atlas: Atlas, entity: Entity, chain: Iterable[str]) -> list[Hop]:
    """The hops from ``entity`` along ``chain``; none if a fact is missing or leaves the entity's split."""
    hops: list[Hop] = []
    subject: Entity | None = entity
    for relation in chain:
        if subject is None or subject.split != entity.split or (subject.id, relation) not in atlas.facts:
            return []
        value = atlas.facts[subject.id, relation]
        hops.append((subject, relation, value))
        subject = atlas.entities[value.entity] if value.entity else None
    return hops


def _steps(atlas: Atlas, hops: Iterable[Hop]) -> list[GoldStep]:
    """The hops as annotations."""
    steps = []
    for subject, relation, value in hops:
        stated = atlas.entities[value.entity].phrase if value.entity else value.text
        sentence = RELATIONS[subject.kind, relation].statements[0].format(x=subject.phrase, v=stated)
        steps.append(
            GoldStep(
                subquery=subquery(atlas, subject.id, relation),
                answer=sentence[0].upper() + sentence[1:],
                passage_ids=[subject.id] if is_mentioned((subject.id, relation)) else [],
                entity=subject.name,
                value=value.text,
            )
        )
    return steps


def _worded(hops: list[Hop], split: Split, rng: random.Random) -> str:
    """The question that asks for the object of the last hop, the earlier hops nested in it as noun phrases."""
    phrase = hops[0][0].phrase
    for subject, relation, _ in hops[:-1]:
        phrase = RELATIONS[subject.kind, relation].noun.format(x=phrase)
    subject, relation, _ = hops[-1]
    return _wording(RELATIONS[subject.kind, relation], split, rng).format(x=phrase)


def _wording(worded: Relation | Comparison, split: Split, rng: random.Random) -> str:
    """A wording of the split."""
    return rng.choice(worded.questions) if split == "train" else worded.dev if split == "dev" else worded.test


def _chains(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    """Questions along chains, drawn from each chain in turn until there are ``count``."""
    pools: list[list[tuple[str, list[Hop]]]] = []
    for kind, chain in CHAINS:
        by_country: dict[str, list[tuple[str, list[Hop]]]] = {}
        for entity in atlas.of_kind(kind, split):
            if hops := _follow(atlas, entity, chain):
                by_country.setdefault(home(atlas, entity).id, []).append((_worded(hops, split, rng), hops))
        countries = list(by_country.values())
        rng.shuffle(countries)
        for worded in countries:
            rng.shuffle(worded)
        pools.append(_in_turn(countries))
    return [
        _question(text, hops[-1][2].answers, _steps(atlas, hops), "single" if len(hops) == 1 else "chain")
        for text, hops in _in_turn(pools)[:count]
    ]


def _in_turn(pools: list[list[T]]) -> list[T]:
    """The first item of each pool, then the second of each that has one, and so on."""
    return [item for turn in zip_longest(*pools) for item in turn if item]


def _comparisons(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    pools = [[_follow(atlas, e, c.chain) for e in atlas.of_kind(c.kind, split)] for c in COMPARISONS]
    pairs = zip(COMPARISONS, ([hops for hops in pool if hops] for pool in pools), strict=True)
    usable = [(comparison, pool) for comparison, pool in pairs if len(pool) > 1]
    found: dict[str, Question] = {}
    for attempt in range(count * 50):
        if len(found) == count:
            break
        comparison, pool = usable[attempt % len(usable)]
        if question := _comparison(atlas, comparison, pool, split, rng):
            found.setdefault(question.question, question)
    return list(found.values())


def _comparison(
    atlas: Atlas, comparison: Comparison, pool: list[list[Hop]], split: Split, rng: random.Random
) -> Question | None:
    """A question about two entities, from which the hops of ``pool`` start; None if the draw has no answer."""
    one = rng.choice(pool)
    if comparison.answer == "same":
        same = rng.random() < 0.5
        pool = [hops for hops in pool if (hops[-1][2].text == one[-1][2].text) == same]
    other = rng.choice(pool) if pool else one
    (first, *_), (second, *_) = one[0], other[0]
    value, second_value = one[-1][2], other[-1][2]
    if first == second:
        return None
    if comparison.answer == "same":
        kind, answer = "yes/no", "yes" if value.text == second_value.text else "no"
    elif value.number is None or second_value.number is None or value.number == second_value.number:
        return None
    else:
        first_wins = (value.number > second_value.number) == (comparison.answer == "larger")
        kind, answer = "comparison", (first if first_wins else second).name
    text = _wording(comparison, split, rng).format(x=first.phrase, y=second.phrase)
    return _question(text, [answer], _steps(atlas, one + other), kind)


def _compounds(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    """Questions that ask two things at once, each answerable by itself (HANRAG, appendix B.1)."""
    singles = [(entity, relation) for kind, relation in RELATIONS for entity in atlas.of_kind(kind, split)]
    found: dict[str, Question] = {}
    while singles and len(found) < count:
        parts = [_follow(atlas, entity, (relation,)) for entity, relation in rng.sample(singles, 2)]
        if all(parts):
            steps = _steps(atlas, parts[0] + parts[1])
            first, second = (step.subquery.rstrip("?") for step in steps)
            text = f"{first}, and {second[0].lower()}{second[1:]}?"
            answer = " && ".join(step.short for step in steps)
            found.setdefault(text, _question(text, [answer], steps, "compound"))
    return list(found.values())


def _question(text: str, answers: list[str], steps: list[GoldStep], kind: str) -> Question:
    return Question(id="-", question=text, answers=answers, type=kind, hops=len(steps), decomposition=steps)
