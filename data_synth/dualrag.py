"""DualRAG's data (section 3.2): Reasoner, Entity Identifier, Knowledge Summarizer.

From gold annotations, or from a teacher's trajectories that end right, post-processed: entities linked and
de-duplicated, summaries that lost what the gold passages say repaired, made-up ones dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from data_synth.planrag import plan_from_gold
from data_synth.recipes import Capability, DualRAGRecipe
from data_synth.records import Gold, gold_outcome, retrieved, says, task_record
from eval.judge import Plea, verdict
from eval.tables import Table
from rag_train.answers import exact_match, normalize
from rag_train.formats import dualrag, planrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.dualrag import Entity, Reasoning
from rag_train.formats.planrag import PlanError
from rag_train.llm.memo import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.runner import Outcome, Rejected, cost
from rag_train.schema import GoldStep, Passage, Question, SFTRecord, Trajectory
from rag_train.strategies.base import Ask, Kit, asked
from rag_train.strategies.dualrag import DualRAG

TASKS: dict[str, Capability] = {
    dualrag.REASON.name: "reasoner",
    dualrag.ANSWER.name: "reasoner",  # the last thought's answer (equation 4)
    dualrag.IDENTIFY.name: "entities",
    dualrag.SUMMARIZE.name: "summaries",
}
Scores = Callable[[Sequence[tuple[str, str]]], Sequence[float]]


def rounds(question: Question) -> list[list[int]]:
    """The hops by what they depend on: those of one round can be retrieved for at the same time."""
    steps = question.decomposition
    try:
        plan = plan_from_gold(question)
    except PlanError:
        return [[i] for i in range(len(steps))]
    depth = planrag.depths(plan)
    texts: dict[str, str] = {}
    answers: dict[str, str] = {}
    out: dict[int, list[int]] = {}
    for node in plan.nodes:
        texts[node.id] = planrag.fill(node.question, answers)
        for i, step in enumerate(steps):
            if one_line(step.subquery) == texts[node.id]:
                answers[node.id] = step.short
                out.setdefault(depth[node.id], []).append(i)
                break
    return list(out.values()) or [list(range(len(steps)))]


def gold_records(
    question: Question, found: Mapping[str, list[Passage]], *, instructions: bool = True
) -> list[SFTRecord]:
    """Examples of all modules; ``found``: what is retrieved for each hop's subquery.

    Each round's thought names what is missing, the last says the answer. Nothing for a question whose annotations
    do not say what its hops are about.
    """
    steps = question.decomposition
    if not steps or not all(step.entity for step in steps):
        return []
    out = Gold(question, instructions)
    outline: dict[str, list[str]] = {}
    thoughts: list[str] = []
    for n, hops in enumerate(rounds(question)):
        state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
        thought = missing([steps[i] for i in hops])
        out.add(dualrag.REASON, state, Reasoning(thought=thought, retrieve=True), str(n))
        thoughts.append(thought)
        state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
        queries: dict[str, list[str]] = {}
        for i in hops:
            queries.setdefault(steps[i].entity, []).append(steps[i].subquery)
        entities = [Entity(entity=entity, queries=some) for entity, some in queries.items()]
        out.add(dualrag.IDENTIFY, state, entities, str(n))
        for i in hops:
            step = steps[i]
            passages = found[step.subquery]
            there = says(passages, step.short)
            summary = step.answer if there else dualrag.NOTHING
            fields = dualrag.summary_fields(question.question, thought, step.entity, passages)
            out.add(dualrag.SUMMARIZE, fields, summary, str(i))
            outline.setdefault(step.entity, []).append(step.answer)
    state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), thoughts)
    thought = f"Nothing is missing, the answer is {question.answers[0]}."
    out.add(dualrag.REASON, state, Reasoning(thought=thought, retrieve=False), "end")
    state = dualrag.state_fields(question.question, dualrag.outline_lines(outline), [*thoughts, thought])
    out.add(dualrag.ANSWER, state, question.answers[0], "end")
    return out


def missing(steps: Sequence[GoldStep]) -> str:
    """A thought that says what is to be looked up."""
    return f"I need to know: {' '.join(step.subquery for step in steps)}"


async def outcome(
    question: Question, recipe: DualRAGRecipe, retriever: AsyncRetriever, teacher: Kit | None
) -> Outcome:
    """The question's examples of the recipe's capabilities."""
    if teacher:
        return await _taught(question, recipe, teacher)
    found = await retrieved(retriever, question, recipe.passages)
    records = gold_records(question, found, instructions=recipe.instructions)
    return gold_outcome(question, [record for record in records if TASKS[record.task] in recipe.capabilities])


async def _taught(question: Question, recipe: DualRAGRecipe, teacher: Kit) -> Outcome:
    asks: list[Ask | None] = []
    token = asked.set(asks)
    try:
        strategy = DualRAG(teacher, name="dualrag", max_iterations=recipe.max_iterations, rerank=False)
        trajectory = await strategy.answer(question)
    finally:
        asked.reset(token)
    right = exact_match(trajectory.answer, question.answers)
    judged = False
    if recipe.judge and trajectory.answer and not right:
        plea = Plea(question=question.question, answers=question.answers, prediction=trajectory.answer)
        judged = bool(await verdict(CallLog(teacher.llm, trajectory.calls), teacher.llm, plea))
    counts = Counter(cost(trajectory.calls))
    if not right and not judged:
        wrong = Rejected(id=question.id, reason="wrong answer", text=trajectory.answer or "")
        return Outcome([], counts, [wrong])
    counts["right" if right else "right by the judge"] += 1
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
            for one in links:
                if teacher.reranker:
                    counts[f"similarity {one.score:.1f}"] += 1
                if one.linked:
                    text = f"{one.name} = {one.nearest} ({one.score:.3f})"
                    rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason="entity linked", text=text))
        elif ask.task is dualrag.SUMMARIZE:
            answer = mended(answer, ask, question)
            if answer is None:
                rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason="made up", text=ask.answer))
                continue
        counts[f"{TASKS[ask.task.name]} {'raw' if answer == _stripped(ask.answer) else 'processed'}"] += 1
        records.append(
            task_record(ask.task, ask.fields, answer, id=id, source="teacher", instructions=recipe.instructions)
        )
    return Outcome(records, counts, rejected)


def _stripped(answer: Any) -> Any:
    """An answer of any of the modules, without white space around its strings and without empty entities."""
    match answer:
        case Reasoning():
            return Reasoning(thought=one_line(answer.thought), retrieve=answer.retrieve)
        case list():
            stripped = [Entity(entity=one_line(e.entity), queries=[one_line(q) for q in e.queries]) for e in answer]
            return [entity for entity in stripped if entity.entity and any(entity.queries)]
    return answer


def _known(ask: Ask, trajectory: Trajectory) -> list[str]:
    """The outline's entities at the time of asking."""
    lines = [line for label, value in ask.fields if label == "Knowledge" for line in value]
    return [entity for entity in trajectory.outline if any(str(line).startswith(f"{entity}: ") for line in lines)]


