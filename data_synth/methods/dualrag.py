"""DualRAG's training data (section 3.2): examples of Reasoner, Entity Identifier and Knowledge Summarizer.

The examples are made from gold annotations, or from a teacher's trajectories with a correct answer. The latter are
post-processed by the titles of the gold passages, as in the release (`gold_titles`), or as the paper tells it:
entities are linked and deduplicated, summaries that lack a fact of the gold passages get it, and summaries with
invented facts are dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import Field

from rag_train.answers import exact_match, normalize, rules_of
from rag_train.data_synth.knowable import FIXED, names
from rag_train.data_synth.method import method
from rag_train.data_synth.methods.planrag import plan_from_gold
from rag_train.data_synth.modules import gold_titles
from rag_train.data_synth.modules.examples import Examples, gold_outcome, retrieved, subjects_known, task_record
from rag_train.data_synth.modules.method import ModuleMethod, TeacherRecipe
from rag_train.formats import dualrag, planrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.dualrag import Entity, Outline, Reasoning
from rag_train.formats.instructions import OURS, Given
from rag_train.formats.planrag import PlanError
from rag_train.formats.tasks import Fields, body
from rag_train.jobs.items import Outcome, Rejected, Summary, cost
from rag_train.llm.call_log import CallLog
from rag_train.llm_judge import JudgeInput, verdict
from rag_train.progress import console
from rag_train.questions.hops import fold, mentions, plain
from rag_train.recipe import Count
from rag_train.schema import GoldStep, Passage, Question, SFTRecord, Trajectory
from rag_train.strategies.base import Ask, Kit, Run, interleave
from rag_train.strategies.dualrag import DualRAG
from rag_train.strategies.kit import KitConfig, parse_roles
from rag_train.table import Table

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional dependency

Capability = Literal["reasoner", "entities", "summaries"]


@dataclass(frozen=True, kw_only=True)
class DualRAGRecipe(TeacherRecipe):
    """DualRAG's training data (section 3.2), from gold annotations or a teacher's correct trajectories."""

    capabilities: list[Capability] = field(default_factory=lambda: ["reasoner", "entities", "summaries"])
    """Capabilities to write examples of."""
    max_iterations: Count = 5
    """Maximum number of retrieval rounds in a trajectory."""
    judge: bool = True
    """Keep a trajectory whose answer the judge accepts (the release's rule; appendix D): the teacher, unless
    `roles` names another model. It is asked about answers that are wrong by the dataset's rule; false: the rule
    alone."""
    repair: Literal["titles", "facts"] = "titles"
    """titles: compare entities with the titles of the gold passages (the release's way: entities that match none
    go, their summaries become "nothing"), by the reranker, or by name without one; facts: link entities with one
    another, and give summaries the facts of the gold passages that they lack (section 3.2)."""
    roles: list[str] = field(default_factory=list)
    """Models other than the teacher for the roles reasoner, identifier, summarizer and judge, each as --role of
    `rag-train eval` takes it, such as judge=gpt-4o,kind=chat,urls=https://api.openai.com,key=OPENAI_API_KEY."""
    reranker: str | None = None
    """Cross-encoder that reranks the passages of each entity for the teacher: a directory, a Hub name, or the
    address of a vLLM server; null: no reranking."""
    candidates: Count = 50
    """Number of passages retrieved for each query if they are reranked; `passages` of them are kept."""
    linker: str | None = None
    """repair=facts: cross-encoder that links entities; null: link entities whose normalised names are equal."""
    similarity: Annotated[float, Field(ge=0, le=1)] = 0.9
    """repair=facts: lowest cross-encoder score at which two entities are linked."""


TASKS: dict[str, Capability] = {
    dualrag.REASON.name: "reasoner",
    dualrag.ANSWER.name: "reasoner",  # the answer after the last thought (equation 4)
    dualrag.IDENTIFY.name: "entities",
    dualrag.SUMMARIZE.name: "summaries",
}
"""The capability that each task belongs to."""
JUDGE = "judge"
"""Role of the model that judges answers."""
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
    question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: Given = OURS
) -> list[SFTRecord]:
    """Make examples of all modules; ``passages_by_query`` has the passages of each hop's subquery and entity.

    A hop that its passages do not answer stays out of the outline; the Reasoner then asks for it again, under the
    name of its entity. If that fails, too, the examples end there, because nobody can know the rest. Returns no
    examples if an annotated hop has no entity.
    """
    steps = question.decomposition
    if not steps or not subjects_known(question):
        return []
    writer = _Writer(question, passages_by_query, instructions)
    found: list[GoldStep] = []
    for hops in rounds(question):
        missing = [steps[i] for i in hops]
        for again in (False, True):
            if missing:
                answered = writer.round(found, missing, again)
                found = [step for step in missing if step in answered]
                missing = [step for step in missing if step not in answered]
        if missing:
            return writer.examples
    writer.end(found)
    return writer.examples


