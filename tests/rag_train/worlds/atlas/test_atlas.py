"""The atlas: real facts, splits by entity, wordings that are held out, and answers that follow from the facts."""

from __future__ import annotations

from collections import Counter

import pytest

from rag_train.schema import Question
from rag_train.worlds.atlas.facts import SHARES, Atlas
from rag_train.worlds.atlas.passages import MENTIONED, corpus, is_mentioned
from rag_train.worlds.atlas.questions import SIZES, home, questions
from rag_train.worlds.atlas.wordings import COMPARISONS, RELATIONS


@pytest.fixture(scope="module")
def asked(atlas: Atlas) -> dict[str, list[Question]]:
    return {split: questions(atlas, split) for split in SHARES}


@pytest.mark.slow
def test_facts_are_those_of_the_world(atlas: Atlas):
    peru = {relation: value.text for (subject, relation), value in atlas.facts.items() if subject == "country-PE"}
    assert peru["capital"] == "Lima" and peru["continent"] == "South America" and peru["demonym"] == "Peruvian"
    assert atlas.facts["element-Sc", "country"].text == "Sweden"
    assert "Washington, D.C." in atlas.facts["country-US", "capital"].answers
    assert atlas.facts["airport-ZRH", "IATA code"].text == "ZRH" if "airport-ZRH" in atlas.entities else True


def test_names_are_unique(atlas: Atlas):
    assert max(Counter(entity.name for entity in atlas.entities.values()).values()) == 1


@pytest.mark.slow
def test_there_are_enough_questions_and_passages(atlas: Atlas, asked: dict[str, list[Question]]):
    assert {split: len(found) for split, found in asked.items()} == SIZES and sum(SIZES.values()) >= 3000
    passages = corpus(atlas)
    assert len(passages) >= 5000 and len({passage.id for passage in passages}) == len(passages)
    stated = sum(map(is_mentioned, atlas.facts)) / len(atlas.facts)
    assert abs(stated - MENTIONED) < 0.02


def test_every_gold_passage_states_its_answer(atlas: Atlas, asked: dict[str, list[Question]]):
    passages = {passage.id: passage for passage in corpus(atlas)}
    for question in (q for found in asked.values() for q in found):
        for step in question.decomposition:
            assert all(step.value in passages[id].text for id in step.passage_ids)


def test_splits_share_no_entity(atlas: Atlas, asked: dict[str, list[Question]]):
    split_of = {entity.name: entity.split for entity in atlas.entities.values()}
    for split, found in asked.items():
        assert {split_of[step.entity] for question in found for step in question.decomposition} == {split}


def test_each_split_has_wordings_of_its_own():
    for wording in (*RELATIONS.values(), *COMPARISONS):
        assert len({*wording.questions, wording.dev, wording.test}) == len(wording.questions) + 2


def test_questions_have_one_to_four_hops_of_every_type(asked: dict[str, list[Question]]):
    for found in asked.values():
        assert {question.hops for question in found} == {1, 2, 3, 4}
        assert {question.type for question in found} == {"single", "chain", "comparison", "yes/no", "compound"}
        answers = Counter(question.answers[0] for question in found if question.type == "yes/no")
        assert 0.5 < answers["yes"] / answers["no"] < 2
        assert len({question.question for question in found}) == len(found)


def test_answers_follow_from_the_last_hop(asked: dict[str, list[Question]]):
    for question in (q for found in asked.values() for q in found):
        values = [step.short for step in question.decomposition]
        match question.type:
            case "single" | "chain":
                assert question.answers[0] == values[-1]
            case "compound":
                assert question.answers == [" && ".join(values)]
            case "yes/no":
                half = len(values) // 2
                assert question.answers == ["yes" if values[half - 1] == values[-1] else "no"]
            case "comparison":
                assert any(
                    question.answers[0].casefold() in step.subquery.casefold() for step in question.decomposition
                )


def test_no_country_has_most_of_the_questions(atlas: Atlas, asked: dict[str, list[Question]]):
    """China alone has a sixth of the cities of the training split."""
    homes = {entity.name: home(atlas, entity).id for entity in atlas.entities.values()}
    cities = {city.name for city in atlas.of_kind("city")}
    chains = [question for question in asked["train"] if question.type == "chain"]
    about = [homes[q.decomposition[0].entity] for q in chains if q.decomposition[0].entity in cities]
    counts = Counter(homes[name] for name in cities)
    assert counts["country-CN"] / counts.total() > 0.1
    assert max(Counter(about).values()) / len(about) < 0.05


@pytest.mark.slow
def test_the_same_seed_gives_the_same_questions(atlas: Atlas, asked: dict[str, list[Question]]):
    assert questions(atlas, "dev") == asked["dev"] and questions(atlas, "dev", seed=1) != asked["dev"]
