"""Which questions each stage of the demo takes, and the mini model with which it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_train.eval.demo import world as worlds
from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.demo.world import MARKERS, PARTS, as_mixed, one_answer, open_world, part
from rag_train.formats import deeprag, reader
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.package_files import packaged
from rag_train.recipe import load_recipe
from rag_train.schema import Decision, Passage, Step
from rag_train.worlds.atlas.facts import Atlas
from rag_train.worlds.atlas.questions import home, questions
from rag_train.worlds.mini.pretrain import RECORD, PretrainConfig, build_model
from rag_train.worlds.mini.text import build_tokenizer
from rag_train.worlds.mini.world import World, WorldConfig

RECIPE = packaged("recipes/demo.yaml")


def test_every_line_of_a_transcript_begins_with_a_marker():
    passages = [Passage(id="p", title="A", text="A is a film.")]
    steps = [
        Step(subquery="Who?", decision=Decision.RETRIEVE, passages=passages, answer="B."),
        Step(subquery="Where?", decision=Decision.PARAMETRIC, answer="C."),
    ]
    text = deeprag.question_prompt("Where?") + deeprag.text_of(steps, "C")
    text += "".join(segment.text for segment in reader.render("Where?", "C", passages, reasoning="B. C."))
    markers, lines = MARKERS.splitlines(), text.splitlines()
    assert all(line.startswith(tuple(markers)) for line in lines)
    assert all(any(line.startswith(marker) for line in lines) for marker in markers)


def test_mini_model_gets_the_words_of_the_markers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = {"films": 40, "people": 48, "cities": 12, "countries": 5}
    tokenizer, base = build_tokenizer(World(WorldConfig(**sizes))), tmp_path / "base"
    config = PretrainConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64)
    build_model(config, tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    (base / RECORD).write_text(json.dumps({"losses": []}))
    recipe = load_recipe(DemoRecipe, RECIPE, [f"miniworld.world.{name}={count}" for name, count in sizes.items()])

    def opened(*, trained: bool) -> Path:
        monkeypatch.setattr(worlds, "pretrained", lambda *_, **__: (base, trained))
        return open_world(recipe, 0, tmp_path / "seed0", tmp_path, scratch=False).model

    (tmp_path / "seed0/extended.tmp").mkdir(parents=True)  # an earlier run was killed
    model = opened(trained=False)
    tokens = load_tokenizer(str(model)).tokenize
    assert len(tokens(deeprag.FOLLOW_UP)) == 3 < len(tokenizer.tokenize(deeprag.FOLLOW_UP))
    (model / "kept").touch()
    assert (opened(trained=False) / "kept").exists()
    assert not (opened(trained=True) / "kept").exists()


@pytest.mark.slow
def test_no_fact_is_in_the_questions_of_two_stages(atlas: Atlas):
    homes = {entity.name: home(atlas, entity).id for entity in atlas.entities.values()}
    train = questions(atlas, "train")
    subqueries = [
        {step.subquery for question in train if part(question, homes) == number for step in question.decomposition}
        for number in range(len(PARTS))
    ]
    assert min(map(len, subqueries)) > 500
    assert not (subqueries[0] & subqueries[1] or subqueries[0] & subqueries[2] or subqueries[1] & subqueries[2])


@pytest.mark.slow
def test_cold_start_has_comparisons_as_often_as_all_questions(atlas: Atlas):
    homes = {entity.name: home(atlas, entity).id for entity in atlas.entities.values()}
    train = one_answer(questions(atlas, "train"))
    cold = as_mixed([question for question in train if part(question, homes) == 0], train, 600)
    shares = [sum(question.type == "chain" for question in found) / len(found) for found in (train, cold)]
    assert len(cold) == 600 and abs(shares[0] - shares[1]) < 0.01
