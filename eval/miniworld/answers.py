"""The answers of the mini world's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import NamedTuple

from rag_train.eval.matrix.answers import Answers, digest, needs_attention
from rag_train.eval.miniworld.engines import Engines
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.models import checkpoints
from rag_train.llm.transformers import TransformersEngine
from rag_train.provenance import weights_sha256
from rag_train.schema import Question, Trajectory
from rag_train.strategies.registry import default_settings, parse_strategy

UNINSTRUCTED = {"cot-retrieve": "cot-rag", "fireact": "react"}
"""Strategies that are the same as another one without instructions, which the lab's prompts lack."""
TODAY = "2025-01-01"
"""The date that TA-ARE is told. With today's, it would have another prompt on each day."""


class Request(NamedTuple):
    """One model answering one set of questions by one strategy."""

    model: str
    strategy: str
    questions: str
    """Name of the question set."""
    role: tuple[str, str] | None = None
    """A role of the strategy that another model plays, and the name of that model."""


async def ask(lab: Lab, requests: Mapping[Request, Sequence[Question]]) -> dict[Request, list[Trajectory]]:
    """Return the trajectories of every request, given its questions.

    The models of the requests are trained if needed. Requests that differ only in their questions are asked
    together, and each question once. Trajectories are kept in the lab's folder; answered questions are not asked
    again.
    """
    asked: dict[Request, dict[str, Question]] = {}
    for request, questions in requests.items():
        asked.setdefault(asked_as(request, lab.settings), {}).update((digest([each]), each) for each in questions)
    # The requests to a model follow each other, those with a role last: few engines have to start.
    models = list(dict.fromkeys(request.model for request in asked))
    order = sorted(asked, key=lambda request: (models.index(request.model), request.role or ("", "")))
    paths = await checkpoints(lab, dict.fromkeys([*models, *(r.role[1] for r in order if r.role)]))
    kept = {request: stored(lab, request) for request in order}
    async with Engines(lab.serve) as engines:
        for request in order:
            questions = list(asked[request].values())
            if not kept[request].missing(questions):
                continue
            if needs_attention(request.strategy):
                async with aclosing(TransformersEngine.start(str(paths[request.model]))) as slow:
                    await kept[request].ask(lab.kit(slow), questions)
                continue
            llm = await engines.of(paths[request.model])
            roles = {request.role[0]: await engines.of(paths[request.role[1]])} if request.role else {}
            await kept[request].ask(lab.kit(llm, roles), questions)
    return {request: kept[asked_as(request, lab.settings)].of(questions) for request, questions in requests.items()}


def asked_as(request: Request, settings: Settings) -> Request:
    """Return the request under which its questions are asked: without the set's name, the strategy as in the lab.

    Requests that would get the same answers to a question become equal.
    """
    return request._replace(strategy=as_in_the_lab(request, settings), questions="")


def as_in_the_lab(request: Request, settings: Settings) -> str:
    """Return the request's strategy with the lab's settings, and without settings that have their default."""
    name, *given = request.strategy.split(",")
    name = UNINSTRUCTED.get(name, name)
    thresholds, stage = asdict(settings.demo.thresholds), request.model.partition("-")[0]
    chosen = {
        "flare": settings.flare,
        "dragin": settings.dragin,
        "self-rag": settings.self_rag,
        "taare": f"today={TODAY}",
    }
    if stage in thresholds:
        chosen["deeprag"] = f"threshold={thresholds[stage]}"
    own = chosen[name].split(",") if name in chosen else []
    pairs = dict(pair.split("=", 1) for pair in [*own, *given])
    values, defaults = parse_strategy(",".join([name, *own, *given]))[1], default_settings(name)
    return ",".join([name, *(f"{key}={text}" for key, text in pairs.items() if values[key] != defaults.get(key))])


def stored(lab: Lab, request: Request) -> Answers:
    """Return the answers to a request's strategy by its models, as far as they are there."""
    names = [request.model, *(request.role or ())[1:]]
    settings = {
        "model": request.model,
        "role": list(request.role or ()),
        "weights": [weights_sha256(str(lab.folder / name)) for name in names],
        "corpus": lab.index.corpus_sha256,
    }
    return Answers(lab.folder / "answers", as_in_the_lab(request, lab.settings), settings)
