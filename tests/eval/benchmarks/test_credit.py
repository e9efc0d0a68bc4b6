"""The comparison of ways of giving credit at equal engine tokens."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.eval.benchmarks import credit
from rag_train.eval.benchmarks.credit import PLAIN, START, TREE, compare, over, spent, verdict
from rag_train.eval.benchmarks.stage3 import PROTOCOL, DemoSeed
from rag_train.eval.papers.protocol import seeds_of
from rag_train.schema import Question
from rag_train.training.recipe import TrainRecipe

QUESTIONS = [Question(id=str(i), question="Who?", answers=["A"]) for i in range(24)]
OPTIONS = argparse.Namespace(price=0.1, questions=16, lr=1e-4, plain_lr=3e-4)


def write_metrics(folder: Path, tokens: list[int]) -> None:
    """Write the metrics of a run whose steps have read these tokens."""
    step = {"engine/written": 10, "step_time": 2.5}
    rows = [
        step | {"step": n, "epoch": n / 2, "reward": 0.1 * n, "engine/read": read} for n, read in enumerate(tokens)
    ]
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"train_loss": 1.0}]))


def test_costs_are_those_of_all_steps(tmp_path: Path):
    write_metrics(tmp_path / "run", [90, 80])
    assert spent(tmp_path / "run/metrics.jsonl") == {
        "steps": 2,
        "passes": 0.5,
        "tokens": 190,
        "written": 20,
        "seconds": 5.0,
        "curve": [(100, 0.0), (190, 0.1)],
    }


class Seed(DemoSeed):
    """A seed whose models answer at once; a model's exact match is 0.5."""

    def __init__(self, folder: Path):
        self.seed, self.models, self.training, self.folder = 10, Path("demo"), QUESTIONS, folder

    async def runs(self, model: Path, stage: str, strategies: Any = ("deeprag",)) -> list[Any]:
        return [SimpleNamespace(em=SimpleNamespace(mean=0.5), retrievals=SimpleNamespace(mean=2.0))]


def compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tree: list[int], plain: list[int], collapsed: bool = False
) -> tuple[dict[str, Any], list[TrainRecipe]]:
    """Compare runs whose steps read these tokens, and return the arms with their recipes."""
    recipes: list[TrainRecipe] = []

    def trained(recipe: TrainRecipe) -> tuple[Path, bool]:
        recipes.append(recipe)
        write_metrics(Path(recipe.output_dir), plain if len(recipes) > 1 else tree)
        return Path(recipe.output_dir), collapsed

    monkeypatch.setattr(credit, "trained", trained)
    return compare(OPTIONS, Seed(folder))["arms"], recipes


def test_plain_grpo_gets_the_tokens_of_the_tree_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    arms, recipes = compared(tmp_path, monkeypatch, [490, 490], [190] * 5)
    assert [recipe.rl and (recipe.rl.credit, recipe.rl.budget) for recipe in recipes] == [
        ("tree", None),
        ("trajectory", 1000),
    ]
    assert [recipe.lr for recipe in recipes] == [1e-4, 3e-4]
    assert [len(recipe.data.read_text().splitlines()) for recipe in recipes] == [16, 24]
    assert [Path(recipe.output_dir).name for recipe in recipes] == [
        "stage1-0.1-0.0001",
        "plain-0.1-0.0003-1000-tokens",
    ]
    assert [recipe.seed for recipe in recipes] == [10] * 2
    assert list(arms) == [START, TREE, PLAIN] and arms[TREE]["score"] == pytest.approx(0.3)
    assert (arms[PLAIN]["tokens"], arms[PLAIN]["written"], arms[PLAIN]["seconds"]) == (1000, 50, 12.5)
    with pytest.raises(UserError, match="plain GRPO: 800 of 1,000 tokens in 10 epochs; raise EPOCHS"):
        compared(tmp_path / "few", monkeypatch, [490, 490], [190] * 4)


def test_both_arms_warm_up_for_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, recipes = compared(tmp_path, monkeypatch, [490, 490], [190] * 5)
    rises = []
    for recipe, questions in zip(recipes, (16, 24), strict=True):
        assert recipe.rl is not None and recipe.global_batch is not None
        rises.append(recipe.warmup_ratio * recipe.epochs * questions * recipe.rl.group / recipe.global_batch)
    assert rises == pytest.approx([rises[0]] * 2) and math.ceil(rises[0]) == 1


def test_a_collapse_is_the_outcome_of_its_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tree run has collapsed after one of its two steps; plain GRPO still has the tokens of both."""
    arms, recipes = compared(tmp_path, monkeypatch, [490], [190], collapsed=True)
    assert [recipe.rl and recipe.rl.budget for recipe in recipes] == [None, 1000]
    assert all(arms[name]["collapsed"] for name in (TREE, PLAIN))


def result(*scores: float) -> dict[str, Any]:
    return {"arms": {name: {"score": s} for name, s in zip((START, TREE, PLAIN), scores, strict=True)}}


def test_the_verdict_is_on_tree_credit_over_plain_grpo():
    tests = seeds_of(PROTOCOL, "test")
    better = {seed: result(0.1, 0.5 + seed / 1e4, 0.4) for seed in tests}
    assert over(better, PLAIN, START) == pytest.approx([0.3] * 6)
    assert verdict(better).startswith("holds; seeds 20, 21, 22, 23, 24, 25; score, tree credit over plain GRPO: ")
    mixed = {seed: result(0.1, 0.4 + (-1) ** seed * 0.1, 0.4) for seed in tests}
    assert verdict(mixed).startswith("cannot be told apart; ")
    worse = {seed: result(0.1, 0.2 + seed / 1e4, 0.4) for seed in tests}
    assert verdict(worse).startswith("fails; ")
    del better[20]
    assert verdict(better).startswith("open; ")
