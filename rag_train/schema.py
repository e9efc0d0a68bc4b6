"""The types that every part of rag-train passes on: plain records, validated, without behaviour.

Data flows one way: questions -> search -> records -> segments -> batches -> checkpoint -> strategies
-> trajectories -> tables. Each type below is one JSON object a line on disk.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base of all records: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Passage(Record):
    """One retrievable unit of the corpus (DPR: 100 tokens of an article)."""

    id: str
    title: str = ""
    text: str
    score: float | None = None


class GoldStep(Record):
    """One annotated hop of a question: what to ask, what the answer is, which passage says so."""

    subquery: str
    answer: str
    passage_ids: list[str] = []
    known: bool | None = None
    """Whether the fact is inside the model's training text; only the mini world can say."""
    entity: str = ""
    """What the hop is about, where the dataset says."""
    value: str = ""
    """The answer in short, where ``answer`` is a sentence."""

    @property
    def short(self) -> str:
        return self.value or self.answer


class Question(Record):
    """A question with every accepted answer. ``answers[0]`` is the canonical one."""

    id: str
    question: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    type: str = ""
    hops: int | None = None
    gold_passages: list[Passage] = []
    decomposition: list[GoldStep] = []
    metadata: dict[str, Any] = {}

    @field_validator("answers")
    @classmethod
    def _some_answer(cls, answers: list[str]) -> list[str]:
        if not any(answer.strip() for answer in answers):
            raise ValueError("every answer is blank")
        return answers


class Decision(StrEnum):
    """The atomic decision at a subquery (DeepRAG, section 3.1)."""

    RETRIEVE = "retrieve"
    PARAMETRIC = "parametric"


class Step(Record):
    """One (subquery, response) of a trajectory; passages only where the decision was to retrieve."""

    subquery: str
    decision: Decision
    passages: list[Passage] = []
    answer: str = ""
    retrieve_probability: float | None = None
    """Probability the controller gave to retrieving, renormalised over the two decisions."""
    queries: list[str] = []
    """What was asked of the retriever, where that is not just the subquery."""
    round: int | None = None
    """Steps of one round ran at the same time (a plan's depth, an iteration); None: after the step before."""
    node: str = ""
    """What the step is called: a plan's Q2.1, an outline's entity."""


class PlanNode(Record):
    """A subquery of a plan; ``<A1.1>`` in its text stands for the answer of node ``Q1.1`` (PlanRAG, section 4.1).

    A node without parents hangs from the question itself.
    """

    id: str
    question: str
    parents: list[str] = []


class Plan(Record):
    """A directed acyclic graph of subqueries, parents before children; no nodes: the question is atomic."""

    nodes: list[PlanNode] = []


class LLMCall(Record):
    """One engine call: which module of the strategy asked, and what it cost in tokens."""

    module: str
    prompt_tokens: int
    completion_tokens: int
    order: int = 0
    """How many calls, itself counted, must be made one after the other to have made this one."""


class Trajectory(Record):
    """Everything a strategy did for one question; every figure of the papers is counted from these."""

    question_id: str
    question: str
    strategy: str
    steps: list[Step] = []
    answer: str | None = None
    reasoning: str = ""
    calls: list[LLMCall] = []
    error: str | None = None
    plan: Plan | None = None
    outline: dict[str, list[str]] = {}
    """Knowledge by entity (DualRAG, section 3.1.2)."""
    notes: dict[str, str] = {}
    """What else was decided: a route, why a plan was not followed."""

    @property
    def retrievals(self) -> int:
        """Queries put to a retriever."""
        return sum(max(1, len(s.queries)) for s in self.steps if s.decision is Decision.RETRIEVE)

    @property
    def critical_path(self) -> int:
        """Engine calls one after the other, however many are made at the same time."""
        return max((call.order for call in self.calls), default=0)

    @property
    def rounds(self) -> int:
        """Steps one after the other: those of one round count once (HANRAG, section 5.2)."""
        return len({i if step.round is None else f"round {step.round}" for i, step in enumerate(self.steps)})


class Segment(Record):
    """A stretch of transcript; ``trained`` says whether the controller is to learn to write it."""

    text: str
    trained: bool


class SFTRecord(Record):
    """An example of supervised fine-tuning: a trajectory (DeepRAG's Stage I) or one module's completion.

    ``prompt`` and ``completion`` are TRL's prompt-completion shape; ``segments`` concatenate to
    ``completion`` and carry the loss mask, which TRL's shape cannot express.
    """

    id: str
    prompt: str
    completion: str
    segments: list[Segment]
    steps: list[Step] = []
    answer: str = ""
    retrievals: int = 0
    source: str
    """Whose supervision it is: ``search`` (or ``gold_fallback``, where no path was right and the recipe allows
    it), ``gold`` annotations, a ``teacher`` model."""
    task: str = ""
    """The module that is trained, for systems made of modules."""


class PreferencePair(Record):
    """A Stage II training example in TRL's preference shape, at one node of a trajectory.

    ``prompt[:history_start]`` is the question's prompt, ``prompt[history_start:]`` the transcript so far:
    with a chat model the two belong to different turns.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str
    history_start: int
    node: int
    """Depth of the node on its path, from 0."""
