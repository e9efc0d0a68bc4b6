"""Which questions of the atlas each stage of the demo takes."""

from __future__ import annotations

import pytest

from rag_train.atlas.facts import Atlas
from rag_train.atlas.questions import home, questions
from rag_train.eval.demo.world import PARTS, as_mixed, one_answer, part


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
