"""The baselines' formats from gold annotations: with these a mini model is taught to run them, lest every
comparison with them be one of formats."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from data_synth.planrag import plan_from_gold
from data_synth.records import Gold, says
from rag_train.formats import deeprag, reader
from rag_train.formats.planrag import PlanError
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies.base import interleave
from rag_train.strategies.baselines import (
    adaptive_rag,
    auto_rag,
    genground,
    ircot,
    iter_retgen,
    metarag,
    qd_rag,
    rankrag,
    resp,
    rq_rag,
    selfrag,
    taare,
    two_hop,
    uar,
)


def gold_records(
    question: Question, found: Mapping[str, list[Passage]], *, instructions: bool = True
) -> list[SFTRecord]:
    """Examples of what `Run.read` and the baselines' modules are asked; ``found``: what is retrieved for the
    question and for each hop's subquery. Nothing is taught that neither the passages say nor the model knows."""
    out = Gold(question, instructions)
    first = found[question.question]
    everything = interleave([first, *(found[step.subquery] for step in question.decomposition)])
    _classifiers(out, question)
    _readers(out, question, first, everything)
    _ircot(out, question, found)
    if question.type == "compound":  # HANRAG's, which compares with no others on them
        return out
    _two_hop(out, question, first)
    _itrg(out, question, everything)
    _resp(out, question, found)
    _genground(out, question, found)
    _iterdrag(out, question, found)
    _react(out, question, found)
    _auto_rag(out, question, found)
    _metarag(out, question, first)
    _rankrag(out, question, first)
    _rq_rag(out, question, found)
    _selfrag(out, question.question, question.answers[0], _knows(question), first, "whole")
    for i, step in enumerate(question.decomposition):
        _selfrag(out, step.subquery, step.short, bool(step.known), found[step.subquery], str(i))
    try:
        drafts = [node.question for node in plan_from_gold(question).nodes[: len(question.decomposition)]]
        out.add(qd_rag.DECOMPOSE, [("Query", question.question)], drafts)
    except PlanError:
        pass
    return out


def _can_tell(step: GoldStep, passages: Sequence[Passage]) -> bool:
    return bool(step.known) or says(list(passages), step.short)


def _knows(question: Question) -> bool:
    return all(step.known for step in question.decomposition)


def _told(question: Question, passages: Sequence[Passage]) -> list[GoldStep]:
    """The hops that can be told one after the other, up to the first that cannot."""
    told = []
    for step in question.decomposition:
        if not _can_tell(step, passages):
            break
        told.append(step)
    return told


def _classifiers(out: Gold, question: Question) -> None:
    """By the true knowledge boundary: what needs no retrieval, one, or several."""
    knows = _knows(question)
    label = "A" if knows else "B" if len(question.decomposition) == 1 else "C"
    fields = [("Question", question.question)]
    out.add(adaptive_rag.CLASSIFY, fields, label)
    for task, verdict in ((uar.SELF, knows), (uar.INTENT, False), (uar.KNOWLEDGE, True), (uar.TIME, False)):
        out.add(task, fields, "yes" if verdict else "no")
    rng = random.Random(question.id)  # any day: nothing here changes with time
    day = f"20{rng.randint(10, 40)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    out.add(taare.DECIDE, [("Today", day), *fields], "[No]" if knows else "[Yes]")


def _readers(out: Gold, question: Question, first: list[Passage], everything: list[Passage]) -> None:
    text, answer = question.question, question.answers[0]
    reasoning = " ".join(step.answer for step in question.decomposition)
    for place, passages in (("none", []), ("first", first), ("all", everything)):
        if len(_told(question, passages)) == len(question.decomposition):
            for name, thought in (("read", ""), ("reason", reasoning)):
                out.write("reader", reader.render(text, answer, passages, reasoning=thought), f"{place}/{name}")


def _two_hop(out: Gold, question: Question, first: list[Passage]) -> None:
    steps = question.decomposition
    if len(steps) > 1 and _can_tell(steps[0], first):
        out.add(two_hop.FOLLOW, [("Context", first), ("Question", question.question)], steps[1].subquery)


