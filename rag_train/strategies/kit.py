"""Opening a kit for strategies: an engine, its adapters by role, retrievers by kind, a reranker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.llm.checkpoint import check_adapter
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.pairs import named
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_reranker, open_retriever
from rag_train.strategies.base import Kit

RETRIEVER_KINDS = ("sparse", "dense", "web")


@dataclass(frozen=True, kw_only=True)
class KitConfig:
    """Settings of a kit.

    Attributes:
        model: checkpoint directory, hub name, or name of the model on a server.
        indexes: retrievers as ``[KIND=]PLACE``. The kind is sparse, dense or web; the place is a specification of
            `rag_train.retrieval.specification`. The first is the main retriever.
        adapters: LoRA adapters of the model as ``[ROLE=]DIR``; without a role, for all roles that have no adapter.
        reranker: directory, hub name, or vLLM server of a cross-encoder.
        engine: settings of the engine.
        passages: number of passages retrieved for a query.
        instructions: whether prompts begin with the method's instruction.
    """

    model: str
    indexes: Sequence[str]
    adapters: Sequence[str] = ()
    reranker: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    passages: int = 3
    instructions: bool = True


@dataclass(frozen=True)
class Adapted:
    """An engine restricted to one LoRA adapter."""

    llm: LLM
    adapter: str

    @property
    def name(self) -> str:
        return f"{self.llm.name}+{Path(self.adapter).name}"

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.llm.tokenizer

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return await self.llm.complete(prompt, replace(sampling, adapter=self.adapter))

    async def aclose(self) -> None:
        await self.llm.aclose()


@asynccontextmanager
async def open_kit(config: KitConfig, retrievers: dict[str, Retriever]) -> AsyncIterator[Kit]:
    """Start the engine and close it on exit. The retrievers come from `open_retrievers`.

    Raises:
        UserError: if the engine cannot be started, or if a directory is not an adapter or not a reranker.
    """
    adapters = dict(named("--adapter", adapter) for adapter in config.adapters)
    ranks = [check_adapter(directory) for directory in adapters.values()]
    reranker = open_reranker(config.reranker) if config.reranker else None
    fronts = {kind: AsyncRetriever(retriever) for kind, retriever in retrievers.items()}
    async with open_engine(config.model, replace(config.engine, max_lora_rank=max(ranks, default=None))) as llm:
        models = {role: Adapted(llm, directory) for role, directory in adapters.items()}
        yield Kit(
            models.pop("", llm),
            next(iter(fronts.values())),
            config.passages,
            config.instructions,
            models,
            {kind: front for kind, front in fronts.items() if kind},
            reranker,
        )


def open_retrievers(indexes: Sequence[str]) -> dict[str, Retriever]:
    """Open retrievers given as ``[KIND=]PLACE``.

    Returns:
        The retrievers by kind, or by "" if no kind is given, the main retriever first.

    Raises:
        UserError: if a retriever cannot be opened, or if a kind is unknown or repeated.
    """
    found: dict[str, Retriever] = {}
    for index in indexes:
        kind, place = named("--index", index)
        if kind not in ("", *RETRIEVER_KINDS):
            raise UserError(f"--index {index}: unknown kind {kind!r}; the kinds are {', '.join(RETRIEVER_KINDS)}")
        if kind in found:
            raise UserError(f"--index {index}: second retriever of this kind; write KIND=PLACE for all except one")
        found[kind] = open_retriever(place)
    return found
