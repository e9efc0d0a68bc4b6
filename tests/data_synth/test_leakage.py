"""Questions kept for evaluation stay out of the training data."""

import asyncio
from pathlib import Path

from support.fakes import Found
from support.two_hop import QUESTION

from rag_train.data_synth.leakage import HeldOutQuestions
from rag_train.data_synth.modules import planrag
from rag_train.data_synth.modules.recipes import PlanRAGRecipe
from rag_train.data_synth.modules.run import synthesize_with
from rag_train.schema import GoldStep, Question


def test_rejects_questions_that_leak_held_out_questions(tmp_path: Path):
    held_out = HeldOutQuestions([QUESTION])
    same = Question(id="a", question="where was the director of  Moby Dick born", answers=["?"])
    hop = Question(id="b", question="Who directed Moby Dick?", answers=["?"])
    start = QUESTION.model_copy(
        update={
            "id": "c",
            "question": "Who played in Moby Dick?",
            "decomposition": [GoldStep(subquery="cast of Moby Dick?", answer="x", entity="Moby Dick")],
        }
    )
    later = start.model_copy(
        update={"decomposition": [GoldStep(subquery="films of John Huston?", answer="x", entity="John Huston")]}
    )
    assert [held_out.leak(question) for question in (same, hop, start, later)] == ["text", "text", "entity", None]
    (tmp_path / "held.jsonl").write_text(QUESTION.model_dump_json())
    for leak, kept in (("text", 1), ("entity", 0)):
        recipe = PlanRAGRecipe(
            questions=[], index="", output=str(tmp_path / leak), held_out=[tmp_path / "held.jsonl"], leak=leak
        )
        work = synthesize_with(planrag.FACTORY, recipe, [same, start], Found([]), None, {})
        summary = asyncio.run(work)
        assert summary.rejected["held out (text)"] == 1
        assert summary.counts.get("shares an entity", 0) == kept == 1 - summary.rejected.get("held out (entity)", 0)
