"""The strategies by name, and the functions that parse a strategy specification and build the strategy."""

from __future__ import annotations

import difflib
from dataclasses import Field, fields
from types import SimpleNamespace
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.recipe import parse_yaml, type_name
from rag_train.strategies.base import ABILITIES, Kit, Strategy
from rag_train.strategies.baselines.adaptive_rag import AdaptiveRAG
from rag_train.strategies.baselines.adaptive_retrieval import AdaptiveRetrieval
from rag_train.strategies.baselines.auto_rag import AutoRAG
from rag_train.strategies.baselines.chatqa import ChatQA
from rag_train.strategies.baselines.dragin import DRAGIN
from rag_train.strategies.baselines.flare import FLARE
from rag_train.strategies.baselines.genground import GenGround
from rag_train.strategies.baselines.ircot import IRCoT
from rag_train.strategies.baselines.iter_retgen import IterRetGen
from rag_train.strategies.baselines.iterdrag import IterDRAG
from rag_train.strategies.baselines.metarag import MetaRAG
from rag_train.strategies.baselines.qd_rag import QDRAG
from rag_train.strategies.baselines.rankrag import RankRAG
from rag_train.strategies.baselines.react import ReAct
from rag_train.strategies.baselines.reader import ChainOfThought, Direct, Oracle, VanillaRAG
from rag_train.strategies.baselines.resp import ReSP
from rag_train.strategies.baselines.rq_rag import RQRAG
from rag_train.strategies.baselines.search_r1 import SearchR1
from rag_train.strategies.baselines.selfrag import SelfRAG
from rag_train.strategies.baselines.taare import TAARE
from rag_train.strategies.baselines.two_hop import TwoHopRAG
from rag_train.strategies.baselines.uar import UAR
from rag_train.strategies.deeprag import DeepRAG
from rag_train.strategies.dualrag import DualRAG
from rag_train.strategies.hanrag import HANRAG
from rag_train.strategies.levelrag import LevelRAG
from rag_train.strategies.planrag import PlanRAG

STRATEGIES: dict[str, tuple[type[Strategy], dict[str, Any]]] = {
    "deeprag": (DeepRAG, {}),
    "deeprag-parametric": (DeepRAG, {"mode": "parametric"}),
    "deeprag-retrieve": (DeepRAG, {"mode": "retrieve"}),
    "dualrag": (DualRAG, {}),
    "hanrag": (HANRAG, {}),
    "hanrag-oracle": (HANRAG, {"router": "oracle"}),
    "planrag": (PlanRAG, {}),
    "planrag-question": (PlanRAG, {"retrieval": "question"}),
    "plan-selfrag": (PlanRAG, {"solver": "selfrag"}),
    "levelrag": (LevelRAG, {}),
    "levelrag-sparse": (LevelRAG, {"searcher": "sparse"}),
    "levelrag-dense": (LevelRAG, {"searcher": "dense"}),
    "levelrag-web": (LevelRAG, {"searcher": "web"}),
    "levelrag-hybrid": (LevelRAG, {"searcher": "hybrid"}),
    "direct": (Direct, {}),
    "cot": (ChainOfThought, {}),
    "rag": (VanillaRAG, {}),
    "cot-rag": (VanillaRAG, {"reason": True}),
    "cot-retrieve": (VanillaRAG, {"reason": True, "examples": True}),
    "oracle": (Oracle, {}),
    "two-hop-rag": (TwoHopRAG, {}),
    "ircot": (IRCoT, {}),
    "iter-retgen": (IterRetGen, {}),
    "itrg": (IterRetGen, {"mode": "refine"}),
    "iterdrag": (IterDRAG, {}),
    "qd-rag": (QDRAG, {}),
    "qd-rag-subq": (QDRAG, {"subquery": True}),
    "react": (ReAct, {}),
    "fireact": (ReAct, {"examples": False}),
    "flare": (FLARE, {}),
    "dragin": (DRAGIN, {}),
    "taare": (TAARE, {}),
    "uar": (UAR, {}),
    "adaptive-retrieval": (AdaptiveRetrieval, {}),
    "adaptive-rag": (AdaptiveRAG, {}),
    "auto-rag": (AutoRAG, {}),
    "self-rag": (SelfRAG, {}),
    "rq-rag": (RQRAG, {}),
    "metarag": (MetaRAG, {}),
    "genground": (GenGround, {}),
    "resp": (ReSP, {}),
    "rankrag": (RankRAG, {}),
    "chatqa": (ChatQA, {}),
    "search-r1": (SearchR1, {}),
}
"""Class and preset settings of each strategy, by name."""

BUDGET = {"max_calls": 1, "max_retrievals": 0, "max_question_tokens": 1, "max_tokens": 1}
"""Settings that all strategies have, with the smallest value of each."""


def parse_strategy(spec: str) -> tuple[type[Strategy], dict[str, Any]]:
    """Parse ``name`` or ``name,key=value,...``, such as ``dualrag,outline=flat``, and return class and settings.

    Raises UserError if the name or a key is unknown, or a value has the wrong type.
    """
    name, *pairs = spec.split(",")
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"the strategies are {', '.join(STRATEGIES)}"
        raise UserError(f"--strategy {spec}: unknown strategy {name!r}; {remedy}")
    cls, preset = STRATEGIES[name]
    hints = get_type_hints(cls)
    known = {key: hints[key] for key in (*_fields(cls), *BUDGET)}
    settings = dict(preset)
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in known:
            raise UserError(
                f"--strategy {spec}: no setting {key!r}; {name} has {', '.join(known) or 'no settings'}"
            )
        try:
            settings[key] = TypeAdapter(known[key]).validate_python(parse_yaml(text))
        except (ValidationError, yaml.YAMLError):
            raise UserError(f"--strategy {spec}: {key}={text} is not {type_name(known[key])}") from None
        if key in BUDGET and (settings[key] or 0) < BUDGET[key]:
            raise UserError(f"--strategy {spec}: {key}={text} is too small; give {BUDGET[key]} or more")
    return cls, settings


def build(spec: str, kit: Kit) -> Strategy:
    """Create the strategy of a specification (see `parse_strategy`).

    Raises UserError if the specification is invalid or ``kit`` lacks something that the strategy needs.
    """
    cls, settings = parse_strategy(spec)
    return cls(kit, name=spec, **settings)


def listing() -> list[dict[str, Any]]:
    """Describe each strategy: name, summary, paper, needs besides a model and a retriever, roles, and settings."""
    return [
        {
            "name": name,
            "summary": (cls.__doc__ or "").partition("\n")[0],
            "paper": cls.paper,
            "needs": [*cls.needs, *_abilities(name)],
            "roles": list(cls.roles),
            "settings": default_settings(name),
        }
        for name, (cls, _) in STRATEGIES.items()
    ]


def default_settings(name: str) -> dict[str, Any]:
    """Return the settings of a strategy with their defaults, without those that all strategies have."""
    cls, preset = STRATEGIES[name]
    return {key: preset.get(key, field.default) for key, field in _fields(cls).items()}


def _fields(cls: type[Strategy]) -> dict[str, Field[Any]]:
    """Return the settings of a strategy: its fields except those that all strategies have without a value."""
    own = (field for field in fields(cls) if field.name not in ("kit", "name"))
    return {field.name: field for field in own if field.name not in BUDGET or field.default is not None}


def _abilities(name: str) -> list[str]:
    """Return what a strategy needs of its main model at its default settings."""
    cls, _ = STRATEGIES[name]
    settings = SimpleNamespace(**default_settings(name))
    return [ABILITIES[need.ability][0] for need in cls.abilities if need.when(settings)]
