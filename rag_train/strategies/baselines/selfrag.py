"""Self-RAG: reflection tokens, scored from their log-probabilities, choose whether to retrieve and what to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.llm.base import Completion, Sampling, TokenLogprob
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Run, Strategy, together

RETRIEVE = {"[Retrieval]": 1.0, "[No Retrieval]": 0.0}
RELEVANT = {"[Relevant]": 1.0, "[Irrelevant]": 0.0}
SUPPORTED = {"[Fully supported]": 1.0, "[Partially supported]": 0.5, "[No support / Contradictory]": 0.0}
USEFUL = {f"[Utility:{i}]": (i - 3) / 2 for i in range(1, 6)}
TOKENS = (*RETRIEVE, *RELEVANT, *SUPPORTED, *USEFUL)
"""Each is one token of a Self-RAG model's vocabulary."""
WEIGHTS = (1.0, 1.0, 0.5)
"""Of relevance, support and utility in a candidate's score (section 3.3 and appendix B of Self-RAG)."""

_WRITE = Sampling(max_tokens=100, logprobs=20)


@dataclass(frozen=True)
class Candidate:
    """A continuation for one passage (or none), with its score; the higher the better."""

    answer: str
    score: float
    passage: Passage | None = None


@dataclass(frozen=True)
class SelfRAG(Strategy):
    """Retrieve where [Retrieval] is likely enough; answer from each passage at once; keep the best by its tokens.

    Simplified: short-form answers, one segment. A model without the reflection tokens has no scores: all
    candidates are equal but for their probability.
    """

    paper: ClassVar = "Asai et al. 2024, section 3.3; baseline of HANRAG, PlanRAG and LevelRAG"
    needs: ClassVar = ("Self-RAG checkpoint", "log-probabilities")

    threshold: float | None = 0.2
    """Least probability of [Retrieval] at which to retrieve; null: always."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        if self.threshold is not None and await wants_retrieval(run, question.question) < self.threshold:
            best = await _continue(run, question.question, None)
            run.known(question.question, best.answer)
            return run.done(best.answer)
        passages = await run.search(question.question)
        best = await reflect(run, question.question, passages)
        run.retrieved(question.question, [best.passage] if best.passage else [], best.answer)
        return run.done(best.answer)


async def reflect(run: Run, question: str, passages: Sequence[Passage]) -> Candidate:
    """The best of the answers from each passage, all written at once; from memory if there is no passage."""
    candidates = await together(_continue(run, question, passage) for passage in passages or [None])
    return max(candidates, key=lambda candidate: candidate.score)


async def wants_retrieval(run: Run, question: str) -> float:
    """Share of [Retrieval] in the probability of the two tokens that decide it, at the first one written."""
    completion = await run.complete("selfrag", prompt(question), Sampling(max_tokens=1, logprobs=20))
    share = expected(completion.logprobs[0], RETRIEVE) if completion.logprobs else None
    return 1.0 if share is None else share


async def _continue(run: Run, question: str, passage: Passage | None) -> Candidate:
    lead = f"[Retrieval]{paragraph(passage)}" if passage else "[No Retrieval]"
    completion = await run.complete("selfrag", prompt(question) + lead, _WRITE)
    return Candidate(plain(completion.text), score(completion), passage)


def prompt(question: str) -> str:
    """As the released checkpoint is prompted."""
    return f"### Instruction:\n{one_line(question)}\n\n### Response:\n"


def paragraph(passage: Passage) -> str:
    """A passage as it stands in the response."""
    return f"<paragraph>{one_line(f'{passage.title} {passage.text}')}</paragraph>"


def score(completion: Completion) -> float:
    """Mean probability of the text, plus the weighted scores of its reflection tokens."""
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
    """Expected value under the tokens of ``values``, renormalised; None where none is among the alternatives.

    With ``written``, only where the most probable token is one of them: there the model stood at that decision.
    """
    if written and (not alternatives or alternatives[0].text.strip() not in values):
        return None
    mass = [(math.exp(t.logprob), values[t.text.strip()]) for t in alternatives if t.text.strip() in values]
    total = sum(chance for chance, _ in mass)
    return sum(chance * value for chance, value in mass) / total if total else None


def plain(text: str) -> str:
    """The text without reflection tokens."""
    for token in (*TOKENS, "<paragraph>", "</paragraph>", "</s>"):
        text = text.replace(token, " ")
    return one_line(text)
