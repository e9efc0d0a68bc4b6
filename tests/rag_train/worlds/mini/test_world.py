"""The mini world: its facts, splits, training text and tokenizer."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.formats.deeprag import CONTEXT, FINAL, FOLLOW_UP, INTERMEDIATE, QUESTION, SEARCH
from rag_train.formats.reader import THOUGHT
from rag_train.strategies.baselines.adaptive_retrieval import AdaptiveRetrieval
from rag_train.worlds.mini.text import TextSource, build_tokenizer
from rag_train.worlds.mini.world import RELATIONS, SPLITS, World, WorldConfig, statement


@pytest.fixture(scope="module")
def world() -> World:
    return World(WorldConfig(films=40, people=48, cities=12, countries=5))


@pytest.mark.slow
def test_training_text_never_states_an_unknown_fact_or_a_new_value(world: World):
    source = TextSource(world, seed=1)
    hidden = {statement(r, s, v) for (s, r), v in world.facts.items() if (s, r) not in world.known}
    old = {statement(r, s, v) for (s, r), v in world.outdated.items()}
    text = ""
    for _ in range(1000):
        for document in (source.statements(), source.quiz(), source.thought()):
            text += "".join(segment.text for segment in document)
    assert not any(fact in text for fact in hidden)
    assert all(fact in text for fact in old)


def test_training_text_has_no_marker_of_a_method(world: World):
    source = TextSource(world, seed=2)
    markers = (QUESTION, FOLLOW_UP, SEARCH, CONTEXT, INTERMEDIATE, FINAL, THOUGHT)
    for i in range(500):
        source.progress = i / 500
        text = "".join(segment.text for segment in source.document())
        assert not any(marker in text for marker in markers)


@pytest.mark.slow
def test_splits_share_no_films_or_people(world: World):
    roots = {split: {q.question for q in world.questions(split)} for split in SPLITS}
    assert not roots["train"] & roots["test"] and not roots["dev"] & roots["test"]
    for (subject, _), value in world.facts.items():
        if value in world.split and subject in world.split:
            assert world.split[subject] == world.split[value]


def test_gold_steps_end_in_the_answer(world: World):
    for question in world.questions("dev"):
        assert question.hops == len(question.decomposition)
        if question.type == "chain":
            assert question.decomposition[-1].answer.endswith(f" {question.answers[0]}.")


def test_questions_have_the_passages_that_state_their_hops(world: World):
    corpus = {passage.id: passage for passage in world.corpus()}
    for question in world.questions("dev"):
        ids = dict.fromkeys(id for step in question.decomposition for id in step.passage_ids)
        assert question.gold_passages == [corpus[id] for id in ids]


def test_adaptive_retrieval_knows_the_questions_about_famous_entities(world: World):
    """Without a popularity, it retrieved for every question."""
    questions = world.questions("dev", comparisons=20)
    for question in questions:
        roots = [name for name in world.split if name in question.question]
        known = question.metadata["s_pop"] >= AdaptiveRetrieval.threshold
        assert roots and known == (world.famous >= set(roots))
    assert len({question.metadata["s_pop"] for question in questions if question.type != "chain"}) == 2


def test_each_split_has_its_share_of_famous_entities_and_passages_state_only_mentioned_facts(world: World):
    for split in SPLITS:
        own = [entity for entity in world.split if world.split[entity] == split]
        assert 0.4 < sum(entity in world.famous for entity in own) / len(own) < 0.8
    for passage in world.corpus()[:60]:
        for relation in world.relations_of(world.type_of(passage.title)):
            fact = (passage.title, relation)
            assert (statement(relation, passage.title, world.facts[fact]) in passage.text) == (
                fact in world.mentioned
            )


def test_outdated_facts_have_another_value_of_the_same_type_and_split(world: World):
    assert world.outdated and not world.outdated.keys() & world.known
    for (subject, relation), value in world.outdated.items():
        assert value not in (subject, world.facts[subject, relation])
        assert value in world.entities[RELATIONS[relation][1]]
        assert world.split.get(value, world.split.get(subject)) == world.split.get(subject)
        assert world.recalled((subject, relation)) == value
        if relation == "spouse":
            assert (world.facts[subject, relation], relation) in world.outdated
    steps = [step for question in world.questions("train") for step in question.decomposition]
    assert all(
        not step.known
        for step in steps
        if (step.entity, "director") in world.outdated and "director" in step.subquery
    )


def test_seed_determines_the_world(world: World):
    again = World(world.config)
    assert again.facts == world.facts and again.known == world.known
    assert again.questions("test") == world.questions("test")


@pytest.mark.slow
@given(text=st.text())
def test_tokenizer_is_lossless(text: str):
    tokenizer = build_tokenizer(World(WorldConfig(films=20, people=20, cities=4, countries=2)))
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_shipped_mini_model_has_the_present_recipe(tmp_path: Path):
    from rag_train.worlds.mini.pretrain import RECORD, PretrainConfig, pretrained

    directory, trained = pretrained(World(WorldConfig()), PretrainConfig(), tmp_path)
    assert not trained, "make it again: rag-train demo --scratch, then python -m rag_train.eval.demo.ship"
    weights = (directory / "model.safetensors").read_bytes()
    assert json.loads((directory / RECORD).read_text())["sha256"] == hashlib.sha256(weights).hexdigest()
