"""The baselines that answer in one call: direct, chain of thought, and vanilla retrieve-then-read.

Sources: the baselines of all five papers; chain of thought after Wei et al. (2022), zero-shot here (the papers
give 8 examples; put them in ``prompts/cot.txt``).
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_train.formats import reader
from rag_train.formats.deeprag import FINAL
from rag_train.formats.prompting import as_turn, instruction
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.memo import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, Passage, Question, Step, Trajectory


async def _read(
    name: str, llm: LLM, question: Question, passages: list[Passage], task: str | None, *, reason: bool = False
) -> Trajectory:
    """One call. The answer marker is part of the prompt, so that what comes back is the answer itself."""
    log = CallLog(llm)
    head = f"{instruction(task)}\n\n" if task else ""
    body = reader.prompt(question.question, passages, reason=reason)
    marker = reader.THOUGHT if reason else FINAL
    prompt = as_turn(llm.tokenizer, head + body.removesuffix(marker)) + marker
    sampling = Sampling(max_tokens=256 if reason else 64, stop=() if reason else ("\n",))
    text = (await log.complete("reader", prompt, sampling)).text
    reasoning, answer = reader.parse(text if reason else FINAL + text)
    step = Step(subquery=question.question, decision=Decision.RETRIEVE, passages=passages, answer=answer or "")
    return Trajectory(
        question_id=question.id,
        question=question.question,
        strategy=name,
        steps=[step] if passages else [],
        answer=answer,
        reasoning=reasoning,
        calls=log.calls,
    )


@dataclass(frozen=True)
class Direct:
    llm: LLM
    task: str | None = "direct"
    name: str = "direct"

    async def answer(self, question: Question) -> Trajectory:
        return await _read(self.name, self.llm, question, [], self.task)


@dataclass(frozen=True)
class ChainOfThought:
    llm: LLM
    task: str | None = "cot"
    name: str = "cot"

    async def answer(self, question: Question) -> Trajectory:
        return await _read(self.name, self.llm, question, [], self.task, reason=True)


@dataclass(frozen=True)
class VanillaRAG:
    llm: LLM
    retriever: AsyncRetriever
    passages: int = 5
    task: str | None = "rag"
    name: str = "rag"

    async def answer(self, question: Question) -> Trajectory:
        found = await self.retriever.search(question.question, self.passages)
        return await _read(self.name, self.llm, question, found, self.task)
