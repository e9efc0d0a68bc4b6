"""Every strategy on the mini world, over one model, one retriever and the same questions.

The model was taught the formats of all methods, with the same number of tokens for each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rag_train.eval.matrix.tables import main_table
from rag_train.eval.metrics.scores import score
from rag_train.eval.metrics.summary import summarize
from rag_train.eval.miniworld.answers import Request, ask
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.models import TOKENS
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.schema import Trajectory
from rag_train.strategies.registry import STRATEGIES

COMPOUND = ("hanrag", "adaptive-rag")
"""The strategies that also answer compound questions."""


async def run(seed: int, settings: Settings, output: Path) -> None:
    """Answer with every strategy, print the table, and write ``strategies.json`` to ``output``."""
    lab, n = Lab(seed, settings), settings.questions
    sets = {
        "multi-hop": lab.multi_hop(settings.split)[:n],
        "compound": lab.world.compounds(settings.split, n // 2),
    }
    # Nothing in the mini world is on the web, and search-r1 is learned by reinforcement, not from examples.
    requests = [
        Request("taught", name, questions)
        for name in STRATEGIES
        if name not in ("levelrag-web", "search-r1")
        for questions in sets
        if questions == "multi-hop" or name in COMPOUND
    ]
    answers = await ask(lab, {request: sets[request.questions] for request in requests})
    summaries, rows = [], []
    for request in requests:
        asked, answered = sets[request.questions], answers[request]
        name = request.strategy if request.questions == "multi-hop" else f"{request.strategy} ({request.questions})"
        summary = summarize(asked, answered, strategy=name)
        summaries.append(summary)
        rows.append(
            {
                "strategy": request.strategy,
                "questions": request.questions,
                "n": len(asked),
                "em": sum(s.em for s in score(asked, answered)) / len(asked),
                "summary": summary.model_dump(mode="json"),
                "rounds": sum(t.rounds for t in answered) / len(asked),
                "failed": sum(t.error is not None for t in answered),
                "unparsed": sum("did not parse" in note for t in answered for note in t.notes.values())
                / len(asked),
                "modules": _tokens_by_module(answered),
            }
        )
    console.print(main_table(summaries))
    tokens = json.loads((lab.folder / TOKENS).read_text())["taught"]
    result = {
        "seed": seed,
        "split": settings.split,
        "lessons": settings.demo.cold_start.questions,
        "settings": settings.recorded(),
        "tokens": tokens,
        "rows": rows,
    }
    save_result(output / "strategies.json", result)


def _tokens_by_module(trajectories: list[Trajectory]) -> dict[str, dict[str, Any]]:
    """Return the calls and the tokens read and written by each module, in total over all questions."""
    modules: dict[str, dict[str, int]] = {}
    for call in (call for trajectory in trajectories for call in trajectory.calls):
        tokens = modules.setdefault(call.module, {"calls": 0, "read": 0, "written": 0})
        tokens["calls"] += 1
        tokens["read"] += call.prompt_tokens
        tokens["written"] += call.completion_tokens
    return modules
