"""FLARE: uncertain sentences are used as queries and written again with the retrieved passages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from rag_train.formats import deeprag
from rag_train.llm.base import TokenLogprob
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy
from rag_train.strategies.baselines.sentences import Ahead, look_ahead, think


@strategy("flare", Bound(calls=11, retrievals=5))
@dataclass(frozen=True)
class FLARE(Strategy):
    """Write the next sentence; if it is uncertain, search for its certain words and write it again.

    As in the paper, the look-ahead is written without passages, and a sentence that is written again has only the
    passages of its own query. The defaults are those of DualRAG's release, which made that paper's rows. Ours: the
    answer is a line of its own, written with the last passages and never searched for.
    """

    paper: ClassVar = "Jiang et al. 2023 (FLARE direct, implicit queries); baseline of DeepRAG and DualRAG"
    roles: ClassVar = ()
    abilities: ClassVar = (Need("logprobs"),)

    rule: Literal["least", "mean"] = "least"
    """When a sentence is uncertain. least: by its least probable token (the paper, DualRAG's release); mean: by the
    mean probability of its tokens (DRAGIN's code, with which DeepRAG's tables were made)."""
    threshold: float = 0.1
    """rule=mean: retrieve if the mean of one minus the probabilities is higher. A token for which it is higher is
    not part of the query. DeepRAG's release has 0.1; DRAGIN's settings have 0.06 to 0.4, by model and dataset."""
    theta: float = 0.2
    """rule=least: retrieve if a token of the sentence has a lower probability (DualRAG's release). FLARE's own code
    has 0.8 for 2WikiMultihopQA; the paper tunes it."""
    beta: float = 0.2
    """rule=least: tokens with a lower probability are not part of the query (DualRAG's release). FLARE's own code
    has 0.4."""
    max_sentences: int = 5
    """Maximum number of sentences (DualRAG's release, and its limit for all iterative methods)."""

    async def solve(self, run: Run) -> Trajectory:
        async def write(text: str, passages: list[Passage]) -> tuple[Ahead, list[Passage]]:
            ahead = await look_ahead(run, "flare", [], text)
            if self._uncertain(ahead.tokens):
                least = 1 - self.threshold if self.rule == "mean" else self.beta
                query = sure_part(ahead.tokens, least) or run.question.question
                passages = await run.search(query)
                ahead = await look_ahead(run, "flare", passages, text)
                run.retrieved(query, passages, ahead.text)
            return ahead, passages

        return await think(run, "flare", self.max_sentences, write)

    def _uncertain(self, tokens: Sequence[TokenLogprob]) -> bool:
        """Whether a sentence with these tokens has to be searched for."""
        chances = probabilities(tokens)
        if self.rule == "mean":
            return bool(chances) and 1 - fmean(chances) > self.threshold
        return min(chances, default=1.0) < self.theta


def probabilities(tokens: Sequence[TokenLogprob]) -> list[float]:
    """Return the probability of each token."""
    return [math.exp(token.logprob) for token in tokens]


def sure_part(tokens: Sequence[TokenLogprob], beta: float) -> str:
    """Return the text without the tokens whose probability is below ``beta`` (implicit query by masking)."""
    kept = zip(tokens, probabilities(tokens), strict=True)
    return deeprag.one_line("".join(token.text if chance >= beta else " " for token, chance in kept))
