"""HANRAG's benchmark of compound questions (appendix B.1), built by a teacher from any corpus.

Entities are titles drawn at random from an index. For each document that a search for the entity finds, the teacher
writes a question whose answer is in that document. It then combines two to four questions about one entity into a
compound question, or says that they cannot be combined. Train, dev and test share no entity.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field

from rag_train.answers import contains, normalize
from rag_train.data_synth.method import Method, SynthesisRecipe, method
from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import Fields, Task
from rag_train.jobs.files import write_text
from rag_train.jobs.items import Outcome, Rejected, Summary, cost
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.recipe import Count
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.open import load_index
from rag_train.schema import GoldStep, Passage, Question, Record
from rag_train.strategies.base import Ask, Kit, Run, together
from rag_train.strategies.hanrag import HANRAG

Split = Literal["train", "dev", "test"]
MOST_WORDS = 10
"""Maximum number of words in an answer, which is "a simple entity containing only a few words" (figure 15)."""


class Pair(BaseModel):
    Question: str
    Answer: str


ASK = Task("compound_ask", "Output:", Pair)
COMBINE = Task("compound_combine", "Compound Question:")


def ask_fields(entity: str, document: Passage) -> Fields:
    return [("Title", entity), ("Doc", [document])]


def combine_fields(questions: Sequence[str]) -> Fields:
    return [(f"Simple Question{i}", question) for i, question in enumerate(questions, 1)]


@dataclass(frozen=True, kw_only=True)
class CompoundRecipe(SynthesisRecipe):
    """HANRAG's compound benchmark (appendix B.1); the default sizes are the paper's.

    Each split is also written alone, beside the output, to NAME.train.jsonl and so on.
    """

    index: str
    """Index directory, made by `rag-train index`: entities are its titles, documents its passages."""
    model: str
    """Teacher model that writes and combines questions."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Engine that serves the teacher."""
    max_tokens: Count | None = None
    """Maximum number of tokens of a text that the teacher writes; null: the limit of each kind of text. What the
    limit cuts is rejected."""
    entities: Count = 10_000
    """Number of titles drawn at random from the index."""
    documents: Count = 10
    """Number of documents that the search for an entity returns; those that do not name it are dropped."""
    combinations: Count = 6
    """Number of combinations of two to four questions tried for each entity."""
    dev: Annotated[float, Field(ge=0, lt=0.5)] = 0.13
    """Share of the entities whose questions go into dev."""
    test: Annotated[float, Field(ge=0, lt=0.5)] = 0.04
    """Share of the entities whose questions go into test."""


class Entity(Record):
    id: str
    name: str
    split: Split


def entities(passages: PassageStore, recipe: CompoundRecipe) -> list[Entity]:
    """Draw a seeded sample of the titles, and assign each to a split."""
    titles = sorted({passages[i].title for i in range(len(passages))} - {""})
    drawn = random.Random(recipe.seed).sample(titles, min(recipe.entities, len(titles)))
    dev, test = round(recipe.dev * len(drawn)), round(recipe.test * len(drawn))

    def split(i: int) -> Split:
        return "dev" if i < dev else "test" if i < dev + test else "train"

    return [Entity(id=f"compound-{i}", name=name, split=split(i)) for i, name in enumerate(drawn)]


