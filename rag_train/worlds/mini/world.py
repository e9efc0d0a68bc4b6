"""A synthetic world, generated from a seed, in which every fact is inside or outside a model's training text.

The world consists of films, people, cities and countries, and the relations between them. A fact is *known* (it
occurs often in the mini model's training text), *outdated* (the training text has another value, because the fact
changed later) or *unknown* (it never occurs). The knowledge boundary, which the papers can only estimate, is
therefore given by construction. Films and people belong to one of four splits, and are related only to people of
the same split, so that test chains and training chains share no person and no film. Cities and countries
are common to all splits. The names of films and people have two words, of which they share the first with others.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rag_train.errors import UserError
from rag_train.jobs.files import write_records, write_text
from rag_train.schema import GoldStep, Passage, Question, Record

SPLITS = ("lessons", "train", "dev", "test")
"""Splits of the films and people. Lessons teach a model the formats of methods. What follows, such as a search of
what the model knows, needs facts that no lesson has taught it: the split ``train``."""

RELATIONS: dict[str, tuple[str, str, str]] = {
    # name: (subject type, object type, question word)
    "director": ("film", "person", "Who"),
    "star": ("film", "person", "Who"),
    "release year": ("film", "year", "What"),
    "birthplace": ("person", "city", "What"),
    "birth year": ("person", "year", "What"),
    "spouse": ("person", "person", "Who"),
    "country": ("city", "country", "What"),
}

_WORDINGS = yaml.safe_load((Path(__file__).parent / "wordings.yaml").read_text(encoding="utf-8"))
CHAINS: dict[tuple[str, ...], tuple[str, ...]] = {
    tuple(each["relations"]): tuple(each["questions"]) for each in _WORDINGS["chains"]
}
"""Question wordings for each chain of relations; {x} is the root entity."""
COMPARISONS: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {
    (each["how"], tuple(each["relations"])): tuple(each["questions"]) for each in _WORDINGS["comparisons"]
}
"""Question wordings for comparisons of two roots, by how the values are compared and the chain to them."""

FAMOUS_VIEWS = 100_000
"""Popularity of a famous entity, in monthly page views as in PopQA; all others have none."""

Fact = tuple[str, str]
"""A pair (subject, relation), which the world maps to the object."""


def subquery(relation: str, subject: str) -> str:
    """Return the question for a fact."""
    return f"{RELATIONS[relation][2]} is the {relation} of {subject}?"


def statement(relation: str, subject: str, value: str) -> str:
    """Return the sentence that states a fact."""
    return f"The {relation} of {subject} is {value}."


@dataclass(frozen=True)
class WorldConfig:
    """Settings of a world.

    Models know much about popular entities and little about others (Mallen et al. 2023, PopQA). The share
    ``known_share`` of all entities is famous. A fact about a famous subject is learned with probability ``fame``,
    any other fact with probability 1 - ``fame``. Facts change (Su et al. 2025, CAG): the share ``changed_share`` of
    the learned facts is outdated. Retrieval is not perfect, either: passages mention the share ``mentioned_share``
    of the facts about their subject.
    """

    seed: int = 0
    films: int = 600
    people: int = 600
    cities: int = 60
    countries: int = 40
    first_year: int = 1950
    years: int = 30
    known_share: float = 0.6
    fame: float = 0.95
    changed_share: float = 0.15
    mentioned_share: float = 0.75
    split_shares: tuple[float, float, float, float] = (0.35, 0.35, 0.1, 0.2)


@dataclass
class World:
    """Entities, facts and the knowledge boundary, and the passages and questions made from them.

    Attributes:
        entities: names by type, such as ``film``.
        split: split of each film and person.
        facts: true value of each fact.
        famous: entities of which much is known.
        known: facts that the training text has.
        outdated: facts of which the training text has an earlier value, with that value.
        mentioned: facts that the passages state.
    """

    config: WorldConfig
    entities: dict[str, list[str]] = field(default_factory=dict)
    split: dict[str, str] = field(default_factory=dict)
    facts: dict[Fact, str] = field(default_factory=dict)
    famous: set[str] = field(default_factory=set)
    known: set[Fact] = field(default_factory=set)
    outdated: dict[Fact, str] = field(default_factory=dict)
    mentioned: set[Fact] = field(default_factory=set)
    _types: dict[str, str] = field(default_factory=dict)

    def relations_of(self, entity_type: str) -> list[str]:
        """Return the relations whose subject has this type."""
        return [name for name, (subject, _, _) in RELATIONS.items() if subject == entity_type]

    def type_of(self, entity: str) -> str:
        """Return the type of an entity, such as ``film``."""
        return self._types[entity]

    def recalled(self, fact: Fact) -> str | None:
        """Return the value of a fact in the training text, which may be outdated; None if the text lacks it."""
        return self.facts[fact] if fact in self.known else self.outdated.get(fact)

    def __post_init__(self) -> None:
        if not self.entities:
            _generate(self)

    def passage(self, entity: str, facts: dict[Fact, str] | None = None) -> Passage:
        """Return the entity's passage: a sentence for each mentioned fact, in the order of the relations.

        If ``facts`` is given, the passage states these facts instead of the mentioned facts of the world.
        """
        told, values = (self.mentioned, self.facts) if facts is None else (facts, facts)
        kind = self.type_of(entity)
        sentences = [f"{entity} is a {kind}."]
        sentences += [
            statement(r, entity, values[entity, r]) for r in self.relations_of(kind) if (entity, r) in told
        ]
        return Passage(id=f"{kind}-{entity}", title=entity, text=" ".join(sentences))

    def corpus(self) -> list[Passage]:
        """Return a passage for each entity, and for each film and person a distractor that names it with others."""
        passages = [self.passage(e) for kind in ("film", "person", "city") for e in self.entities[kind]]
        rng = random.Random(self.config.seed + 1)
        for kind in ("film", "person"):
            for name in self.entities[kind]:
                other, third = rng.sample([e for e in self.entities[kind] if e != name], 2)
                passages.append(
                    Passage(
                        id=f"note-{name}",
                        title=f"{name} and {other}",
                        text=f"{name} and {other} are often confused. A critic compared {name} with {third}.",
                    )
                )
        return passages

    def follow(self, root: str, chain: tuple[str, ...]) -> list[GoldStep]:
        """Return the hops from ``root`` along ``chain``, with the knowledge boundary."""
        steps, subject = [], root
        for relation in chain:
            fact = (subject, relation)
            value = self.facts[fact]
            steps.append(
                GoldStep(
                    subquery=subquery(relation, subject),
                    answer=statement(relation, subject, value),
                    passage_ids=[f"{self.type_of(subject)}-{subject}"] if fact in self.mentioned else [],
                    known=fact in self.known,
                    entity=subject,
                    value=value,
                )
            )
            subject = value
        return steps

    def value(self, root: str, chain: tuple[str, ...]) -> str:
        """Return the entity at the end of ``chain`` from ``root``."""
        for relation in chain:
            root = self.facts[root, relation]
        return root

    def questions(self, split: str, *, comparisons: int = 200) -> list[Question]:
        """Return questions about the split's films and people, in a random order determined by the seed.

        There is a question for every chain and every root that fits, in one of the wordings, and ``comparisons``
        questions that compare two roots, with yes and no balanced by rejection.
        """
        rng = random.Random(f"{self.config.seed}-{split}")
        out: list[Question] = []
        for chain, wordings in CHAINS.items():
            kind = RELATIONS[chain[0]][0]
            for root in self.entities[kind]:
                if self.split.get(root) != split:
                    continue
                text = rng.choice(wordings).format(x=root)
                out.append(self._question(text, self.value(root, chain), self.follow(root, chain), "chain", [root]))
        seen = {q.question for q in out}
        wanted = comparisons
        kinds = list(COMPARISONS)
        for attempt in range(comparisons * 50):
            if not wanted:
                break
            how, chain = kinds[attempt % len(kinds)]
            question = self._comparison(rng, split, how, chain)
            if question and question.question not in seen:
                seen.add(question.question)
                out.append(question)
                wanted -= 1
        rng.shuffle(out)
        return [q.model_copy(update={"id": f"{split}-{i}"}) for i, q in enumerate(out)]

    def _comparison(self, rng: random.Random, split: str, how: str, chain: tuple[str, ...]) -> Question | None:
        """Draw a comparison of two roots; None if they cannot be compared."""
        roots = [e for e in self.entities[RELATIONS[chain[0]][0]] if self.split.get(e) == split]
        x = rng.choice(roots)
        vx = self.value(x, chain)
        if how == "same" and rng.random() < 0.5:
            roots = [e for e in roots if self.value(e, chain) == vx]
        y = rng.choice(roots)
        vy = self.value(y, chain)
        if x == y or (how == "earlier" and vx == vy):
            return None
        answer = min((vx, x), (vy, y))[1] if how == "earlier" else ("yes" if vx == vy else "no")
        text = rng.choice(COMPARISONS[how, chain]).format(x=x, y=y)
        steps = self.follow(x, chain) + self.follow(y, chain)
        return self._question(text, answer, steps, f"comparison-{how}", [x, y])

    def _question(self, text: str, answer: str, steps: list[GoldStep], kind: str, roots: Sequence[str]) -> Question:
        """Return a question about ``roots``, with the passages that state its hops and its popularity.

        Of two roots, the less popular one counts.
        """
        stating = dict.fromkeys(step.entity for step in steps if step.passage_ids)
        return Question(
            id="-",
            question=text,
            answers=[answer],
            type=kind,
            hops=len(steps),
            gold_passages=[self.passage(entity) for entity in stating],
            decomposition=steps,
            metadata={"s_pop": min(FAMOUS_VIEWS if root in self.famous else 0 for root in roots)},
        )


def _words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """Invent pronounceable, capitalized words that are not ``taken``, and add them to it."""
    heads = ["b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"]
    words: list[str] = []
    while len(words) < count:
        syllables = (rng.choice(heads) + rng.choice("aeiou") for _ in range(rng.choice((2, 3))))
        word = ("".join(syllables) + rng.choice(["n", "r", "s", "l", "th", "x", ""])).capitalize()
        if word not in taken and len(word) > 4:
            taken.add(word)
            words.append(word)
    return words


def _two_words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """Invent names of two words, of which the first occurs in several names and the second in one."""
    firsts, lasts = _words(rng, math.ceil(math.sqrt(count)), taken), _words(rng, count, taken)
    return [f"{rng.choice(firsts)} {last}" for last in lasts]


def _generate(world: World) -> None:
    """Draw the entities, the facts and the knowledge boundary of ``world``."""
    config = world.config
    rng = random.Random(config.seed)
    taken: set[str] = set()
    counts = {"film": config.films, "person": config.people, "city": config.cities, "country": config.countries}
    named = {"film": _two_words, "person": _two_words, "city": _words, "country": _words}
    world.entities = {kind: named[kind](rng, count, taken) for kind, count in counts.items()}
    world._types = {name: kind for kind, names in world.entities.items() for name in names}
    world.entities["year"] = [str(config.first_year + i) for i in range(config.years)]

    members: dict[tuple[str, str], list[str]] = {}
    for kind in ("film", "person"):
        names, start = world.entities[kind], 0
        for split, share in zip(SPLITS, config.split_shares, strict=True):
            size = round(len(names) * share) // 2 * 2  # even, so that all people of a split can be married
            members[kind, split] = names[start:] if split == SPLITS[-1] else names[start : start + size]
            if len(members[kind, split]) < 2 or len(members[kind, split]) % 2:
                raise UserError(
                    f"world: {counts[kind]} of type {kind} leave {len(members[kind, split])} to the {split} split, "
                    "which needs an even number of at least 2; give an even number of at least 20"
                )
            start += size
            world.split.update(dict.fromkeys(members[kind, split], split))

    couples = []
    for split in SPLITS:
        people = members["person", split]
        for a, b in zip(people[::2], people[1::2], strict=True):
            world.facts[a, "spouse"], world.facts[b, "spouse"] = b, a
            couples.append((a, b))
        for film in members["film", split]:
            world.facts[film, "director"], world.facts[film, "star"] = rng.sample(people, 2)
    for film in world.entities["film"]:
        world.facts[film, "release year"] = rng.choice(world.entities["year"])
    for person in world.entities["person"]:
        world.facts[person, "birthplace"] = rng.choice(world.entities["city"])
        world.facts[person, "birth year"] = rng.choice(world.entities["year"])
    for city in world.entities["city"]:
        world.facts[city, "country"] = rng.choice(world.entities["country"])

    # The share of famous entities is the same in every type and split. The two spouses of a couple are famous
    # together, and their marriage is known for both, because one direction would reveal the other.
    groups = [[[name] for name in members["film", split]] for split in SPLITS]
    groups += [[list(couple) for couple in couples if world.split[couple[0]] == split] for split in SPLITS]
    groups += [[[name] for name in world.entities["city"]]]
    for units in groups:
        famous = rng.sample(range(len(units)), round(len(units) * config.known_share))
        for i, unit in enumerate(units):
            world.famous.update(unit if i in famous else ())
            chance = config.fame if i in famous else 1 - config.fame
            for name in unit:
                for relation in world.relations_of(world.type_of(name)):
                    if relation != "spouse" and rng.random() < chance:
                        world.known.add((name, relation))
            if len(unit) == 2 and rng.random() < chance:
                world.known.update((name, "spouse") for name in unit)
    _change(world, rng)
    world.mentioned = {fact for fact in world.facts if rng.random() < config.mentioned_share}


def _change(world: World, rng: random.Random) -> None:
    """Make a share of the known facts outdated: the value that was learned differs from the true value."""
    for fact in sorted(world.known):
        subject, relation = fact
        # The two sides of a marriage change together, because one would reveal the other.
        facts = [fact, (world.facts[fact], relation)] if relation == "spouse" else [fact]
        if fact != min(facts) or rng.random() >= world.config.changed_share:
            continue
        values = world.entities[RELATIONS[relation][1]]
        if RELATIONS[relation][1] == "person":
            values = [person for person in values if world.split[person] == world.split[subject]]
        others = [value for value in values if value not in {subject, *(world.facts[each] for each in facts)}]
        if others:
            world.outdated |= {each: rng.choice(others) for each in facts}
            world.known.difference_update(facts)


def write_world(world: World, directory: Path) -> dict[str, int]:
    """Write corpus.jsonl, {lessons,train,dev,test}.jsonl and known.json (see `known_subqueries`).

    Returns the number of records in each file.
    """
    records: dict[str, Sequence[Record]] = {"corpus": world.corpus()}
    records |= {split: world.questions(split) for split in SPLITS}
    for name, lines in records.items():
        write_records(directory / f"{name}.jsonl", lines)
    write_text(directory / "known.json", json.dumps(known_subqueries(world), indent=0))
    return {name: len(lines) for name, lines in records.items()} | {"facts": len(world.facts)}


def known_subqueries(world: World) -> dict[str, bool]:
    """Return the true knowledge boundary: the subquery of every fact, and whether the fact is known."""
    return {subquery(relation, subject): (subject, relation) in world.known for subject, relation in world.facts}
