"""What the demo reports about its run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rag_train.errors import UserError
from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.demo.run import claims, summary
from rag_train.eval.demo.seed import folder_of
from rag_train.eval.metrics.summary import summarize
from rag_train.package_files import packaged
from rag_train.recipe import load_recipe
from rag_train.schema import GoldStep, Question, Trajectory


@pytest.mark.parametrize("name", ["demo", "demo_atlas", "real"])
def test_summary_tells_how_many_facts_behind_the_questions_are_known(name: str):
    asked = [GoldStep(subquery=text, answer="A.") for text in ("Who?", "Where?", "When?")]
    question = Question(id="q", question="Where and when?", answers=["A"], decomposition=asked)
    known = {"Who?": True, "Where?": False, "of no question": True}  # "When?" is uncertain
    seed: Any = SimpleNamespace(world=SimpleNamespace(asked=[question]), known=known)
    told = summary(load_recipe(DemoRecipe, packaged(f"recipes/{name}.yaml"), []), [seed])
    assert "it knows 50%." in told and ("cold start" in told) is (name != "real")


class Answered:
    """A seed whose questions were answered, right or wrong, by the untuned and the tuned model."""

    known: ClassVar[dict[str, bool]] = {}

    def __init__(self, number: int, right: dict[str, list[bool]]):
        steps = [GoldStep(subquery="Who?", answer="A.", entity=str(i)) for i in range(20)]
        self.asked = [
            Question(id=step.entity, question="Who?", answers=["A"], decomposition=[step]) for step in steps
        ]
        self.trajectories = {
            name: [
                Trajectory(question_id=q.id, question=q.question, strategy="s", answer="A" if found else "B")
                for q, found in zip(self.asked, rights, strict=False)
            ]
            for name, rights in right.items()
        }
        self.runs = [
            summarize(self.questions(name), answers, strategy=strategy, stage=stage, seed=number)
            for name, answers in self.trajectories.items()
            for strategy, stage in [name.split(", ")]
        ]

    def questions(self, name: str) -> list[Question]:
        return self.asked[: len(self.trajectories[name])]


def test_claims_about_lessons_need_the_interval_and_every_seed():
    recipe = load_recipe(DemoRecipe, packaged("recipes/real.yaml"), [])
    worse, better = [False] * 20, [True] * 10 + [False] * 10
    few = {"levelrag, untuned": worse[:6], "levelrag, tuned": [True] * 6}
    same = {"deeprag, untuned": worse, "deeprag, tuned": better, "hanrag, tuned": better} | few
    seeds: Any = [Answered(0, same | {"hanrag, untuned": better}), Answered(1, same | {"hanrag, untuned": worse})]
    found = {claim.text: claim for claim in claims(recipe, seeds)}
    assert {text.split()[3]: claim.verdict for text, claim in found.items()} == {
        "deeprag's": "holds",
        "hanrag's": "cannot be told apart",
        "levelrag's": "holds",
    }
    assert found["The lessons improve deeprag's answers"].evidence.startswith("+0.500 [")
    assert not any(claim.placed for claim in found.values())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["miniworld={}"], "give one of the sections atlas and miniworld"),
        (["lessons=null"], "give either the sections cold_start"),
        (["atlas=null", "miniworld={}"], "lessons need the atlas"),
    ],
)
def test_sections_that_do_not_fit_together_are_refused(changes: list[str], problem: str):
    with pytest.raises(UserError, match=problem):
        load_recipe(DemoRecipe, packaged("recipes/real.yaml"), changes)


@pytest.mark.parametrize(
    ("name", "kept", "changed"),
    [
        ("demo_atlas", ["thresholds.stage2=0.3"], ["stage2.beta=0.1"]),
        ("real", ["lessons.tuned=[rag]", "lessons.untuned=[direct]"], ["lessons.tokens=100"]),
    ],
)
def test_what_is_only_asked_keeps_data_and_models(name: str, kept: list[str], changed: list[str]):
    def key(overrides: list[str]) -> str:
        return folder_of(load_recipe(DemoRecipe, packaged(f"recipes/{name}.yaml"), overrides), 0, Path()).name

    assert key([]) == key(kept) != key(changed)
