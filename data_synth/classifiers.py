"""Training data of two baselines' classifiers: Adaptive-RAG's complexity labels and UAR's four judgements.

The labels come from the model's own trajectories on the same questions, written by `rag-train eval`: one run
answers from memory, one from one retrieval, and one (Adaptive-RAG's) from several. UAR's judgements of time and of
knowledge come from the question sets.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath

from rag_train.answers import exact_match, rules_of
from rag_train.data_synth.inputs import read_files
from rag_train.data_synth.modules.examples import task_record
from rag_train.errors import UserError
from rag_train.formats.tasks import Task
from rag_train.identity import code
from rag_train.jobs.files import read_records
from rag_train.jobs.items import WHOLE, Outcome, Rejected, Shard, Summary, run
from rag_train.progress import console
from rag_train.questions.load import load_questions
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.baselines import adaptive_rag, uar

UAR_TASKS = (uar.INTENT, uar.KNOWLEDGE, uar.TIME, uar.SELF)
REQUESTS = (
    "Please search for this: {}",
    "Look this up for me. {}",
    "{} Please use a search engine.",
    "Can you find this on the web? {}",
    "{} Give me an answer with a source from Wikipedia.",
    "Search the internet and tell me: {}",
    "I need a reliable reference for this question. {}",
    "{} Do not answer from memory, check it.",
)
"""Ways to ask for a search, drawn at random for UAR's judgement of intent."""
ALL = {
    "adaptive-rag": ("A", "B", "C"),
    "uar": tuple(f"{task.name} {label}" for task in UAR_TASKS for label in ("yes", "no")),
}
"""The classes that each method's data must have."""


@dataclass(frozen=True, kw_only=True)
class ClassifierRecipe:
    """Labels for a classifier that decides, before the model writes anything, whether and how to retrieve."""

    questions: list[FilePath]
    """Question files that all runs answered. Adaptive-RAG needs questions of one hop and of several."""
    direct: list[FilePath]
    """Trajectories of the run that answered from memory: a file for each of `questions`, in the same order."""
    output: str
    """JSON Lines file to write."""
    rag: list[FilePath] = field(default_factory=list)
    """Trajectories of the run that answered from one retrieval; required by Adaptive-RAG."""
    multi: list[FilePath] = field(default_factory=list)
    """Trajectories of the run that answered from several retrievals (IRCoT); Adaptive-RAG can do without."""
    timely: list[FilePath] = field(default_factory=list)
    """UAR: files of questions whose answers change with time, such as CAG's."""
    no_knowledge: list[FilePath] = field(default_factory=list)
    """UAR: files of questions that take no factual knowledge, such as arithmetic or common sense."""
    seed: int = 0
    """Seed of the requests to search."""
    instructions: bool = True
    """Begin each prompt with the instruction; false for models trained without it."""


Method = Literal["adaptive-rag", "uar"]
Kind = Literal["answered", "timely", "no knowledge"]


class Labelled(Question):
    """A question, which set it is from, and which runs answered it correctly."""

    kind: Kind = "answered"
    right: Mapping[str, bool] = Field(default_factory=dict)
    refused: str = ""
    """Why a run did not answer the question, such as an answer that was cut; empty if all runs did."""


def complexity(question: Labelled) -> str:
    """Return a question's complexity label (Jeong et al. 2024, section 3.2).

    It is the simplest run that answered correctly: A from memory, B with one retrieval, C with several. If none
    did, it is C for a question with several hops and B for others (the datasets' inductive bias).
    """
    for label, name in (("A", "direct"), ("B", "rag"), ("C", "multi")):
        if question.right.get(name):
            return label
    return "C" if (question.hops or 1) > 1 else "B"


def adaptive_rag_records(question: Labelled, *, instructions: bool = True) -> list[SFTRecord]:
    """Make the record of a question's complexity label."""
    return [_record(question, adaptive_rag.CLASSIFY, question.question, complexity(question), "", instructions)]


