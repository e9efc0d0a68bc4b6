"""What the demo reports about its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.demo.run import SeedResult, _summary, _timings, folder_of
from rag_train.recipe import load_recipe
from rag_train.schema import GoldStep, Question
from rag_train.working_files import PACKAGE


def test_parts_add_up_to_the_duration_of_the_run():
    """U4: the page added the whole run to its parts."""
    timings = _timings([{"search": 1.0, "training": 2.0}, {"search": 3.0, "training": 4.0}], 12.5)
    assert {timing.part: timing.seconds for timing in timings} == {
        "search": 4.0, "training": 6.0, "everything else": 2.5
    }  # fmt: skip
    assert sum(timing.seconds for timing in timings) == pytest.approx(12.5)


@pytest.mark.parametrize("name", ["demo", "demo_atlas"])
def test_summary_tells_how_many_facts_behind_the_questions_are_known(name: str):
    asked = [GoldStep(subquery=text, answer="A.") for text in ("Who?", "Where?", "When?")]
    question = Question(id="q", question="Where and when?", answers=["A"], decomposition=asked)
    known = {"Who?": True, "Where?": False, "of no question": True}  # "When?" is uncertain
    result = SeedResult([], {}, [question], known, [], {})
    summary = _summary(load_recipe(DemoRecipe, PACKAGE / f"recipes/{name}.yaml", []), [0], [result])
    assert "it knows 50%." in summary and "cold start" in summary


def test_another_threshold_keeps_data_and_models():
    def key(*overrides: str) -> str:
        recipe = load_recipe(DemoRecipe, PACKAGE / "recipes/demo_atlas.yaml", list(overrides))
        return folder_of(recipe, 0, Path()).name

    assert key() == key("thresholds.stage2=0.3") != key("stage2.beta=0.1")