def _ircot(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    thoughts: list[str] = []
    passages = found[question.question]
    for i, step in enumerate(question.decomposition):
        if i:
            passages = interleave([passages, found[step.subquery]])[: ircot.IRCoT.most_passages]
        if not _can_tell(step, passages):
            return
        fields = [("Context", passages), ("Question", question.question), ("Thought", list(thoughts))]
        out.add(ircot.THOUGHT, fields, step.answer, i)
        thoughts.append(step.answer)
    fields = [("Context", passages), ("Question", question.question), ("Thought", thoughts)]
    out.add(ircot.THOUGHT, fields, f"So {ircot.END} {question.answers[0]}.", "end")


def _itrg(out: Gold, question: Question, everything: list[Passage]) -> None:
    told = " ".join(step.answer for step in _told(question, everything))
    if told:
        fields = [("Context", everything[:3]), ("Question", question.question)]
        out.add(iter_retgen.DOCUMENT, fields, told)


def _resp(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    evidence: list[str] = []
    pathway: list[str] = []
    for i, step in enumerate(question.decomposition):
        passages = found[step.subquery]
        if not _can_tell(step, passages):
            return
        out.add(resp.GLOBAL, [("Context", passages), ("Question", question.question)], step.answer, i)
        out.add(resp.LOCAL, [("Context", passages), ("Question", step.subquery)], step.answer, i)
        evidence.append(step.answer)
        pathway.append(f"Q={step.subquery} A={step.answer}")
        memory = [("Evidence", list(evidence)), ("Pathway", list(pathway)), ("Question", question.question)]
        last = i + 1 == len(question.decomposition)
        out.add(resp.JUDGE, memory, "yes" if last else "no", i)
        if last:
            out.add(resp.ANSWER, memory, question.answers[0])
        else:
            out.add(resp.NEXT, memory, question.decomposition[i + 1].subquery, i)


def _genground(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    known: list[str] = []
    for i, step in enumerate(question.decomposition):
        hop = genground.Hop(question=step.subquery, answer=step.short if step.known else "")
        out.add(genground.GENERATE, [("Question", question.question), ("Known", list(known))], hop, i)
        passages = found[step.subquery]
        grounded = step.short if says(passages, step.short) else "empty"
        fields = [("Context", passages), ("Question", step.subquery), ("Draft", hop.answer)]
        out.add(genground.GROUND, fields, grounded, i)
        known.append(f"Q={step.subquery} A={step.short}")
    last = genground.Hop(answer=question.answers[0], final=True)
    out.add(genground.GENERATE, [("Question", question.question), ("Known", known)], last, "end")


def _iterdrag(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    passages, text = found[question.question], ""
    for i, step in enumerate(question.decomposition):
        body = deeprag.context_lines(passages) + deeprag.question_prompt(question.question)
        out.write("iterdrag", [(body + text, False), (deeprag.subquery_line(step.subquery), True)], f"{i}/ask")
        passages = interleave([passages, found[step.subquery]])
        if not _can_tell(step, passages):
            return
        text += deeprag.subquery_line(step.subquery) + deeprag.INTERMEDIATE
        body = deeprag.context_lines(passages) + deeprag.question_prompt(question.question)
        out.write("iterdrag", [(body + text, False), (f" {step.answer}\n", True)], f"{i}/answer")
        text += f" {step.answer}\n"
    body = deeprag.context_lines(passages) + deeprag.question_prompt(question.question)
    out.write("iterdrag", [(body + text, False), (f"{deeprag.FINAL} {question.answers[0]}\n", True)], "end")


def _react(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    text, thought = f"Question: {question.question}\n", "I search for the first part."
    for i, step in enumerate(question.decomposition, 1):
        # A space, for in the mini model's vocabulary a name is one token only after one.
        action = f" {thought}\nAction {i}: Search[ {step.subquery}]"
        out.write("react", [(f"{text}Thought {i}:", False), (f"{action}\nObservation", True)], i)
        seen = found[step.subquery][:1]
        if not _can_tell(step, seen):
            return
        text += f"Thought {i}:{action}\nObservation {i}: [{' '.join(deeprag.one_line(p.text) for p in seen)}]\n"
        thought = step.answer
    n = len(question.decomposition) + 1
    finish = f" {thought}\nAction {n}: Finish[ {question.answers[0]}]\nQuestion:"
    out.write("react", [(f"{text}Thought {n}:", False), (finish, True)], "end")


def _auto_rag(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    passages: list[Passage] = []
    thoughts: list[str] = []
    thought = "I search for the first part."

    def move(place: int | str, **to: str) -> None:
        fields = [("Question", question.question), ("Context", passages), ("Thought", list(thoughts))]
        out.add(auto_rag.MOVE, fields, auto_rag.Move(thought=thought, **to), place)

    for i, step in enumerate(question.decomposition):
        move(i, query=step.subquery)
        thoughts.append(thought)
        passages = interleave([passages, found[step.subquery]])
        if step.known:
            out.add(auto_rag.DOCUMENT, [("Query", step.subquery)], step.answer, i)
        if not _can_tell(step, passages):
            return
        thought = step.answer
    move("end", answer=question.answers[0])


def _metarag(out: Gold, question: Question, first: list[Passage]) -> None:
    told = _told(question, first)
    enough = len(told) == len(question.decomposition)
    answer = question.answers[0] if enough else told[-1].short if told else ""
    fields = [("Context", first), ("Question", question.question), ("Answer", answer)]
    out.add(metarag.INTERNAL, fields, "yes" if _knows(question) else "no")
    out.add(metarag.EXTERNAL, fields, "yes" if enough else "no")
    if not enough:
        thought = " ".join(step.answer for step in told)
        missing = question.decomposition[len(told)].subquery
        out.add(metarag.QUERY, [*fields, ("Thought", thought)], missing)


def _rankrag(out: Gold, question: Question, first: list[Passage]) -> None:
    verdicts = [any(step.short in passage.text for step in question.decomposition) for passage in first]
    for verdict in dict.fromkeys(verdicts):  # one of either, for balance
        fields = [("Context", [first[verdicts.index(verdict)]]), ("Question", question.question)]
        out.add(rankrag.RANK, fields, str(verdict), str(verdict))


def _rq_rag(out: Gold, question: Question, found: Mapping[str, list[Passage]]) -> None:
    """Every way of refining a query asks for the next hop: nothing here is ambiguous."""
    text = f"Question: {question.question}\n"
    passages: list[Passage] = []
    for i, step in enumerate(question.decomposition[: rq_rag.RQRAG.depth]):
        for action in rq_rag.ACTIONS:
            out.write("rq_rag", [(text + action, False), (f" {step.subquery}\n", True)], f"{i}/{action}")
        passages = [*passages, *found[step.subquery]]
        if not _can_tell(step, passages):
            return
        context = deeprag.context_lines(found[step.subquery])
        text += f"{rq_rag.ACTIONS[i % 3]} {step.subquery}{rq_rag.END}\n{context}"
    if len(_told(question, passages)) == len(question.decomposition):
        out.write("rq_rag", [(text + rq_rag.RESPONSE, False), (f" {question.answers[0]}\n", True)], "end")


def _selfrag(out: Gold, query: str, answer: str, known: bool, passages: list[Passage], place: str) -> None:
    """Retrieve what is not known; of the passages, support and utility by whether they hold the answer."""
    head = selfrag.prompt(query)
    if known:
        out.write("selfrag", [(head, False), (f"[No Retrieval] {answer}[Utility:5]", True)], f"{place}/known")
    for i, passage in enumerate(passages):
        right = says([passage], answer)
        judged = f"[Relevant] {answer}[Fully supported][Utility:5]"
        written = judged if right else "[Irrelevant] none[No support / Contradictory][Utility:1]"
        read = selfrag.paragraph(passage)
        if not known and i == 0:
            segments = [(head, False), ("[Retrieval]", True), (read, False), (written, True)]
        else:
            segments = [(f"{head}[Retrieval]{read}", False), (written, True)]
        if right or i == 0:  # noise is plenty
            out.write("selfrag", segments, f"{place}/{i}")
