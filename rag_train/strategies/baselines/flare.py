"""FLARE: uncertain sentences are used as queries and written again with the retrieved passages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import deeprag
from rag_train.llm.base import TokenLogprob
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy
from rag_train.strategies.baselines.sentences import final_answer, look_ahead


@strategy("flare", Bound(calls=17, retrievals=8))
@dataclass(frozen=True)
class FLARE(Strategy):
    """Write the next sentence; if it is uncertain, search for its certain words and write it again.

    As in the paper, the look-ahead is written without passages, and a sentence that is written again has only the
    passages of its own query. Ours: the answer is asked for at the end, with the last passages.
    """

    paper: ClassVar = "Jiang et al. 2023 (FLARE direct, implicit queries); baseline of DeepRAG and DualRAG"
    roles: ClassVar = ()
    abilities: ClassVar = (Need("logprobs"),)

    theta: float = 0.8
    """Retrieve if a token of the sentence has a lower probability. Ours: the paper tunes it for each dataset."""
    beta: float = 0.4
    """Tokens with a lower probability are not part of the query."""
    max_sentences: int = 8
    """Maximum number of sentences."""

    async def solve(self, run: Run) -> Trajectory:
        thoughts: list[str] = []
        passages: list[Passage] = []
        for _ in range(self.max_sentences):
            text = "".join(f" {thought}" for thought in thoughts)
            sentence, tokens = await look_ahead(run, "flare", [], text)
            if min(probabilities(tokens), default=1.0) < self.theta:
                query = sure_part(tokens, self.beta) or run.question.question
                passages = await run.search(query)
                sentence, _ = await look_ahead(run, "flare", passages, text)
                run.retrieved(query, passages, sentence)
            sentence = deeprag.one_line(sentence)
            if not sentence or sentence in thoughts or sentence.lower().startswith(deeprag.FINAL.lower()):
                break
            thoughts.append(sentence)
        else:
            run.cut(f"ended after max_sentences={self.max_sentences}")
        text = " ".join(thoughts)
        return run.done(await final_answer(run, "flare", passages, f" {text}" if text else ""), text)


def probabilities(tokens: Sequence[TokenLogprob]) -> list[float]:
    """Return the probability of each token."""
    return [math.exp(token.logprob) for token in tokens]


def sure_part(tokens: Sequence[TokenLogprob], beta: float) -> str:
    """Return the text without the tokens whose probability is below ``beta`` (implicit query by masking)."""
    kept = zip(tokens, probabilities(tokens), strict=True)
    return deeprag.one_line("".join(token.text if chance >= beta else " " for token, chance in kept))
