"""Opening a kit for strategies: an engine, models by role, retrievers by kind, a reranker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.formats.instructions import OURS, Given
from rag_train.identity import model as model_identity
from rag_train.identity import model_or_service
from rag_train.llm.base import LLM
from rag_train.llm.checkpoint import base_of, check_adapter, check_vocabulary, fits
from rag_train.llm.engines import Adapted, EngineConfig, open_engine, parse_settings
from rag_train.llm.engines import identity as engine_identity
from rag_train.named_places import named
from rag_train.retrieval.base import Retriever, common_corpus
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.retrieval.rerank import open_reranker
from rag_train.strategies.base import Kit

RETRIEVER_KINDS = ("sparse", "dense", "web")


@dataclass(frozen=True)
class RoleConfig:
    """The model of a role: a LoRA adapter of the main model, or a model with an engine of its own.

    Attributes:
        place: adapter directory, checkpoint directory, hub name, or the model's name on a server.
        engine: settings of its engine, which an adapter of the main model shares.
    """

    place: str
    engine: EngineConfig

    @property
    def is_adapter(self) -> bool:
        return (Path(self.place) / "adapter_config.json").is_file()

    @property
    def identity(self) -> dict[str, Any]:
        """What answers depend on: the model and the engine's settings."""
        return engine_identity(self.place, self.engine)


@dataclass(frozen=True, kw_only=True)
class KitConfig:
    """Settings of a kit.

    Attributes:
        model: checkpoint or adapter directory, hub name, or name of the model on a server.
        indexes: retrievers as ``[KIND=]PLACE``. The kind is sparse, dense or web; the place is a specification of
            `rag_train.retrieval.specification`. The first is the main retriever.
        adapter: LoRA adapter of the main model.
        roles: models of their own by role (see `Strategy.roles`). The main model takes all other roles.
        reranker: directory, hub name, or vLLM server of a cross-encoder.
        engine: settings of the engine.
        passages: number of passages retrieved for a query.
        given: the instructions that prompts begin with. Their identity is part of that of the strategy's code.
    """

    model: str
    indexes: Sequence[str]
    adapter: str | None = None
    roles: Mapping[str, RoleConfig] = field(default_factory=dict)
    reranker: str | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    passages: int = 3
    given: Given = OURS

    @property
    def identity(self) -> dict[str, Any]:
        """What answers depend on, besides the retrievers, which state their own identity."""
        return engine_identity(self.model, self.engine) | self.of_any_model

    @property
    def of_any_model(self) -> dict[str, Any]:
        """What answers depend on, besides the main model and the retrievers."""
        return {
            "engine": self.engine.identity,
            "adapter": self.adapter and model_identity(self.adapter),
            "roles": {role: self.roles[role].identity for role in sorted(self.roles)},
            "reranker": self.reranker and model_or_service(self.reranker),
            "passages": self.passages,
            "instructions": bool(self.given),
        }

    @property
    def adapters(self) -> list[str]:
        """The adapters of the main model."""
        own = [self.adapter] if self.adapter else []
        return [*own, *(role.place for role in self.roles.values() if self.adapts(role))]

    def adapts(self, role: RoleConfig) -> bool:
        """Return whether the model of ``role`` is an adapter of the main model; others have their own engine."""
        return role.is_adapter and fits(role.place, self.model)

    def located(self) -> KitConfig:
        """Return the same with an adapter given as model replaced by the model that it was trained on and itself.

        Raises UserError if an adapter is damaged, names no base model, or was made for another vocabulary.
        """
        base, adapter = base_of(self.model)
        if adapter and self.adapter:
            raise UserError(
                f"--model {self.model}: an adapter, and so is --adapter {self.adapter}; give one of them"
            )
        config = replace(self, model=base, adapter=adapter or self.adapter)
        for each in config.adapters:
            check_vocabulary(each, base)
        return config


def parse_roles(
    option: str, texts: Sequence[str], known: Collection[str], main: EngineConfig
) -> dict[str, RoleConfig]:
    """Parse roles, ``ROLE=PLACE[,KEY=VALUE...]`` with settings of the role's engine.

    Settings that are not given are those of the main engine, if both are of the same kind, or else the defaults.

    Raises UserError if a role is not among the ``known`` ones or is given twice, a setting is unknown, or an engine
    cannot have the settings. The message begins with ``option``.
    """
    roles: dict[str, RoleConfig] = {}
    for text in texts:
        place, *pairs = text.split(",")
        role, place = named(option, place)
        if role not in known:
            remedy = f"the roles are {', '.join(known)}" if known else "there are no roles here, remove it"
            raise UserError(f"{option} {text}: unknown role {role!r}; {remedy}")
        if role in roles:
            raise UserError(f"{option} {text}: second model for {role}; give each role once")
        roles[role] = _role(f"{option} {text}", place, pairs, main)
    return roles


