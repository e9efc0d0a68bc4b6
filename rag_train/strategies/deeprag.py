"""DeepRAG inference (section 3.1), and its two extremes (section 5.3, Figure 5).

``adaptive``: the controller writes on until it asks to search; the harness answers with passages. A step that
needs no search costs no extra call. ``parametric`` and ``retrieve`` take the decision away from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from rag_train.formats import deeprag
from rag_train.formats.prompting import as_turn, task_prompt
from rag_train.llm.base import LLM, Completion, Sampling, TokenLogprob
from rag_train.llm.memo import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, Passage, Question, Step, Trajectory
from rag_train.strategies.controller import Controller

Mode = Literal["adaptive", "parametric", "retrieve"]


@dataclass(frozen=True)
class DeepRAG:
    """``task`` names the instruction in ``prompts/`` (None for models trained without one); after
    ``max_steps`` subqueries the controller must answer."""

    llm: LLM
    retriever: AsyncRetriever
    mode: Mode = "adaptive"
    passages: int = 3
    max_steps: int = 6
    task: str | None = "deeprag"
    max_tokens: int = 256
    """Most tokens one engine call may write."""

    @property
    def name(self) -> str:
        return "deeprag" if self.mode == "adaptive" else f"deeprag-{self.mode}"

    async def answer(self, question: Question) -> Trajectory:
        log = CallLog(self.llm)
        controller = Controller(log, as_turn(self.llm.tokenizer, task_prompt(question.question, self.task)))
        run = self._adaptive if self.mode == "adaptive" else self._forced
        steps, answer = await run(controller)
        return Trajectory(
            question_id=question.id,
            question=question.question,
            strategy=self.name,
            steps=steps,
            answer=answer,
            calls=log.calls,
        )

    async def _adaptive(self, controller: Controller) -> tuple[list[Step], str | None]:
        text = ""
        retrieved: list[list[Passage]] = []
        chances: list[float | None] = []
        sampling = Sampling(max_tokens=self.max_tokens, stop=tuple(deeprag.STOP_SEARCH), logprobs=5)
        while True:
            completion = await controller.log.complete("controller", controller.prompt + text, sampling)
            text += completion.text
            chances += decision_probabilities(completion)
            parsed = deeprag.parse(text + (deeprag.SEARCH if completion.stop == deeprag.SEARCH else ""))
            steps = _with_details(parsed.steps, retrieved, chances)
            if parsed.answer is not None:
                return steps, parsed.answer
            if parsed.open_subquery is None or not parsed.wants_search or len(steps) >= self.max_steps:
                steps = steps[: self.max_steps]
                return steps, await controller.final(steps)
            retrieved.append(await self.retriever.search(parsed.open_subquery, self.passages))
            text += f"{deeprag.SEARCH}\n{deeprag.context_lines(retrieved[-1])}{deeprag.INTERMEDIATE}"

    async def _forced(self, controller: Controller) -> tuple[list[Step], str | None]:
        steps: list[Step] = []
        while len(steps) < self.max_steps:
            move = await controller.next_move(steps)
            if move.subquery is None:
                return steps, move.answer or await controller.final(steps)
            passages: list[Passage] = []
            if self.mode == "retrieve":
                passages = await self.retriever.search(move.subquery, self.passages)
                answer = await controller.retrieved(steps, move.subquery, passages)
                decision = Decision.RETRIEVE
            else:
                answer = await controller.parametric(steps, move.subquery)
                decision = Decision.PARAMETRIC
            steps.append(Step(subquery=move.subquery, decision=decision, passages=passages, answer=answer))
        return steps, await controller.final(steps)


def decision_probabilities(completion: Completion) -> list[float | None]:
    """Probability of retrieving at each decision the completion made: at the first token of every line after a
    "Follow up:" line, renormalised over the two snippets; None where neither was among the alternatives."""
    chances: list[float | None] = []
    line, after_subquery = "", False
    for token_id, alternatives in zip(completion.token_ids, completion.logprobs, strict=False):
        if after_subquery and not line.strip():
            chances.append(_retrieve_share(alternatives))
            after_subquery = False
        line += next(token.text for token in alternatives if token.token_id == token_id)
        if "\n" in line:
            before, _, line = line.rpartition("\n")
            after_subquery = before.rpartition("\n")[2].strip().startswith(deeprag.FOLLOW_UP)
    return chances


def _retrieve_share(alternatives: Sequence[TokenLogprob]) -> float | None:
    def mass(snippet: str) -> float:
        return sum(
            math.exp(token.logprob)
            for token in alternatives
            if token.text.strip() and snippet.startswith(token.text.strip())
        )

    retrieve, parametric = mass(deeprag.SEARCH), mass(deeprag.INTERMEDIATE)
    return retrieve / (retrieve + parametric) if retrieve + parametric else None


def _with_details(
    steps: Sequence[Step], retrieved: Sequence[list[Passage]], chances: Sequence[float | None]
) -> list[Step]:
    """The parsed steps with what the transcript does not carry: passage ids and scores, probabilities."""
    found = iter(retrieved)
    out = []
    for step, chance in zip_longest(steps, chances[: len(steps)]):
        passages = next(found, []) if step.decision is Decision.RETRIEVE else []
        out.append(step.model_copy(update={"passages": passages, "retrieve_probability": chance}))
    return out
