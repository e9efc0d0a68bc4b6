"""Opening what strategies work with: an engine, its adapters by role, retrievers by kind."""

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
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.strategies.base import Kit

KINDS = ("sparse", "dense", "web")


@dataclass(frozen=True, kw_only=True)
class KitConfig:
    """What to open.

    Attributes:
        model: checkpoint directory, hub name, or the name that servers give it.
        indexes: each ``[KIND=]PLACE``, the kind being sparse, dense or web. A place is an index directory, the
            address of a retrieval service, or a web search's name. The first is the main retriever.
        adapters: each ``[ROLE=]DIR``: LoRA adapters of the model, for one role or (without) for all others.
        reranker: a cross-encoder's directory.
        engine: what serves the model.
        passages: how many are retrieved for a query.
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
    """An engine that answers every call with one of its LoRA adapters."""

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
    """Start the engine for as long as the kit is used; ``retrievers`` are what `open_retrievers` gave.

    Raises UserError as `open_engine` does, and for a directory that holds no adapter or no reranker.
    """
    adapters = dict(_pair(adapter, "--adapter") for adapter in config.adapters)
    ranks = [check_adapter(directory) for directory in adapters.values()]
    reranker = None
    if config.reranker:
        from rag_train.retrieval.rerank import CrossEncoderReranker

        reranker = CrossEncoderReranker(config.reranker)
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
    """Retrievers by kind (``""``: none given), the main one first. Raises UserError for what cannot be opened."""
    found: dict[str, Retriever] = {}
    for index in indexes:
        kind, place = _pair(index, "--index")
        if kind not in ("", *KINDS):
            raise UserError(f"--index {index}: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
        if kind in found:
            raise UserError(f"--index {index}: a second one of its kind; write KIND=DIR for all but one")
        found[kind] = _open(kind, place)
    return found


def _open(kind: str, place: str) -> Retriever:
    if place.startswith(("http://", "https://")):
        from rag_train.retrieval.client import RetrievalClient

        return RetrievalClient(place)
    if kind == "web":
        from rag_train.retrieval.web import WebRetriever

        return WebRetriever(place)
    from rag_train.retrieval.indexes import load_index

    return load_index(place)


def _pair(text: str, option: str) -> tuple[str, str]:
    """``name=value`` in two; the name is "" where there is none, or what stands there is part of a path."""
    name, equals, value = text.partition("=")
    if not equals or "/" in name:
        name, value = "", text
    if not value:
        raise UserError(f"{option} {text}: nothing after the equals sign; give a directory")
    return name, value
