"""The mini world's question sets, and its lessons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rag_train.eval.demo.recipe import demo_recipe
from rag_train.eval.miniworld.lab import QUESTION_SETS, Lab, Settings, draw, training_questions
from rag_train.miniworld.world import World, subquery
from rag_train.schema import Question


def asks(question: Question, name: str, world: World) -> bool:
    """Whether a question is of a question set's kind."""
    first, *others = question.decomposition
    fact = next(fact for fact in world.facts if subquery(fact[1], fact[0]) == first.subquery)
    chain = question.type == "chain"
    return {
        "single": not others,
        "known": not others and fact in world.known,
        "rare": not others and first.entity not in world.famous,
        "changed": not others and fact in world.outdated,
        "two-hop": chain and len(others) == 1,
        "mixed": question.type != "compound" and len(others) in (1, 2, 3),
        "deep": chain and len(others) in (2, 3),
        "comparison": question.type.startswith("comparison"),
        "compound": "&&" in question.answers[0],
    }[name]


@pytest.mark.parametrize("name", QUESTION_SETS)
def test_question_sets_ask_what_they_say(name: str, mini_world: World):
    asked = draw(mini_world, name, "test", 20)
    assert len({question.question for question in asked}) == 20
    assert all(asks(question, name, mini_world) for question in asked)
    assert {mini_world.split[question.decomposition[0].entity] for question in asked} == {"test"}


def test_half_of_the_mixed_questions_compare(mini_world: World):
    asked = draw(mini_world, "mixed", "test", 21)
    assert [question.type == "chain" for question in asked] == [True] * 11 + [False] * 10


def test_a_set_is_smaller_if_the_world_has_no_more_questions(mini_world: World):
    assert 0 < len(draw(mini_world, "changed", "dev", 1000)) < 100


def test_lessons_are_of_all_kinds_and_about_films_and_people_of_their_own(tmp_path: Path):
    settings = Settings(work=tmp_path)
    lab, count = Lab(0, settings), settings.demo.cold_start.questions
    lessons = lab.lessons()
    assert len({question.question for question in lessons}) == count + count // 6
    assert {question.type for question in lessons} == {"chain", "comparison-same", "comparison-earlier", "compound"}
    assert {question.hops for question in lessons} == {1, 2, 3, 4}
    assert {lab.world.split[question.decomposition[0].entity] for question in lessons} == {"lessons"}


def test_stages_have_questions_of_their_own(mini_world: World):
    recipe = demo_recipe()
    stages = training_questions(mini_world, recipe)
    sizes = [recipe.cold_start.questions, recipe.stage1.questions, recipe.stage2.questions]
    assert [len(asked) for asked in stages] == sizes
    assert len({question.question for asked in stages for question in asked}) == sum(sizes)
    assert {question.hops for question in stages.cold_start} == {1, 2, 3, 4}
    assert 1 / 8 < comparisons(stages.cold_start) < 2 / 5
    for asked, split in ((stages.stage1, "train"), (stages.stage2, "lessons")):
        assert {question.hops for question in asked} == {2, 3, 4}
        assert {mini_world.split[question.decomposition[0].entity] for question in asked} == {split}
        assert 0.03 < comparisons(asked) < 0.1


def comparisons(questions: list[Question]) -> float:
    """Return the share of comparisons."""
    return sum(question.type != "chain" for question in questions) / len(questions)


def test_the_folder_is_named_by_what_determines_the_models(tmp_path: Path):
    settings = Settings(work=tmp_path)
    demo = replace(settings.demo, stage1=replace(settings.demo.stage1, epochs=3))
    same = replace(settings, work=tmp_path / "other", split="dev", questions=7, flare="theta=0.4")
    assert same.models == settings.models
    assert len({settings.models, replace(settings, tokens=1).models, replace(settings, demo=demo).models}) == 3
    assert settings.models in Lab(0, settings).folder.name
