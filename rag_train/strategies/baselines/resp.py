"""ReSP: each retrieval is summarized twice, for the whole question and for the current sub-question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy, together

GLOBAL = Task("resp_global", "Evidence:")
LOCAL = Task("resp_local", "Response:")
JUDGE = Task("resp_judge", "Sufficient:", Literal["yes", "no"])
NEXT = Task("resp_next", "Sub-question:")
ANSWER = Task("resp_answer", "Answer:")


@strategy("resp", Bound(calls=11, retrievals=3))
@dataclass(frozen=True)
class ReSP(Strategy):
    """Retrieve, summarize for the question and the sub-question, judge, and plan the next sub-question."""

    paper: ClassVar = "Jiang et al. 2024 (ReSP); baseline of LevelRAG"
    roles: ClassVar = ()

    iterations: int = 3
    """Maximum number of retrievals. Ours: LevelRAG does not state it."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        text = query = question.question
        evidence: list[str] = []
        pathway: list[str] = []
        for i in range(self.iterations):
            passages = await run.search(query)
            whole, local = await together(
                [
                    run.ask(GLOBAL, [("Context", passages), ("Question", text)]),
                    run.ask(LOCAL, [("Context", passages), ("Question", query)]),
                ]
            )
            run.retrieved(query, passages, local)
            evidence += [whole] if whole else []
            pathway += [f"Q={query} A={local}"] if local else []
            memory = [("Evidence", evidence), ("Pathway", pathway), ("Question", text)]
            if i + 1 == self.iterations:
                run.cut(f"ended after iterations={self.iterations}")
                break
            if await run.ask(JUDGE, memory) == "yes":
                break
            query = await run.ask(NEXT, memory) or text
            if any(path.startswith(f"Q={query} A=") for path in pathway):
                break
        return run.done(await run.ask(ANSWER, [("Evidence", evidence), ("Pathway", pathway), ("Question", text)]))
