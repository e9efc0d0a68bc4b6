"""The record types that all parts of rag-train exchange: validated data without behaviour.

Data flows in one direction: questions -> search -> training records -> segments -> batches -> checkpoint ->
strategies -> trajectories -> tables. On disk, each record is a JSON object on a line of its own (JSON Lines).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

SCHEMA_VERSION = 1


class Record(BaseModel):
    """Base class of all records: immutable, and rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Passage(Record):
    """A retrievable unit of the corpus, such as 100 words of an article (DPR)."""

    id: str
    title: str = ""
    text: str
    score: float | None = None

    @field_validator("score")
    @classmethod
    def _is_number(cls, score: float | None) -> float | None:
        """Take a score that is not a finite number as none: JSON could not express it."""
        return score if score is not None and math.isfinite(score) else None


class GoldStep(Record):
    """An annotated hop of a question: the subquery, its answer, and the passages that support the answer."""

    subquery: str
    answer: str
    passage_ids: list[str] = []
    known: bool | None = None
    """Whether the fact is in the model's training text; None if unknown, as for all data but the mini world's."""
    entity: str = ""
    """Subject of the hop; empty if the dataset does not state it."""
    value: str = ""
    """Short form of the answer, if ``answer`` is a sentence."""

    @property
    def short(self) -> str:
        """The short form of the answer."""
        return self.value or self.answer


class Question(Record):
    """A question with all accepted answers, of which ``answers[0]`` is the canonical answer."""

    id: str
    question: str = Field(min_length=1)
    answers: list[str] = Field(min_length=1)
    type: str = ""
    hops: int | None = None
    gold_passages: list[Passage] = []
    decomposition: list[GoldStep] = []
    metadata: dict[str, Any] = {}

    @field_validator("id", mode="before")
    @classmethod
    def _text(cls, id: Any) -> Any:
        whole = isinstance(id, int) or (isinstance(id, float) and id.is_integer())
        return str(int(id)) if whole and not isinstance(id, bool) else id

    @field_validator("answers")
    @classmethod
    def _has_answer(cls, answers: list[str]) -> list[str]:
        if not any(answer.strip() for answer in answers):
            raise ValueError("every answer is blank")
        return answers


class Decision(StrEnum):
    """The atomic decision at a subquery: retrieve, or answer from parametric knowledge (DeepRAG, section 3.1)."""

    RETRIEVE = "retrieve"
    PARAMETRIC = "parametric"


class Step(Record):
    """A subquery of a trajectory and its answer, with passages if the decision was to retrieve."""

    subquery: str
    decision: Decision
    passages: list[Passage] = []
    answer: str = ""
    retrieve_probability: float | None = None
    """The controller's probability of retrieving, renormalized over the two decisions."""
    queries: list[str] = []
    """Queries sent to the retriever; empty if the subquery itself was the only query."""
    round: int | None = None
    """Number of the round: steps of the same round (a depth of a plan, an iteration) run at the same time. None for
    a step that runs after the previous step."""
    node: str = ""
    """Name of the step, such as the node ``Q2.1`` of a plan or an entity of an outline."""

    @property
    def sent(self) -> list[str]:
        """The queries that this step sent to a retriever."""
        if self.decision is Decision.PARAMETRIC:
            return []
        return [query for query in self.queries or [self.subquery] if query.strip()]


class PlanNode(Record):
    """A subquery of a plan (PlanRAG, section 4.1).

    The tag ``<A1.1>`` in the subquery stands for the answer of node ``Q1.1``. A node without parents is a child of
    the question itself.
    """

    id: str
    question: str
    parents: list[str] = []


class Plan(Record):
    """A directed acyclic graph of subqueries, with parents before children. An atomic question has no nodes."""

    nodes: list[PlanNode] = []


class LLMCall(Record):
    """An engine call: the strategy's module that made the call, and the token counts."""

    module: str
    prompt_tokens: int
    completion_tokens: int
    order: int = 0
    """Number of sequential calls up to and including this call."""
    cut: bool = False
    """Whether the token limit cut the text, which is then no answer."""