class _Writer:
    """The state of DualRAG's loop on one question with annotated hops, and the examples made on the way."""

    def __init__(self, question: Question, passages: Mapping[str, list[Passage]], instructions: Given):
        self.examples = Examples(question, instructions)
        self._question = question
        self._passages = passages
        self._outline = Outline()
        self._thoughts: list[str] = []

    def round(self, found: Sequence[GoldStep], missing: Sequence[GoldStep], again: bool) -> list[GoldStep]:
        """Write a round that searches for the answers of ``missing``; return the hops that it answered."""
        place = len(self._thoughts)
        self._think(" ".join([*map(statement, found), need(missing, again)]), True, place)
        entities: dict[str, list[GoldStep]] = {}
        for step in missing:
            entities.setdefault(step.entity, []).append(step)
        queries = {name: [name if again else step.subquery for step in steps] for name, steps in entities.items()}
        named = [Entity(entity=name, queries=list(dict.fromkeys(queries[name]))) for name in entities]
        known, thoughts = self._outline.parts, self._thoughts
        state = dualrag.identify_fields(
            self._question.question, dualrag.outline_lines(known), list(known), thoughts
        )
        self.examples.add(dualrag.IDENTIFY, state, named, place)
        answered: list[GoldStep] = []
        for i, entity in enumerate(named):
            name, steps = entity.entity, entities[entity.entity]
            lists = [self._passages.get(query, []) for query in queries[name]]
            passages = self._outline.new(name, interleave(lists)[: max(map(len, lists))])
            if not passages:
                continue
            says = {step.subquery: evidence(step, passages) for step in steps}
            facts = " ".join(dict.fromkeys(filter(None, says.values())))
            fields = dualrag.summary_fields(self._question.question, thoughts, name, entity.queries, passages)
            self.examples.add(dualrag.SUMMARIZE, fields, facts or dualrag.NOTHING, f"{place}/{i}")
            self._outline.add(name, passages, facts)
            answered += [step for step in steps if says[step.subquery]]
        return answered

    def end(self, found: Sequence[GoldStep]) -> None:
        """Write the last thought and the answer, if the answer can be known by now."""
        answer = self._question.answers[0]
        if fold(answer) not in FIXED and not mentions(body(self._state()), answer):
            return
        last = f"Nothing is missing, the answer is {answer}."
        self._think(" ".join([*map(statement, found), last]), False, "end")
        self.examples.add(dualrag.ANSWER, self._state(), answer, "end")

    def _think(self, thought: str, retrieve: bool, place: int | str) -> None:
        self.examples.add(dualrag.REASON, self._state(), Reasoning(thought=thought, retrieve=retrieve), place)
        self._thoughts.append(thought)

    def _state(self) -> Fields:
        outline = dualrag.outline_lines(self._outline.parts)
        return dualrag.state_fields(self._question.question, outline, self._thoughts)


def need(steps: Sequence[GoldStep], again: bool) -> str:
    """Return the part of a thought that says what is missing, for the first time or still."""
    missing = " ".join(step.subquery for step in steps)
    return f"The passages do not say it, I still need to know: {missing}" if again else f"I need to know: {missing}"


def statement(step: GoldStep) -> str:
    """Return a hop and its answer as a sentence, or as question and answer if the sentence is not known."""
    if step.value:  # the answer is a sentence
        return step.answer
    match = re.fullmatch(r"(?:Who|What) is (the .+ of .+)\?", step.subquery)
    answer = step.answer.rstrip(".")
    return f"{match[1][0].upper()}{match[1][1:]} is {answer}." if match else f"{step.subquery} {answer}."


def evidence(step: GoldStep, passages: Sequence[Passage]) -> str:
    """Return the sentence that answers the hop, from the passages about its entity; empty if there is none."""
    about = [p for p in passages if p.id in step.passage_ids or mentions(f"{p.title} {p.text}", step.entity)]
    if step.value and any(mentions(passage.text, step.answer) for passage in about):
        return step.answer
    saying = [s for passage in about for s in _sentences(passage.text) if mentions(s, step.short)]
    return next((s for s in saying if mentions(s, step.entity)), saying[0] if saying else "")


