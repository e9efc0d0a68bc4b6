"""Training examples from a search result: the kept trajectory (Stage I, or a chain), preference pairs (Stage II).

Where the released code differs from the paper, this module follows the paper: a pair's prompt ends with the
subquery of its node, not with the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rag_train.data_synth.deeprag.search import Node, SearchResult, leaves, nodes
from rag_train.formats import deeprag, reader
from rag_train.formats.instructions import OURS, Given
from rag_train.formats.tasks import user_turn
from rag_train.schema import Decision, Passage, PreferencePair, Question, Segment, SFTRecord, Step

PairVariant = Literal["optimal", "all_nodes", "sentence_wise"]


def sft_record(question: Question, prompt: str, result: SearchResult) -> SFTRecord | None:
    """Make a training example from the kept trajectory (section 3.3); None if the search kept none."""
    node = result.best
    if node is None or node.answer is None:
        return None
    return transcript_record(question, prompt, node.steps, node.answer, result.source)


def transcript_record(
    question: Question,
    prompt: str,
    steps: Sequence[Step],
    answer: str | None,
    source: str,
    open_subquery: str | None = None,
) -> SFTRecord:
    """Make a training example of a transcript, which ends without an answer if ``answer`` is None.

    ``open_subquery`` is a last subquery that nobody answers.
    """
    segments = deeprag.render(steps, answer)
    if open_subquery is not None:
        segments[-1] = Segment(text=segments[-1].text + deeprag.subquery_line(open_subquery), trained=True)
    return SFTRecord(
        id=question.id,
        prompt=prompt,
        completion="".join(segment.text for segment in segments),
        segments=segments,
        steps=list(steps),
        answer=answer or "",
        retrievals=sum(step.decision is Decision.RETRIEVE for step in steps),
        source=source,
        complete=answer is not None,
    )


def chain_record(
    question: Question, result: SearchResult, passages: Sequence[Passage], *, instructions: Given = OURS
) -> SFTRecord | None:
    """Make an example of chain of thought from the kept trajectory (CoT*; with passages CoT-Retrieve*).

    The thought consists of the intermediate answers. Returns None if the search kept no trajectory.
    """
    node = result.best
    if node is None or node.answer is None:
        return None
    thought = " ".join(step.answer for step in node.steps) or node.answer
    _, *rest = reader.render(question.question, node.answer, passages, reasoning=thought)
    return SFTRecord(
        id=question.id,
        prompt=user_turn(instructions, "cot", reader.fields(question.question, passages)),
        completion="".join(segment.text for segment in rest),
        segments=rest,
        answer=node.answer,
        source=result.source,
        task="reader",
    )


def preference_pairs(
    question: Question, prompt: str, result: SearchResult, variant: PairVariant = "optimal"
) -> list[PreferencePair]:
    """Make preference pairs from a searched tree (section 3.4 and Table 5).

    ``optimal``: at each node of the kept path, its decision is preferred to the other one. ``all_nodes``: at every
    node of the whole tree, the decision that reaches a correct answer with fewer retrievals is preferred.
    ``sentence_wise``: the correct trajectory with the fewest retrievals is preferred to the one with the most. The
    last two variants need the whole tree, from `TreeSearch.explore`.
    """
    if result.best is None:
        return []
    if variant == "optimal":
        steps = result.best.steps
        return [
            _node_pair(question, prompt, steps[:i], step.subquery, step.decision) for i, step in enumerate(steps)
        ]
    if variant == "all_nodes":
        return [
            _node_pair(question, prompt, node.steps, node.subquery, decision)
            for node in nodes(result.root)
            if node.subquery is not None and (decision := _better_decision(node)) is not None
        ]
    costliest = max((leaf for leaf in leaves(result.root) if leaf.correct), key=lambda leaf: leaf.retrievals)
    if costliest.retrievals == result.best.retrievals:
        return []
    return [
        PreferencePair(
            id=f"{question.id}/0",
            prompt=prompt,
            chosen=deeprag.text_of(result.best.steps, result.best.answer),
            rejected=deeprag.text_of(costliest.steps, costliest.answer),
            history_start=len(prompt),
            node=0,
        )
    ]


def _node_pair(
    question: Question, prompt: str, steps: tuple[Step, ...], subquery: str, decision: Decision
) -> PreferencePair:
    other = Decision.PARAMETRIC if decision is Decision.RETRIEVE else Decision.RETRIEVE
    history = deeprag.text_of(steps) + deeprag.subquery_line(subquery)
    path = "".join("r" if step.decision is Decision.RETRIEVE else "p" for step in steps)
    return PreferencePair(
        id=f"{question.id}/{path or '-'}",
        prompt=prompt + history,
        chosen=deeprag.decision_snippet(decision),
        rejected=deeprag.decision_snippet(other),
        history_start=len(prompt),
        node=len(steps),
    )


def _better_decision(node: Node) -> Decision | None:
    """Return the decision that reaches a correct answer with fewer retrievals (parametric if they are equal).

    None if no correct answer is below ``node``.
    """
    costs = [
        (leaf.retrievals, child.steps[-1].decision is Decision.RETRIEVE)
        for child in node.children
        for leaf in leaves(child)
        if leaf.correct
    ]
    if not costs:
        return None
    return Decision.RETRIEVE if min(costs)[1] else Decision.PARAMETRIC
