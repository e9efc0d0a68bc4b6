"""One seed of the mini world, set up for experiments: its world, retrievers, question sets and engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from rag_train.llm.base import LLM
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.world import World, WorldConfig
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.schema import Question
from rag_train.strategies.base import Kit

QUESTION_SETS: dict[str, str] = {
    "single": "one hop",
    "two-hop": "chains of two hops",
    "deep": "chains of three and four hops",
    "comparison": "two entities compared, in two to four hops",
    "compound": "two or three questions in one",
}
"""The question sets and what they ask. No training question mentions the films and people in them."""


@dataclass(frozen=True)
class Settings:
    """Sizes of one seed's experiments, chosen on dev questions."""

    work: Path = Path("runs/miniature")
    """Directory of the models and answers, which later runs reuse."""
    split: str = "test"
    """Split of the questions to answer."""
    questions: int = 60
    """Questions per set."""
    lessons: int = 300
    """Training questions whose gold examples teach the model ``taught``."""
    few: int = 40
    """Training questions whose gold examples teach the model ``student``."""
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
            self._drawn[name] = self._draw(name)
        return self._drawn[name]

    def _draw(self, name: str) -> list[Question]:
        count, split = self.settings.questions, self.settings.split
        if name == "compound":
            return self.world.compounds(split, count)
        belongs = {
            "single": lambda q: q.hops == 1,
            "two-hop": lambda q: q.type == "chain" and q.hops == 2,
            "deep": lambda q: q.type == "chain" and q.hops > 2,
            "comparison": lambda q: q.type.startswith("comparison"),
        }[name]
        return [q for q in self.world.questions(split) if belongs(q)][:count]

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
