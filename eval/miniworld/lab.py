"""One seed of the mini world, set up for experiments: its world, retrievers, question sets and engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from rag_train.llm.base import LLM
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.world import World, WorldConfig, subquery
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.schema import Question
from rag_train.strategies.base import Kit

QUESTION_SETS: dict[str, str] = {
    "single": "one hop",
    "known": "one hop, facts that the model was taught and that are still true",
    "rare": "one hop, facts about films and people that are not famous",
    "changed": "one hop, facts that changed after the model was taught them",
    "two-hop": "chains of two hops",
    "mixed": "chains and comparisons of two to four hops, half of each",
    "deep": "chains of three and four hops",
    "comparison": "two entities compared, in two to four hops",
    "compound": "two or three questions in one",
}
"""The question sets and what they ask. No training question mentions the films and people in them."""

COMPARISONS_TAUGHT = 1600
"""Questions for training that compare two entities, by split: about every fourth."""
PASSAGES = 3
"""Passages of a retrieval."""
COMPOUND = 6
"""There is a compound question for every sixth of the other lessons."""


@dataclass(frozen=True)
class Settings:
    """Sizes of one seed's experiments, chosen on dev questions."""

    work: Path = Path("runs/miniature")
    """Directory of the models and answers, which later runs reuse."""
    split: str = "test"
    """Split of the questions to answer."""
    questions: int = 60
    """Questions per set. A set has fewer if the world has no more: ``changed`` has about 65 on test, 35 on dev."""
    lessons: int = 2400
    """Questions whose examples teach every method; with them come compound ones, a sixth as many."""
    tokens: int = 100_000
    """Tokens of each method's examples for the model ``taught``. The classifiers of Adaptive-RAG and TA-ARE have
    fewer (about 54,000 and 82,000), because a question gives only one short example."""
    few: int = 10_000
    """Tokens of each method's examples for the model ``student``."""
    taught: int = 600
    """Training questions from which a teacher makes the students' examples."""
    searched: int = 400
    """Training questions searched for each of DeepRAG's stages."""


class Lab:
    """One seed: a world, its indexes and its questions."""

    def __init__(self, seed: int, settings: Settings):
        self.seed = seed
        self.settings = settings
        self.folder = settings.work / f"seed{seed}"
        self.world = World(WorldConfig(seed=seed))
        self.index = BM25Index.build(self.world.corpus())
        self.retriever = AsyncRetriever(self.index)
        # No sentence encoder: in the mini world, the meaning of a query is its words.
        self.retrievers = {
            "sparse": AsyncRetriever(LuceneIndex.build(self.world.corpus())),
            "dense": self.retriever,
        }
        self._drawn: dict[str, list[Question]] = {}

    def questions(self, name: str) -> list[Question]:
        """Return the questions of one of `QUESTION_SETS`."""
        if name not in self._drawn:
            self._drawn[name] = draw(self.world, name, self.settings.split, self.settings.questions)
        return self._drawn[name]

    def lessons(self) -> list[Question]:
        """Return the questions whose examples teach every method."""
        count = self.settings.lessons
        questions = self.world.questions("lessons", comparisons=COMPARISONS_TAUGHT)
        return questions[:count] + self.world.compounds("lessons", count // COMPOUND)

    def multi_hop(self, split: str) -> list[Question]:
        """Return the questions of a split that take more than one hop."""
        return multi_hop(self.world.questions(split))

    def kit(self, llm: LLM, models: Mapping[str, LLM] | None = None) -> Kit:
        """Return a strategy's kit over this seed's retrievers; ``models`` are the roles' own models."""
        return Kit(llm, self.retriever, instructions=False, models=models or {}, retrievers=self.retrievers)

    def serve(self, model: Path) -> aclosing[VLLMEngine]:
        """Serve a checkpoint with vLLM until the end of the ``async with`` block."""
        return aclosing(VLLMEngine.start(str(model), dtype="float32", seed=self.seed, kv_cache_bytes=2**28))


def multi_hop(questions: Iterable[Question]) -> list[Question]:
    """Return the questions that take more than one hop."""
    return [question for question in questions if (question.hops or 0) > 1]


def chains(questions: Iterable[Question]) -> list[Question]:
    """Return the chains of several hops, whose answers cannot be guessed.

    A search keeps every trajectory that ends in the right answer. Comparisons have two answers to guess from: many
    of their kept trajectories are wrong on the way.
    """
    return [question for question in multi_hop(questions) if question.type == "chain"]


def draw(world: World, name: str, split: str, count: int) -> list[Question]:
    """Return up to ``count`` questions of one of `QUESTION_SETS` about the films and people of a split."""
    if name == "compound":
        return world.compounds(split, count)
    questions = world.questions(split)
    if name == "mixed":
        comparisons = [question for question in questions if question.type.startswith("comparison")]
        return chains(questions)[: count - count // 2] + comparisons[: count // 2]
    changed = {subquery(relation, subject) for subject, relation in world.outdated}
    belongs = {
        "single": lambda q: q.hops == 1,
        "known": lambda q: q.hops == 1 and q.decomposition[0].known,
        "rare": lambda q: q.hops == 1 and q.decomposition[0].entity not in world.famous,
        "changed": lambda q: q.hops == 1 and q.decomposition[0].subquery in changed,
        "two-hop": lambda q: q.type == "chain" and q.hops == 2,
        "deep": lambda q: q.type == "chain" and q.hops > 2,
        "comparison": lambda q: q.type.startswith("comparison"),
    }[name]
    return [question for question in questions if belongs(question)][:count]
