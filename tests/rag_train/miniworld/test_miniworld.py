"""The mini world: its facts, splits, training text and tokenizer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.formats.deeprag import CONTEXT, FINAL, INTERMEDIATE
from rag_train.miniworld.text import END, TextSource, build_tokenizer
from rag_train.miniworld.world import SPLITS, World, WorldConfig, statement


@pytest.fixture(scope="module")
def world() -> World:
    return World(WorldConfig(films=40, people=48, cities=12, countries=5))


@pytest.mark.slow
def test_training_text_never_states_an_unknown_fact(world: World):
    source = TextSource(world, seed=1)
    unknown = {statement(r, s, v) for (s, r), v in world.facts.items() if (s, r) not in world.known}
    for i in range(3000):
        source.progress = i / 3000
        kind = (source.statements, source.direct, source.thought)[i % 3]
        text = "".join(segment.text for segment in kind())
        assert not any(fact in text for fact in unknown)
        # In transcripts, unknown facts may only follow a passage, with values drawn anew.
        lines = "".join(segment.text for segment in source.transcript()).split("\n")
        for before, line in pairwise(lines):
            if line.startswith("Intermediate answer:") and not before.startswith(CONTEXT):
                assert line.removeprefix("Intermediate answer: ") not in unknown


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


def test_half_of_each_split_is_famous_and_passages_state_only_mentioned_facts(world: World):
    for split in SPLITS:
        shares = [
            sum((e, r) in world.known for r in world.relations_of(world.type_of(e)))
            for e in world.split
            if world.split[e] == split
        ]
        assert 0.35 < sum(share >= 2 for share in shares) / len(shares) < 0.65
    for passage in world.corpus()[:60]:
        for relation in world.relations_of(world.type_of(passage.title)):
            fact = (passage.title, relation)
            assert (statement(relation, passage.title, world.facts[fact]) in passage.text) == (
                fact in world.mentioned
            )


def test_only_complete_documents_end_with_end_of_text(world: World):
    source = TextSource(world, seed=2)
    source.progress = 0.5
    for _ in range(300):
        document = source.transcript()
        text = "".join(segment.text for segment in document)
        assert text.endswith(END) == (FINAL in text)
        assert text.endswith((END, " is", f"{INTERMEDIATE} ", "\n"))


def test_seed_determines_the_world(world: World):
    again = World(world.config)
    assert again.facts == world.facts and again.known == world.known
    assert again.questions("test") == world.questions("test")


@pytest.mark.slow
@given(text=st.text())
def test_tokenizer_is_lossless(text: str):
    tokenizer = build_tokenizer(World(WorldConfig(films=20, people=20, cities=4, countries=2)))
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_each_name_is_a_single_token(world: World):
    tokenizer = build_tokenizer(world)
    for kind in world.entities.values():
        assert all(len(tokenizer(f" {name}")["input_ids"]) == 1 for name in kind)
