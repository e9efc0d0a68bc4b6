"""PlanRAG's training data: examples from gold annotations, or a teacher's plans (section 5.4)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

import networkx as nx

from rag_train.data_synth.method import method
from rag_train.data_synth.modules.examples import (
    Examples,
    found_or_known,
    gold_outcome,
    retrieved,
    says,
    task_record,
)
from rag_train.data_synth.modules.method import ModuleMethod, TeacherRecipe
from rag_train.formats import planrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.instructions import OURS, Given
from rag_train.formats.planrag import Draft, PlanError, Response
from rag_train.jobs.items import Outcome, Rejected, cost
from rag_train.schema import Passage, Plan, Question, SFTRecord
from rag_train.strategies.base import Kit, Run
from rag_train.strategies.planrag import PlanRAG


def plan_from_gold(question: Question) -> Plan:
    """Return the plan of the annotated hops: a hop that names an earlier hop's answer depends on that hop.

    A question with one hop, or without annotations, has the empty plan. Raises PlanError if the hops form no valid
    plan.
    """
    drafts: list[Draft] = []
    depth: list[int] = []
    for step in question.decomposition if len(question.decomposition) > 1 else ():
        text, parents = step.subquery, []
        for i in reversed(range(len(drafts))):  # if two hops have the same answer, the later one is meant
            tag = drafts[i].id.replace("Q", "A")
            tagged = re.sub(rf"(?<!\w){re.escape(question.decomposition[i].short)}(?!\w)", f"<{tag}>", text)
            if tagged != text and drafts[i].id not in parents:
                text, parents = tagged, [drafts[i].id, *parents]
        levels = {draft.id: level for draft, level in zip(drafts, depth, strict=True)}
        depth.append(1 + max((levels[parent] for parent in parents), default=0))
        drafts.append(Draft(id=f"Q{depth[-1]}.{depth.count(depth[-1])}", question=text, parents=parents))
    return planrag.repair(drafts, question.question)


def gold_records(
    question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: Given = OURS
) -> list[SFTRecord]:
    """Make examples of all three modules.

    ``passages_by_query`` has the passages of the question and of each hop's subquery. An answer that is neither in
    its passages nor annotated as known to the model gets no example, because it would train the model to invent
    facts. Returns no examples if the hops form no valid plan.
    """
    try:
        plan = plan_from_gold(question)
    except PlanError:
        return []
    out = Examples(question, instructions)
    out.add(planrag.PLAN, planrag.plan_fields(question.question), planrag.drafts(plan))
    if not plan.nodes:  # the question itself is answered
        passages, knows = passages_by_query[question.question], all(step.known for step in question.decomposition)
        if source := "gold" if says(passages, question.answers[0]) else "memory" if knows else "":
            fields = planrag.answer_fields(question.question, passages, [])
            out.add(planrag.ANSWER, fields, Response(Response=question.answers[0]), source=source)
    filled: dict[str, tuple[str, str]] = {}
    for node in plan.nodes:
        known = [(parent, *filled[parent]) for parent in node.parents]
        text = planrag.fill(node.question, {id: answer for id, _, answer in known})
        if text != node.question:
            fields = planrag.fill_fields(node.id, node.question, known)
            out.add(planrag.FILL, fields, f"{node.id}: {text}", node.id)
        # Only the last node may have no hop: it asks the question itself, after all branches.
        hop = next((step for step in question.decomposition if one_line(step.subquery) == text), None)
        answer = hop.short if hop else question.answers[0]
        passages = passages_by_query[hop.subquery if hop else question.question]
        filled[node.id] = (text, answer)
        if source := found_or_known(passages, hop) if hop else "gold":
            fields = planrag.answer_fields(text, passages, known)
            out.add(planrag.ANSWER, fields, Response(Response=answer), node.id, source)
    return out


def edit_distance(first: Plan, second: Plan) -> int:
    """Return the fewest nodes and edges to add or remove to make two plans equal, ignoring ids and subqueries.

    Exact for up to about 8 nodes; for larger plans, the smallest distance found within 5 seconds.
    """
    distance = nx.graph_edit_distance(
        _graph(first), _graph(second), node_match=lambda a, b: a["root"] == b["root"], timeout=5
    )
    return round(distance)


def _graph(plan: Plan) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node(planrag.ROOT, root=True)
    graph.add_nodes_from((node.id for node in plan.nodes), root=False)
    graph.add_edges_from((parent, node.id) for node in plan.nodes for parent in node.parents or [planrag.ROOT])
    return graph


@method("planrag")
class PlanRAGData(ModuleMethod[TeacherRecipe]):
    """PlanRAG: examples of its modules, from gold annotations or by a teacher.

    From annotations: plans, filled subqueries and answers. From a teacher: plans, which are repaired, or rejected
    if they were cut or cannot be repaired. The counts give the depth of the plans (Table 1), how many of the
    teacher's plans were repaired (``mended``), and their edit distance from annotated plans.
    """

    recipe_type: ClassVar = TeacherRecipe
    starts: ClassVar = ("gold", "planrag_teacher")
    gold_records: ClassVar = staticmethod(gold_records)

    async def outcome(self, question: Question, /) -> Outcome:
        if self.teacher:
            return await self._planned(question, self.teacher)
        if not question.decomposition:  # without annotations, which differs from a question with the empty plan
            return gold_outcome(question, [])
        passages = await retrieved(self.retriever, question, self.recipe.passages)
        made = gold_outcome(question, gold_records(question, passages, instructions=self.recipe.given))
        if made.records:
            made.counts[f"depth {planrag.depth(plan_from_gold(question))}"] = 1
        return made

    async def _planned(self, question: Question, teacher: Kit) -> Outcome:
        task, fields = planrag.PLAN, planrag.plan_fields(question.question)
        run = Run(PlanRAG(teacher, max_tokens=self.recipe.max_tokens), question)
        prompt = run.prompt(task.name, fields, task.lead)
        completion = await run.complete(task.name, prompt, task.sampling(run.instruction(task.name)))
        counts = Counter(cost(run.calls))
        try:
            written = planrag.read_drafts(completion.whole)
            plan = planrag.repair(written, question.question)
        except PlanError as error:
            return Outcome([], counts, [Rejected(id=question.id, reason=error.reason, text=completion.text)])
        drafts = planrag.drafts(plan)
        counts[f"depth {planrag.depth(plan)}"] += 1
        as_written = [
            Draft(
                id=draft.id.strip(), question=one_line(draft.question), parents=[id.strip() for id in draft.parents]
            )
            for draft in written
        ]
        counts["mended"] += drafts != as_written
        if question.decomposition:
            with suppress(PlanError):
                counts["edits from gold"] += edit_distance(plan, plan_from_gold(question))
                counts["compared with gold"] += 1
        instructions = self.recipe.given
        record = task_record(task, fields, drafts, id=question.id, source="teacher", instructions=instructions)
        return Outcome([record], counts)
