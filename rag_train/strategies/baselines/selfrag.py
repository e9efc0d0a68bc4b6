"""Self-RAG: log-probabilities of reflection tokens decide whether to retrieve and which answer to select."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import LINE_TOKENS
from rag_train.llm.base import Completion, Sampling, TokenLogprob
from rag_train.llm.control import trusted
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy, together

RETRIEVE = {"[Retrieval]": 1.0, "[No Retrieval]": 0.0}
RELEVANT = {"[Relevant]": 1.0, "[Irrelevant]": 0.0}
SUPPORTED = {"[Fully supported]": 1.0, "[Partially supported]": 0.5, "[No support / Contradictory]": 0.0}
USEFUL = {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)}
TOKENS = (*RETRIEVE, *RELEVANT, *SUPPORTED, *USEFUL)
"""The reflection tokens, each of which is a single token of a Self-RAG model's vocabulary."""
OWN = (*TOKENS, "<paragraph>", "</paragraph>")
"""All tokens that the format writes itself. Questions and passages do not contain them."""
WEIGHTS = (1.0, 1.0, 0.5)
"""Weights of relevance, support and utility in a candidate's score (Self-RAG, section 3.3 and appendix B)."""

_WRITE = Sampling(max_tokens=LINE_TOKENS, logprobs=20)


@dataclass(frozen=True)
class Candidate:
    """An answer from a passage, or from memory without a passage, and its score. A higher score is better.

    An answer that was cut is empty and has the lowest score.
    """

    answer: str
    score: float
    passage: Passage | None = None


@strategy("self-rag", Bound(calls=4, retrievals=1))
@dataclass(frozen=True)
class SelfRAG(Strategy):
    """Retrieve if [Retrieval] is probable enough, answer from each passage, and select by the reflection tokens.

    Simplification: answers are short and have one segment. If the model has no reflection tokens, candidates differ
    only in their probability.
    """

    paper: ClassVar = "Asai et al. 2024, section 3.3; baseline of HANRAG, PlanRAG and LevelRAG"
    roles: ClassVar = ()
    needs: ClassVar = ("a Self-RAG checkpoint",)
    abilities: ClassVar = (Need("logprobs"), Need("continues"))

    threshold: float | None = 0.2
    """Retrieve if the probability of [Retrieval] is at least this value; null: always retrieve."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        if self.threshold is not None and await wants_retrieval(run, question.question) < self.threshold:
            best = await _continue(run, question.question, None)
            run.known(question.question, best.answer)
            return run.done(best.answer)
        passages = await run.search(question.question)
        best = await reflect(run, question.question, passages)
        run.retrieved(question.question, [best.passage] if best.passage else [], best.answer)
        return run.done(best.answer)


async def reflect(run: Run, question: str, passages: Sequence[Passage]) -> Candidate:
    """Answer from each passage, or from memory if there are no passages, and return the best answer."""
    candidates = await together(_continue(run, question, passage) for passage in passages or [None])
    return max(candidates, key=lambda candidate: candidate.score)


async def wants_retrieval(run: Run, question: str) -> float:
    """Return the probability of [Retrieval] against [No Retrieval] at the first generated token.

    If neither is among the alternatives, return 1.
    """
    completion = await run.complete("selfrag", prompt(question), Sampling(max_tokens=1, logprobs=20))
    share = expected(completion.logprobs[0], RETRIEVE) if completion.logprobs else None
    return 1.0 if share is None else share


async def _continue(run: Run, question: str, passage: Passage | None) -> Candidate:
    lead = f"[Retrieval]{paragraph(passage)}" if passage else "[No Retrieval]"
    text = prompt(question) + trusted(run.kit.llm.tokenizer, lead, OWN)
    completion = await run.complete("selfrag", text, _WRITE)
    if completion.truncated:
        return Candidate("", -math.inf, passage)
    return Candidate(plain(completion.text), score(completion), passage)


def prompt(question: str) -> str:
    """Return the prompt of the released checkpoint."""
    return f"### Instruction:\n{plain(question)}\n\n### Response:\n"


def paragraph(passage: Passage) -> str:
    """Return a passage in the format of the response."""
    return f"<paragraph>{plain(f'{passage.title} {passage.text}')}</paragraph>"


def score(completion: Completion) -> float:
    """Return the mean token probability of the text plus the weighted scores of its reflection tokens."""
    if not completion.logprobs:
        return 0.0
    chosen = completion.chosen
    total = math.exp(sum(token.logprob for token in chosen) / max(1, len(chosen)))
    for weight, values in zip(WEIGHTS, (RELEVANT, SUPPORTED, USEFUL), strict=True):
        shares = (expected(alternatives, values, written=True) for alternatives in completion.logprobs)
        total += weight * next((share for share in shares if share is not None), 0.0)
    return total


def expected(
    alternatives: Sequence[TokenLogprob], values: Mapping[str, float], *, written: bool = False
) -> float | None:
    """Return the expected value over the tokens of ``values``, with their probabilities renormalized.

    Returns None if none of these tokens is among the alternatives or, with ``written``, if the most probable token
    is not one of them, because the model did not make this decision there.
    """
    if written and (not alternatives or alternatives[0].text.strip() not in values):
        return None
    mass = [(math.exp(t.logprob), values[t.text.strip()]) for t in alternatives if t.text.strip() in values]
    total = sum(chance for chance, _ in mass)
    return sum(chance * value for chance, value in mass) / total if total else None


def plain(text: str) -> str:
    """Return the text in one line, without the format's own tokens."""
    for token in (*OWN, "</s>"):
        text = text.replace(token, " ")
    return one_line(text)