@dataclass(frozen=True)
class ProcessedDualRAG(DualRAG):
    """DualRAG with its answers post-processed as they come, so that later prompts have the names and summaries that
    the examples teach."""

    linker: Linker = field(kw_only=True)

    async def _identify(
        self, run: Run, thoughts: Sequence[str], outline: Outline, found: Sequence[Passage]
    ) -> dict[str, list[str]]:
        entities = [
            Entity(entity=e, queries=q) for e, q in (await super()._identify(run, thoughts, outline, found)).items()
        ]
        linked, _ = await self.linker.link(entities, list(outline.parts))
        return {entity.entity: entity.queries for entity in linked}

    async def _summary(self, run: Run, fields: Fields) -> str | None:
        summary = await super()._summary(run, fields)
        return summary and repaired_summary(summary, fields, run.question)


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


@dataclass(frozen=True)
class Linker:
    """What decides whether two entities are the same: a cross-encoder, or equal normalised names without one."""

    model: str | None
    threshold: float

    async def link(self, entities: Sequence[Entity], known: Sequence[str]) -> tuple[list[Entity], list[Link]]:
        """Merge entities as `link` does, in a thread."""
        scores, threshold = (_cross_encoder(self.model).scores, self.threshold) if self.model else (_same_name, 1.0)
        return await asyncio.to_thread(link, entities, known, scores, threshold)


@cache
def _cross_encoder(model: str) -> Reranker:
    """Return the cross-encoder ``model``, loaded once."""
    from rag_train.retrieval.rerank import CrossEncoderReranker

    return CrossEncoderReranker(model)


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


def repaired_summary(summary: str, fields: Fields, question: Question) -> str | None:
    """Return the summary with missing facts of the gold passages added, or None if it contains invented facts.

    A fact is a sentence of the retrieved passages (see `_gold_facts`), with the value that makes it one. If the
    summary lacks such a value, the repaired summary is made of the summary's own sentences whose names and numbers
    are all in the passages with the missing facts, then these facts. A summary with names or numbers that no
    passage contains is invented.
    """
    passages = _passages(fields)
    about = _entity(fields) or " ".join(map(str, dict(fields)["Thought"]))
    facts = _gold_facts(question, passages, about)
    missing = {fact.sentence: fact.passage for fact in facts if not mentions(summary, fact.value)}
    if normalize(summary) == dualrag.NOTHING:
        missing |= _supporting_sentences(question, passages, about)
    if missing:
        sources = list(missing.values())
        kept = [s for s in _sentences(summary) if normalize(s) != dualrag.NOTHING and _supported(s, sources)]
        return " ".join(dict.fromkeys([*kept, *missing]))
    return summary if normalize(summary) == dualrag.NOTHING or _supported(summary, passages) else None


def _passages(fields: Fields) -> list[Passage]:
    return [passage for _, value in fields for passage in value if isinstance(passage, Passage)]


def _entity(fields: Fields) -> str:
    return " ".join(value for label, value in fields if label == "Entity" and isinstance(value, str))


class Fact(NamedTuple):
    """A sentence of a passage that a summary has to preserve, and the value that it must not lack."""

    sentence: str
    value: str
    passage: Passage


def _gold_facts(question: Question, passages: Sequence[Passage], about: str) -> list[Fact]:
    """Return what the retrieved passages say about the entity and the question needs.

    That is the answer of an annotated hop about the entity. In a gold passage about the entity, it is also the
    answer of the question and the title of every other gold passage: the next hop's entity, as in HotpotQA.
    """
    hops = [step for step in question.decomposition if step.entity and mentions(about, step.entity)]
    titles = {passage.title for passage in question.gold_passages}
    answer = [] if fold(question.answers[0]) in FIXED else question.answers[:1]
    facts: dict[str, Fact] = {}
    for passage in passages:
        values = [step.short for step in hops if mentions(f"{passage.title} {passage.text}", step.entity)]
        if passage.title in titles and mentions(about, plain(passage.title)):
            values += [*answer, *map(plain, sorted(titles - {passage.title}))]
        for value in values:
            sentence = next((s for s in _sentences(passage.text) if mentions(s, value)), "")
            if sentence and value not in facts:
                facts[value] = Fact(sentence, value, passage)
    return list(facts.values())


