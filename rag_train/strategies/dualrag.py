"""DualRAG (Cheng et al. 2025): a loop of reasoning, which finds missing knowledge, and knowledge aggregation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.answers import normalize
from rag_train.formats import dualrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.dualrag import Reasoning
from rag_train.formats.tasks import Fields
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, interleave, strategy, together

REASONER, IDENTIFIER, SUMMARIZER = "reasoner", "identifier", "summarizer"
"""Roles of the modules, which can be performed by different models (Table 4)."""


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
    """Maximum number of key entities in a round. Ours: the paper sets no limit."""
    max_queries: int = 5
    """Maximum number of queries for an entity in a round. Ours: the paper sets no limit."""
    trigger: bool = True
    """Let the Reasoner decide when to stop; false (w/o R): retrieve after every thought, like IRCoT."""
    identifier: bool = True
    """Identify entities and their queries; false (w/o EI): the thought is the query."""
    outline: Literal["entities", "flat", "none"] = "entities"
    """entities: summaries by entity; flat (w/o KO*): a list of summaries; none (w/o KO): the passages
    themselves."""
    rerank: bool = True
    """Rerank each entity's passages, if there is a reranker."""
    candidates: int = 50
    """Number of passages to rerank for each query."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        outline: dict[str, list[str]] = {}
        thoughts: list[str] = []
        found: list[Passage] = []
        for round in range(1, self.max_iterations + 1):
            state = dualrag.state_fields(question.question, self._knowledge(outline, found), thoughts)
            reasoning = await run.ask(dualrag.REASON, state, REASONER)
            if reasoning is None and thoughts:
                break
            reasoning = reasoning or Reasoning(thought=question.question, retrieve=True)
            thoughts.append(reasoning.thought.strip())
            if self.trigger and not reasoning.retrieve:
                run.known(thoughts[-1], "", round=round)
                break
            await self._retrieve(run, round, thoughts, outline, found)
            if self.outline == "entities":
                run.outline = outline
                run.show("outline", {entity: list(parts) for entity, parts in outline.items()})
        else:
            run.cut(f"ended after max_iterations={self.max_iterations}")
        state = dualrag.state_fields(question.question, self._knowledge(outline, found), thoughts)
        answer = await run.ask(dualrag.ANSWER, state, REASONER)
        return run.done(answer, "\n".join(thoughts))

    def _knowledge(self, outline: dict[str, list[str]], found: list[Passage]) -> Fields:
        """Return the prompt fields of the knowledge so far."""
        match self.outline:
            case "entities":
                return dualrag.outline_lines(outline)
            case "flat":
                parts = [part for parts in outline.values() for part in parts]
                return [("Knowledge", parts)] if parts else []
            case "none":
                return [("Context", found)] if found else []

    async def _retrieve(
        self, run: Run, round: int, thoughts: Sequence[str], outline: dict[str, list[str]], found: list[Passage]
    ) -> None:
        """Perform a round of retrieval and aggregation, and update ``outline`` or ``found``."""
        entities = await self._identify(run, thoughts, outline, found)
        passages = dict(
            zip(
                entities,
                await together(self._group(run, entity, queries) for entity, queries in entities.items()),
                strict=True,
            )
        )
        if self.outline == "none":
            found[:] = interleave([found, *passages.values()])
            parts = dict.fromkeys(entities, "")
        else:
            question = run.question.question
            summaries = await together(
                self._summarize(run, dualrag.summary_fields(question, thoughts[-1], entity, its))
                for entity, its in passages.items()
            )
            parts = {entity: part or "" for entity, part in zip(entities, summaries, strict=True)}
        for entity, part in parts.items():
            known = outline.setdefault(entity, [])
            if part and normalize(part) != dualrag.NOTHING and part not in known:
                known.append(part)
            run.retrieved(thoughts[-1], passages[entity], part, queries=entities[entity], node=entity, round=round)

    async def _summarize(self, run: Run, fields: Fields) -> str | None:
        return await run.ask(dualrag.SUMMARIZE, fields, SUMMARIZER)

    async def _identify(
        self, run: Run, thoughts: Sequence[str], outline: dict[str, list[str]], found: list[Passage]
    ) -> dict[str, list[str]]:
        """Return the key entities with their queries (equation 5), under the outline's names for known entities."""
        if not self.identifier:
            return {"": [thoughts[-1]]}
        state = dualrag.state_fields(run.question.question, self._knowledge(outline, found), thoughts)
        named = {normalize(name): name for name in outline}
        entities: dict[str, list[str]] = {}
        for entity in await run.ask(dualrag.IDENTIFY, state, IDENTIFIER) or ():
            name = entity.entity.strip()
            queries = [query for query in map(one_line, entity.queries) if query]
            if name and queries:
                known = entities.setdefault(named.setdefault(normalize(name), name), [])
                known += [query for query in dict.fromkeys(queries) if query not in known]
        kept = run.first(list(entities), self.max_entities, "entities")
        first = {name: run.first(entities[name], self.max_queries, "queries") for name in kept}
        return first or {"": [thoughts[-1]]}

    async def _group(self, run: Run, entity: str, queries: list[str]) -> list[Passage]:
        """Return the passages for an entity's queries, reranked (equations 6 to 8)."""
        reranker = run.kit.reranker if self.rerank else None
        if reranker is None:
            return (await run.search_all(queries))[: run.kit.passages]
        from rag_train.retrieval.rerank import group_by_entity

        by_query = await run.search_each(queries, max(self.candidates, run.kit.passages))
        kept = await asyncio.to_thread(
            group_by_entity, {entity: list(by_query)}, by_query, reranker, run.kit.passages
        )
        return kept[entity]
