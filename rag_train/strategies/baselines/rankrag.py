"""RankRAG: the same model ranks the passages by relevance and reads the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.tasks import Task
from rag_train.llm.base import Sampling
from rag_train.schema import UNPARSED, Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy, together

RANK = Task("rankrag", "Relevant:")
_FIRST = Sampling(max_tokens=1, logprobs=20)


@strategy("rankrag", Bound(calls=21, retrievals=1))
@dataclass(frozen=True)
class RankRAG(Strategy):
    """Retrieve many passages, score each by the probability of "True", and read the best.

    The same model ranks and reads. As no trained checkpoint is public, any model is prompted for both.
    """

    paper: ClassVar = "Yu et al. 2024 (RankRAG), section 4.3; baseline of LevelRAG"
    abilities: ClassVar = (Need("logprobs"),)

    candidates: int = 20
    """Number of passages to rank (100 in the paper). Ours: 20, because each takes a call."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        found = await run.search(question.question, max(self.candidates, self.kit.passages))
        scores = await together(self._relevance(run, passage) for passage in found)
        ranked = sorted(zip(scores, found, strict=True), key=lambda scored: -scored[0])
        best = [p.model_copy(update={"score": score}) for score, p in ranked[: self.kit.passages]]
        _, answer = await run.read(question.question, best)
        run.retrieved(question.question, best, answer)
        return run.done(answer)

    async def _relevance(self, run: Run, passage: Passage) -> float:
        """Return the probability of "True" against "False" at the first token; 0.5 if neither is an alternative."""
        fields = [("Context", [passage]), ("Question", run.question.question)]
        got = await run.complete(RANK.name, run.prompt(RANK.name, fields, RANK.lead), _FIRST)
        alternatives = got.logprobs[0] if got.logprobs else ()
        mass = {
            word: sum(math.exp(t.logprob) for t in alternatives if t.text.strip() == word)
            for word in ("True", "False")
        }
        if not (total := sum(mass.values())):
            run.notes[RANK.name] = f"{UNPARSED}: neither True nor False is an alternative of the first token"
            return 0.5
        return mass["True"] / total
