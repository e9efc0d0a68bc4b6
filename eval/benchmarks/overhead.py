"""Processor time of an evaluation without its engine.

The engine answers at once with the mini world's gold steps, and every query returns the same passages. The rest is
the strategy, the records, the scores with their intervals, and the files. Processor time is measured, so that other
programs on the machine do not count. Writes bench_overhead.json.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rag_train.eval.benchmarks.common import benchmark_parser
from rag_train.eval.matrix import run as matrix
from rag_train.eval.matrix.store import read_cell
from rag_train.eval.metrics.scores import score
from rag_train.eval.metrics.summary import summarize
from rag_train.eval.miniworld.lab import multi_hop
from rag_train.formats.deeprag import FINAL, FOLLOW_UP, INTERMEDIATE
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.miniworld.world import World, WorldConfig
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Passage, Question
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig

WANTED = 2.0
"""Wanted milliseconds per question, at most."""
STRATEGIES = ("direct", "deeprag-retrieve")


class GoldEngine:
    """An engine that asks each gold subquery in turn, answers it, and ends, without any delay."""

    name = "instant"
    tokenizer: Any = SimpleNamespace(chat_template=None)
    abilities = Abilities()

    def __init__(self, questions: Sequence[Question]):
        self.steps = {question.question: question.decomposition for question in questions}

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        asked, _, history = prompt.removeprefix("Question: ").partition("\n")
        steps, at = self.steps[asked], history.count(FOLLOW_UP)
        if history.endswith(INTERMEDIATE):
            text = f" {steps[at - 1].answer}"
        elif history.endswith(FINAL) or at == len(steps):
            text = f"{'' if history.endswith(FINAL) else FINAL} {steps[-1].short}"
        else:
            text = f"{FOLLOW_UP} {steps[at].subquery}"
        words = text.split()
        alternatives = tuple((TokenLogprob(i, word, -0.1),) for i, word in enumerate(words))
        return Completion(
            text,
            tuple(range(len(words))),
            Usage(len(prompt) // 4, len(words)),
            stop="\n",
            logprobs=alternatives if sampling.logprobs else (),
        )

    async def aclose(self) -> None: ...


class ConstantRetriever:
    """A retriever that returns the same passages for every query."""

    name, corpus_sha256 = "always", "always"

    def __init__(self, passages: Sequence[Passage]):
        self.passages = list(passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.passages[:k] for _ in queries]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=1000, help="questions per run")
    parser.add_argument("--repeats", type=int, default=5, help="runs per strategy")
    options = parser.parse_args()
    world = World(WorldConfig())
    base = multi_hop(world.questions("train"))
    passages = list(world.corpus())[:3]
    asked = [
        base[i % len(base)].model_copy(update={"id": str(i), "gold_passages": passages[:2]})
        for i in range(options.questions)
    ]
    rows = [measure(name, asked, ConstantRetriever(passages), options.repeats) for name in STRATEGIES]
    for row in rows:
        console.print(row)
    save_result(options.output / "bench_overhead.json", {"wanted_ms": WANTED, "rows": rows})


def measure(
    strategy: str, questions: Sequence[Question], retriever: ConstantRetriever, repeats: int
) -> dict[str, Any]:
    """Return the median milliseconds per question of a whole cell, and of its scores and summary alone."""
    engine = GoldEngine(questions)

    @asynccontextmanager
    async def opened(config: KitConfig, retrievers: Any):
        yield Kit(engine, AsyncRetriever(retriever), instructions=False)

    config = KitConfig(model="", indexes=[])
    whole: list[float] = []
    scoring: list[float] = []
    cell = trajectories = None
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder, patch.object(matrix, "open_kit", opened):
            start = time.process_time()
            (cell,) = asyncio.run(
                matrix.run_matrix(
                    config, {"m": "m"}, [strategy], {"d": questions}, {"r": {"": retriever}}, Path(folder)
                )
            )
            whole.append(time.process_time() - start)
            _, trajectories, _ = read_cell(Path(folder), cell)
        start = time.process_time()
        summarize(questions, trajectories, strategy=strategy, scores=score(questions, trajectories))
        scoring.append(time.process_time() - start)
    assert cell is not None and cell.summary.errors == 0

    def per_question(seconds: Sequence[float]) -> float:
        return round(1000 * statistics.median(seconds) / len(questions), 3)

    return {
        "strategy": strategy,
        "questions": len(questions),
        "steps": round(cell.summary.steps, 2),
        "llm_calls": round(cell.summary.llm_calls, 2),
        "ms_a_question": per_question(whole),
        "of_which_scoring_ms": per_question(scoring),
        "most_ms_a_question": round(1000 * max(whole) / len(questions), 3),
        "em": cell.summary.em.mean,
    }


if __name__ == "__main__":
    main()