def _supporting_sentences(question: Question, passages: Sequence[Passage], about: str) -> dict[str, Passage]:
    """Return the annotated supporting sentences of the retrieved passages about the entity (HotpotQA, 2Wiki)."""
    sentences = question.metadata.get("supporting", ())
    own = [passage for passage in passages if mentions(about, plain(passage.title))]
    return {sentence: passage for passage in own for sentence in sentences if mentions(passage.text, sentence)}


def _sentences(text: str) -> list[str]:
    """Split at the ends of sentences, but not after an initial."""
    return [part for part in re.split(r"(?<=[.!?])(?<![ .][A-Z]\.)\s+", one_line(text)) if part]


def _supported(text: str, passages: Sequence[Passage]) -> bool:
    """Whether the passages contain all names and numbers of ``text``."""
    said = " ".join(f"{passage.title} {passage.text}" for passage in passages)
    return all(mentions(said, name) for name in names(text))


def table(counts: Mapping[str, int]) -> Table:
    """Return DualRAG's Table 1: examples of each capability, raw (as the teacher wrote them) and post-processed."""
    names = {"reasoner": "Reasoner", "entities": "Entity Identifier", "summaries": "Knowledge Summarizer"}
    rows = [
        (names[capability], counts.get(f"{capability} raw", 0), counts.get(f"{capability} processed", 0))
        for capability in get_args(Capability)
    ]
    rows.append(("Total", sum(raw for _, raw, _ in rows), sum(processed for _, _, processed in rows)))
    cells = [[name, f"{raw:,}", f"{processed:,}", f"{raw + processed:,}"] for name, raw, processed in rows]
    return Table("Training examples", "DualRAG, Table 1", ["Capability", "Raw", "Processed", "Count"], cells)


@method("dualrag")
class DualRAGData(ModuleMethod[DualRAGRecipe]):
    """DualRAG: examples of its modules, from gold annotations or by a teacher.

    A teacher's trajectories are kept if their answer is correct. Entities and summaries are then compared with the
    gold passages.
    """

    recipe_type: ClassVar = DualRAGRecipe
    starts: ClassVar = ("gold", "dualrag_teacher")
    gold_records: ClassVar = staticmethod(gold_records)

    @classmethod
    def kit(cls, recipe: DualRAGRecipe) -> KitConfig | None:
        if config := super().kit(recipe):
            if recipe.linker:
                _cross_encoder(recipe.linker)  # loaded before the first question
            roles = parse_roles("roles:", recipe.roles, (*DualRAG.roles, JUDGE), recipe.engine)
            return replace(config, roles=roles, reranker=recipe.reranker)
        return None

    async def outcome(self, question: Question, /) -> Outcome:
        if self.teacher:
            return await self._taught(question, self.teacher)
        passages_by_query = await retrieved(self.retriever, question, self.recipe.passages, entities=True)
        records = gold_records(question, passages_by_query, instructions=self.recipe.given)
        chosen = [record for record in records if TASKS[record.task] in self.recipe.capabilities]
        return gold_outcome(question, chosen, "not usable" if subjects_known(question) else "hop without a subject")

    async def _taught(self, question: Question, teacher: Kit) -> Outcome:
        """Answer the question with the teacher; if the answer is correct, post-process what its modules wrote."""
        recipe = self.recipe
        linker = Linker(recipe.linker, recipe.similarity) if recipe.repair == "facts" else None
        settings: dict[str, Any] = {
            "name": "dualrag",
            "max_iterations": recipe.max_iterations,
            "candidates": recipe.candidates,
            "max_tokens": recipe.max_tokens,
        }
        strategy = ProcessedDualRAG(teacher, linker=linker, **settings) if linker else DualRAG(teacher, **settings)
        run = Run(strategy, question)
        trajectory = await run.answer()
        correct = exact_match(trajectory.answer, question.answers, rules_of(question))
        judged = recipe.judge and not correct and await _judged(question, trajectory, teacher)
        counts = Counter(cost(trajectory.calls))
        if not correct and not judged:
            reason = "cut" if trajectory.answer is None and trajectory.cut else "wrong answer"
            return Outcome([], counts, [Rejected(id=question.id, reason=reason, text=trajectory.answer or "")])
        counts["right" if correct else "right by the judge"] += 1
        asks = [(i, ask) for i, ask in enumerate(run.asks) if ask and TASKS[ask.task.name] in recipe.capabilities]
        repair = _ByFacts(question, trajectory, linker) if linker else await _ByTitles.of(question, run, teacher)
        records: list[SFTRecord] = []
        rejected: list[Rejected] = []
        for place, ask in asks:
            id, wrote = f"{question.id}/{place}", _stripped(ask.answer)
            if not wrote:
                rejected.append(Rejected(id=f"{id}/{ask.task.name}", reason=ask.flaw("did not parse, or empty")))
                continue
            done = await repair(ask, wrote)
            counts.update(done.counts)
            rejected += [Rejected(id=f"{id}/{ask.task.name}", reason=why, text=text) for why, text in done.removed]
            if done.answer is None:
                continue
            same = (done.fields, done.answer) == (ask.fields, wrote)
            counts[f"{TASKS[ask.task.name]} {'raw' if same else 'processed'}"] += 1
            more: dict[str, Any] = {"source": "teacher", "instructions": recipe.given}
            records.append(task_record(ask.task, done.fields, done.answer, id=id, **more))
        return Outcome(records, counts, rejected)

    def finish(self, summary: Summary) -> None:
        if self.teacher:
            console.print(table(summary.counts))


