"""The answers of the mini world's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from rag_train.eval.matrix.answers import Answers, needs_attention
from rag_train.eval.miniworld.lab import Lab
from rag_train.eval.miniworld.models import checkpoint
from rag_train.llm.base import LLM
from rag_train.llm.transformers import TransformersEngine
from rag_train.schema import Question, Trajectory


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

    The models of a request are trained if needed and served once for all their requests. Trajectories are kept in
    the lab's folder; answered questions are not asked again.
    """
    by_models: dict[tuple[str, tuple[str, str] | None], list[Request]] = {}
    for request in requests:
        by_models.setdefault((request.model, request.role), []).append(request)
    out: dict[Request, list[Trajectory]] = {}
    for (model, role), group in by_models.items():
        directory = await checkpoint(lab, model)
        others = {role[0]: await checkpoint(lab, role[1])} if role else {}
        kept = {request: stored(lab, request) for request in group}
        missing = [request for request in group if kept[request].missing(requests[request])]
        async with AsyncExitStack() as stack:
            # An engine starts only if a request needs it.
            engine = slow = None
            models: dict[str, LLM] = {}
            if any(not needs_attention(request.strategy) for request in missing):
                engine = await stack.enter_async_context(lab.serve(directory))
                for name, path in others.items():
                    models[name] = await stack.enter_async_context(lab.serve(path))
            if any(needs_attention(request.strategy) for request in missing):
                slow = TransformersEngine.start(str(directory))
            for request in group:
                if request in missing:
                    llm = slow if needs_attention(request.strategy) else engine
                    assert llm is not None
                    await kept[request].ask(lab.kit(llm, models), requests[request])
                out[request] = kept[request].of(requests[request])
    return out


def stored(lab: Lab, request: Request) -> Answers:
    """Return the answers to a request's strategy by its models, as far as they are there."""
    settings = {"model": request.model, "role": list(request.role or ())}
    return Answers(lab.folder / "answers", request.strategy, settings)