AGAIN = "asked again"
"""Module of the calls that a method does not have: they ask once more for an answer that was missing."""
UNPARSED = "did not parse"
"""Beginning of a trajectory's note about a module's text that could not be parsed."""


class Trajectory(Record):
    """The complete record of a strategy's work on one question, from which the papers' figures are computed."""

    question_id: str
    question: str
    strategy: str
    steps: list[Step] = []
    answer: str | None = None
    reasoning: str = ""
    calls: list[LLMCall] = []
    error: str | None = None
    """Why the question was refused or stays open."""
    refused: str = ""
    """Reason by which a refused question is counted (`rag_train.errors.Refused`); empty if it was not refused."""
    plan: Plan | None = None
    outline: dict[str, list[str]] = {}
    """Knowledge by entity (DualRAG, section 3.1.2)."""
    notes: dict[str, str] = {}
    """Other decisions, such as the question's route or the reason why a plan was not followed."""

    @property
    def retrievals(self) -> int:
        """Number of queries sent to a retriever."""
        return sum(len(step.sent) for step in self.steps)

    @property
    def unparsed(self) -> bool:
        """Whether the text of a module could not be parsed."""
        return any(note.startswith(UNPARSED) for note in self.notes.values())

    @property
    def cut(self) -> bool:
        """Whether the token limit cut the text of a module."""
        return any(call.cut for call in self.calls)

    @property
    def asked_again(self) -> bool:
        """Whether a missing answer was asked for once more."""
        return any(call.module == AGAIN for call in self.calls)

    @property
    def critical_path(self) -> int:
        """Length of the longest chain of sequential engine calls."""
        return max((call.order for call in self.calls), default=0)

    @property
    def rounds(self) -> int:
        """Number of retrieval-generation cycles in sequence (HANRAG, section 5; DualRAG, appendix H.2).

        Steps of the same round count once, and steps that sent no query do not count.
        """
        searched = [(i, step.round) for i, step in enumerate(self.steps) if step.sent]
        return len({i if round is None else f"round {round}" for i, round in searched})


class Segment(Record):
    """A part of a transcript; ``trained`` says whether the controller learns to write it."""

    text: str
    trained: bool


class SFTRecord(Record):
    """An example for supervised fine-tuning: a trajectory (DeepRAG, Stage I) or a module's completion.

    ``prompt`` and ``completion`` follow TRL's prompt-completion format. The texts of ``segments`` concatenate to
    ``completion``; their flags are the loss mask, which TRL's format cannot express.
    """

    id: str
    prompt: str
    completion: str
    segments: list[Segment]
    steps: list[Step] = []
    answer: str = ""
    retrievals: int = 0
    source: str
    """Origin of the supervision: ``search``, ``gold`` annotations, ``memory`` (annotations of facts that are not in
    the prompt, but that the model is annotated to know), a ``teacher`` model, or ``gold_fallback`` (gold
    annotations because the search found no correct path, if the recipe allows that)."""
    task: str = ""
    """Name of the trained module, for systems that consist of modules."""
    complete: bool = True
    """Whether the text ends after the completion; if not, no end-of-text token is trained."""
    chat: bool = True
    """Whether the prompt goes into the model's chat template; false for formats that have their own turns."""
    whole_prompt: bool = False
    """Whether the prompt is a user's text with fields; if not, a blank line parts instruction and fields."""


class PreferencePair(Record):
    """A preference pair (DeepRAG, Stage II) in TRL's format, at one node of a trajectory.

    ``prompt[:history_start]`` is the question's prompt and ``prompt[history_start:]`` the transcript so far. With a
    chat model, they belong to different turns.
    """

    id: str
    prompt: str
    chosen: str
    rejected: str
    history_start: int
    node: int
    """Depth of the node in the trajectory, counted from 0."""
