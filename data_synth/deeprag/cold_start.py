"""Cold-start examples for DeepRAG: gold decompositions as transcripts, which teach the format but no decision.

The search needs a model that writes the format. Large instruct models write it after two examples in the prompt;
small models have to be taught. Each decision is drawn at random, so that only Stage I teaches decisions. Answers
from parametric knowledge are the model's own answers, right or wrong, so that training keeps what the model
knows. Each question also gives examples of direct answering and of reading, so that these baselines can be compared
with DeepRAG on the same model.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rag_train.answers import accurate, contains, rules_of
from rag_train.data_synth.deeprag.examples import transcript_record
from rag_train.formats import deeprag, reader
from rag_train.formats.prompting import few_shot_prompt
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.call_log import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, GoldStep, LLMCall, Passage, Question, SFTRecord, Step

EXAMPLES = 2
"""Worked examples in a prompt that asks for an answer from parametric knowledge."""
POOL = 500
"""Number of questions from which the worked examples are chosen."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class ColdStartConfig:
    """Settings of the cold-start examples."""

    retrieve_share: float = 0.6
    """Probability that a step retrieves."""
    max_tokens: int = 64
    """Maximum length of an answer from parametric knowledge, in tokens. One that is longer is left out."""


class ColdStart:
    """Makes the examples with one engine and one retriever; many questions can be processed concurrently."""

    def __init__(
        self,
        llm: LLM,
        retriever: AsyncRetriever,
        config: ColdStartConfig,
        questions: Iterable[Question],
        passages: int,
        seed: int,
    ):
        """``questions`` supply the worked examples; ``passages`` is the number that a retrieval returns."""
        self._llm = llm
        self._retriever = retriever
        self._config = config
        self._passages = passages
        self._seed = seed
        pool = list(itertools.islice((question for question in questions if question.decomposition), POOL))
        self._questions = {question.question: question.answers[0] for question in pool}
        self._facts = {step.subquery: step.short for question in pool for step in question.decomposition}

    async def examples(self, question: Question, prompt: str) -> tuple[list[SFTRecord], list[LLMCall]]:
        """Return the examples and the engine calls; no examples if the question has no decomposition.

        ``prompt`` is DeepRAG's prompt.
        """
        log = CallLog(self._llm)
        if not question.decomposition:
            return [], []
        found = [await self._transcript(log, question, prompt), *await self._readings(log, question)]
        return [record for record in found if record], log.calls

    async def _readings(self, log: CallLog, question: Question) -> list[SFTRecord]:
        """Examples of direct answering (the model's own answer) and of reading passages that have the answer."""
        out = []
        if own := await self._own_answer(log, question.question, self._questions):
            answer = question.answers[0] if accurate(own, question.answers, rules_of(question)) else own
            out.append(_reading(question, "direct", answer, []))
        passages = await self._retriever.search(question.question, self._passages)
        if any(contains(passage.text, question.answers, rules_of(question)) for passage in passages):
            out.append(_reading(question, "rag", question.answers[0], passages))
        return out

    async def _transcript(self, log: CallLog, question: Question, prompt: str) -> SFTRecord | None:
        """A DeepRAG transcript.

        A wrong answer from parametric knowledge takes the place of the gold answer in the next subquery that
        depends on it. The example ends with that subquery, because nobody knows its answer.
        """
        rng = random.Random(f"{self._seed}-{question.id}")
        steps: list[Step] = []
        wrong: dict[str, str] = {}
        for gold in question.decomposition:
            retrieve = rng.random() < self._config.retrieve_share
            subquery = _replaced(gold.subquery, wrong)
            if subquery != gold.subquery:
                return transcript_record(question, prompt, steps, None, "gold", subquery)
            step = (await self._retrieved(gold, question) if retrieve else None) or await self._remembered(
                log, gold, question
            )
            if step is None:
                break
            if not _is_right(step.answer, gold, question):
                wrong[gold.short] = step.answer
            steps.append(step)
        answer = question.answers[0] if len(steps) == len(question.decomposition) and not wrong else None
        return transcript_record(question, prompt, steps, answer, "gold") if steps else None

    async def _retrieved(self, gold: GoldStep, question: Question) -> Step | None:
        """Return the step with passages; None if no passage contains the answer."""
        passages = await self._retriever.search(gold.subquery, self._passages)
        if not any(contains(passage.text, [gold.short], rules_of(question)) for passage in passages):
            return None
        return Step(subquery=gold.subquery, decision=Decision.RETRIEVE, passages=passages, answer=gold.short)

    async def _remembered(self, log: CallLog, gold: GoldStep, question: Question) -> Step | None:
        """Return the step with the model's own answer; None if it is empty."""
        own = await self._own_answer(log, gold.subquery, self._facts)
        answer = gold.short if _is_right(own, gold, question) else own
        return Step(subquery=gold.subquery, decision=Decision.PARAMETRIC, answer=answer) if answer else None

    async def _own_answer(self, log: CallLog, question: str, pool: Mapping[str, str]) -> str:
        """Return the model's greedy answer after worked examples, the most similar questions of ``pool``.

        An answer that was cut is empty.
        """
        prompt = few_shot_prompt(self._llm.tokenizer, _most_similar(question, pool), question)
        sampling = Sampling(max_tokens=self._config.max_tokens, stop=("\n",))
        return deeprag.one_line((await log.complete("parametric", prompt, sampling)).whole or "")


def _most_similar(question: str, pool: Mapping[str, str]) -> list[tuple[str, str]]:
    """The entries of ``pool`` that share the most words with ``question``, except the question itself."""
    words = set(_WORD.findall(question))

    def shared(entry: tuple[str, str]) -> int:
        return len(words.intersection(_WORD.findall(entry[0])))

    return sorted((entry for entry in pool.items() if entry[0] != question), key=shared, reverse=True)[:EXAMPLES]


def _is_right(answer: str, gold: GoldStep, question: Question) -> bool:
    accepted = question.answers if gold.short in question.answers else [gold.short]
    return accurate(answer, accepted, rules_of(question))


def _replaced(subquery: str, wrong: Mapping[str, str]) -> str:
    for right, own in wrong.items():
        subquery = re.sub(rf"(?<!\w)(the )?{re.escape(right)}(?!\w)", lambda _, own=own: own, subquery)
    return subquery


def _reading(question: Question, name: str, answer: str, passages: Sequence[Passage]) -> SFTRecord:
    prompt, lead, tail = reader.render(question.question, answer, passages)
    return SFTRecord(
        id=f"{question.id}/{name}",
        prompt=prompt.text,
        completion=lead.text + tail.text,
        segments=[lead, tail],
        answer=answer,
        source="gold",
        task="reader",
    )
