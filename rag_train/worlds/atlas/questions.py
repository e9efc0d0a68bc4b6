"""Questions over the atlas: chains of one to four hops, comparisons, yes/no and compound questions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from rag_train.jobs.files import write_records
from rag_train.schema import GoldStep, Question
from rag_train.worlds.atlas.facts import SHARES, Atlas, Entity, Split, Value, load_atlas
from rag_train.worlds.atlas.passages import corpus, is_mentioned
from rag_train.worlds.atlas.wordings import CHAINS, COMPARISONS, RELATIONS, Comparison, Relation

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


def follow(atlas: Atlas, entity: Entity, chain: Iterable[str]) -> list[GoldStep] | None:
    """Return the hops from ``entity`` along ``chain``; None if a fact is missing or leaves the entity's split."""
    steps: list[GoldStep] = []
    subject: Entity | None = entity
    for relation in chain:
        if subject is None or subject.split != entity.split or (subject.id, relation) not in atlas.facts:
            return None
        value = atlas.facts[subject.id, relation]
        following = atlas.entities[value.entity] if value.entity else None
        stated = following.phrase if following else value.text
        wording = RELATIONS[subject.kind, relation].statements[0]
        sentence = wording.format(x=subject.phrase, v=stated)
        steps.append(
            GoldStep(
                subquery=subquery(atlas, subject.id, relation),
                answer=sentence[0].upper() + sentence[1:],
                passage_ids=[subject.id] if is_mentioned((subject.id, relation)) else [],
                entity=subject.name,
                value=value.text,
            )
        )
        subject = following
    return steps


def _end(atlas: Atlas, entity: Entity, chain: tuple[str, ...]) -> Value:
    """The object at the end of a chain that can be followed."""
    value, subject = Value(""), entity
    for relation in chain:
        value = atlas.facts[subject.id, relation]
        subject = atlas.entities.get(value.entity or "", subject)
    return value


def _worded(atlas: Atlas, entity: Entity, chain: tuple[str, ...], split: Split, rng: random.Random) -> str:
    """The question that asks for the end of a chain, the earlier hops nested in it as noun phrases."""
    subject, phrase = entity, entity.phrase
    for relation in chain[:-1]:
        phrase = RELATIONS[subject.kind, relation].noun.format(x=phrase)
        subject = atlas.entities[atlas.facts[subject.id, relation].entity or ""]
    last = RELATIONS[subject.kind, chain[-1]]
    return _wording(last, split, rng).format(x=phrase)


def _wording(worded: Relation | Comparison, split: Split, rng: random.Random) -> str:
    """A wording of the split."""
    return rng.choice(worded.questions) if split == "train" else worded.dev if split == "dev" else worded.test


def _chains(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    """Questions along chains, drawn from each chain in turn until there are ``count``."""
    pools: list[list[Question]] = []
    for kind, chain in CHAINS:
        by_country: dict[str, list[Question]] = {}
        for entity in atlas.of_kind(kind, split):
            if steps := follow(atlas, entity, chain):
                text = _worded(atlas, entity, chain, split, rng)
                answers = _end(atlas, entity, chain).answers
                question = _question(text, answers, steps, "single" if len(chain) == 1 else "chain")
                by_country.setdefault(home(atlas, entity).id, []).append(question)
        countries = list(by_country.values())
        rng.shuffle(countries)
        for questions in countries:
            rng.shuffle(questions)
        pools.append(_in_turn(countries))
    return _in_turn(pools)[:count]


def _in_turn(pools: list[list[Question]]) -> list[Question]:
    """The first question of each pool, then the second of each that has one, and so on."""
    return [question for turn in zip_longest(*pools) for question in turn if question]


def _comparisons(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    def candidates(comparison: Comparison) -> list[tuple[Entity, list[GoldStep], Value]]:
        followed = ((e, follow(atlas, e, comparison.chain)) for e in atlas.of_kind(comparison.kind, split))
        return [(e, steps, _end(atlas, e, comparison.chain)) for e, steps in followed if steps]

    pools = [candidates(comparison) for comparison in COMPARISONS]
    usable = [(comparison, pool) for comparison, pool in zip(COMPARISONS, pools, strict=True) if len(pool) > 1]
    found: dict[str, Question] = {}
    for attempt in range(count * 50):
        if len(found) == count:
            break
        comparison, pool = usable[attempt % len(usable)]
        if question := _comparison(comparison, pool, split, rng):
            found.setdefault(question.question, question)
    return list(found.values())


def _comparison(
    comparison: Comparison, pool: list[tuple[Entity, list[GoldStep], Value]], split: Split, rng: random.Random
) -> Question | None:
    """A question about two entities of ``pool``; None if the draw has no answer."""
    first, first_steps, first_value = rng.choice(pool)
    if comparison.answer == "same":
        same = rng.random() < 0.5
        pool = [candidate for candidate in pool if (candidate[2].text == first_value.text) == same]
    second, second_steps, second_value = rng.choice(pool) if pool else (first, first_steps, first_value)
    if first == second:
        return None
    if comparison.answer == "same":
        kind, answer = "yes/no", "yes" if first_value.text == second_value.text else "no"
    elif first_value.number is None or second_value.number is None or first_value.number == second_value.number:
        return None
    else:
        first_wins = (first_value.number > second_value.number) == (comparison.answer == "larger")
        kind, answer = "comparison", (first if first_wins else second).name
    text = _wording(comparison, split, rng).format(x=first.phrase, y=second.phrase)
    return _question(text, [answer], first_steps + second_steps, kind)


def _compounds(atlas: Atlas, split: Split, rng: random.Random, count: int) -> list[Question]:
    """Questions that ask two things at once, each answerable by itself (HANRAG, appendix B.1)."""
    singles = [(entity, relation) for kind, relation in RELATIONS for entity in atlas.of_kind(kind, split)]
    found: dict[str, Question] = {}
    while singles and len(found) < count:
        parts = [follow(atlas, entity, (relation,)) for entity, relation in rng.sample(singles, 2)]
        steps = [step for part in parts if part for step in part]
        if len(steps) == 2:
            first, second = (step.subquery.rstrip("?") for step in steps)
            text = f"{first}, and {second[0].lower()}{second[1:]}?"
            answer = " && ".join(step.short for step in steps)
            found.setdefault(text, _question(text, [answer], steps, "compound"))
    return list(found.values())


def _question(text: str, answers: list[str], steps: list[GoldStep], kind: str) -> Question:
    return Question(id="-", question=text, answers=answers, type=kind, hops=len(steps), decomposition=steps)
