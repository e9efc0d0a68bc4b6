"""DualRAG's training data (section 3.2): examples of Reasoner, Entity Identifier and Knowledge Summarizer.

The examples are made from gold annotations, or from a teacher's trajectories with a correct answer. The latter are
post-processed: entities are linked and deduplicated, summaries that lack a fact of the gold passages are repaired,
and summaries with invented facts are dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rag_train.answers import exact_match, normalize
from rag_train.data_synth.modules.examples import Examples, gold_outcome, retrieved, says, task_record
from rag_train.data_synth.modules.factory import Factory
from rag_train.data_synth.modules.planrag import plan_from_gold
from rag_train.data_synth.modules.recipes import Capability, DualRAGRecipe
from rag_train.formats import dualrag, planrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.dualrag import Entity, Reasoning
from rag_train.formats.planrag import PlanError
from rag_train.judge import JudgeInput, verdict
from rag_train.llm.memo import CallLog
from rag_train.resumable import Outcome, Rejected, cost
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question, SFTRecord, Trajectory
from rag_train.strategies.base import Ask, Kit, asked
from rag_train.strategies.dualrag import DualRAG
from rag_train.table import Table

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional dependency

TASKS: dict[str, Capability] = {
    dualrag.REASON.name: "reasoner",
    dualrag.ANSWER.name: "reasoner",  # the answer after the last thought (equation 4)
    dualrag.IDENTIFY.name: "entities",
    dualrag.SUMMARIZE.name: "summaries",
}
"""The capability that each task belongs to."""
Scores = Callable[[Sequence[tuple[str, str]]], Sequence[float]]


def rounds(question: Question) -> list[list[int]]:
    """Group the numbers of the hops into rounds by their dependencies.

    The hops of one round do not depend on each other, so their retrievals can run concurrently.
    """
    steps = question.decomposition
    try:
        plan = plan_from_gold(question)
    except PlanError:
        return [[i] for i in range(len(steps))]
    depth = planrag.depths(plan)
    texts: dict[str, str] = {}
    answers: dict[str, str] = {}
    by_depth: dict[int, list[int]] = {}
    for node in plan.nodes:
        texts[node.id] = planrag.fill(node.question, answers)
        for i, step in enumerate(steps):
            if one_line(step.subquery) == texts[node.id]:
                answers[node.id] = step.short
                by_depth.setdefault(depth[node.id], []).append(i)
                break
    return list(by_depth.values()) or [list(range(len(steps)))]


def gold_records(
    question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: bool = True
) -> list[SFTRecord]:
    """Make examples of all modules; ``passages_by_query`` has the passages of each hop's subquery.

    Each round's thought names what is missing, and the last thought gives the answer. Returns no examples if an
    annotated hop has no entity.
    """
    steps = question.decomposition
    if not steps or not all(step.entity for step in steps):
        return []
    out = Examples(question, instructions)
    outline: dict[str, list[str]] = {}
    thoughts: list[str] = []
    for n, hops in enumerate(rounds(question)):
        state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
        thought = thought_of_missing([steps[i] for i in hops])
        out.add(dualrag.REASON, state, Reasoning(thought=thought, retrieve=True), str(n))
        thoughts.append(thought)
        state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
        queries: dict[str, list[str]] = {}
        for i in hops:
            queries.setdefault(steps[i].entity, []).append(steps[i].subquery)
        entities = [Entity(entity=entity, queries=entity_queries) for entity, entity_queries in queries.items()]
        out.add(dualrag.IDENTIFY, state, entities, str(n))
        for i in hops:
            step = steps[i]
            passages = passages_by_query[step.subquery]
            summary = step.answer if says(passages, step.short) else dualrag.NOTHING
            fields = dualrag.summary_fields(question.question, thought, step.entity, passages)
            out.add(dualrag.SUMMARIZE, fields, summary, str(i))
            outline.setdefault(step.entity, []).append(step.answer)
    state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
    thought = f"Nothing is missing, the answer is {question.answers[0]}."
    out.add(dualrag.REASON, state, Reasoning(thought=thought, retrieve=False), "end")
    state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), [*thoughts, thought])
    out.add(dualrag.ANSWER, state, question.answers[0], "end")
    return out


def thought_of_missing(steps: Sequence[GoldStep]) -> str:
    """Return a thought that names the subqueries of ``steps`` as missing."""
    return f"I need to know: {' '.join(step.subquery for step in steps)}"


async def outcome(
    question: Question, recipe: DualRAGRecipe, retriever: AsyncRetriever, teacher: Kit | None
) -> Outcome:
    """Make the question's examples of the recipe's capabilities."""
    if teacher:
        return await _teacher_outcome(question, recipe, teacher)
    passages_by_query = await retrieved(retriever, question, recipe.passages)
    records = gold_records(question, passages_by_query, instructions=recipe.instructions)
    return gold_outcome(question, [record for record in records if TASKS[record.task] in recipe.capabilities])


async def _teacher_outcome(question: Question, recipe: DualRAGRecipe, teacher: Kit) -> Outcome:
    """Answer the question with the teacher; if the answer is correct, post-process what its modules wrote."""
    asks: list[Ask | None] = []
    token = asked.set(asks)
    try:
        strategy = DualRAG(teacher, name="dualrag", max_iterations=recipe.max_iterations, rerank=False)
        trajectory = await strategy.answer(question)
    finally:
        asked.reset(token)
    correct = exact_match(trajectory.answer, question.answers)
    judged = False
    if recipe.judge and trajectory.answer and not correct:
        judge_input = JudgeInput(question=question.question, answers=question.answers, prediction=trajectory.answer)
        judged = bool(await verdict(CallLog(teacher.llm, trajectory.calls), teacher.llm, judge_input))
    counts = Counter(cost(trajectory.calls))
    if not correct and not judged:
        wrong = Rejected(id=question.id, reason="wrong answer", text=trajectory.answer or "")
        return Outcome([], counts, [wrong])
    counts["right" if correct else "right by the judge"] += 1
    records: list[SFTRecord] = []
    rejected: list[Rejected] = []
    for place, ask in enumerate(asks):
        if ask is None or TASKS[ask.task.name] not in recipe.capabilities:
            continue
        id, answer = f"{question.id}/{place}", _stripped(ask.answer)
        if not answer:
            rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason="did not parse, or empty"))
            continue
        if ask.task is dualrag.IDENTIFY:
            scores = teacher.reranker.scores if teacher.reranker else _same_name
            threshold = recipe.similarity if teacher.reranker else 1.0
            answer, links = await asyncio.to_thread(link, answer, _known(ask, trajectory), scores, threshold)
            for entity in links:
                if teacher.reranker:
                    counts[f"similarity {entity.score:.1f}"] += 1
                if entity.linked:
                    text = f"{entity.name} = {entity.nearest} ({entity.score:.3f})"
                    rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason="entity linked", text=text))
        elif ask.task is dualrag.SUMMARIZE:
            answer = repaired_summary(answer, ask, question)
            if answer is None:
                rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason="made up", text=ask.answer))
                continue
        counts[f"{TASKS[ask.task.name]} {'raw' if answer == _stripped(ask.answer) else 'processed'}"] += 1
        records.append(
            task_record(ask.task, ask.fields, answer, id=id, source="teacher", instructions=recipe.instructions)
        )
    return Outcome(records, counts, rejected)


def _stripped(answer: Any) -> Any:
    """Return a module's answer without white space around its strings and without empty entities."""
    match answer:
        case Reasoning():
            return Reasoning(thought=one_line(answer.thought), retrieve=answer.retrieve)
        case list():
            stripped = [Entity(entity=one_line(e.entity), queries=[one_line(q) for q in e.queries]) for e in answer]
            return [entity for entity in stripped if entity.entity and any(entity.queries)]
    return answer