def _role(where: str, place: str, pairs: Sequence[str], main: EngineConfig) -> RoleConfig:
    given = parse_settings(where, pairs)
    base = main if given.get("kind", main.kind) == main.kind else EngineConfig()
    given["extra"] = base.extra | given.get("extra", {})
    config = RoleConfig(place, replace(base, **given))
    if config.is_adapter and pairs:
        raise UserError(f"{where}: an adapter has no engine of its own; remove its settings")
    return config


@asynccontextmanager
async def open_kit(config: KitConfig, retrievers: dict[str, Retriever]) -> AsyncIterator[Kit]:
    """Start the engines and close them on exit. The retrievers come from `open_retrievers`.

    Raises:
        UserError: if an engine cannot be started, or if a directory is not an adapter or not a reranker.
    """
    reranker = open_reranker(config.reranker) if config.reranker else None
    fronts = {kind: AsyncRetriever(retriever) for kind, retriever in retrievers.items()}
    async with open_models(config) as (llm, models):
        others = {kind: front for kind, front in fronts.items() if kind}
        main = next(iter(fronts.values()))
        yield Kit(llm, main, config.passages, config.given, models, others, reranker)


@asynccontextmanager
async def open_models(config: KitConfig) -> AsyncIterator[tuple[LLM, dict[str, LLM]]]:
    """Start the main model and the models by role, each once, and close them on exit.

    Raises UserError if an engine cannot be started, or if a directory is not an adapter.
    """
    config = config.located()
    main = RoleConfig(config.model, config.engine)
    if config.engine.kind == "vllm" and config.adapters:
        ranks = [check_adapter(directory) for directory in config.adapters]
        main = replace(main, engine=replace(main.engine, max_lora_rank=max(ranks)))
    own = {
        role: main if chosen == RoleConfig(config.model, config.engine) else chosen
        for role, chosen in config.roles.items()
        if not config.adapts(chosen)
    }
    different = [main, *own.values()]
    different = [each for i, each in enumerate(different) if each not in different[:i]]
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_engine(m.place, m.engine)) for m in _sharing_memory(different)
        ]
        models: dict[str, LLM] = {role: opened[different.index(chosen)] for role, chosen in own.items()}
        for role, chosen in config.roles.items():
            if config.adapts(chosen):
                models[role] = Adapted(opened[0], chosen.place)
        yield Adapted(opened[0], config.adapter) if config.adapter else opened[0], models


def _sharing_memory(models: Sequence[RoleConfig]) -> list[RoleConfig]:
    """Give each vLLM engine an equal share of the GPU's memory if there are several and none is set."""
    engines = sum(model.engine.kind == "vllm" for model in models)
    if engines < 2:
        return list(models)
    return [
        replace(model, engine=replace(model.engine, gpu_memory=round(0.9 / engines, 3)))
        if model.engine.kind == "vllm" and model.engine.gpu_memory is None
        else model
        for model in models
    ]


def open_retrievers(indexes: Sequence[str]) -> dict[str, Retriever]:
    """Open retrievers given as ``[KIND=]PLACE``.

    Returns:
        The retrievers by kind, or by "" if no kind is given, the main retriever first.

    Raises:
        UserError: if a retriever cannot be opened, if a kind is unknown or repeated, or if retrievers are known to
            search different corpora, except for the web's.
    """
    found: dict[str, Retriever] = {}
    for index in indexes:
        kind, place = named("--index", index)
        if kind not in ("", *RETRIEVER_KINDS):
            raise UserError(f"--index {index}: unknown kind {kind!r}; the kinds are {', '.join(RETRIEVER_KINDS)}")
        if kind in found:
            raise UserError(f"--index {index}: second retriever of this kind; write KIND=PLACE for all except one")
        found[kind] = open_retriever(place)
    try:
        common_corpus(retriever for kind, retriever in found.items() if kind != "web")
    except UserError as error:
        raise UserError(f"--index {', '.join(indexes)}: {error}") from error
    return found