class Repaired(NamedTuple):
    """An ask after its post-processing: fields, answer (None: no example), and what was removed and why."""

    fields: Fields
    answer: Any
    removed: Sequence[tuple[str, str]] = ()
    counts: Mapping[str, int] = {}


@dataclass(frozen=True)
class _ByFacts:
    """The post-processing of section 3.2: linked entities, and summaries with the facts of the gold passages."""

    question: Question
    trajectory: Trajectory
    linker: Linker

    async def __call__(self, ask: Ask, wrote: Any) -> Repaired:
        if ask.task is dualrag.SUMMARIZE:
            summary = repaired_summary(wrote, ask.fields, self.question)
            return Repaired(ask.fields, summary, [("made up", wrote)] if summary is None else ())
        if ask.task is not dualrag.IDENTIFY:
            return Repaired(ask.fields, wrote)
        entities, links = await self.linker.link(wrote, _known(ask, self.trajectory))
        linked = [f"{link.name} = {link.nearest} ({link.score:.3f})" for link in links if link.linked]
        counts = Counter(f"similarity {link.score:.1f}" for link in links if self.linker.model)
        return Repaired(ask.fields, entities, [("entity linked", text) for text in linked], counts)


@dataclass(frozen=True)
class _ByTitles:
    """The release's post-processing: entities and summaries compared with the titles of the gold passages.

    A question without gold passages has nothing to compare with; its examples stay as they are.
    """

    question: Question
    matches: Mapping[str, gold_titles.Match | None]

    @classmethod
    async def of(cls, question: Question, run: Run, teacher: Kit) -> _ByTitles:
        """Match the entities that the run's Identifier named."""
        titles = list(dict.fromkeys(passage.title for passage in question.gold_passages))
        answers = [_stripped(ask.answer) for ask in run.asks if ask and ask.task is dualrag.IDENTIFY and ask.answer]
        entities = list(dict.fromkeys(entity.entity for answer in answers for entity in answer))
        if not titles:
            return cls(question, {})
        return cls(question, await asyncio.to_thread(gold_titles.match_titles, entities, titles, teacher.reranker))

    async def __call__(self, ask: Ask, wrote: Any) -> Repaired:
        names = gold_titles.names_of(self.matches)
        if ask.task is dualrag.IDENTIFY and names:
            entities = gold_titles.identified(wrote, names)
            gone = [
                (f"same title as {names[e.entity]}" if names[e.entity] else "no gold title", e.entity)
                for e in wrote
                if e not in entities
            ]
            return Repaired(gold_titles.known_by_name(ask.fields, names), entities, gone)
        if ask.task is dualrag.SUMMARIZE and (entity := _entity(ask.fields)) in self.matches:
            match = self.matches[entity]
            return Repaired(ask.fields, gold_titles.summarized(wrote, _passages(ask.fields), self.question, match))
        return Repaired(ask.fields, wrote)


async def _judged(question: Question, trajectory: Trajectory, teacher: Kit) -> bool:
    """Whether the judge finds the trajectory's answer correct."""
    if not trajectory.answer:
        return False
    given = JudgeInput(question=question.question, answers=question.answers, prediction=trajectory.answer)
    judge = teacher.models.get(JUDGE, teacher.llm)
    return bool(await verdict(CallLog(judge, trajectory.calls), judge, given, teacher.instructions or OURS))
