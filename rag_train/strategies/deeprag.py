"""DeepRAG inference (section 3.1), and its two extremes (section 5.3, Figure 5).

In mode ``adaptive``, the controller generates until it asks to search, and the harness inserts the passages; a step
without a search needs no additional call. In the modes ``parametric`` and ``retrieve``, the decision is forced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar, Literal

from rag_train.formats import deeprag
from rag_train.formats.deeprag import Parsed
from rag_train.formats.prompting import as_turn, task_prompt
from rag_train.llm.base import Completion, Sampling, TokenLogprob
from rag_train.schema import AGAIN, Decision, LLMCall, Passage, Step, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy
from rag_train.strategies.controller import Controller

Mode = Literal["adaptive", "parametric", "retrieve"]
OWN_DECISIONS = 0.5
"""Threshold at which the controller's own decisions are followed, for which no log-probabilities are needed."""


@strategy("deeprag-retrieve", Bound(calls=13, retrievals=6), mode="retrieve")
@strategy("deeprag-parametric", Bound(calls=13, retrievals=0), mode="parametric")
@strategy("deeprag", Bound(calls=8, retrievals=6))
@dataclass(frozen=True)
class DeepRAG(Strategy):
    """Decompose the question; answer each subquery from memory or search for it.

    Ours: the bounds on steps and tokens; the paper bounds the history only in the search for training data.
    """

    paper: ClassVar = "DeepRAG (Guan et al. 2025), section 3.1"
    roles: ClassVar = ()
    abilities: ClassVar = (
        Need(
            "logprobs",
            lambda settings: settings.mode == "adaptive" and settings.threshold != OWN_DECISIONS,
            f"threshold={OWN_DECISIONS}, which follows the controller's own decisions",
        ),
    )
    needs: ClassVar = ("a Stage I or Stage II checkpoint",)

    mode: Mode = "adaptive"
    """adaptive: the controller decides; parametric: never search; retrieve: always search."""
    max_steps: int = 6
    """Maximum number of subqueries, also unanswered ones, after which the controller must answer."""
    max_tokens: int = 512
    """Maximum number of tokens of an engine call."""
    guided: bool = False
    """Restrict decoding to the format, for models that were not trained on it."""
    examples: bool = False
    """Show worked examples after the instruction, for models that were not trained on the format."""
    threshold: float = OWN_DECISIONS
    """adaptive: search if the probability of that decision is at least this value. 0.5 follows the controller's own
    decisions; a lower value searches more often, because a wrong parametric answer is worse than a needless
    search."""

    async def solve(self, run: Run) -> Trajectory:
        controller = self._controller(run)
        return run.done(await (self._adaptive if self.mode == "adaptive" else self._forced)(run, controller))

    async def branch(self, run: Run, steps: Sequence[Step], subquery: str, decision: Decision) -> Trajectory:
        """Answer the question from a state of its transcript: ``steps``, an open ``subquery``, and a decision.

        The calls of the trajectory are those after the state. The call that asks to search is one of them, because
        it ends there; with the other decision it would go on.
        """
        found = {i: step.passages for i, step in enumerate(steps) if step.decision is Decision.RETRIEVE}
        text = deeprag.text_of(steps) + deeprag.parametric_prompt(subquery)
        if decision is Decision.RETRIEVE:
            found[len(steps)] = await run.search(subquery)
            text = deeprag.text_of(steps) + deeprag.retrieved_prompt(subquery, found[len(steps)])
            run.calls.append(LLMCall(module="controller", prompt_tokens=0, completion_tokens=0))
        return run.done(await self._adaptive(run, self._controller(run), text, found))

    def _controller(self, run: Run) -> Controller:
        own = ("deeprag", "deeprag_examples") if self.examples else ("deeprag",)
        prompt = task_prompt(run.question.question, self.kit.instructions, *own)
        return Controller(run.log(), as_turn(self.kit.llm.tokenizer, prompt), self.max_tokens, self.guided)

    async def _adaptive(
        self, run: Run, controller: Controller, text: str = "", found: Mapping[int, list[Passage]] | None = None
    ) -> str | None:
        """Generate and search, after ``text`` with the passages ``found`` at its steps.

        A call that opens no step is the last, so there are at most max_steps + 2.
        """
        before, found = deeprag.parse(text), dict(found or {})
        opened = {len(before.steps)} if before.open_subquery else set[int]()
        chances: list[float | None] = [None] * (len(before.steps) + len(opened))
        sampling = Sampling(max_tokens=self.max_tokens, stop=tuple(deeprag.STOP_SEARCH), logprobs=5)
        while True:
            if self.guided:
                pattern = deeprag.ANSWER + deeprag.TURN if text else deeprag.TURN
                sampling = replace(sampling, regex=pattern)
            completion = await controller.log.complete("controller", controller.prompt + text, sampling)
            written, search, seen = self._decide(completion)
            text += written
            chances += seen
            parsed = deeprag.parse(text + (deeprag.SEARCH if search else ""))
            most = None if parsed.answer is not None else self.max_steps
            for step in _with_details(parsed.steps, found, chances)[len(run.steps) : most]:
                run.add(step)
            if parsed.answer is not None:
                return parsed.answer
            at = len(parsed.steps)
            if parsed.open_subquery is None or at in opened or at >= self.max_steps:
                break
            opened.add(at)
            if text.endswith(deeprag.INTERMEDIATE):
                continue
            if not parsed.wants_search:
                break
            found[at] = await run.search(parsed.open_subquery)
            text += f"{deeprag.SEARCH}\n{deeprag.context_lines(found[at])}{deeprag.INTERMEDIATE}"
        if parsed.open_subquery and at in found:
            run.retrieved(parsed.open_subquery, found[at])
        run.cut(self._reason(completion, parsed))
        return await controller.final(run.steps, AGAIN)

    def _reason(self, completion: Completion, parsed: Parsed) -> str:
        """Say why the final answer had to be forced."""
        where = f", at the subquery {parsed.open_subquery!r}" if parsed.open_subquery else ""
        if len(parsed.steps) >= self.max_steps:
            return f"ended after max_steps={self.max_steps}{where}"
        if completion.truncated:
            return f"a call ended at max_tokens={self.max_tokens}{where}"
        return f"the controller did not go on{where}"

    def _decide(self, completion: Completion) -> tuple[str, bool, list[float | None]]:
        """Apply ``threshold`` to the decisions in a completion.

        Returns the text up to the first changed decision, whether it ends in a search, and the probabilities of the
        decisions in that text. A line that was cut is no part of it.
        """
        text, chances = completion.whole_lines, decision_probabilities(completion)
        for i, (offset, chance) in enumerate(zip(decision_offsets(text), chances, strict=False)):
            rest = text[offset:].strip()
            searched = completion.stop == deeprag.SEARCH and not rest
            if chance is None or not (searched or rest.startswith(deeprag.INTERMEDIATE)):
                continue
            if searched and chance < self.threshold:
                return text + deeprag.INTERMEDIATE, False, chances[: i + 1]
            if not searched and chance >= self.threshold:
                return text[:offset], True, chances[: i + 1]
        return text, completion.stop == deeprag.SEARCH, chances

    async def _forced(self, run: Run, controller: Controller) -> str | None:
        while len(run.steps) < self.max_steps:
            move = await controller.next_move(run.steps)
            if move.subquery is None:
                return move.answer or await controller.final(run.steps, AGAIN)
            if self.mode == "retrieve":
                passages = await run.search(move.subquery)
                run.retrieved(
                    move.subquery, passages, await controller.retrieved(run.steps, move.subquery, passages)
                )
            else:
                run.known(move.subquery, await controller.parametric(run.steps, move.subquery))
        run.cut(f"ended after max_steps={self.max_steps}")
        return await controller.final(run.steps, AGAIN)