@method("compound")
class CompoundData(Method[CompoundRecipe, Entity]):
    """HANRAG's benchmark of compound questions, built by a teacher from an index.

    Unusable texts of the teacher are rejected with the reason.
    """

    recipe_type: ClassVar = CompoundRecipe
    starts: ClassVar = ("compound",)

    def __init__(self, recipe: CompoundRecipe, drawn: Sequence[Entity], teacher: Kit):
        super().__init__(recipe, drawn, teacher.retriever.identity)
        self.teacher = teacher

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: CompoundRecipe) -> AsyncIterator[Self]:
        index = load_index(recipe.index)
        drawn = entities(index.passages, recipe)
        async with open_engine(recipe.model, recipe.engine) as llm:
            yield cls(recipe, drawn, Kit(llm, AsyncRetriever(index), recipe.documents, recipe.given))

    async def outcome(self, entity: Entity, /) -> Outcome:
        # The run makes and records the teacher's calls; no question is answered.
        asked = Question(id=entity.id, question=entity.name, answers=["-"])
        run = Run(HANRAG(self.teacher, max_tokens=self.recipe.max_tokens), asked)
        rejected: list[Rejected] = []
        passages = await run.search(entity.name, self.recipe.documents)
        documents = [p for p in passages if contains(f"{p.title} {p.text}", [entity.name])]
        written = await together(run.perform(ASK, ask_fields(entity.name, document)) for document in documents)
        steps: dict[str, GoldStep] = {}
        for document, ask in zip(documents, written, strict=True):
            id, pair = f"{entity.id}/{document.id}", ask.answer
            if reason := _pair_flaw(ask, entity, document):
                text = pair.model_dump_json() if pair else ""
                rejected.append(Rejected(id=id, reason=reason, text=text))
            elif normalize(pair.Question) in steps:
                rejected.append(Rejected(id=id, reason="asked twice", text=one_line(pair.Question)))
            else:
                steps[normalize(pair.Question)] = GoldStep(
                    subquery=one_line(pair.Question),
                    answer=one_line(pair.Answer),
                    passage_ids=[document.id],
                    entity=entity.name,
                )
        combinations = _combinations(list(steps.values()), self.recipe, entity)
        combined = await together(
            run.perform(COMBINE, combine_fields([step.subquery for step in parts])) for parts in combinations
        )
        questions: dict[str, Question] = {}
        for n, (parts, ask) in enumerate(zip(combinations, combined, strict=True)):
            id, text = f"{entity.id}-{n}", ask.answer
            if reason := _combination_flaw(ask, entity, parts):
                rejected.append(Rejected(id=id, reason=reason, text=text or ""))
            elif normalize(text) in questions:
                rejected.append(Rejected(id=id, reason="asked twice", text=text))
            else:
                questions[normalize(text)] = Question(
                    id=id,
                    question=text,
                    answers=[" && ".join(step.answer for step in parts)],
                    type="compound",
                    hops=len(parts),
                    decomposition=parts,
                    metadata={"split": entity.split, "entity": entity.name},
                )
        counts = Counter(cost(run.calls))
        counts.update({"documents": len(documents), "simple questions": len(steps)})
        counts.update(f"{entity.split}, {question.hops} parts" for question in questions.values())
        return Outcome(list(questions.values()), counts, rejected)

    def finish(self, summary: Summary) -> None:
        """Write each split alone, too."""
        if summary.remaining:
            return
        output = Path(self.recipe.output)
        splits: dict[Split, list[str]] = {"train": [], "dev": [], "test": []}
        with output.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                splits[json.loads(line)["metadata"]["split"]].append(line)
        for split, lines in splits.items():
            write_text(output.with_suffix(f".{split}.jsonl"), "".join(lines))


def _pair_flaw(ask: Ask, entity: Entity, document: Passage) -> str:
    pair: Pair | None = ask.answer
    if pair is None or not pair.Question.strip() or not normalize(pair.Answer):
        return ask.flaw("did not parse, or empty")
    if not contains(document.text, [pair.Answer]):
        return "answer not in the document"
    if len(pair.Answer.split()) > MOST_WORDS:
        return "answer too long"
    return "" if contains(pair.Question, [entity.name]) else "question does not name the entity"


def _combination_flaw(ask: Ask, entity: Entity, parts: Sequence[GoldStep]) -> str:
    text: str | None = ask.answer
    if not text:
        return ask.flaw("did not parse, or empty")
    if normalize(text) == "no":
        return "cannot be combined"
    if normalize(text) in {normalize(step.subquery) for step in parts}:
        return "only one of its parts"
    return "" if contains(text, [entity.name]) else "question does not name the entity"


def _combinations(steps: Sequence[GoldStep], recipe: CompoundRecipe, entity: Entity) -> list[list[GoldStep]]:
    """Draw distinct subsets of two to four steps, at most ``recipe.combinations``."""
    rng = random.Random(f"{recipe.seed}-{entity.id}")
    chosen: dict[frozenset[int], list[GoldStep]] = {}
    for _ in range(recipe.combinations * 5 if len(steps) > 1 else 0):
        drawn = rng.sample(range(len(steps)), rng.randint(2, min(4, len(steps))))
        if len(chosen) < recipe.combinations:
            chosen.setdefault(frozenset(drawn), [steps[i] for i in drawn])
    return list(chosen.values())
