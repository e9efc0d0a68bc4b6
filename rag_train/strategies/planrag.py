"""PlanRAG (Verma et al. 2025): a plan outside the context, with nodes answered in parallel (Algorithm 1)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats import planrag
from rag_train.formats.planrag import PlanError
from rag_train.llm.call_log import call_depth
from rag_train.schema import Passage, Plan, PlanNode, Trajectory
from rag_train.strategies.base import Bound, BudgetSpent, Need, Run, Strategy, strategy, together
from rag_train.strategies.baselines.selfrag import reflect


@strategy("plan-selfrag", Bound(calls=53, retrievals=13), solver="selfrag")
@strategy("planrag-question", Bound(calls=27, retrievals=1), retrieval="question")
@strategy("planrag", Bound(calls=27, retrievals=13))
@dataclass(frozen=True)
class PlanRAG(Strategy):
    """Plan a DAG of atomic subqueries; answer each from passages and the answers of its parents.

    A node begins when its parents are answered, without waiting for its depth (Algorithm 1), so that no answer
    changes and the longest path decides the time. Ours: the plan is JSON, and is repaired; a plan that cannot be
    repaired is replaced by the question.
    """

    paper: ClassVar = "PlanRAG (Verma et al. 2025), section 4, appendix D"
    roles: ClassVar = ("planner",)
    abilities: ClassVar = (
        Need("logprobs", lambda settings: settings.solver == "selfrag", "solver=generator"),
        Need("continues", lambda settings: settings.solver == "selfrag", "solver=generator"),
    )
    needs: ClassVar = ("a planner checkpoint or a strong model (role planner)",)

    retrieval: Literal["subquery", "question"] = "subquery"
    """subquery: search for each subquery (PlanRAG SubQ); question: search once, for the question."""
    final: Literal["sink", "generate"] = "sink"
    """The dataset-dependent operator. sink: the last node's answer; generate: a call over all answers (for datasets
    with yes/no answers)."""
    tags: Literal["model", "text"] = "model"
    """How the parents' answers are inserted into a subquery. model: by the model (appendix D.2); text: by text
    replacement."""
    solver: Literal["generator", "selfrag"] = "generator"
    """How a node is answered. generator: by the generator (appendix D.3); selfrag: by Self-RAG (Plan-Self-RAG,
    section 5.1)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        _, shared = await together([self._plan(run), self._shared(run)])
        plan = run.plan or Plan()
        nodes = plan.nodes or [PlanNode(id="Q1.1", question=question.question)]
        depths = planrag.depths(Plan(nodes=nodes))
        solved = {node.id: asyncio.get_running_loop().create_future() for node in nodes}
        done = await together(self._node(run, node, solved, shared, depths[node.id]) for node in nodes)
        answers = dict(zip(solved, done, strict=True))
        run.steps.sort(key=lambda step: (step.round or 0, step.node))  # by depth, not by completion time
        answer = answers[nodes[-1].id][1]
        if self.final == "generate" and plan.nodes:
            known = [(id, subquery, got) for id, (subquery, got) in answers.items()]
            answer = await self._generate(run, question.question, shared or [], known)
        return run.done(answer)

    async def _shared(self, run: Run) -> list[Passage] | None:
        """Return the passages that all nodes read; None if each node has its own."""
        if self.retrieval == "subquery":
            return None
        passages = await run.search(run.question.question)
        run.retrieved(run.question.question, passages)
        return passages

    async def _plan(self, run: Run) -> None:
        """Set the model's repaired plan, or an empty plan with a note if it cannot be repaired."""
        question = run.question.question
        task, fields = planrag.PLAN, planrag.plan_fields(question)
        prompt = run.prompt(task.name, fields, task.lead, "planner")
        written = await run.complete(task.name, prompt, task.sampling(run.instruction(task.name)), "planner")
        run.plan = Plan()
        try:
            run.plan = planrag.parse_plan(written.whole, question)
        except PlanError as error:
            run.notes["plan"] = f"not followed, {error}"
        run.show("plan", run.plan)

    async def _node(
        self,
        run: Run,
        node: PlanNode,
        solved: dict[str, asyncio.Future[tuple[str, str, int]]],
        shared: list[Passage] | None,
        depth: int,
    ) -> tuple[str, str]:
        """Answer a node once its parents are answered; return its subquery, with filled tags, and its answer."""
        try:
            subquery, answer = await self._solve(run, node, solved, shared, depth)
        except BudgetSpent:  # let the children go on, which end for the same reason
            solved[node.id].set_result((node.question, "", call_depth.get()))
            raise
        solved[node.id].set_result((subquery, answer, call_depth.get()))
        return subquery, answer

    async def _solve(
        self,
        run: Run,
        node: PlanNode,
        solved: dict[str, asyncio.Future[tuple[str, str, int]]],
        shared: list[Passage] | None,
        depth: int,
    ) -> tuple[str, str]:
        known: list[tuple[str, str, str]] = []
        for parent in node.parents:
            asked, got, calls = await solved[parent]
            known.append((parent, asked, got))
            call_depth.set(max(call_depth.get(), calls))
        subquery = await self._fill(run, node, known)
        passages = await run.search(subquery) if shared is None else shared
        if self.solver == "selfrag":
            answer = (await reflect(run, subquery, passages)).answer
        else:
            answer = await self._generate(run, subquery, passages, known)
        if shared is None:
            run.retrieved(subquery, passages, answer, node=node.id, round=depth)
        else:
            run.known(subquery, answer, node=node.id, round=depth)
        return subquery, answer

    async def _fill(self, run: Run, node: PlanNode, known: list[tuple[str, str, str]]) -> str:
        """Return the subquery with the parents' answers in place of its tags."""
        if not planrag.tags(node.question):
            return node.question
        filled = None
        if self.tags == "model":
            text = await run.ask(planrag.FILL, planrag.fill_fields(node.id, node.question, known))
            filled = (text or "").removeprefix(f"{node.id}:").strip()
        if not filled or planrag.tags(filled):
            filled = planrag.fill(node.question, {id: answer for id, _, answer in known})
        return filled

    async def _generate(
        self, run: Run, question: str, passages: list[Passage], known: list[tuple[str, str, str]]
    ) -> str:
        answer = await run.ask(planrag.ANSWER, planrag.answer_fields(question, passages, known))
        return answer.Response.strip() if answer else ""
