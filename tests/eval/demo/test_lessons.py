"""The comparison of all strategies on a real model: its examples, its questions, and one small run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.paths import MODEL

from rag_train.eval.demo.examples import equal_shares, gold_examples
from rag_train.eval.demo.recipe import MAX_TOKENS, DemoRecipe
from rag_train.eval.demo.run import run_demo
from rag_train.eval.demo.world import DemoWorld, open_world
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.package_files import packaged
from rag_train.recipe import load_recipe
from rag_train.retrieval.batching import AsyncRetriever

SYSTEMS = {"dualrag", "hanrag", "levelrag", "planrag"}


def opened(*overrides: str, seed: int = 0) -> DemoWorld:
    overrides = (f"atlas.model={MODEL}", "split=dev", *overrides)
    recipe = load_recipe(DemoRecipe, packaged("recipes/real.yaml"), list(overrides))
    return open_world(recipe, seed, Path(), Path(), scratch=False)


@pytest.mark.slow
def test_every_method_gets_the_same_number_of_tokens(mini_model: Path):
    world = opened("lessons.questions=12")
    retriever = AsyncRetriever(world.index)
    examples = asyncio.run(gold_examples(world.training["lessons"], retriever, passages=2))
    kept = [record for record in examples["reader"] if "Thought:" in record.completion]
    assert kept and examples["react"] and examples["iterdrag"]  # whole formats were once filtered out
    long = kept[0].model_copy(update={"prompt": "word " * MAX_TOKENS})
    examples["long"] = [long]
    tokenizer = load_tokenizer(str(mini_model))
    drawn, tokens = equal_shares(examples, tokenizer, 2000, seed=0)
    longest = max(len(tokenizer.encode(record.prompt + record.completion)) for record in drawn)
    assert all(tokens[method] >= 2000 for method in SYSTEMS)  # the baselines have fewer examples
    assert max(tokens.values()) < 2000 + longest
    assert len({record.id for record in drawn}) == len(drawn) and "long" not in tokens
    assert equal_shares(examples, tokenizer, 2000, seed=0) == (drawn, tokens)
    for method in SYSTEMS:  # the modules take turns
        tasks = {record.task for record in examples[method]}
        assert len({r.task for r in drawn if r.task in tasks}) >= min(len(tasks), 2)


@pytest.mark.slow
def test_all_seeds_ask_the_same_questions():
    first, second = opened(), opened(seed=1)
    assert first.asked == second.asked
    assert first.training["lessons"][:50] != second.training["lessons"][:50]
    assert {len(question.decomposition) for question in first.training["lessons"]} == {1, 2, 3, 4}


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.real
def test_a_small_run_compares_the_untuned_and_the_tuned_model(smollm2: Path, tmp_path: Path):
    overrides = [f"atlas.model={smollm2}", "lessons.questions=3", "lessons.pack_tokens=512", "lessons.tokens=100"]
    overrides += ["test_questions=2", "split=dev", 'lessons.untuned=["deeprag,guided=true"]']
    recipe = load_recipe(DemoRecipe, packaged("recipes/real.yaml"), [*overrides, "lessons.tuned=[rag,deeprag]"])
    data = run_demo(recipe, [0], tmp_path / "work", tmp_path)
    names = ("deeprag, untuned", "rag, tuned", "deeprag, tuned")
    assert {run.name: run.questions for run in data.runs} == dict.fromkeys(names, 2)
    assert [claim.text for claim in data.claims] == ["The lessons improve deeprag's answers"]
    assert data.examples and (tmp_path / "demo.html").is_file()
    assert run_demo(recipe, [0], tmp_path / "work", tmp_path).runs == data.runs
