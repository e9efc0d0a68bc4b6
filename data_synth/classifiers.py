"""Training data of two baselines' classifiers: Adaptive-RAG's complexity labels and UAR's four judgements.

The labels come from the model's own trajectories on the same questions, written by `rag-train eval`: one run
answers from memory, the other from one retrieval.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import FilePath

from rag_train.answers import exact_match
from rag_train.data_synth.modules.examples import task_record
from rag_train.errors import UserError
from rag_train.files import read_records
from rag_train.questions.load import load_questions
from rag_train.resumable import WHOLE, Outcome, Shard, Summary, run
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.baselines import adaptive_rag, uar


@dataclass(frozen=True, kw_only=True)
class ClassifierRecipe:
    """Labels for a classifier that decides, before the model writes anything, whether and how to retrieve."""

    questions: FilePath
    """Question file that both runs answered."""
    direct: FilePath
    """Trajectories of the run that answered from memory."""
    rag: FilePath
    """Trajectories of the run that answered from one retrieval."""
    output: str
    """JSON Lines file to write."""
    instructions: bool = True
    """Begin each prompt with the instruction; false for models trained without it."""


Method = Literal["adaptive-rag", "uar"]


def adaptive_rag_records(
    question: Question, direct: bool, single: bool, *, instructions: bool = True
) -> list[SFTRecord]:
    """Make the record of a question's complexity label (Jeong et al. 2024, section 3.2).

    A if the answer from memory (``direct``) is correct; else B if the answer from one retrieval (``single``) is;
    else C for a question with several hops and B for others (the datasets' inductive bias).
    """
    label = "A" if direct else "B" if single or (question.hops or 1) < 2 else "C"
    fields = [("Question", question.question)]
    return [
        task_record(
            adaptive_rag.CLASSIFY, fields, label, id=question.id, source="search", instructions=instructions
        )
    ]


def uar_records(question: Question, direct: bool, *, instructions: bool = True) -> list[SFTRecord]:
    """Make the records of a question's four judgements (Cheng et al. 2024, section 3.2).

    Self-aware: whether the answer from memory (``direct``) is correct. Intent-aware: yes for the question with a
    request to search, no for the question alone. Knowledge-aware: yes, because the questions ask for facts.
    Time-aware: whether the dataset gives the question a date.
    """
    dated = "yes" if question.metadata.get("q_date") else "no"
    request = f"Please search for this: {question.question}"
    judgements = [
        (uar.SELF, question.question, "yes" if direct else "no", ""),
        (uar.INTENT, question.question, "no", "/plain"),
        (uar.INTENT, request, "yes", "/wish"),
        (uar.KNOWLEDGE, question.question, "yes", ""),
        (uar.TIME, question.question, dated, ""),
    ]
    return [
        task_record(
            task,
            [("Question", text)],
            label,
            id=f"{question.id}{place}",
            source="search",
            instructions=instructions,
        )
        for task, text, label, place in judgements
    ]


async def synthesize_classifier(method: Method, recipe: ClassifierRecipe, shard: Shard = WHOLE) -> Summary:
    """Write the labels. Raises UserError if a run has no trajectory of a question."""
    questions = load_questions(recipe.questions)
    runs = {name: _answers(getattr(recipe, name)) for name in ("direct", "rag")}
    for name, answers in runs.items():
        if missing := [q.id for q in questions if q.id not in answers]:
            raise UserError(
                f"{getattr(recipe, name)}: no trajectory of question {missing[0]!r}; run `rag-train eval` again"
            )

    async def work(question: Question) -> Outcome:
        correct = {name: exact_match(answers[question.id], question.answers) for name, answers in runs.items()}
        if method == "adaptive-rag":
            records = adaptive_rag_records(
                question, correct["direct"], correct["rag"], instructions=recipe.instructions
            )
            return Outcome(records, {records[0].segments[-1].text.strip(): 1})
        counts = {f"{name} right": int(value) for name, value in correct.items()}
        return Outcome(uar_records(question, correct["direct"], instructions=recipe.instructions), counts)

    settings = {name: str(value) for name, value in vars(recipe).items()} | {"method": method}
    return await run(questions, work, Path(recipe.output), settings, label=method, shard=shard)


def _answers(path: Path) -> dict[str, str | None]:
    trajectories = read_records(path, Trajectory, "give a file of trajectories, written by `rag-train eval`")
    return {trajectory.question_id: trajectory.answer for trajectory in trajectories}
