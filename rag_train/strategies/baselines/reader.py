"""Baselines that answer in one call: direct, chain of thought, retrieve-then-read, and reading the gold passages.

They are baselines in all five papers; chain of thought follows Wei et al. (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy


@strategy("direct", Bound(calls=1, retrievals=0))
@dataclass(frozen=True)
class Direct(Strategy):
    """Answer from memory, without reasoning."""

    paper: ClassVar = "all five papers (Vanilla-LLM, No retrieval)"

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        return run.done((await run.read(question.question))[1])


@strategy("cot", Bound(calls=2, retrievals=0))
@dataclass(frozen=True)
class ChainOfThought(Strategy):
    """Answer from memory with a chain of thought.

    Ours: the eight examples, which DeepRAG takes from its training data. With a checkpoint of recipes/cot_sft.yaml,
    this is CoT*.
    """

    paper: ClassVar = "Wei et al. 2022; DeepRAG, section 4.2"

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        reasoning, answer = await run.read(question.question, reason=True)
        return run.done(answer, reasoning)


@strategy("cot-retrieve", Bound(calls=2, retrievals=1), reason=True, examples=True)
@strategy("cot-rag", Bound(calls=2, retrievals=1), reason=True)
@strategy("rag", Bound(calls=1, retrievals=1))
@dataclass(frozen=True)
class VanillaRAG(Strategy):
    """Retrieve passages for the question and answer from them.

    With a checkpoint of recipes/cot_sft.yaml, cot-retrieve is CoT-Retrieve*.
    """

    paper: ClassVar = "Lewis et al. 2020; all five papers (k = 5, 10, 200)"

    k: int | None = None
    """Number of passages; null: the same number as for other strategies."""
    reason: bool = False
    """Reason before answering (CoT-RAG: PlanRAG, appendix B; CoT-Retrieve: DeepRAG, section 4.2)."""
    examples: bool = False
    """With ``reason``: the eight examples of chain of thought before the passages (CoT-Retrieve). Ours: the
    examples have no passages."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        found = await run.search(question.question, self.k)
        name = "cot" if self.examples else "cot_rag" if self.reason else "rag"
        reasoning, answer = await run.read(question.question, found, name=name, reason=self.reason)
        run.retrieved(question.question, found, answer)
        return run.done(answer, reasoning)


@strategy("oracle", Bound(calls=1, retrievals=1))
@dataclass(frozen=True)
class Oracle(Strategy):
    """Read the question's gold passages or, without them, the passages retrieved for its gold subqueries.

    Ours: DualRAG's table 2 has a row of this name and no definition of it.
    """

    paper: ClassVar = "the usual upper bound for reading; LevelRAG, section 4 (retrieval success)"
    needs: ClassVar = ("gold annotations",)

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        passages = [passage for passage in question.gold_passages if passage.text]  # KILT's have none
        queries = [step.subquery for step in question.decomposition]
        if not passages:
            wanted = {id for step in question.decomposition for id in step.passage_ids}
            queries = list(dict.fromkeys(queries)) or [question.question]
            found = await run.search_all(queries, 10)
            run.retrieved(question.question, found, queries=queries)
            passages = [p for p in found if p.id in wanted] or found
        _, answer = await run.read(question.question, passages, name="rag")
        run.known(question.question, answer, passages=list(passages))
        return run.done(answer)
