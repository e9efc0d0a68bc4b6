"""DeepRAG's tree search for the correct trajectory with the fewest retrievals (Algorithm 1).

The tree is binary: at each subquery the controller answers from parametric knowledge, or retrieves. As in the
authors' release, a second model may write the subqueries and read the passages. Unlike there, no correct trajectory
has fewer retrievals than the kept one: the release queues both children of a node alike, one retrieval later.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rag_train.answers import contains, either_contains, exact_match, rules_of
from rag_train.errors import Refused
from rag_train.formats import deeprag
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import LINE_TOKENS
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.call_log import CallLog
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Passage, Question, Step
from rag_train.strategies.base import together
from rag_train.strategies.controller import Controller, Move


@dataclass(frozen=True)
class SearchConfig:
    """Settings of the tree search. The defaults are the paper's; recipes/deeprag_synth.yaml has the release's."""

    variant: Literal["minimal", "most", "random"] = "minimal"
    """Which correct trajectory to keep: the one with the fewest retrievals, the most, or a random one (Table 4)."""
    max_steps: int = 6
    """T of Algorithm 1: maximum number of subqueries, after which the controller must answer, as at inference."""
    max_retrievals: int | None = None
    """Maximum number of retrievals, after which the controller must answer; null: max_steps. The release: 6 for
    HotpotQA, 10 for 2WikiMultihopQA, and no limit on steps."""
    passages: int = 3
    """Number of passages that a retrieval returns."""
    branching: int = 1
    """Number of answers tried for each decision: the greedy answer, then sampled answers."""
    temperature: float = 0.7
    """Sampling temperature of the answers after the greedy one."""
    match: Literal["exact", "contains", "either"] = "exact"
    """When an answer is correct, by the rules of the question's dataset. exact: it equals an accepted answer after
    normalisation; contains: it contains an accepted answer; either: one contains the other (the release)."""
    verify: bool = False
    """End a branch whose answer contains no answer of the question's annotated decomposition, except those that its
    subquery names, so that no trajectory is right by luck. Questions without a decomposition are searched as usual.
    Ours."""
    gold_fallback: bool = False
    """If no trajectory is correct, search again with the gold passages in place of those found (the release). Does
    not apply to stage=pairs."""
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
    """Algorithm 1 over one engine and one retriever; many questions can be searched concurrently.

    Args:
        llm: the model that is trained: it answers from memory and writes the final answers.
        retriever: finds the passages.
        config: the settings.
        writer: the model that writes the subqueries, ends trajectories, and answers from passages, as in the
            release; None: ``llm`` does.
    """

    def __init__(self, llm: LLM, retriever: AsyncRetriever, config: SearchConfig, writer: LLM | None = None):
        self._llm = llm
        self._writer = writer
        self._retriever = retriever
        self._config = config

    async def search(self, question: Question, prompt: str) -> SearchResult:
        """Search the tree of ``question``; ``prompt`` is what the models read first, without a chat template.

        Variant ``minimal`` stops at the first correct answer: nodes leave the queue in order of retrievals, whose
        number only grows along a path, so no correct trajectory has fewer. Variants ``most`` and ``random`` explore
        the whole tree. ``calls`` of the result has one entry for each distinct prompt.
        """
        tree = self._tree(question, prompt)
        best = await tree.kept()
        source = "search"
        if best is None and self._config.gold_fallback and (gold := _readable(question)):
            tree, source = replace(tree, root=Node(), gold=gold), "gold_fallback"
            best = await tree.kept()
        return SearchResult(root=tree.root, best=best, calls=tree.calls, source=source)

    async def explore(self, question: Question, prompt: str) -> SearchResult:
        """Explore the whole tree of ``question``, and keep its correct trajectory with the fewest retrievals."""
        tree = self._tree(question, prompt)
        await tree.explore(tree.root)
        best = min(tree.correct(), key=lambda node: node.retrievals, default=None)
        return SearchResult(root=tree.root, best=best, calls=tree.calls)

    def _tree(self, question: Question, prompt: str) -> _Tree:
        calls: list[LLMCall] = []

        def controller(llm: LLM) -> Controller:
            turn = as_turn(llm.tokenizer, prompt)
            return Controller(CallLog(llm, calls), turn, self._config.max_tokens, self._config.guided)

        model = controller(self._llm)
        writer = model if self._writer is None else controller(self._writer)
        return _Tree(question, model, writer, self._retriever, self._config, calls)


@dataclass(frozen=True)
class _Tree:
    """The tree of one question. ``gold`` is read in place of what the retriever finds, if it is given."""

    question: Question
    model: Controller
    writer: Controller
    retriever: AsyncRetriever
    config: SearchConfig
    calls: list[LLMCall]
    root: Node = field(default_factory=Node)
    gold: list[Passage] | None = None

    async def kept(self) -> Node | None:
        """Return the last node of the trajectory that the variant keeps; None if none is correct."""
        if self.config.variant == "minimal":
            return await self._cheapest()
        await self.explore(self.root)
        correct = self.correct()
        if self.config.variant == "most":
            return max(correct, key=lambda node: node.retrievals, default=None)
        return random.Random(f"{self.config.seed}-{self.question.id}").choice(correct) if correct else None

    def correct(self) -> list[Node]:
        """Return the last nodes of the correct trajectories."""
        return [node for node in leaves(self.root) if node.correct]

    async def explore(self, node: Node) -> None:
        """Expand ``node`` and every node below it."""
        await self._expand(node)
        await together(self.explore(child) for child in node.children)

    async def _cheapest(self) -> Node | None:
        order = itertools.count()
        queue = [(0, next(order), self.root)]
        while queue:
            _, _, node = heapq.heappop(queue)
            await self._expand(node)
            if node.correct:
                return node
            for child in node.children:
                heapq.heappush(queue, (child.retrievals, next(order), child))
        return None

    async def _expand(self, node: Node) -> None:
        """End at ``node``, or ask a subquery and answer it both ways (lines 6 to 15 of Algorithm 1).

        If the controller writes a line that is malformed or too long, or the transcript is refused, for example
        because it has become too long for the model, the node gets no answer and no children.

        Raises:
            Refused: if the question itself is refused.
        """
        try:
            if self._must_end(node):
                node.answer = await self.model.final(node.steps)
            else:
                move = await self.writer.next_move(node.steps)
                node.unparsed = move.text or "" if move == Move(text=move.text) else ""
                node.cut = move.text is None
                node.subquery, answer = move.subquery, move.answer
                if answer is not None and self.writer is not self.model:
                    answer = await self.model.final(node.steps)
                node.answer = answer
        except Refused as error:
            if not node.steps:
                raise
            node.refused.append(error.reason)
        if node.answer is not None:
            node.correct = self._is_correct(node.answer)
        elif node.subquery is not None:
            parametric, retrieved = await together(
                self._children(node, node.subquery, decision)
                for decision in (Decision.PARAMETRIC, Decision.RETRIEVE)
            )
            node.children = [child for child in parametric + retrieved if self._may_be_right(child)]

    def _must_end(self, node: Node) -> bool:
        most = self.config.max_retrievals
        return len(node.steps) >= self.config.max_steps or (most is not None and node.retrievals >= most)

    async def _children(self, node: Node, subquery: str, decision: Decision) -> list[Node]:
        """Return the children of a decision; what is refused is noted at ``node``."""
        passages: list[Passage] = []
        if decision is Decision.RETRIEVE:
            passages = self.gold or await self.retriever.search(subquery, self.config.passages)
        answers = await together(
            _unless_refused(
                self.writer.retrieved(node.steps, subquery, passages, sample)
                if decision is Decision.RETRIEVE
                else self.model.parametric(node.steps, subquery, sample),
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
        for i in range(1, self.config.branching):
            yield Sampling(
                max_tokens=self.config.max_tokens,
                temperature=self.config.temperature,
                seed=self.config.seed + i,
                stop=tuple(deeprag.STOP_LINE),
            )

    def _may_be_right(self, node: Node) -> bool:
        if not self.config.verify or not self.question.decomposition:
            return True
        step = node.steps[-1]
        # An answer also repeats words of its subquery, which may name the answer of an earlier step.
        gold = [gold.short for gold in self.question.decomposition]
        rules = rules_of(self.question)
        left = [answer for answer in gold if not contains(step.subquery, [answer], rules)]
        return contains(step.answer, left, rules)

    def _is_correct(self, answer: str) -> bool:
        match = {"exact": exact_match, "contains": contains, "either": either_contains}[self.config.match]
        return match(answer, self.question.answers, rules_of(self.question))


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