def _same_name(pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [float(normalize(a) == normalize(b)) for a, b in pairs]


class Link(NamedTuple):
    """An entity, the one before it that is nearest by the cross-encoder's score, and whether they were linked."""

    name: str
    nearest: str
    score: float
    linked: bool


def link(
    entities: Sequence[Entity], known: Sequence[str], scores: Scores, threshold: float
) -> tuple[list[Entity], list[Link]]:
    """Entities that name the same thing made one, under the name the outline has or that came first; no query
    twice.

    ``known``: the outline's entities. Returns the entities, equal to those given where nothing was to be done, and
    a link for each that was not named before in the same words.
    """
    names = [*known, *(entity.entity for entity in entities)]
    pairs = [(names[i], names[j]) for i in range(len(known), len(names)) for j in range(i)]
    score = dict(zip(pairs, scores(pairs) if pairs else [], strict=True))
    means: dict[str, str] = {name: name for name in known}
    queries: dict[str, list[str]] = {}
    links: list[Link] = []
    seen: set[str] = set()
    for i, entity in enumerate(entities, len(known)):
        if (name := entity.entity) not in means:
            means[name] = name
            if before := names[:i]:
                nearest = max(before, key=lambda other: score[name, other])
                links.append(Link(name, nearest, score[name, nearest], score[name, nearest] >= threshold))
                if links[-1].linked:
                    means[name] = means[nearest]
        for query in entity.queries:
            if (plain := normalize(query)) not in seen:
                seen.add(plain)
                queries.setdefault(means[name], []).append(query)
    linked = [Entity(entity=name, queries=some) for name, some in queries.items()]
    return (list(entities) if linked == list(entities) else linked), links


def mended(summary: str, ask: Ask, question: Question) -> str | None:
    """The summary with what it lost of the gold passages put back; None where it is made up.

    A gold hop is needed if it is about the summary's entity and one of the passages says its value. If the summary
    lacks that value, it becomes the passages' sentences that have it, after its own sentences whose names and
    numbers are all in those passages. A summary with names or numbers that no passage has is made up.
    """
    passages = [p for _, value in ask.fields for p in value if isinstance(p, Passage)]
    about = " ".join(value for label, value in ask.fields if label == "Entity" and isinstance(value, str))
    about = about or " ".join(value for label, value in ask.fields if label == "Thought" and isinstance(value, str))
    lost: list[str] = []
    sources: list[Passage] = []
    for step in question.decomposition:
        if not step.entity or not _within(step.entity, about) or _within(step.short, summary):
            continue
        for passage in passages:
            if _within(step.entity, f"{passage.title} {passage.text}"):
                said = [sentence for sentence in _sentences(passage.text) if _within(step.short, sentence)]
                if said:
                    sources.append(passage)
                    lost.append(said[0])
                    break
    if lost:
        kept = [s for s in _sentences(summary) if normalize(s) != dualrag.NOTHING and _supported(s, sources)]
        return " ".join(dict.fromkeys([*kept, *lost]))
    return summary if normalize(summary) == dualrag.NOTHING or _supported(summary, passages) else None


def _within(value: str, text: str) -> bool:
    return f" {normalize(value)} " in f" {normalize(text)} "


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", one_line(text)) if part]


def _supported(text: str, passages: Sequence[Passage]) -> bool:
    """Whether all names and numbers of ``text`` are in the passages; a sentence's first word may be no name."""
    words = {word for p in passages for word in normalize(f"{p.title} {p.text}").split()}
    return all(word in words for sentence in _sentences(text) for word in _names(sentence))


def _names(sentence: str) -> Iterator[str]:
    for i, word in enumerate(sentence.split()):
        if any(c.isdigit() for c in word) or (i and word[:1].isupper()):
            yield from normalize(word).split()


def table(counts: Mapping[str, int]) -> Table:
    """Table 1: how many examples of each capability are the teacher's own words, and how many were mended."""
    names = {"reasoner": "Reasoner", "entities": "Entity Identifier", "summaries": "Knowledge Summarizer"}
    rows = [
        [names[one], *(counts.get(f"{one} {kind}", 0) for kind in ("raw", "processed"))]
        for one in get_args(Capability)
    ]
    rows.append(["Total", *(sum(row[i] for row in rows) for i in (1, 2))])
    cells = [[name, f"{raw:,}", f"{processed:,}", f"{raw + processed:,}"] for name, raw, processed in rows]
    return Table("Training examples", "DualRAG, Table 1", ["Capability", "Raw", "Processed", "Count"], cells)
