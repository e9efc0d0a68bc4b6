"""Examples of the baselines' formats from gold annotations.

A mini model is trained on these examples, so that a comparison with the baselines measures the methods and not the
model's knowledge of their formats.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import takewhile

from rag_train.data_synth.methods.planrag import plan_from_gold
from rag_train.data_synth.modules.examples import Examples, found_or_known, says
from rag_train.formats import deeprag, planrag, reader
from rag_train.formats.instructions import OURS, Given
from rag_train.formats.planrag import PlanError, Response
from rag_train.formats.tasks import body
from rag_train.schema import GoldStep, Passage, Question, SFTRecord
from rag_train.strategies.base import interleave
from rag_train.strategies.baselines import (
    adaptive_rag,
    auto_rag,
    chatqa,
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
    uar,
)


def gold_records(
    question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: Given = OURS
) -> list[SFTRecord]:
    """Make examples of `Run.read` and of the baselines' modules.

    ``passages_by_query`` has the passages of the question and of each hop's subquery. An answer that is neither in
    the passages nor annotated as known to the model gets no example.
    """
    out = Examples(question, instructions)
    first = passages_by_query[question.question]
    everything = interleave([first, *(passages_by_query[step.subquery] for step in question.decomposition)])
    _classifiers(out, question)
    _readers(out, question, first, everything)
    _ircot(out, question, passages_by_query)
    if question.type == "compound":  # HANRAG's compound questions, on which it is not compared with the rest
        return out
    _itrg(out, question, everything)
    _resp(out, question, passages_by_query)
    _genground(out, question, passages_by_query)
    _iterdrag(out, question, passages_by_query)
    _react(out, question, passages_by_query)
    _auto_rag(out, question, passages_by_query)
    _metarag(out, question, first)
    _rankrag(out, question, first)
    _rq_rag(out, question, passages_by_query)
    _selfrag(out, question.question, question.answers[0], _knows(question), first, "whole")
    for i, step in enumerate(question.decomposition):
        _selfrag(out, step.subquery, step.short, bool(step.known), passages_by_query[step.subquery], str(i))
    known = [("", step.subquery, step.short) for step in question.decomposition]
    response = Response(Response=question.answers[0])
    out.add(qd_rag.ANSWER, planrag.answer_fields(question.question, first, known), response)
    try:
        drafts = [node.question for node in plan_from_gold(question).nodes[: len(question.decomposition)]]
        out.add(qd_rag.DECOMPOSE, [("Query", question.question)], drafts)
    except PlanError:
        pass
    return out


def _knows(question: Question) -> bool:
    """Whether the model knows the answers of all hops."""
    return all(step.known for step in question.decomposition)


def _answerable(question: Question, passages: Sequence[Passage]) -> list[GoldStep]:
    """Return the hops before the first one that the model cannot answer from memory or from the passages."""
    return list(takewhile(lambda step: found_or_known(passages, step), question.decomposition))


def _classifiers(out: Examples, question: Question) -> None:
    """Label the question by the true knowledge boundary: it needs no retrieval, one, or several."""
    knows = _knows(question)
    label = "A" if knows else "B" if len(question.decomposition) == 1 else "C"
    fields = [("Question", question.question)]
    out.add(adaptive_rag.CLASSIFY, fields, label)
    for task, verdict in ((uar.SELF, knows), (uar.INTENT, False), (uar.KNOWLEDGE, True), (uar.TIME, False)):
        out.add(task, fields, "yes" if verdict else "no")
    rng = random.Random(question.id)  # a random day, because the mini world's facts change on no particular day
    day = f"20{rng.randint(10, 40)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    out.add(taare.DECIDE, [("Today", day), *fields], "[No]" if knows else "[Yes]")


def _readers(out: Examples, question: Question, first: list[Passage], everything: list[Passage]) -> None:
    text, answer = question.question, question.answers[0]
    reasoning = " ".join(step.answer for step in question.decomposition)
    for place, passages in (("none", []), ("first", first), ("all", everything)):
        if len(_answerable(question, passages)) == len(question.decomposition):
            for name, thought in (("read", ""), ("reason", reasoning)):
                out.write("reader", reader.render(text, answer, passages, reasoning=thought), f"{place}/{name}")
            if place == "first":
                out.write(
                    "chatqa",
                    [(chatqa.turns(text, passages, False), False), (f" {answer}\n", True)],
                    place,
                    chat=False,
                )


def _ircot(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    thoughts: list[str] = []
    passages = passages_by_query[question.question]
    for i, step in enumerate(question.decomposition):
        if i:
            passages = interleave([passages, passages_by_query[step.subquery]])[: ircot.IRCoT.most_passages]
        if not found_or_known(passages, step):
            return
        fields = [("Context", passages), ("Question", question.question), ("Thought", list(thoughts))]
        out.add(ircot.THOUGHT, fields, step.answer, i)
        thoughts.append(step.answer)
    fields = [("Context", passages), ("Question", question.question), ("Thought", thoughts)]
    out.add(ircot.THOUGHT, fields, f"So {ircot.END} {question.answers[0]}.", "end")


def _itrg(out: Examples, question: Question, everything: list[Passage]) -> None:
    document = " ".join(step.answer for step in _answerable(question, everything))
    if document:
        fields = [("Context", everything[:3]), ("Question", question.question)]
        out.add(iter_retgen.DOCUMENT, fields, document)


def _resp(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    evidence: list[str] = []
    pathway: list[str] = []
    for i, step in enumerate(question.decomposition):
        passages = passages_by_query[step.subquery]
        if not found_or_known(passages, step):
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


def _genground(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    known: list[str] = []
    for i, step in enumerate(question.decomposition):
        hop = genground.Hop(question=step.subquery, answer=step.short if step.known else "")
        out.add(genground.GENERATE, [("Question", question.question), ("Known", list(known))], hop, i)
        passages = passages_by_query[step.subquery]
        grounded = step.short if says(passages, step.short) else "empty"
        fields = [("Context", passages), ("Question", step.subquery), ("Draft", hop.answer)]
        out.add(genground.GROUND, fields, grounded, i)
        known.append(f"Q={step.subquery} A={step.short}")
    last = genground.Hop(answer=question.answers[0], final=True)
    out.add(genground.GENERATE, [("Question", question.question), ("Known", known)], last, "end")


def _iterdrag(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    passages, text = passages_by_query[question.question], ""

    def add(line: str, place: str, lead: str = "") -> None:
        body = deeprag.context_lines(passages) + deeprag.question_prompt(question.question)
        out.write("iterdrag", [(body, False), (text + lead, False), (line, True)], place)

    for i, step in enumerate(question.decomposition):
        add(deeprag.subquery_line(step.subquery), f"{i}/ask")
        passages = interleave([passages, passages_by_query[step.subquery]])
        if not found_or_known(passages, step):
            return
        text += deeprag.subquery_line(step.subquery)
        add(f" {step.answer}\n", f"{i}/answer", deeprag.INTERMEDIATE)
        text += f"{deeprag.INTERMEDIATE} {step.answer}\n"
    add(f"{deeprag.FINAL} {question.answers[0]}\n", "end")


def _react(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    body, text, thought = f"Question: {question.question}\n", "", "I search for the first part."
    for i, step in enumerate(question.decomposition, 1):
        # The space matters: in the mini model's vocabulary, a name is one token only after a space.
        action = f" {thought}\nAction {i}: Search[ {step.subquery}]"
        lead = f"{text}Thought {i}:"
        out.write("react", [(body, False), (lead, False), (f"{action}\nObservation", True)], i)
        seen = passages_by_query[step.subquery][:1]
        if not found_or_known(seen, step):
            return
        text += f"Thought {i}:{action}\nObservation {i}: [{' '.join(deeprag.one_line(p.text) for p in seen)}]\n"
        thought = step.answer
    n = len(question.decomposition) + 1
    finish = f" {thought}\nAction {n}: Finish[ {question.answers[0]}]\nQuestion:"
    out.write("react", [(body, False), (f"{text}Thought {n}:", False), (finish, True)], "end")


def _auto_rag(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    found: dict[str, Passage] = {}
    segments = [(deeprag.question_prompt(question.question), False)]
    thought = "I search for the first part."
    for i, step in enumerate(question.decomposition):
        if step.known:
            lines = body([("Question", question.question), ("Query", step.subquery)])
            document = [(lines, False), (auto_rag.DOCUMENT.lead, False), (f" {step.answer}\n", True)]
            out.write(auto_rag.DOCUMENT.name, document, i, chat=False)
        more = [passage for passage in passages_by_query[step.subquery] if passage.id not in found]
        new = more[: auto_rag.AutoRAG.passages]
        found |= {passage.id: passage for passage in new}
        segments.append((f"{thought} {auto_rag.QUERY} {step.subquery}\n", True))
        segments.append((f"{auto_rag.retrieved(i + 1, new)}\n", False))
        if not found_or_known(list(found.values()), step):
            return
        thought = step.answer
    segments.append((f"{thought} {auto_rag.FINAL} {question.answers[0]}\n", True))
    out.write("auto_rag", segments, "end", chat=False)


def _metarag(out: Examples, question: Question, first: list[Passage]) -> None:
    answerable = _answerable(question, first)
    enough = len(answerable) == len(question.decomposition)
    answer = question.answers[0] if enough else answerable[-1].short if answerable else ""
    fields = [("Context", first), ("Question", question.question), ("Answer", answer)]
    out.add(metarag.INTERNAL, fields, "yes" if _knows(question) else "no")
    out.add(metarag.EXTERNAL, fields, "yes" if enough else "no")
    if not enough:
        thought = " ".join(step.answer for step in answerable)
        missing = question.decomposition[len(answerable)].subquery
        out.add(metarag.QUERY, [*fields, ("Thought", thought)], missing)


def _rankrag(out: Examples, question: Question, first: list[Passage]) -> None:
    verdicts = [any(step.short in passage.text for step in question.decomposition) for passage in first]
    for verdict in dict.fromkeys(verdicts):  # one passage per verdict, for balance
        fields = [("Context", [first[verdicts.index(verdict)]]), ("Question", question.question)]
        out.add(rankrag.RANK, fields, str(verdict), str(verdict))


def _rq_rag(out: Examples, question: Question, passages_by_query: Mapping[str, list[Passage]]) -> None:
    """Each of the three query refinements asks for the next hop, because no question is ambiguous."""
    text = rq_rag.turns(question.question, "", False)
    passages: list[Passage] = []
    for i, step in enumerate(question.decomposition[: rq_rag.RQRAG.depth]):
        for action in rq_rag.ACTIONS:
            query = f" {step.subquery}\n"
            out.write("rq_rag", [(text + action, False), (query, True)], f"{i}/{action}", chat=False)
        passages = [*passages, *passages_by_query[step.subquery]]
        if not found_or_known(passages, step):
            return
        found = rq_rag.evidence(passages_by_query[step.subquery])
        text += f"{rq_rag.ACTIONS[i % 3]} {step.subquery}{rq_rag.END}{found}"
    if len(_answerable(question, passages)) == len(question.decomposition):
        response = f" {question.answers[0]}\n"
        out.write("rq_rag", [(text + rq_rag.RESPONSE, False), (response, True)], "end", chat=False)


def _selfrag(out: Examples, query: str, answer: str, known: bool, passages: list[Passage], place: str) -> None:
    """Retrieve if the answer is not known; label a passage's support and utility by whether it has the answer."""
    head = selfrag.prompt(query)
    if known:
        own = f"[No Retrieval] {answer}[Utility:5]"
        out.write("selfrag", [(head, False), (own, True)], f"{place}/known", chat=False)
    for i, passage in enumerate(passages):
        supported = says([passage], answer)
        supporting = f"[Relevant] {answer}[Fully supported][Utility:5]"
        written = supporting if supported else "[Irrelevant] none[No support / Contradictory][Utility:1]"
        read = selfrag.paragraph(passage)
        if not known and i == 0:
            segments = [(head, False), ("[Retrieval]", True), (read, False), (written, True)]
        else:
            segments = [(f"{head}[Retrieval]{read}", False), (written, True)]
        if supported or i == 0:  # of the irrelevant passages only the first, because they are far more frequent
            out.write("selfrag", segments, f"{place}/{i}", chat=False)
