"""PlanRAG's data (section 5.4): a teacher's plans, mended or rejected; or, from gold annotations, plans, filled
subqueries and answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from data_synth.recipes import PlanRAGRecipe
from data_synth.records import Gold, gold_outcome, retrieved, says, task_record
from eval.plans import edit_distance
from rag_train.formats import planrag
from rag_train.formats.deeprag import one_line
from rag_train.formats.planrag import Draft, PlanError, Response
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.runner import Outcome, Rejected, cost
from rag_train.schema import Passage, Plan, Question, SFTRecord
from rag_train.strategies.base import Kit, Run
from rag_train.strategies.planrag import PlanRAG


def plan_from_gold(question: Question) -> Plan:
    """The plan that the annotated hops amount to: a hop that names an earlier hop's answer depends on it.

    A question of one hop, or without annotations, has the empty plan. Raises PlanError where the hops make no
    valid plan.
    """
    drafts: list[Draft] = []
    depth: list[int] = []
    for step in question.decomposition if len(question.decomposition) > 1 else ():
        text, parents = step.subquery, []
        for i in reversed(range(len(drafts))):  # the last one first: of equal answers, the nearest is meant
            tag = drafts[i].id.replace("Q", "A")
            found = re.sub(rf"(?<!\w){re.escape(question.decomposition[i].short)}(?!\w)", f"<{tag}>", text)
            if found != text and drafts[i].id not in parents:
                text, parents = found, [drafts[i].id, *parents]
        levels = {draft.id: level for draft, level in zip(drafts, depth, strict=True)}
        depth.append(1 + max((levels[parent] for parent in parents), default=0))
        drafts.append(Draft(id=f"Q{depth[-1]}.{depth.count(depth[-1])}", question=text, parents=parents))
    return planrag.repair(drafts, question.question)


def gold_records(
    question: Question, found: Mapping[str, list[Passage]], *, instructions: bool = True
) -> list[SFTRecord]:
    """Examples of all three modules; ``found``: what is retrieved for each hop's subquery, and
    for the question itself.

    An answer that is neither in its passages nor known to the model (where that is known) is left out: it would
    teach to make things up. Nothing for a question whose hops make no plan.
    """
    try:
        plan = plan_from_gold(question)
    except PlanError:
        return []
    out = Gold(question, instructions)
    out.add(planrag.PLAN, planrag.plan_fields(question.question), planrag.drafts(plan))
    if not plan.nodes:  # the question is answered as it is
        passages, answer = found[question.question], question.answers[0]
        if all(step.known for step in question.decomposition) or says(passages, answer):
            out.add(
                planrag.ANSWER, planrag.answer_fields(question.question, passages, []), Response(Response=answer)
            )
    filled: dict[str, tuple[str, str]] = {}
    for node in plan.nodes:
        known = [(parent, *filled[parent]) for parent in node.parents]
        text = planrag.fill(node.question, {id: answer for id, _, answer in known})
        if text != node.question:
            fields = planrag.fill_fields(node.id, node.question, known)
            out.add(planrag.FILL, fields, f"{node.id}: {text}", node.id)
        # A node without a hop of its own is the last: the question, over the ends of its branches.
        hop = next((i for i, step in enumerate(question.decomposition) if one_line(step.subquery) == text), None)
        answer = question.answers[0] if hop is None else question.decomposition[hop].short
        passages = found[question.question if hop is None else question.decomposition[hop].subquery]
        filled[node.id] = (text, answer)
        if hop is None or question.decomposition[hop].known or says(passages, answer):
            fields = planrag.answer_fields(text, passages, known)
            out.add(planrag.ANSWER, fields, Response(Response=answer), node.id)
    return out


async def outcome(
    question: Question, recipe: PlanRAGRecipe, retriever: AsyncRetriever, teacher: Kit | None
) -> Outcome:
    """The question's examples, and of which depth its plan is (Table 1).

    Rejected: plans that cannot be mended, by PlanError's reason. Counted: those that were mended, and how far a
    teacher's plan is from the annotated one.
    """
    if teacher is None:
        if not question.decomposition:  # not the same as a question that needs no plan
            return gold_outcome(question, [])
        found = await retrieved(retriever, question, recipe.passages)
        made = gold_outcome(question, gold_records(question, found, instructions=recipe.instructions))
        if made.records:
            made.counts[f"depth {planrag.depth(plan_from_gold(question))}"] = 1
        return made
    task, fields = planrag.PLAN, planrag.plan_fields(question.question)
    run = Run(PlanRAG(teacher), question)
    prompt = run.prompt(task.name, task.body(fields), task.lead)
    text = (await run.complete(task.name, prompt, task.sampling())).text
    counts = Counter(cost(run.calls))
    try:
        written = planrag.read_drafts(text)
        plan = planrag.repair(written, question.question)
    except PlanError as error:
        return Outcome([], counts, [Rejected(id=question.id, reason=error.reason, text=text)])
    drafts = planrag.drafts(plan)
    counts[f"depth {planrag.depth(plan)}"] += 1
    as_written = [
        Draft(id=one.id.strip(), question=one_line(one.question), parents=[id.strip() for id in one.parents])
        for one in written
    ]
    counts["mended"] += drafts != as_written
    if question.decomposition:
        with suppress(PlanError):
            counts["edits from gold"] += edit_distance(plan, plan_from_gold(question))
            counts["compared with gold"] += 1
    record = task_record(task, fields, drafts, id=question.id, source="teacher", instructions=recipe.instructions)
    return Outcome([record], counts)
