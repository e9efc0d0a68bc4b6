"""Claims stated before a run and decided by the 95% interval of a paired difference over all seeds' questions.

Questions about one film, person or place are resampled together, because they are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.metrics.scores import Metric, Score
from rag_train.schema import Question

MARGIN = 0.02
"""The largest loss that still counts as "no worse", as a fraction: two points."""
FIRST, LAST = "cold start", "stage 2"
"""Names of the first and the last stage in the tables."""
OURS, ALWAYS = f"deeprag, {LAST}", f"deeprag-retrieve, {LAST}"
"""Names of the trained model's run, and of the same model's when it always retrieves."""


@dataclass(frozen=True)
class Compared:
    """The two runs that a claim compares, and the measure; the claim is that the second run's is higher."""

    first: str
    second: str
    measure: Metric | Literal["mcc"]
    unit: str
    """Name of the measure in the evidence."""
    margin: float = 0.0


CLAIMS: dict[str, Compared] = {
    "DeepRAG answers better than direct answering": Compared(f"direct, {FIRST}", OURS, "em", "exact match"),
    "DeepRAG answers better than vanilla RAG": Compared(f"rag, {FIRST}", OURS, "em", "exact match"),
    "Retrieve-only retrieves more than DeepRAG": Compared(OURS, ALWAYS, "retrievals", "retrievals a question"),
    f"DeepRAG is no less accurate than retrieve-only, to within {MARGIN:.0%}": Compared(
        ALWAYS, OURS, "em", "exact match", MARGIN
    ),
    "Stage II improves the MCC of the decisions over Stage I": Compared("deeprag, stage 1", OURS, "mcc", "MCC"),
}
"""The paper's claims (Tables 1 to 3, Figure 5) by their text. The baselines run on the cold start's model."""
MINI_WORLD_CLAIMS = CLAIMS | {
    f"DeepRAG is no less accurate than the cold start that always retrieves, to within {MARGIN:.0%}": Compared(
        f"deeprag-retrieve, {FIRST}", OURS, "em", "exact match", MARGIN
    ),
    "Stages I and II improve DeepRAG's answers": Compared(f"deeprag, {FIRST}", OURS, "em", "exact match"),
}
"""The claims of the demo in the mini world.

`CLAIMS` compares the trained model with itself where it always retrieves, and would hold for a training that makes
reading worse. The last two compare it with the model before Stages I and II.
"""


@dataclass(frozen=True)
class PairedClaim:
    """A claim that a paired difference is above zero, or not below it by more than ``margin``."""

    text: str
    difference: Interval
    unit: str
    """Name of the compared metric."""
    margin: float = 0.0

    @property
    def held(self) -> bool:
        return self.difference.lo > -self.margin

    @property
    def evidence(self) -> str:
        """The difference with its interval and unit."""
        difference = self.difference
        return f"{difference.mean:+.3f} [{difference.lo:+.3f}, {difference.hi:+.3f}] {self.unit}"

    def line(self) -> str:
        """Return the claim, its outcome and the evidence in one line for the console."""
        return f"{'held    ' if self.held else 'not held'} {self.text}: {self.evidence}"


def verdict(lo: float, hi: float, seeds: Sequence[float], margin: float = 0.0) -> str:
    """Return "holds", "fails" or "cannot be told apart", as ``protocol.yaml`` rules.

    Args:
        lo: lower end of the 95% interval of the difference over all seeds' questions.
        hi: upper end of that interval.
        seeds: difference in each seed.
        margin: loss that still counts as "no worse".
    """
    if lo > -margin and min(seeds) > -margin:
        return "holds"
    return "fails" if hi < -margin and max(seeds) < -margin else "cannot be told apart"


def clusters(questions: Sequence[Sequence[Question]], *, one_world: bool = False) -> list[str]:
    """Return what each question is about, for the questions of every seed in turn.

    Entities of different seeds are different, unless all seeds ask about ``one_world``.
    """
    return [
        q.decomposition[0].entity if one_world else f"{i}/{q.decomposition[0].entity}"
        for i, seed in enumerate(questions)
        for q in seed
    ]


def pooled(scores: Sequence[Sequence[Score]]) -> list[Score]:
    """Return the scores of every seed in turn, with question ids made distinct by the seed's position."""
    return [
        score.model_copy(update={"question_id": f"{i}/{score.question_id}"})
        for i, seed in enumerate(scores)
        for score in seed
    ]
