"""DeepRAG's tree search for the correct trajectory with the fewest retrievals (Algorithm 1).

The tree is binary: at each subquery the controller answers from parametric knowledge, or retrieves. Where the
released code differs from the paper, this module follows the paper: the queue is ordered by the number of
retrievals, not by depth.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_train.answers import contains, exact_match, rules_of
from rag_train.errors import Refused
from rag_train.formats import deeprag
from rag_train.formats.tasks import LINE_TOKENS
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.memo import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Passage, Question, Step
from rag_train.strategies.base import together
from rag_train.strategies.controller import Controller, Move


@dataclass(frozen=True)
class SearchConfig:
    """Settings of the tree search. The defaults are the paper's."""

    variant: Literal["minimal", "most", "random"] = "minimal"
    """Which correct trajectory to keep: the one with the fewest retrievals, the most, or a random one (Table 4)."""
    max_steps: int = 6
    """T of Algorithm 1: maximum number of subqueries, after which the controller must answer, as at inference."""
    passages: int = 3
    """Number of passages that a retrieval returns."""
    branching: int = 1
    """Number of answers tried for each decision: the greedy answer, then sampled answers."""
    temperature: float = 0.7
    """Sampling temperature of the answers after the greedy one."""
    match: Literal["exact", "contains"] = "exact"
    """When an answer is correct, by the rules of the question's dataset. exact: it equals an accepted answer after
    normalisation; contains: it contains an accepted answer."""
    verify: bool = False
    """End a branch whose answer contains no answer of the question's annotated decomposition, except those that its
    subquery names, so that no trajectory is right by luck. Questions without a decomposition are searched as usual.
    Ours."""
    gold_fallback: bool = False
    """If no trajectory is correct, try one more that retrieves at each step and is given the gold passages."""
    max_tokens: int = LINE_TOKENS
    """Maximum length of a line that the controller writes, in tokens. A line that is longer ends its branch."""
    guided: bool = False
    """Restrict decoding to the format's lines, for models that do not write them by themselves."""
    seed: int = 0
    """Seed of the sampled answers, and of the choice among trajectories if variant is random."""


@dataclass
class Node:
    """A state of the Markov decision process (section 3.1): the steps so far and, once expanded, its children.

    ``answer`` is the final answer if the controller ended the trajectory here, and ``correct`` says whether it is
    accepted. ``unparsed`` is the controller's line if it is neither a subquery nor a final answer, and ``cut`` says
    whether it was too long. ``refused`` has the reasons of the calls that were refused here. ``children`` are in
    the order of the queue: parametric answers before retrieved ones.
    """

    steps: tuple[Step, ...] = ()
    subquery: str | None = None
    answer: str | None = None
    correct: bool = False
    unparsed: str = ""
    refused: list[str] = field(default_factory=list)
    cut: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def retrievals(self) -> int:
        return sum(step.decision is Decision.RETRIEVE for step in self.steps)


@dataclass
class SearchResult:
    """The explored part of the tree, and the last node of the kept trajectory (None if none is correct).

    ``source`` is ``search``, or ``gold_fallback`` if the trajectory was made with gold passages.
    """

    root: Node
    best: Node | None
    calls: list[LLMCall]
    source: str = "search"


