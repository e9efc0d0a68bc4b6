"""Measuring what a model knows: several wordings and samples of each fact, and no verdict where they disagree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.fakes import Says

from rag_train.worlds.atlas.facts import Atlas
from rag_train.worlds.atlas.knowledge import SAMPLES, Knowledge, facts_of, measure, with_knowledge
from rag_train.worlds.atlas.questions import questions

CAPITALS = [("country-PE", "capital"), ("country-FR", "capital"), ("country-TD", "capital")]


def knowledge(right: int, asked: int = 8) -> Knowledge:
    return Knowledge(subject="s", relation="r", subquery="q?", right=right, asked=asked, greedy="a")


@pytest.mark.parametrize(("right", "known"), [(8, True), (6, True), (5, None), (3, None), (2, False), (0, False)])
def test_disagreeing_answers_leave_a_fact_uncertain(right: int, known: bool | None):
    assert knowledge(right).known is known


def test_asks_every_wording_and_sample_and_compares_with_all_aliases(atlas: Atlas, tmp_path: Path):
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        wanted = prompt.rpartition("Question: ")[2]
        return " Lima." if "Peru" in wanted else " Paris" if wanted.startswith(("What", "Which")) else " Lyon"

    found = asyncio.run(measure(atlas, CAPITALS, Says(answer), tmp_path / "knowledge.jsonl"))
    assert [(k.subject, k.known) for k in found] == [
        ("country-PE", True),
        ("country-FR", None),  # two of four wordings
        ("country-TD", False),
    ]
    assert {k.asked for k in found} == {4 * (1 + SAMPLES)} and found[0].greedy == "Lima."
    assert all(prompt.count("Answer:") == 3 for prompt in asked)  # two examples and the question

    asked.clear()
    assert asyncio.run(measure(atlas, CAPITALS, Says(answer), tmp_path / "knowledge.jsonl")) == found and not asked


def test_examples_do_not_contain_the_answer_of_the_fact_itself(atlas: Atlas, tmp_path: Path):
    prompts: list[str] = []
    training = [(e.id, "capital") for e in atlas.of_kind("country", "train") if (e.id, "capital") in atlas.facts]
    asyncio.run(measure(atlas, training, Says(lambda prompt: prompts.append(prompt) or ""), tmp_path / "k.jsonl"))
    assert all(prompt.count(prompt.rpartition("Question: ")[2]) == 1 for prompt in prompts)


@pytest.mark.slow
def test_every_hop_of_a_question_is_a_fact_to_ask_for(atlas: Atlas):
    asked = questions(atlas, "dev")
    facts = facts_of(atlas, asked)
    hops = {step.subquery for question in asked for step in question.decomposition}
    assert len(facts) == len(set(facts)) == len(hops)
    known = with_knowledge(asked, dict.fromkeys(hops, True))
    assert all(step.known for question in known for step in question.decomposition)
    assert with_knowledge(asked, {}) == asked
