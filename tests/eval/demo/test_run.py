"""What the demo reports about its run."""

from __future__ import annotations

import pytest

from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.demo.run import _key, _timings
from rag_train.recipe import load_recipe
from rag_train.working_files import PACKAGE


def test_parts_add_up_to_the_duration_of_the_run():
    """U4: the page added the whole run to its parts."""
    timings = _timings([{"search": 1.0, "training": 2.0}, {"search": 3.0, "training": 4.0}], 12.5)
    assert {timing.part: timing.seconds for timing in timings} == {
        "search": 4.0, "training": 6.0, "everything else": 2.5
    }  # fmt: skip
    assert sum(timing.seconds for timing in timings) == pytest.approx(12.5)


def test_another_threshold_keeps_data_and_models():
    def key(*overrides: str) -> str:
        return _key(load_recipe(DemoRecipe, PACKAGE / "recipes/demo_atlas.yaml", list(overrides)))

    assert key() == key("threshold=0.3") != key("stage2.beta=0.1")
