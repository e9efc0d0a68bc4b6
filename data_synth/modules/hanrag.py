"""HANRAG's training data (section 4.2, appendix B): examples of the Revelator's and the generator's tasks.

Questions with annotated hops, straightforward, single-step and compound questions are read from separate files.
If the recipe names a teacher, it judges relevance, as in the paper; everything else comes from annotations.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.modules.examples import Examples, gold_outcome, retrieved, says
from rag_train.data_synth.modules.factory import Factory
from rag_train.data_synth.modules.recipes import HANRAGRecipe
from rag_train.formats import hanrag
from rag_train.formats.hanrag import Decomposition, Route
from rag_train.resumable import Outcome, Rejected, cost
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies.base import Kit, Run, together
from rag_train.strategies.hanrag import HANRAG

ROUTED = "routed"
"""Metadata key of a question: the positions (keys of `routes`) of its router examples in the sample."""


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
    instructions: bool = True,
    routed: Collection[str] | None = None,
    judged: Mapping[str, Sequence[str | None]] | None = None,
) -> list[SFTRecord]:
    """Make examples of all tasks; ``passages_by_query`` has the passages of each hop's subquery.

    A passage without the answer counts as irrelevant (a hard negative), unless ``judged`` gives a teacher's
    verdicts ("true" or "false") on the passages of each subquery. ``routed`` are the positions that get a router
    example; None means all.
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
        relevant = [passage for passage in passages if says([passage], step.short)]
        source = "teacher" if judged else "gold"
        verdicts = judged[step.subquery] if judged else ["true" if p in relevant else "false" for p in passages]
        for verdict in ("true", "false"):
            matching = [passage for passage, given in zip(passages, verdicts, strict=True) if given == verdict]
            for passage in matching[:1]:  # one per verdict, because irrelevant passages are far more frequent
                fields = hanrag.relevance_fields(step.subquery, passage)
                out.add(hanrag.RELEVANT, fields, verdict, f"{i}/{verdict}", source)
        if relevant or step.known:
            fields = hanrag.answer_fields(step.subquery, relevant)
            out.add(hanrag.ANSWER, fields, step.short, f"{i}")
        solved.append((step.subquery, step.short))
        if not compound:
            ended = "true" if i + 1 == len(steps) else "false"
            out.add(hanrag.ENDING, hanrag.thought_fields(text, solved), ended, f"{i}")
    if len(steps) > 1:
        out.add(hanrag.COMBINE, hanrag.thought_fields(text, solved), question.answers[0])
    return out


def routed_questions(recipe: HANRAGRecipe) -> list[Question]:
    """Read the questions of all sources, and mark in their metadata which router examples are in the sample.

    A straightforward or single-step question becomes a question of one hop, which the refiner passes through
    unchanged (appendix B.4).
    """
    questions = read_questions([*recipe.questions, *recipe.compound], recipe.sample, recipe.seed)
    for files, known in ((recipe.straightforward, True), (recipe.single_step, False)):
        for question in read_questions(files, recipe.sample, recipe.seed):
            hop = GoldStep(subquery=question.question, answer=question.answers[0], known=known)
            questions.append(question.model_copy(update={"decomposition": [hop], "hops": 1}))
    sizes = {
        "straightforward question": recipe.routes.straightforward,
        "single-step question": recipe.routes.single_step,
        "compound question": recipe.routes.compound,
        "complex question": recipe.routes.complex,
    }
    chosen: dict[str, list[str]] = {question.id: [] for question in questions}
    for route, size in sizes.items():
        pool = [(q.id, place) for q in questions for place, label in routes(q).items() if label == route]
        rng = random.Random(f"{recipe.seed}-{route}")
        for id, place in rng.sample(pool, len(pool) if size is None else min(size, len(pool))):
            chosen[id].append(place)
    return [q.model_copy(update={"metadata": q.metadata | {ROUTED: sorted(chosen[q.id])}}) for q in questions]


async def outcome(
    question: Question, recipe: HANRAGRecipe, retriever: AsyncRetriever, teacher: Kit | None
) -> Outcome:
    """Make the question's examples; a straightforward question gives examples of the router only.

    If a teacher judges relevance, the counts say on how many passages it agrees with the annotations. Verdicts that
    are neither true nor false are rejected.
    """
    routed = question.metadata[ROUTED]
    passages_by_query = await retrieved(retriever, question, recipe.passages)
    straightforward = all(step.known for step in question.decomposition) and len(question.decomposition) == 1
    run = Run(HANRAG(teacher), question) if teacher and not straightforward else None
    judged: dict[str, list[str | None]] = {}
    counts: Counter[str] = Counter()
    rejected: list[Rejected] = []
    if run:
        for step in question.decomposition:
            passages = passages_by_query[step.subquery]
            fields = [hanrag.relevance_fields(step.subquery, passage) for passage in passages]
            judged[step.subquery] = await together(run.ask(hanrag.RELEVANT, inputs) for inputs in fields)
            for passage, verdict in zip(passages, judged[step.subquery], strict=True):
                counts["judged"] += verdict is not None
                counts["judged as annotated"] += verdict == ("true" if says([passage], step.short) else "false")
                if verdict is None:
                    rejected.append(Rejected(id=f"{question.id}/{passage.id}", reason="neither true nor false"))
        counts.update(cost(run.calls))
    records = gold_records(
        question, passages_by_query, instructions=recipe.instructions, routed=routed, judged=judged or None
    )
    if straightforward:
        records = [record for record in records if record.task == hanrag.ROUTE.name]
    made = gold_outcome(question, records)
    return Outcome(made.records, made.counts | counts, [*made.rejected, *rejected])


FACTORY = Factory(
    method="hanrag", recipe=HANRAGRecipe, gold_records=gold_records, outcome=outcome, questions=routed_questions
)
