"""HANRAG's training data (section 4.2, appendix B): examples of the Revelator's tasks.

Questions with annotated hops, straightforward, single-step and compound questions are read from separate files.
If the recipe names a teacher, it judges relevance, as in the paper; everything else comes from annotations. The
generator is not trained; `gold_records` has examples of its tasks for mini models, which cannot do them untrained.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar, TypeVar

from pydantic import FilePath

from rag_train.data_synth.inputs import read_files
from rag_train.data_synth.method import method
from rag_train.data_synth.modules.examples import (
    Examples,
    flaw,
    found_or_known,
    gold_outcome,
    retrieved,
    says,
    written_out,
)
from rag_train.data_synth.modules.method import ModuleMethod, TeacherRecipe
from rag_train.errors import UserError
from rag_train.formats import hanrag
from rag_train.formats.hanrag import Decomposition, Route
from rag_train.formats.instructions import OURS, Given
from rag_train.jobs.items import Outcome, Rejected, cost
from rag_train.questions.load import StoredQuestions
from rag_train.recipe import Count
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies.base import Run, together
from rag_train.strategies.hanrag import HANRAG

T = TypeVar("T")
ROUTED, JUDGED = "routed", "judged"
"""Metadata keys of a question: the positions (keys of `routes`) of its router examples in the sample, and the
numbers of its hops with relevance examples."""
REVELATOR = {task.name for task in (hanrag.ROUTE, hanrag.DECOMPOSE, hanrag.REFINE, hanrag.RELEVANT, hanrag.ENDING)}


@dataclass(frozen=True, kw_only=True)
class RouteSizes:
    """Maximum number of router examples of each class (the paper's, section 4.2); null: no limit."""

    straightforward: Count | None = 9741
    """Questions answered from memory."""
    single_step: Count | None = 50_000
    """Questions that need one retrieval."""
    compound: Count | None = 50_000
    """Questions that need several independent retrievals."""
    complex: Count | None = 50_000
    """Questions that need several retrievals, one after the other."""


@dataclass(frozen=True, kw_only=True)
class HANRAGRecipe(TeacherRecipe):
    """The Revelator's training data (section 4.2, appendix B); a teacher, if given, judges relevance."""

    straightforward: list[FilePath] = field(default_factory=list)
    """Files of questions that need no retrieval, such as CommonsenseQA."""
    single_step: list[FilePath] = field(default_factory=list)
    """Files of questions that need one retrieval, such as Natural Questions."""
    compound: list[FilePath] = field(default_factory=list)
    """Files of compound questions, as `rag-train synth compound` writes them."""
    routed: list[FilePath] = field(default_factory=list)
    """Those of `questions` whose questions and hops feed the router, besides the other files; empty: all. The
    paper's are MuSiQue's."""
    routes: RouteSizes = field(default_factory=RouteSizes)
    """Size of each of the router's classes, drawn at random."""
    relevance: Count | None = 50_000
    """Maximum number of hops with relevance examples (two passages each), drawn at random before a teacher judges
    them; null: all. The paper does not state its number."""


def routes(question: Question) -> dict[str, Route]:
    """Return the router's class of the question (position "") and of each hop (its number).

    A hop is a single-step question (section 4.2), or a straightforward one if the model is annotated to know it.
    """
    classes: dict[str, Route] = {}
    if len(question.decomposition) > 1:
        classes[""] = "compound question" if question.type == "compound" else "complex question"
    for i, step in enumerate(question.decomposition):
        classes[str(i)] = "straightforward question" if step.known else "single-step question"
    return classes


def gold_records(
    question: Question,
    passages_by_query: Mapping[str, list[Passage]],
    *,
    instructions: Given = OURS,
    routed: Collection[str] | None = None,
    judged: Mapping[int, Sequence[str | None] | None] | None = None,
) -> list[SFTRecord]:
    """Make examples of all tasks; ``passages_by_query`` has the passages of each hop's subquery.

    ``routed`` are the positions that get a router example, and ``judged`` has the numbers of the hops that get
    relevance examples; None means all. A passage without the answer counts as irrelevant, unless ``judged`` gives
    a teacher's verdicts ("true" or "false") on the passages that `to_judge` returns.
    """
    out = Examples(question, instructions)
    text, steps = question.question, question.decomposition
    compound = question.type == "compound"
    for place, route in routes(question).items():
        if routed is None or place in routed:
            query = steps[int(place)].subquery if place else text
            out.add(hanrag.ROUTE, hanrag.query_fields(query), route, place)
    if compound:
        parts = Decomposition(decomposition=[step.subquery for step in steps])
        out.add(hanrag.DECOMPOSE, hanrag.query_fields(text), parts)
    solved: list[tuple[str, str]] = []
    for i, step in enumerate(steps):
        passages = passages_by_query[step.subquery]
        if not compound:
            out.add(hanrag.REFINE, hanrag.thought_fields(text, solved), step.subquery, f"{i}")
        chosen = to_judge(step, passages) if judged is None or i in judged else []
        verdicts = judged.get(i) if judged else None
        annotated = ["true" if says([passage], step.short) else "false" for passage in chosen]
        for n, (passage, verdict) in enumerate(zip(chosen, verdicts or annotated, strict=True)):
            if verdict:
                fields = hanrag.relevance_fields(step.subquery, passage)
                out.add(hanrag.RELEVANT, fields, verdict, f"{i}/{n}", "teacher" if verdicts else "gold")
        if answered := found_or_known(passages, step):
            relevant = [passage for passage in passages if says([passage], step.short)]
            out.add(hanrag.ANSWER, hanrag.answer_fields(step.subquery, relevant), step.short, f"{i}", answered)
        solved.append((step.subquery, step.short))
        if not compound:
            ended = "true" if i + 1 == len(steps) else "false"
            out.add(hanrag.ENDING, hanrag.thought_fields(text, solved), ended, f"{i}")
    if len(steps) > 1:
        out.add(hanrag.COMBINE, hanrag.thought_fields(text, solved), question.answers[0])
    return out


def to_judge(step: GoldStep, passages: Sequence[Passage]) -> list[Passage]:
    """Return the first passage that has the hop's answer, and the first that lacks it (a hard negative).

    They are chosen before a teacher judges them: judging all would cost several times as many calls, only to leave
    most of the irrelevant passages out.
    """
    first = {says([passage], step.short): passage for passage in reversed(passages)}
    return [first[answered] for answered in (True, False) if answered in first]


def routed_questions(recipe: HANRAGRecipe) -> list[Question]:
    """Read the questions of all sources, and mark in their metadata which examples are in the samples.

    A straightforward or single-step question becomes a question of one hop, which the refiner passes through
    unchanged (appendix B.4).
    """
    sources = [*recipe.questions, *recipe.compound, *recipe.straightforward, *recipe.single_step]
    by_file = read_files(sources, recipe.sample, recipe.seed)
    if absent := [path for path in recipe.routed if path not in recipe.questions]:
        raise UserError(f"routed: {absent[0]} is not one of the recipe's questions; add it there, or remove it")
    for path in (*recipe.straightforward, *recipe.single_step):
        straightforward = path in recipe.straightforward
        by_file[path] = StoredQuestions(_single_hop(question, straightforward) for question in by_file[path])
    unrouted = set(recipe.questions) - set(recipe.routed) if recipe.routed else set()
    routable = [q for path, questions in by_file.items() if path not in unrouted for q in questions]
    questions = [question for group in by_file.values() for question in group]
    routed: dict[str, list[str]] = {question.id: [] for question in questions}
    for route, size in asdict(recipe.routes).items():
        label = f"{route.replace('_', '-')} question"
        pool = [(q.id, place) for q in routable for place, given in routes(q).items() if given == label]
        for id, place in _drawn(pool, size, f"{recipe.seed}-{label}"):
            routed[id].append(place)
    judged: dict[str, list[int]] = {question.id: [] for question in questions}
    hops = [(q.id, i) for q in questions if not _straightforward(q) for i in range(len(q.decomposition))]
    for id, hop in _drawn(hops, recipe.relevance, f"{recipe.seed}-relevance"):
        judged[id].append(hop)
    return [
        q.model_copy(update={"metadata": q.metadata | {ROUTED: sorted(routed[q.id]), JUDGED: sorted(judged[q.id])}})
        for q in questions
    ]


def _single_hop(question: Question, known: bool) -> Question:
    hop = GoldStep(subquery=question.question, answer=question.answers[0], known=known)
    return question.model_copy(update={"decomposition": [hop], "hops": 1})


def _straightforward(question: Question) -> bool:
    return all(step.known for step in question.decomposition) and len(question.decomposition) == 1


def _drawn(pool: Sequence[T], size: int | None, seed: str) -> list[T]:
    return random.Random(seed).sample(pool, len(pool) if size is None else min(size, len(pool)))


@method("hanrag")
class HANRAGData(ModuleMethod[HANRAGRecipe]):
    """HANRAG: examples of its modules, from gold annotations or by a teacher.

    A straightforward question gives examples of the router only. A teacher writes out hops in shorthand and judges
    relevance; the counts say on how many passages it agrees with the annotations. Verdicts that were cut, or are
    neither true nor false, are rejected.
    """

    recipe_type: ClassVar = HANRAGRecipe
    starts: ClassVar = ("gold", "hanrag_teacher")
    gold_records: ClassVar = staticmethod(gold_records)

    @classmethod
    def questions(cls, recipe: HANRAGRecipe) -> list[Question]:
        return routed_questions(recipe)

    async def outcome(self, question: Question, /) -> Outcome:
        recipe, run = self.recipe, None
        if self.teacher:
            run = Run(HANRAG(self.teacher, max_tokens=recipe.max_tokens), question)
            question = await written_out(question, run)
        passages_by_query = await retrieved(self.retriever, question, recipe.passages)
        judged: dict[int, list[str | None] | None] = dict.fromkeys(question.metadata[JUDGED])
        counts: Counter[str] = Counter()
        rejected: list[Rejected] = []
        if run:
            for hop in () if flaw(question) else judged:
                step = question.decomposition[hop]
                chosen = to_judge(step, passages_by_query[step.subquery])
                fields = [hanrag.relevance_fields(step.subquery, passage) for passage in chosen]
                asks = await together(run.perform(hanrag.RELEVANT, inputs) for inputs in fields)
                judged[hop] = [ask.answer for ask in asks]
                for passage, ask in zip(chosen, asks, strict=True):
                    annotated = "true" if says([passage], step.short) else "false"
                    counts["judged"] += ask.answer is not None
                    counts["judged as annotated"] += ask.answer == annotated
                    if ask.answer is None:
                        reason = ask.flaw("neither true nor false")
                        rejected.append(Rejected(id=f"{question.id}/{passage.id}", reason=reason))
            counts.update(cost(run.calls))
        tasks = {hanrag.ROUTE.name} if _straightforward(question) else REVELATOR
        records = gold_records(
            question,
            passages_by_query,
            instructions=recipe.given,
            routed=question.metadata[ROUTED],
            judged=judged,
        )
        made = gold_outcome(question, [record for record in records if record.task in tasks])
        return Outcome(made.records, made.counts | counts, [*made.rejected, *rejected])
