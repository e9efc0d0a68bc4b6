"""HANRAG (Sun et al. 2025): a Revelator routes, decomposes, refines, filters and stops; a generator answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats import hanrag
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy, together

ROLE = "revelator"


@strategy("hanrag-oracle", Bound(calls=31, retrievals=5), router="oracle")
@strategy("hanrag", Bound(calls=32, retrievals=5))
@dataclass(frozen=True)
class HANRAG(Strategy):
    """Route the question by its type; answer the sub-questions of a compound question at the same time.

    Ours: a complex question, too, ends with a call that combines the answers of its steps, and a question whose
    passages are all filtered out is answered from memory; the paper leaves both open.
    """

    paper: ClassVar = "HANRAG (Sun et al. 2025), section 4.1, appendix G"
    roles: ClassVar = (ROLE,)
    needs: ClassVar = ("a Revelator checkpoint or a strong model (role revelator)",)

    router: Literal["model", "oracle"] = "model"
    """oracle: take the route from the question's annotations (HANRAG-Oracle, appendix C)."""
    relevance: bool = True
    """Filter passages with the relevance discriminator (ANRAG, Algorithm 1)."""
    ending: bool = True
    """Let the ending discriminator stop the loop of a complex question."""
    refiner: bool = True
    """Write a new seed question for each round; false: search for the question itself in each round (appendix
    E)."""
    max_steps: int = 5
    """Maximum number of rounds for a complex question, and of sub-questions for a compound question. The paper's
    limit is printed as 4.5 (appendix E), which is no number of rounds."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        route = await self._route(run)
        run.notes["route"] = route
        text = question.question
        if route == "straightforward question":
            answer = await self._generate(run, text)
            run.known(text, answer)
        elif route == "compound question":
            answer = await self._compound(run, text)
        elif route == "complex question":
            answer = await self._complex(run, text)
        else:
            answer = await self._anrag(run, text, 1)
        return run.done(answer)

    async def _route(self, run: Run) -> hanrag.Route:
        if self.router == "oracle":
            if run.question.type.startswith("compound"):
                return "compound question"
            return "single-step question" if run.question.hops == 1 else "complex question"
        fields = hanrag.query_fields(run.question.question)
        return await run.ask(hanrag.ROUTE, fields, ROLE) or "single-step question"

    async def _anrag(self, run: Run, query: str, round: int) -> str:
        """Perform a step of noise-resistant retrieval (Algorithm 1): retrieve, keep relevant passages, answer."""
        passages = await run.search(query)
        if self.relevance:
            verdicts = await together(
                run.ask(hanrag.RELEVANT, hanrag.relevance_fields(query, passage), ROLE) for passage in passages
            )
            passages = [p for p, verdict in zip(passages, verdicts, strict=True) if verdict != "false"]
        answer = await run.ask(hanrag.ANSWER, hanrag.answer_fields(query, passages)) or ""
        run.retrieved(query, passages, answer, round=round)
        return answer

    async def _compound(self, run: Run, question: str) -> str:
        parts = await run.ask(hanrag.DECOMPOSE, hanrag.query_fields(question), ROLE)
        queries = list(dict.fromkeys(filter(None, (q.strip() for q in parts.decomposition)))) if parts else []
        queries = run.first(queries, self.max_steps, "sub-questions") or [question]
        answers = await together(self._anrag(run, query, 1) for query in queries)
        if len(queries) == 1:
            return answers[0]
        return await self._combine(run, question, list(zip(queries, answers, strict=True)))

    async def _complex(self, run: Run, question: str) -> str:
        solved: list[tuple[str, str]] = []
        for round in range(1, self.max_steps + 1):
            seed = question
            if self.refiner:
                seed = await run.ask(hanrag.REFINE, hanrag.thought_fields(question, solved), ROLE) or question
            solved.append((seed, await self._anrag(run, seed, round)))
            if (
                self.ending
                and await run.ask(hanrag.ENDING, hanrag.thought_fields(question, solved), ROLE) == "true"
            ):
                break
        else:
            run.cut(f"ended after max_steps={self.max_steps}")
        return await self._combine(run, question, solved)

    async def _generate(self, run: Run, question: str) -> str:
        return await run.ask(hanrag.ANSWER, hanrag.answer_fields(question, [])) or ""

    async def _combine(self, run: Run, question: str, solved: list[tuple[str, str]]) -> str:
        return await run.ask(hanrag.COMBINE, hanrag.thought_fields(question, solved)) or ""
