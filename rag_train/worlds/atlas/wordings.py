"""How facts, questions and passages are worded (``wordings.yaml``).

Training, dev and test questions have different wordings, so that a model is tested neither on wordings that it was
trained on nor on those for which settings were chosen. Each subquery has one wording, the first of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from rag_train.worlds.atlas.facts import Kind


@dataclass(frozen=True)
class Relation:
    """How one relation of one kind of entity is worded; ``{x}`` is the subject, ``{v}`` the object."""

    questions: tuple[str, ...]
    """Wordings of training questions; the first one is the subquery."""
    dev: str
    """Wording of dev questions."""
    test: str
    """Wording of test questions."""
    noun: str
    """The object as a noun phrase, for questions of several hops: "the capital of {x}"."""
    statements: tuple[str, ...]
    """Sentences of passages; the first one is the gold answer to the subquery."""


@dataclass(frozen=True)
class Comparison:
    """How two entities of one kind are compared; ``{x}`` and ``{y}`` are their names."""

    kind: Kind
    chain: tuple[str, ...]
    answer: str
    """larger or smaller: the entity with that object; same: yes or no."""
    questions: tuple[str, ...]
    """Wordings of training questions."""
    dev: str
    """Wording of dev questions."""
    test: str
    """Wording of test questions."""


_WORDINGS = yaml.safe_load((Path(__file__).parent / "wordings.yaml").read_text(encoding="utf-8"))
RELATIONS: dict[tuple[Kind, str], Relation] = {
    (kind, name): relation
    for kind, relations in TypeAdapter(dict[Kind, dict[str, Relation]])
    .validate_python(_WORDINGS["relations"])
    .items()
    for name, relation in relations.items()
}
COMPARISONS = TypeAdapter(list[Comparison]).validate_python(_WORDINGS["comparisons"])

_LAST = ("capital", "continent", "currency", "language", "internet domain", "telephone code", "demonym")
"""Relations of a country that end a chain of several hops."""

CHAINS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    *(("country", (relation,)) for kind, relation in RELATIONS if kind == "country"),
    ("city", ("country",)),
    ("airport", ("city",)),
    ("airport", ("IATA code",)),
    ("region", ("country",)),
    *(("element", (relation,)) for kind, relation in RELATIONS if kind == "element"),
    *((kind, ("country", relation)) for kind in ("city", "region", "element") for relation in _LAST),
    ("country", ("capital", "population")),
    ("airport", ("city", "country")),
    *(("airport", ("city", "country", relation)) for relation in _LAST),
    *((kind, ("country", "capital", "population")) for kind in ("city", "region", "element")),
    ("airport", ("city", "country", "capital", "population")),
)
"""(kind of the first entity, relations) of the questions that follow a chain of facts."""