class TreeSearch:
    """Algorithm 1 over one engine and one retriever; many questions can be searched concurrently."""

    def __init__(self, llm: LLM, retriever: AsyncRetriever, config: SearchConfig):
        self._llm = llm
        self._retriever = retriever
        self._config = config

    async def search(self, question: Question, prompt: str) -> SearchResult:
        """Search the tree of ``question``; ``prompt`` is the prompt that the model reads.

        Variant ``minimal`` stops at the first correct answer: nodes leave the queue in order of retrievals, whose
        number only grows along a path, so no correct trajectory has fewer. Variants ``most`` and ``random`` explore
        the whole tree. ``calls`` of the result has one entry for each distinct prompt.
        """
        log = CallLog(self._llm)
        controller = self._controller(log, prompt)
        root = Node()
        if self._config.variant == "minimal":
            best = await self._cheapest(controller, question, root)
        else:
            await self._explore(controller, question, root)
            correct = [node for node in leaves(root) if node.correct]
            if self._config.variant == "most":
                best = max(correct, key=lambda node: node.retrievals, default=None)
            else:
                best = random.Random(f"{self._config.seed}-{question.id}").choice(correct) if correct else None
        source = "search"
        if best is None and self._config.gold_fallback and _readable(question):
            best, source = await self._with_gold(controller, question), "gold_fallback"
        return SearchResult(root=root, best=best, calls=log.calls, source=source)

    async def explore(self, question: Question, prompt: str) -> SearchResult:
        """Explore the whole tree of ``question``, and keep its correct trajectory with the fewest retrievals."""
        log = CallLog(self._llm)
        root = Node()
        await self._explore(self._controller(log, prompt), question, root)
        correct = [node for node in leaves(root) if node.correct]
        best = min(correct, key=lambda node: node.retrievals, default=None)
        return SearchResult(root=root, best=best, calls=log.calls)

    def _controller(self, log: CallLog, prompt: str) -> Controller:
        return Controller(log, prompt, self._config.max_tokens, self._config.guided)

    async def _cheapest(self, controller: Controller, question: Question, root: Node) -> Node | None:
        order = itertools.count()
        queue = [(0, next(order), root)]
        while queue:
            _, _, node = heapq.heappop(queue)
            await self._expand(controller, question, node)
            if node.correct:
                return node
            for child in node.children:
                heapq.heappush(queue, (child.retrievals, next(order), child))
        return None

    async def _explore(self, controller: Controller, question: Question, node: Node) -> None:
        await self._expand(controller, question, node)
        await together(self._explore(controller, question, child) for child in node.children)

    async def _expand(self, controller: Controller, question: Question, node: Node) -> None:
        """End at ``node``, or ask a subquery and answer it both ways (lines 6 to 15 of Algorithm 1).

        If the controller writes a line that is malformed or too long, or the transcript is refused, for example
        because it has become too long for the model, the node gets no answer and no children.

        Raises:
            Refused: if the question itself is refused.
        """
        try:
            if len(node.steps) >= self._config.max_steps:
                node.answer = await controller.final(node.steps)
            else:
                move = await controller.next_move(node.steps)
                node.subquery, node.answer = move.subquery, move.answer
                node.unparsed = move.text or "" if move == Move(text=move.text) else ""
                node.cut = move.text is None
        except Refused as error:
            if not node.steps:
                raise
            node.refused.append(error.reason)
        if node.answer is not None:
            node.correct = self._is_correct(node.answer, question)
        elif node.subquery is not None:
            parametric, retrieved = await together(
                self._children(controller, node, node.subquery, decision)
                for decision in (Decision.PARAMETRIC, Decision.RETRIEVE)
            )
            node.children = [child for child in parametric + retrieved if self._may_be_right(child, question)]

    async def _children(self, controller: Controller, node: Node, subquery: str, decision: Decision) -> list[Node]:
        """Return the children of a decision; what is refused is noted at ``node``."""
        passages: list[Passage] = []
        if decision is Decision.RETRIEVE:
            passages = await self._retriever.search(subquery, self._config.passages)
        answers = await together(
            _unless_refused(
                controller.retrieved(node.steps, subquery, passages, sample)
                if decision is Decision.RETRIEVE
                else controller.parametric(node.steps, subquery, sample),
                node.refused,
            )
            for sample in self._samples()
        )
        return [
            Node(
                steps=(
                    *node.steps,
                    Step(subquery=subquery, decision=decision, passages=passages, answer=answer),
                )
            )
            for answer in dict.fromkeys(answers)
            if answer
        ]

    def _samples(self) -> Iterator[Sampling | None]:
        yield None
        for i in range(1, self._config.branching):
            yield Sampling(
                max_tokens=self._config.max_tokens,
                temperature=self._config.temperature,
                seed=self._config.seed + i,
                stop=tuple(deeprag.STOP_LINE),
            )

    async def _with_gold(self, controller: Controller, question: Question) -> Node | None:
        node = Node()
        while len(node.steps) <= self._config.max_steps:
            move = await controller.next_move(node.steps)
            if move.answer is not None:
                node.answer, node.correct = move.answer, self._is_correct(move.answer, question)
                return node if node.correct else None
            if move.subquery is None:
                return None
            answer = await controller.retrieved(node.steps, move.subquery, _readable(question))
            if not answer:
                return None
            step = Step(
                subquery=move.subquery,
                decision=Decision.RETRIEVE,
                passages=_readable(question),
                answer=answer,
            )
            node = Node(steps=(*node.steps, step))
        return None

    def _may_be_right(self, node: Node, question: Question) -> bool:
        if not self._config.verify or not question.decomposition:
            return True
        step = node.steps[-1]
        # An answer also repeats words of its subquery, which may name the answer of an earlier step.
        gold = [gold.short for gold in question.decomposition]
        rules = rules_of(question)
        left = [answer for answer in gold if not contains(step.subquery, [answer], rules)]
        return contains(step.answer, left, rules)

    def _is_correct(self, answer: str, question: Question) -> bool:
        match = exact_match if self._config.match == "exact" else contains
        return match(answer, question.answers, rules_of(question))


def _readable(question: Question) -> list[Passage]:
    """Return the gold passages that have a text; KILT's are names of pages."""
    return [passage for passage in question.gold_passages if passage.text]


def nodes(node: Node) -> Iterator[Node]:
    """Yield ``node`` and every node below it."""
    yield node
    for child in node.children:
        yield from nodes(child)


async def _unless_refused(answer: Coroutine[Any, Any, str], reasons: list[str]) -> str:
    """Return the answer, or "" if its prompt is refused: this branch of the tree ends, and the reason is noted."""
    try:
        return await answer
    except Refused as error:
        reasons.append(error.reason)
        return ""


def leaves(node: Node) -> Iterator[Node]:
    """Yield the last nodes of the ended trajectories below ``node``, parametric answers before retrieved ones."""
    if node.answer is not None:
        yield node
    for child in node.children:
        yield from leaves(child)
