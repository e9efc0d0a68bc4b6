"""Training data of two baselines' classifiers: Adaptive-RAG's complexity labels and UAR's four judgements.

The labels come from the model's own trajectories on the same questions, written by `rag-train eval`: one run
answers from memory, one from one retrieval, and one (Adaptive-RAG's) from several. UAR's judgements of time and of
knowledge come from the question sets.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

from pydantic import Field, FilePath

from rag_train.answers import exact_match, rules_of
from rag_train.data_synth.inputs import read_files
from rag_train.data_synth.method import Method, SynthesisRecipe, method
from rag_train.data_synth.modules.examples import task_record
from rag_train.errors import UserError
from rag_train.formats.tasks import Task
from rag_train.jobs.files import read_records
from rag_train.jobs.items import Outcome, Rejected, Summary
from rag_train.progress import console
from rag_train.questions.load import load_questions
from rag_train.schema import Question, Trajectory
from rag_train.strategies.baselines import adaptive_rag, uar

Kind = Literal["answered", "timely", "no knowledge"]
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


@dataclass(frozen=True, kw_only=True)
class LabelsRecipe(SynthesisRecipe):
    """Labels for a classifier that decides, before the model writes anything, whether and how to retrieve."""

    questions: list[FilePath]
    """Question files that all runs answered."""
    direct: list[FilePath]
    """Trajectories of the run that answered from memory: a file for each of `questions`, in the same order."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveRAGRecipe(LabelsRecipe):
    """Complexity labels for Adaptive-RAG's classifier, which need questions of one hop and of several."""

    rag: list[FilePath]
    """Trajectories of the run that answered from one retrieval."""
    multi: list[FilePath] = field(default_factory=list)
    """Trajectories of the run that answered from several retrievals (IRCoT); Adaptive-RAG can do without."""


@dataclass(frozen=True, kw_only=True)
class UARRecipe(LabelsRecipe):
    """Labels for UAR's four classifiers."""

    timely: list[FilePath] = field(default_factory=list)
    """Files of questions whose answers change with time, such as CAG's."""
    no_knowledge: list[FilePath] = field(default_factory=list)
    """Files of questions that take no factual knowledge, such as arithmetic or common sense."""


class Labelled(Question):
    """A question, which set it is from, and which runs answered it correctly."""

    kind: Kind = "answered"
    right: Mapping[str, bool] = Field(default_factory=dict)
    refused: str = ""
    """Why a run did not answer the question, such as an answer that was cut; empty if all runs did."""


R = TypeVar("R", bound=LabelsRecipe)


class LabelsMethod(Method[R, Labelled]):
    """A method whose records are labels of questions.

    Attributes:
        runs: keys of the recipe with the trajectories of runs.
        sets: keys of the recipe with further questions, which no run answered, and their kind.
        classes: classes that the data must have, by task.
    """

    runs: ClassVar[tuple[str, ...]]
    sets: ClassVar[Mapping[str, Kind]] = {}
    classes: ClassVar[Mapping[Task, tuple[str, ...]]]

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: R) -> AsyncIterator[Self]:
        yield cls(recipe, cls.questions(recipe))

    @classmethod
    def questions(cls, recipe: R) -> list[Labelled]:
        """Read the recipe's questions, with what the runs made of them.

        Raises UserError if a run has no file or no trajectory for a question.
        """
        # Adaptive-RAG can do without the run with several retrievals.
        runs = {name: files for name in cls.runs if (files := getattr(recipe, name)) or name != "multi"}
        for name, files in runs.items():
            if len(files) != len(recipe.questions):
                problem = f"{len(files)} files for {len(recipe.questions)} files of questions"
                raise UserError(f"{name}: {problem}; give a file for each, in the same order")
        others = {path: kind for name, kind in cls.sets.items() for path in getattr(recipe, name)}
        by_file = read_files([*recipe.questions, *others], None, recipe.seed)
        out: list[Labelled] = []
        for i, path in enumerate(recipe.questions):
            answers = {name: _answers(files[i]) for name, files in runs.items()}
            for question, original in zip(by_file[path], load_questions(path, unanswerable="skip"), strict=True):
                if lacking := [name for name, given in answers.items() if original.id not in given]:
                    problem = f"no trajectory of question {original.id!r}; run `rag-train eval` again"
                    raise UserError(f"{runs[lacking[0]][i]}: {problem}")
                out.append(labelled(question, {name: given[original.id] for name, given in answers.items()}))
        return out + [Labelled(**dict(q), kind=kind) for path, kind in others.items() for q in by_file[path]]

    @abstractmethod
    def labels(self, question: Labelled) -> list[tuple[str, Task, str, str]]:
        """Return the labels of a question, each with the end of its id, its task and the text that is labelled."""

    async def outcome(self, question: Labelled, /) -> Outcome:
        """Make the records of a question's labels; a question with an answer that was cut is rejected."""
        if question.refused:  # nothing is known about what the model can answer
            return Outcome([], {}, [Rejected(id=question.id, reason=question.refused, text=question.question)])
        records, counts = [], Counter[str]()
        for place, task, text, label in self.labels(question):
            id, fields, instructions = f"{question.id}{place}", [("Question", text)], self.recipe.given
            records.append(task_record(task, fields, label, id=id, source="search", instructions=instructions))
            counts[self._class(task, label)] += 1
        return Outcome(records, counts)

    def finish(self, summary: Summary) -> None:
        """Say which classes have no examples."""
        classes = [self._class(task, label) for task, labels in self.classes.items() for label in labels]
        if absent := [name for name in classes if not summary.counts.get(name)]:
            console.print(
                f"no examples of {', '.join(absent)}: the classifier cannot learn it; add files to the recipe"
            )

    def _class(self, task: Task, label: str) -> str:
        return f"{task.name} {label}" if len(self.classes) > 1 else label


