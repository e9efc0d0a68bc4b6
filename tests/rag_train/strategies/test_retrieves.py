"""No strategy that retrieves is dead: at its defaults it retrieves for some of 50 questions of the mini world."""

import asyncio
from pathlib import Path

import pytest
from support.hostile import HostileModel

from rag_train.llm.transformers import TransformersEngine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.registry import build
from rag_train.worlds.mini.world import World, WorldConfig

WITHOUT = {"direct", "cot", "deeprag-parametric"}
"""Strategies that never retrieve."""
BY_MODEL = ("deeprag", "dragin", "flare")
"""Strategies whose retrieval depends on the model's own uncertainty or decision: the shipped controller is asked.
The others retrieve by rule, or when a module says so, which a scripted model does that keeps to every format."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world() -> World:
    return World(WorldConfig())


@pytest.fixture(scope="module")
def asked(world: World) -> list[Question]:
    return [question for question in world.questions("dev") if (question.hops or 0) > 1][:50]


@pytest.fixture(scope="module")
def index(world: World) -> BM25Index:
    return BM25Index.build(world.corpus())


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - WITHOUT))
def test_retrieves(name: str, asked: list[Question], index: BM25Index, mini_model: Path):
    async def answer() -> int:
        retriever = AsyncRetriever(index)
        kinds = dict.fromkeys(("sparse", "dense", "web"), retriever)
        engine = TransformersEngine.start(str(mini_model)) if name in BY_MODEL else None
        llms = [engine or HostileModel("obedient", seed) for seed in range(len(asked))]
        kits = [Kit(llm, retriever, instructions=False, retrievers=kinds) for llm in llms]
        # The scripted model never has enough passages for LevelRAG.
        spec = f"{name},max_calls=100" if name.startswith("levelrag") else name
        work = (build(spec, kit).answer(question) for kit, question in zip(kits, asked, strict=True))
        return sum(trajectory.retrievals for trajectory in await asyncio.gather(*work))

    assert asyncio.run(answer())