def _known(ask: Ask, trajectory: Trajectory) -> list[str]:
    """Return the entities that the outline had when the module was asked."""
    lines = [line for label, value in ask.fields if label == "Knowledge" for line in value]
    return [entity for entity in trajectory.outline if any(str(line).startswith(f"{entity}: ") for line in lines)]


def _same_name(pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [float(normalize(a) == normalize(b)) for a, b in pairs]


class Link(NamedTuple):
    """An entity, the most similar earlier entity, their similarity score, and whether the two were linked."""

    name: str
    nearest: str
    score: float
    linked: bool


def link(
    entities: Sequence[Entity], known: Sequence[str], scores: Scores, threshold: float
) -> tuple[list[Entity], list[Link]]:
    """Merge entities that name the same thing, and drop repeated queries.

    Merged entities get the name that the outline (``known``) has, or else the name that came first.

    Returns:
        The entities, equal to ``entities`` if nothing was merged or dropped; and a `Link` for each entity whose
        name did not occur before.
    """
    names = [*known, *(entity.entity for entity in entities)]
    pairs = [(names[i], names[j]) for i in range(len(known), len(names)) for j in range(i)]
    score = dict(zip(pairs, scores(pairs) if pairs else [], strict=True))
    canonical: dict[str, str] = {name: name for name in known}
    queries: dict[str, list[str]] = {}
    links: list[Link] = []
    seen: set[str] = set()
    for i, entity in enumerate(entities, len(known)):
        if (name := entity.entity) not in canonical:
            canonical[name] = name
            if before := names[:i]:
                nearest = max(before, key=lambda other: score[name, other])
                links.append(Link(name, nearest, score[name, nearest], score[name, nearest] >= threshold))
                if links[-1].linked:
                    canonical[name] = canonical[nearest]
        for query in entity.queries:
            if (plain := normalize(query)) not in seen:
                seen.add(plain)
                queries.setdefault(canonical[name], []).append(query)
    linked = [Entity(entity=name, queries=entity_queries) for name, entity_queries in queries.items()]
    return (list(entities) if linked == list(entities) else linked), links


def repaired_summary(summary: str, ask: Ask, question: Question) -> str | None:
    """Return the summary with missing facts of the gold passages added, or None if it contains invented facts.

    A gold hop is needed if it is about the summary's entity and a passage contains its answer. If the summary lacks
    that answer, the repaired summary is made of the summary's own sentences whose names and numbers are all in the
    passages with the missing answers, then the sentences of those passages that contain them. A summary with names
    or numbers that no passage contains is invented.
    """
    passages = [p for _, value in ask.fields for p in value if isinstance(p, Passage)]
    about = " ".join(value for label, value in ask.fields if label == "Entity" and isinstance(value, str))
    about = about or " ".join(value for label, value in ask.fields if label == "Thought" and isinstance(value, str))
    facts: list[str] = []
    sources: list[Passage] = []
    for step in question.decomposition:
        if not step.entity or not _within(step.entity, about) or _within(step.short, summary):
            continue
        for passage in passages:
            if _within(step.entity, f"{passage.title} {passage.text}"):
                sentences = [sentence for sentence in _sentences(passage.text) if _within(step.short, sentence)]
                if sentences:
                    sources.append(passage)
                    facts.append(sentences[0])
                    break
    if facts:
        kept = [s for s in _sentences(summary) if normalize(s) != dualrag.NOTHING and _supported(s, sources)]
        return " ".join(dict.fromkeys([*kept, *facts]))
    return summary if normalize(summary) == dualrag.NOTHING or _supported(summary, passages) else None


def _within(value: str, text: str) -> bool:
    return f" {normalize(value)} " in f" {normalize(text)} "


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", one_line(text)) if part]


def _supported(text: str, passages: Sequence[Passage]) -> bool:
    """Whether the passages contain all names and numbers of ``text``."""
    words = {word for p in passages for word in normalize(f"{p.title} {p.text}").split()}
    return all(word in words for sentence in _sentences(text) for word in _names(sentence))


def _names(sentence: str) -> Iterator[str]:
    """Yield the normalised names and numbers of a sentence; its capitalised first word does not count as a name."""
    for i, word in enumerate(sentence.split()):
        if any(c.isdigit() for c in word) or (i and word[:1].isupper()):
            yield from normalize(word).split()


def table(counts: Mapping[str, int]) -> Table:
    """Return DualRAG's Table 1: examples of each capability, raw (as the teacher wrote them) and post-processed."""
    names = {"reasoner": "Reasoner", "entities": "Entity Identifier", "summaries": "Knowledge Summarizer"}
    rows = [
        [names[capability], *(counts.get(f"{capability} {state}", 0) for state in ("raw", "processed"))]
        for capability in get_args(Capability)
    ]
    rows.append(["Total", *(sum(row[i] for row in rows) for i in (1, 2))])
    cells = [[name, f"{raw:,}", f"{processed:,}", f"{raw + processed:,}"] for name, raw, processed in rows]
    return Table("Training examples", "DualRAG, Table 1", ["Capability", "Raw", "Processed", "Count"], cells)


def _reranker(recipe: DualRAGRecipe) -> Reranker | None:
    if not recipe.reranker:
        return None
    from rag_train.retrieval.rerank import CrossEncoderReranker

    return CrossEncoderReranker(recipe.reranker)


FACTORY = Factory(
    method="dualrag",
    recipe=DualRAGRecipe,
    gold_records=gold_records,
    outcome=outcome,
    reranker=_reranker,
    table=table,
)