def decision_probabilities(completion: Completion) -> list[float | None]:
    """Return the probability of retrieving at each decision in a completion.

    A decision is the first token of the line after a "Follow up:" line. Its probability is renormalized over the
    two decision snippets, and None if neither is among the alternatives.
    """
    chances: list[float | None] = []
    line, after_subquery = "", False
    for token, alternatives in zip(completion.chosen, completion.logprobs, strict=False):
        if after_subquery and not line.strip():
            chances.append(_retrieve_share(alternatives))
            after_subquery = False
        line += token.text
        if "\n" in line:
            before, _, line = line.rpartition("\n")
            after_subquery = before.rpartition("\n")[2].strip().startswith(deeprag.FOLLOW_UP)
    return chances


def decision_offsets(text: str) -> list[int]:
    """Return the offsets at which the lines after "Follow up:" lines begin, or will begin."""
    offsets, at = [], 0
    for line in text.split("\n")[:-1]:
        at += len(line) + 1
        if line.strip().startswith(deeprag.FOLLOW_UP):
            offsets.append(at)
    return offsets


def _retrieve_share(alternatives: Sequence[TokenLogprob]) -> float | None:
    """Return the share of the search snippet in the probability of the two decision snippets."""

    def mass(snippet: str) -> float:
        return sum(
            math.exp(token.logprob)
            for token in alternatives
            if token.text.strip() and snippet.startswith(token.text.strip())
        )

    retrieve, parametric = mass(deeprag.SEARCH), mass(deeprag.INTERMEDIATE)
    return retrieve / (retrieve + parametric) if retrieve + parametric else None


def _with_details(
    steps: Sequence[Step], found: Mapping[int, list[Passage]], chances: Sequence[float | None]
) -> list[Step]:
    """Add to the parsed steps what the transcript lacks: ids and scores of passages, probabilities of decisions.

    A step is a retrieval if the harness searched for it, not if the controller only wrote that it did.
    """
    return [
        step.model_copy(
            update={
                "passages": found.get(i, []),
                "decision": Decision.RETRIEVE if i in found else Decision.PARAMETRIC,
                "retrieve_probability": chance,
            }
        )
        for i, (step, chance) in enumerate(zip_longest(steps, chances[: len(steps)]))
    ]
