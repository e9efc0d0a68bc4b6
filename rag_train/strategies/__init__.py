"""One file per inference strategy, the baselines beside them; ``STRATEGIES`` lists them by name."""

from __future__ import annotations

from collections.abc import Callable

from rag_train.llm.base import LLM
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.strategies.base import Strategy
from rag_train.strategies.baselines.reader import ChainOfThought, Direct, VanillaRAG
from rag_train.strategies.deeprag import DeepRAG

Build = Callable[[LLM, AsyncRetriever, int, bool], Strategy]
"""(engine, retriever, passages per retrieval, whether prompts carry instructions) -> strategy."""

STRATEGIES: dict[str, Build] = {
    "direct": lambda llm, _, __, told: Direct(llm, task="direct" if told else None),
    "cot": lambda llm, _, __, told: ChainOfThought(llm, task="cot" if told else None),
    "rag": lambda llm, found, k, told: VanillaRAG(llm, found, k, task="rag" if told else None),
    "deeprag": lambda llm, found, k, told: DeepRAG(llm, found, "adaptive", k, task=_deeprag(told)),
    "deeprag-parametric": lambda llm, found, k, told: DeepRAG(llm, found, "parametric", k, task=_deeprag(told)),
    "deeprag-retrieve": lambda llm, found, k, told: DeepRAG(llm, found, "retrieve", k, task=_deeprag(told)),
}


def _deeprag(told: bool) -> str | None:
    return "deeprag" if told else None
