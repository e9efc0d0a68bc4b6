"""DualRAG (Cheng et al. 2025): a loop of reasoning, which finds missing knowledge, and knowledge aggregation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.answers import normalize
from rag_train.formats import dualrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.dualrag import Outline, Reasoning
from rag_train.formats.tasks import Fields, Task
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, joined, strategy, together
from rag_train.strategies.baselines.ircot import END

REASONER, IDENTIFIER, SUMMARIZER = "reasoner", "identifier", "summarizer"
"""Roles of the modules, which can be performed by different models (Table 4)."""
THINK = Task("dualrag_think", "Next thought:")
"""The Reasoner without its trigger: a sentence, as IRCoT writes it."""


@strategy("dualrag", Bound(calls=51, retrievals=200))
@dataclass(frozen=True)
class DualRAG(Strategy):
    """Reason over a knowledge outline; search for missing knowledge by key entity and summarize it.

    Ours: the question stands for a first thought that does not parse, so that none is answered without a search.
    """

    paper: ClassVar = "DualRAG (Cheng et al. 2025), section 3.1; ablations: section 4.5, appendices H.3 and H.4"
    roles: ClassVar = (REASONER, IDENTIFIER, SUMMARIZER)

    max_iterations: int = 5
    """Maximum number of retrieval rounds (section 4.3)."""
    max_entities: int = 8
    """Maximum number of key entities in a round. Ours: paper and release set no limit."""
    max_queries: int = 5
    """Maximum number of queries for an entity in a round. Ours: paper and release set no limit."""
    trigger: bool = True
    """Let the Reasoner decide when to retrieve; false (w/o R): it writes sentences, as in IRCoT, with a retrieval
    after each but the one that states the answer (the release's way)."""
    identifier: bool = True
    """Identify entities and their queries; false (w/o EI): the thought is the query, and its passages are
    summarized by title (the release's way)."""
    outline: Literal["entities", "flat", "none"] = "entities"
    """entities: summaries by entity; flat (w/o KO*): a list of summaries; none (w/o KO): the passages
    themselves."""
    rerank: bool = True
    """Rerank each entity's passages by its name (the release's query; the paper names none), if there is a
    reranker."""
    floor: bool = True
    """Leave out reranked passages whose raw score is 0 or less (the release's); false: keep the best of any
    score (the paper's)."""
    candidates: int = 50
    """Number of passages to rerank for each query."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        outline = Outline()
        thoughts: list[str] = []
        found: list[Passage] = []
        for round in range(1, self.max_iterations + 1):
            reasoning = await self._reason(run, thoughts, outline, found)
            if reasoning is None and thoughts:
                break
            reasoning = reasoning or Reasoning(thought=question.question, retrieve=True)
            thoughts.append(reasoning.thought.strip())
            if not reasoning.retrieve:
                run.known(thoughts[-1], "", round=round)
                break
            await self._retrieve(run, round, thoughts, outline, found)
            if self.outline == "entities":
                run.outline = outline.parts
                run.show("outline", {entity: list(parts) for entity, parts in outline.parts.items()})
        else:
            run.cut(f"ended after max_iterations={self.max_iterations}")
        state = dualrag.state_fields(question.question, self._knowledge(outline, found), thoughts)
        answer = await run.ask(dualrag.ANSWER, state, REASONER)
        return run.done(answer, "\n".join(thoughts))

    async def _reason(
        self, run: Run, thoughts: Sequence[str], outline: Outline, found: Sequence[Passage]
    ) -> Reasoning | None:
        """Return the next thought, and whether to retrieve (equation 3); None if there is none."""
        state = dualrag.state_fields(run.question.question, self._knowledge(outline, found), thoughts)
        if self.trigger:
            return await run.ask(dualrag.REASON, state, REASONER)
        thought = await run.ask(THINK, state, REASONER)
        return thought and Reasoning(thought=thought, retrieve=END not in thought.lower())

    def _knowledge(self, outline: Outline, found: Sequence[Passage]) -> Fields:
        """Return the prompt fields of the knowledge so far."""
        match self.outline:
            case "entities":
                return dualrag.outline_lines(outline.parts)
            case "flat":
                parts = [part for parts in outline.parts.values() for part in parts]
                return [("Knowledge", parts)] if parts else []
            case "none":
                return [("Knowledge", found)] if found else []

    async def _retrieve(
        self, run: Run, round: int, thoughts: Sequence[str], outline: Outline, found: list[Passage]
    ) -> None:
        """Perform a round of retrieval and aggregation, and update ``outline`` or ``found``.

        Passages of no entity, which the thought found, are summarized by title.
        """
        queries = await self._identify(run, thoughts, outline, found)
        groups = await together(self._group(run, entity, its) for entity, its in queries.items())
        passages = dict(zip(queries, groups, strict=True))
        if self.outline == "none":
            found[:] = joined([found, *groups])
            parts: dict[str, str] = {}
        elif "" in queries:
            titles = {passage.title: [] for passage in passages[""]}
            for passage in passages[""]:
                titles[passage.title].append(passage)
            by_title = await self._summarize(run, thoughts, outline, titles, dict.fromkeys(titles, queries[""]))
            parts = {"": " ".join(part for part in by_title.values() if normalize(part) != dualrag.NOTHING)}
        else:
            parts = await self._summarize(run, thoughts, outline, passages, queries)
        for entity, its in queries.items():
            part = parts.get(entity, "")
            run.retrieved(thoughts[-1], passages[entity], part, queries=its, node=entity, round=round)

    async def _summarize(
        self,
        run: Run,
        thoughts: Sequence[str],
        outline: Outline,
        passages: Mapping[str, Sequence[Passage]],
        queries: Mapping[str, Sequence[str]],
    ) -> dict[str, str]:
        """Summarize the new passages of each entity (equation 9), add the summaries to ``outline``, return them."""
        new = {entity: read for entity, its in passages.items() if (read := outline.new(entity, its))}
        question = run.question.question
        summaries = await together(
            self._summary(run, dualrag.summary_fields(question, thoughts, entity, queries[entity], read))
            for entity, read in new.items()
        )
        parts = {entity: part or "" for entity, part in zip(new, summaries, strict=True)}
        for entity, part in parts.items():
            outline.add(entity, new[entity], part)
        return parts

    async def _summary(self, run: Run, fields: Fields) -> str | None:
        return await run.ask(dualrag.SUMMARIZE, fields, SUMMARIZER)

    async def _identify(
        self, run: Run, thoughts: Sequence[str], outline: Outline, found: Sequence[Passage]
    ) -> dict[str, list[str]]:
        """Return the key entities with their queries (equation 5), under the outline's names for known entities.

        The thought is the query of no entity if the Identifier's text does not parse. If the Identifier names none,
        nothing is searched in this round, as in the release.
        """
        if not self.identifier:
            return {"": [thoughts[-1]]}
        known = [entity for entity in outline.parts if entity] if self.outline == "entities" else []
        knowledge = self._knowledge(outline, found)
        fields = dualrag.identify_fields(run.question.question, knowledge, known, thoughts)
        identified = await run.ask(dualrag.IDENTIFY, fields, IDENTIFIER)
        if identified is None:
            return {"": [thoughts[-1]]}
        named = {normalize(name): name for name in outline.parts}
        entities: dict[str, list[str]] = {}
        for entity in identified:
            name = one_line(entity.entity)
            queries = [query for query in map(one_line, entity.queries) if query]
            if name and queries:
                asked = entities.setdefault(named.setdefault(normalize(name), name), [])
                asked += [query for query in dict.fromkeys(queries) if query not in asked]
        kept = run.first(list(entities), self.max_entities, "entities")
        return {name: run.first(entities[name], self.max_queries, "queries") for name in kept}

    async def _group(self, run: Run, entity: str, queries: list[str]) -> list[Passage]:
        """Return the passages for an entity's queries (equations 6 and 7), reranked (8)."""
        reranker = run.kit.reranker if self.rerank else None
        if reranker is None:
            return (await run.search_all(queries))[: run.kit.passages]
        from rag_train.retrieval.rerank import best_of

        found = await run.search_all(queries, max(self.candidates, run.kit.passages))
        name = entity or queries[0]
        return await asyncio.to_thread(best_of, found, name, reranker, run.kit.passages, floor=self.floor)
