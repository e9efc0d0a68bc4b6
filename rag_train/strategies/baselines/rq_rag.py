"""RQ-RAG: a tree of rewritten, decomposed and disambiguated queries, with three ways to select an answer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar, Literal

from rag_train.answers import normalize
from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import LINE_TOKENS, Given
from rag_train.llm.base import Completion, Sampling
from rag_train.llm.control import MARK, trusted
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy, together

ACTIONS = ("[S_Rewritten_Query]", "[S_Decomposed_Query]", "[S_Disambiguated_Query]")
RESPONSE = "[A_Response]"
END = "[EOS]"
EVIDENCE, EVIDENCE_END = "[R_Evidences]", "[/R_Evidences]"
CONTROL = (*ACTIONS, RESPONSE, END, EVIDENCE, EVIDENCE_END)
"""The control tokens, each of which is a single token of an RQ-RAG model's vocabulary."""
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
TOKENS = (*CONTROL, SYSTEM, USER, ASSISTANT)
"""All tokens that the format writes itself. Questions and passages do not contain them."""

_LINE = Sampling(max_tokens=LINE_TOKENS, stop=(*CONTROL, "\n"), logprobs=1)


@dataclass(frozen=True)
class Leaf:
    """An answer in the tree, with log-probabilities of tokens."""

    answer: str
    path: tuple[float, ...]
    """Log-probabilities of the queries on the path to the answer."""
    own: tuple[float, ...]
    """Log-probabilities of the answer."""


@strategy("rq-rag", Bound(calls=25, retrievals=12))
@dataclass(frozen=True)
class RQRAG(Strategy):
    """At each node of the tree, refine the query in three ways and answer; select an answer at the end.

    Turns, system prompt and evidence have the format of the released checkpoint. Ours: decoding is greedy, and
    queries and answers are single lines.
    """

    paper: ClassVar = "Chan et al. 2024; baseline of PlanRAG and LevelRAG"
    roles: ClassVar = ()
    needs: ClassVar = ("an RQ-RAG checkpoint",)
    abilities: ClassVar = (Need("logprobs"), Need("continues"))

    select: Literal["ppl", "confidence", "ensemble"] = "ensemble"
    """ppl: the answer with the lowest perplexity of path and answer; confidence: the most probable answer;
    ensemble: the answer with the highest sum of probabilities over equal answers."""
    depth: int = 2
    """Maximum number of queries on a path (PlanRAG, appendix C)."""

    async def solve(self, run: Run) -> Trajectory:
        leaves = await self._grow(run, "", (), 0)
        run.steps.sort(key=lambda step: (step.round or 0, step.node))
        return run.done(choose(leaves, self.select))

    async def _grow(self, run: Run, text: str, path: tuple[float, ...], depth: int) -> list[Leaf]:
        """Return the answers of this node and of all its descendants."""
        tokenizer = run.kit.llm.tokenizer
        eos = MARK + str(tokenizer.eos_token) if tokenizer.eos_token else ""
        prompt = trusted(tokenizer, turns(run.question.question, eos, run.kit.instructions) + text, TOKENS)
        branches = ACTIONS if depth < self.depth else ()
        leaf, *below = await together(
            [
                self._respond(run, prompt, path),
                *(self._refine(run, prompt, text, path, depth, action) for action in branches),
            ]
        )
        return [*leaf, *(descendant for leaves in below for descendant in leaves)]

    async def _respond(self, run: Run, prompt: str, path: tuple[float, ...]) -> list[Leaf]:
        answer, own = written(await self._line(run, prompt, RESPONSE))
        return [Leaf(answer, path, own)] if answer else []

    async def _refine(
        self, run: Run, prompt: str, text: str, path: tuple[float, ...], depth: int, action: str
    ) -> list[Leaf]:
        query, own = written(await self._line(run, prompt, action))
        if not query:
            return []
        passages = await run.search(query)
        run.retrieved(query, passages, node=f"{action} {len(text)}", round=depth)
        below = f"{text}{action} {query}{END}{evidence(passages)}"
        return await self._grow(run, below, path + own, depth + 1)

    async def _line(self, run: Run, prompt: str, token: str) -> Completion:
        return await run.complete("rq_rag", prompt + trusted(run.kit.llm.tokenizer, token, TOKENS), _LINE)


def turns(question: str, eos: str, instructions: Given) -> str:
    """Return the prompt in the turns of the released checkpoint, up to the beginning of the assistant's turn.

    Checkpoints without ``instructions`` were trained without the system's turn and without ``eos``.
    """
    if not instructions:
        return f"{USER}\n{plain(question)}\n{ASSISTANT}\n"
    return f"{SYSTEM}\n{instructions['rq_rag'].text}{eos}\n{USER}\n{plain(question)}{eos}\n{ASSISTANT}\n"


def plain(text: str) -> str:
    """Return the text in one line, without the format's own tokens."""
    for token in TOKENS:
        text = text.replace(token, " ")
    return one_line(text)


def evidence(passages: Sequence[Passage]) -> str:
    """Return passages between the evidence markers."""
    lines = "\n".join(f"Title: {plain(p.title)}\nText: {plain(p.text)}" for p in passages)
    return f"{EVIDENCE}{lines}{EVIDENCE_END}"


def written(completion: Completion) -> tuple[str, tuple[float, ...]]:
    """Return the text before the first control token, and its log-probabilities; nothing if the text was cut.

    Engines leave special tokens out of the text, so that only the tokens show where it ends.
    """
    before = list(takewhile(lambda token: token.text.strip() not in CONTROL, completion.chosen))
    ended = len(before) < len(completion.chosen)
    if completion.truncated and not ended:
        return "", ()
    text = "".join(token.text for token in before) if ended else completion.text
    return one_line(text), tuple(token.logprob for token in before)


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