def uar_records(question: Labelled, seed: int, *, instructions: bool = True) -> list[SFTRecord]:
    """Make the records of a question's judgements (Cheng et al. 2024, section 3.2).

    Self-aware: whether the answer from memory is correct. Intent-aware: yes for the question with a request to
    search, no for the question alone. Time-aware: whether the question is from a file of timely questions, or its
    dataset gives it a date. Knowledge-aware: no for the files of questions that take no knowledge. Each criterion
    has examples that the criteria before it in the tree let through.
    """
    text = question.question
    request = random.Random(f"{seed}-{question.id}").choice(REQUESTS).format(text)
    timely = question.kind == "timely" or bool(question.metadata.get("q_date"))
    needed = question.kind != "no knowledge"
    judgements = [
        (uar.INTENT, text, False, "/plain"),
        (uar.INTENT, request, True, "/wish"),
        (uar.KNOWLEDGE, text, needed, ""),
    ]
    if needed:
        judgements.append((uar.TIME, text, timely, ""))
    if "direct" in question.right:
        judgements.append((uar.SELF, text, question.right["direct"], ""))
    return [
        _record(question, task, asked, "yes" if verdict else "no", place, instructions)
        for task, asked, verdict, place in judgements
    ]


def _record(question: Question, task: Task, text: str, label: str, place: str, instructions: bool) -> SFTRecord:
    id, fields = f"{question.id}{place}", [("Question", text)]
    return task_record(task, fields, label, id=id, source="search", instructions=instructions)


async def synthesize_classifier(method: Method, recipe: ClassifierRecipe, shard: Shard = WHOLE) -> Summary:
    """Write the labels, and say which classes have none. A question with an answer that was cut is rejected.

    Raises UserError if a run has no file or no trajectory for a question.
    """
    questions = labelled_questions(method, recipe)

    async def work(question: Labelled) -> Outcome:
        if question.refused:  # nothing is known about what the model can answer
            return Outcome([], {}, [Rejected(id=question.id, reason=question.refused, text=question.question)])
        if method == "adaptive-rag":
            records = adaptive_rag_records(question, instructions=recipe.instructions)
            return Outcome(records, {complexity(question): 1})
        records = uar_records(question, recipe.seed, instructions=recipe.instructions)
        return Outcome(records, dict(Counter(f"{r.task} {r.segments[-1].text.strip()}" for r in records)))

    settings = {name: str(value) for name, value in vars(recipe).items()}
    settings |= {"method": method, "code": code(labelled_questions)}
    summary = await run(questions, work, Path(recipe.output), settings, label=method, shard=shard)
    if absent := [name for name in ALL[method] if not summary.counts.get(name)]:
        console.print(
            f"no examples of {', '.join(absent)}: the classifier cannot learn it; add files to the recipe"
        )
    return summary


def labelled_questions(method: Method, recipe: ClassifierRecipe) -> list[Labelled]:
    """Read the recipe's questions, with what the runs made of them."""
    runs = {name: getattr(recipe, name) for name in ("direct", "rag", "multi")}
    required = ("direct", "rag") if method == "adaptive-rag" else ("direct",)
    for name, files in runs.items():
        if (files or name in required) and len(files) != len(recipe.questions):
            problem = f"{len(files)} files for {len(recipe.questions)} files of questions"
            raise UserError(f"{name}: {problem}; give a file for each, in the same order")
    others: dict[Path, Kind] = {}
    if method == "uar":
        others.update((path, "timely") for path in recipe.timely)
        others.update((path, "no knowledge") for path in recipe.no_knowledge)
    by_file = read_files([*recipe.questions, *others], None, recipe.seed)
    out: list[Labelled] = []
    for i, path in enumerate(recipe.questions):
        answers = {name: _answers(files[i]) for name, files in runs.items() if files}
        for question, original in zip(by_file[path], load_questions(path, unanswerable="skip"), strict=True):
            given = {name: _answer(runs[name][i], of, original) for name, of in answers.items()}
            out.append(labelled(question, given))
    out += [Labelled(**dict(question), kind=kind) for path, kind in others.items() for question in by_file[path]]
    return out


def labelled(question: Question, given: Mapping[str, Trajectory]) -> Labelled:
    """Return a question with what each run made of it."""
    rules = rules_of(question)
    right = {name: exact_match(each.answer, question.answers, rules) for name, each in given.items()}
    refused = [f"{name} refused ({each.refused})" for name, each in given.items() if each.error is not None]
    refused += ["cut" for each in given.values() if each.answer is None and each.cut]
    return Labelled(**dict(question), right=right, refused=next(iter(refused), ""))


def _answer(path: Path, answers: Mapping[str, Trajectory], question: Question) -> Trajectory:
    if question.id not in answers:
        raise UserError(f"{path}: no trajectory of question {question.id!r}; run `rag-train eval` again")
    return answers[question.id]


def _answers(path: Path) -> dict[str, Trajectory]:
    trajectories = read_records(path, Trajectory, "give a file of trajectories, written by `rag-train eval`")
    return {trajectory.question_id: trajectory for trajectory in trajectories}
