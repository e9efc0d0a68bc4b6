"""RQ-RAG: a tree of rewritten, decomposed and disambiguated queries, with three ways to select an answer."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.answers import normalize
from rag_train.formats.deeprag import context_lines, one_line
from rag_train.llm.base import Completion, Sampling
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy, together

ACTIONS = ("[S_Rewritten_Query]", "[S_Decomposed_Query]", "[S_Disambiguated_Query]")
RESPONSE = "[A_Response]"
END = "[EOS]"

_QUERY = Sampling(max_tokens=64, stop=(END, "\n", "["), logprobs=1)
_ANSWER = Sampling(max_tokens=64, stop=(END, "\n", "["), logprobs=1)


@dataclass(frozen=True)
class Leaf:
    """An answer in the tree, with log-probabilities of tokens."""

    answer: str
    path: tuple[float, ...]
    """Log-probabilities of the queries on the path to the answer."""
    own: tuple[float, ...]
    """Log-probabilities of the answer."""


@dataclass(frozen=True)
class RQRAG(Strategy):
    """At each node of the tree, refine the query in three ways and answer; select an answer at the end."""

    paper: ClassVar = "Chan et al. 2024; baseline of PlanRAG and LevelRAG"
    needs: ClassVar = ("an RQ-RAG checkpoint", "log-probabilities")

    select: Literal["ppl", "confidence", "ensemble"] = "ensemble"
    """ppl: the answer with the lowest perplexity of path and answer; confidence: the most probable answer;
    ensemble: the answer with the highest sum of probabilities over equal answers."""
    depth: int = 2
    """Maximum number of queries on a path (PlanRAG, appendix C)."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        leaves = await self._grow(run, "", (), 0)
        run.steps.sort(key=lambda step: (step.round or 0, step.node))
        return run.done(choose(leaves, self.select))

    async def _grow(self, run: Run, text: str, path: tuple[float, ...], depth: int) -> list[Leaf]:
        """Return the answers of this node and of all its descendants."""
        prompt = run.prompt("rq_rag", f"Question: {one_line(run.question.question)}\n", text)
        branches = ACTIONS if depth < self.depth else ()
        leaf, *below = await together(
            [
                self._respond(run, prompt, path),
                *(self._refine(run, prompt, text, path, depth, action) for action in branches),
            ]
        )
        return [*leaf, *(descendant for leaves in below for descendant in leaves)]

    async def _respond(self, run: Run, prompt: str, path: tuple[float, ...]) -> list[Leaf]:
        got = await run.complete("rq_rag", prompt + RESPONSE, _ANSWER)
        answer = one_line(got.text)
        return [Leaf(answer, path, _chosen(got))] if answer else []

    async def _refine(
        self, run: Run, prompt: str, text: str, path: tuple[float, ...], depth: int, action: str
    ) -> list[Leaf]:
        got = await run.complete("rq_rag", prompt + action, _QUERY)
        query = one_line(got.text)
        if not query:
            return []
        passages = await run.search(query)
        run.retrieved(query, passages, node=f"{action} {len(text)}", round=depth)
        below = f"{text}{action} {query}{END}\n{context_lines(passages)}"
        return await self._grow(run, below, path + _chosen(got), depth + 1)


def choose(leaves: list[Leaf], select: str) -> str | None:
    """Select an answer (RQ-RAG, section 3.3); return None if there are no answers."""
    if not leaves:
        return None
    if select == "ppl":
        return max(leaves, key=lambda leaf: _mean(leaf.path + leaf.own)).answer
    if select == "confidence":
        return max(leaves, key=lambda leaf: _mean(leaf.own)).answer
    votes: dict[str, float] = defaultdict(float)
    for leaf in leaves:
        votes[normalize(leaf.answer)] += math.exp(_mean(leaf.own))
    best = max(votes, key=lambda answer: votes[answer])
    return next(leaf.answer for leaf in leaves if normalize(leaf.answer) == best)


def _mean(logprobs: tuple[float, ...]) -> float:
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _chosen(completion: Completion) -> tuple[float, ...]:
    return tuple(token.logprob for token in completion.chosen)
