"""Questions kept for evaluation stay out of the training data."""

import asyncio
import unicodedata
from pathlib import Path

import pytest
from support.fakes import Found
from support.two_hop import QUESTION

from rag_train.data_synth.leakage import HeldOutQuestions
from rag_train.data_synth.methods.planrag import PlanRAGData
from rag_train.data_synth.modules.method import TeacherRecipe
from rag_train.schema import GoldStep, Question

SHOWN = 'What is Ann\'s "best-known" café – AT&T?'


@pytest.mark.parametrize(
    "text",
    [
        SHOWN.replace("'", "’").replace('"', "“", 1).replace('"', "”"),
        SHOWN.replace('"', "»").replace("'", "´"),
        SHOWN.replace("-", "\u2011").replace("–", "—"),
        SHOWN.replace(" – ", " - "),
        unicodedata.normalize("NFD", SHOWN),
        "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in SHOWN),
        SHOWN.replace("&", "&amp;").replace("'", "&#39;").replace('"', "&quot;"),
        SHOWN.replace("'", "&amp;#39;"),
        SHOWN.replace("best", "be\u00ad\u200bst").replace(" ", "\u00a0"),
        f"\ufeff{SHOWN.upper()}…",
        SHOWN.replace("?", "？"),
    ],
)
def test_what_readers_do_not_see_hides_no_leak(text: str):
    held_out = HeldOutQuestions([Question(id="h", question=SHOWN, answers=["poet"])])
    asked = Question(id="t", question=text, answers=["poet"])
    assert held_out.leak(asked) == "text" == held_out.leak_in_lines(["x", text])
    assert HeldOutQuestions([asked]).leak(Question(id="h", question=SHOWN, answers=["poet"])) == "text"
    assert held_out.leak(Question(id="t", question=f"{text} in Ulm", answers=["poet"])) is None


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
        recipe = TeacherRecipe(
            questions=[], index="", output=str(tmp_path / leak), held_out=[tmp_path / "held.jsonl"], leak=leak
        )
        summary = asyncio.run(PlanRAGData(recipe, [same, start], Found([])).write())
        assert summary.rejected["held out (text)"] == 1
        assert summary.counts.get("shares an entity", 0) == kept == 1 - summary.rejected.get("held out (entity)", 0)
