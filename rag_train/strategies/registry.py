"""The functions that parse a strategy specification, build the strategy, and list all strategies."""

from __future__ import annotations

import difflib
from dataclasses import Field, fields
from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from rag_train import strategies
from rag_train.errors import UserError
from rag_train.recipe import parse_yaml, type_name
from rag_train.strategies import baselines
from rag_train.strategies.base import ABILITIES, STRATEGIES, Kit, Strategy

for _package in (strategies, baselines):  # importing the module of a strategy registers it
    for _module in iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)

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
    cls, preset, _ = STRATEGIES[name]
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
    """Describe each strategy. ``needs`` is what it needs besides a model and a retriever."""
    return [
        {
            "name": name,
            "summary": (cls.__doc__ or "").partition("\n")[0],
            "paper": cls.paper,
            "needs": [*cls.needs, *_abilities(name)],
            "roles": list(cls.roles),
            "settings": default_settings(name),
            "bound": bound and bound._asdict(),
        }
        for name, (cls, _, bound) in STRATEGIES.items()
    ]


def default_settings(name: str) -> dict[str, Any]:
    """Return the settings of a strategy with their defaults, without those that all strategies have."""
    cls, preset, _ = STRATEGIES[name]
    return {key: preset.get(key, field.default) for key, field in _fields(cls).items()}


def _fields(cls: type[Strategy]) -> dict[str, Field[Any]]:
    """Return the settings of a strategy: its fields except those that all strategies have without a value."""
    own = (field for field in fields(cls) if field.name not in ("kit", "name"))
    return {field.name: field for field in own if field.name not in BUDGET or field.default is not None}


def _abilities(name: str) -> list[str]:
    """Return what a strategy needs of its main model at its default settings."""
    cls, _, _ = STRATEGIES[name]
    settings = SimpleNamespace(**default_settings(name))
    return [ABILITIES[need.ability][0] for need in cls.abilities if need.when(settings)]
