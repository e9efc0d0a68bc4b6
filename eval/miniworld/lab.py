"""One seed of the mini world, set up for experiments: its world, retrievers, question sets and engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rag_train.eval.demo.recipe import DemoRecipe, StageRecipe, demo_recipe
from rag_train.llm.base import LLM
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.text import VERSION
from rag_train.miniworld.world import World, subquery
from rag_train.provenance import settings_hash
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
STUDENTS = StageRecipe(questions=600, lr=1e-3, epochs=3, batch_size=1, pack_tokens=2048)
"""Training of the students on a teacher's examples, and the number of questions from which it makes them."""
FROM_DEMO = ("miniworld", "cold_start", "stage1", "stage2", "search")
"""Sections of the demo's recipe that the lab follows, too."""


@dataclass(frozen=True)
class Settings:
    """Settings of one seed's experiments, chosen on dev questions."""

    work: Path = Path("runs/miniature")
    """Directory of the models and answers, which later runs reuse."""
    split: str = "test"
    """Split of the questions to answer."""
    questions: int = 60
    """Questions per set. A set has fewer if the world has no more: ``changed`` has about 65 on test, 35 on dev."""
    tokens: int = 100_000
    """Tokens of each method's examples for the model ``taught``. Short examples give fewer: those of direct
    answering about 20,000, of chain of thought 37,000, of the classifiers of Adaptive-RAG and TA-ARE 54,000 and
    82,000."""
    few: int = 10_000
    """Tokens of each method's examples for the model ``student``."""
    flare: str = "theta=0.95"
    dragin: str = "threshold=0.01"
    self_rag: str = "threshold=0.4"
    """Settings of three strategies that say when they retrieve (`rag_train.eval.miniworld.thresholds`)."""
    demo: DemoRecipe = field(default_factory=demo_recipe)
    """The world, the pretraining, the training of ``taught`` and ``student`` on the lessons (the cold start), and
    DeepRAG's stages."""
    students: StageRecipe = STUDENTS

    def of_models(self) -> dict[str, Any]:
        """Return the settings that determine the models."""
        demo = asdict(self.demo)
        own = {"tokens": self.tokens, "few": self.few, "students": asdict(self.students), "text": VERSION}
        return {name: demo[name] for name in FROM_DEMO} | own

    @property
    def models(self) -> str:
        """The start of the SHA-256 of the settings that determine the models."""
        return settings_hash(self.of_models())

    def recorded(self) -> dict[str, Any]:
        """Return the settings as results and the protocol have them."""
        names = ("split", "questions", "flare", "dragin", "self_rag", "models")
        thresholds = {f"deeprag_{stage}": f"threshold={of}" for stage, of in asdict(self.demo.thresholds).items()}
        return {name: getattr(self, name) for name in names} | thresholds | self.of_models()


class Lab:
    """One seed: a world, its indexes and its questions."""

    def __init__(self, seed: int, settings: Settings):
        assert settings.demo.miniworld is not None
        self.seed = seed
        self.settings = settings
        self.folder = settings.work / f"seed{seed}-{settings.models}"
        self.pretraining = replace(settings.demo.miniworld.pretrain, seed=seed)
        self.world = World(replace(settings.demo.miniworld.world, seed=seed))
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

    @cached_property
    def training(self) -> TrainingQuestions:
        """The training questions of the cold start and of DeepRAG's stages."""
        return training_questions(self.world, self.settings.demo)

    def lessons(self) -> list[Question]:
        """Return the questions whose examples teach every method."""
        questions = self.training.cold_start
        return questions + self.world.compounds("lessons", len(questions) // COMPOUND)

    def multi_hop(self, split: str) -> list[Question]:
        """Return the questions of a split that take more than one hop."""
        return multi_hop(self.world.questions(split))

    def kit(self, llm: LLM, models: Mapping[str, LLM] | None = None) -> Kit:
        """Return a strategy's kit over this seed's retrievers; ``models`` are the roles' own models."""
        return Kit(llm, self.retriever, instructions=False, models=models or {}, retrievers=self.retrievers)

    def serve(self, model: Path) -> aclosing[VLLMEngine]:
        """Serve a checkpoint with vLLM until the end of the ``async with`` block."""
        return aclosing(VLLMEngine.start(str(model), dtype="float32", seed=self.seed, kv_cache_bytes=2**29))


class TrainingQuestions(NamedTuple):
    """The training questions of the cold start and of DeepRAG's stages."""

    cold_start: list[Question]
    stage1: list[Question]
    stage2: list[Question]


def training_questions(world: World, recipe: DemoRecipe) -> TrainingQuestions:
    """Return a world's training questions, in the numbers of the recipe.

    Stage II asks about other films and people than Stage I. On the facts of its own questions, Stage I's decisions
    are fitted already, so that nothing would be left to correct. Both stages have few comparisons (6%); without
    them, they would forget how to answer comparisons.
    """
    lessons = world.questions("lessons", comparisons=COMPARISONS_TAUGHT)[: recipe.cold_start.questions]
    seen = {question.question for question in lessons}
    fresh = [question for question in multi_hop(world.questions("lessons")) if question.question not in seen]
    stage1 = multi_hop(world.questions("train"))[: recipe.stage1.questions]
    return TrainingQuestions(lessons, stage1, fresh[: recipe.stage2.questions])


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