@method("adaptive-rag")
class AdaptiveRAGData(LabelsMethod[AdaptiveRAGRecipe]):
    """Adaptive-RAG: complexity labels for its classifier."""

    recipe_type: ClassVar = AdaptiveRAGRecipe
    starts: ClassVar = ("adaptive_rag_synth",)
    runs: ClassVar = ("direct", "rag", "multi")
    classes: ClassVar = {adaptive_rag.CLASSIFY: ("A", "B", "C")}

    def labels(self, question: Labelled) -> list[tuple[str, Task, str, str]]:
        return [("", adaptive_rag.CLASSIFY, question.question, complexity(question))]


def complexity(question: Labelled) -> str:
    """Return a question's complexity label (Jeong et al. 2024, section 3.2).

    It is the simplest run that answered correctly: A from memory, B with one retrieval, C with several. If none
    did, it is C for a question with several hops and B for others (the datasets' inductive bias).
    """
    for label, name in (("A", "direct"), ("B", "rag"), ("C", "multi")):
        if question.right.get(name):
            return label
    return "C" if (question.hops or 1) > 1 else "B"


@method("uar")
class UARData(LabelsMethod[UARRecipe]):
    """UAR: labels of its four judgements."""

    recipe_type: ClassVar = UARRecipe
    starts: ClassVar = ("uar_synth",)
    runs: ClassVar = ("direct",)
    sets: ClassVar = {"timely": "timely", "no_knowledge": "no knowledge"}
    classes: ClassVar = dict.fromkeys((uar.INTENT, uar.KNOWLEDGE, uar.TIME, uar.SELF), ("yes", "no"))

    def labels(self, question: Labelled) -> list[tuple[str, Task, str, str]]:
        """Return the question's judgements (Cheng et al. 2024, section 3.2).

        Self-aware: whether the answer from memory is correct. Intent-aware: yes for the question with a request to
        search, no for the question alone. Time-aware: whether the question is from a file of timely questions, or
        its dataset gives it a date. Knowledge-aware: no for the files of questions that take no knowledge. Each
        criterion has examples that the criteria before it in the tree let through.
        """
        text = question.question
        request = random.Random(f"{self.recipe.seed}-{question.id}").choice(REQUESTS).format(text)
        timely = question.kind == "timely" or bool(question.metadata.get("q_date"))
        needed = question.kind != "no knowledge"
        judged = [("/plain", uar.INTENT, text, False), ("/wish", uar.INTENT, request, True)]
        judged.append(("", uar.KNOWLEDGE, text, needed))
        if needed:
            judged.append(("", uar.TIME, text, timely))
        if "direct" in question.right:
            judged.append(("", uar.SELF, text, question.right["direct"]))
        return [(place, task, asked, "yes" if verdict else "no") for place, task, asked, verdict in judged]


def labelled(question: Question, given: Mapping[str, Trajectory]) -> Labelled:
    """Return a question with what each run made of it."""
    rules = rules_of(question)
    right = {name: exact_match(each.answer, question.answers, rules) for name, each in given.items()}
    refused = [f"{name} refused ({each.refused})" for name, each in given.items() if each.error is not None]
    refused += ["cut" for each in given.values() if each.answer is None and each.cut]
    return Labelled(**dict(question), right=right, refused=next(iter(refused), ""))


def _answers(path: Path) -> dict[str, Trajectory]:
    trajectories = read_records(path, Trajectory, "give a file of trajectories, written by `rag-train eval`")
    return {trajectory.question_id: trajectory for trajectory in trajectories}
