"""Which questions of the atlas each stage of the demo takes."""

from __future__ import annotations

from rag_train.atlas.facts import Atlas
from rag_train.atlas.questions import home, questions
from rag_train.eval.demo.world import third


def test_no_fact_is_in_the_questions_of_two_stages(atlas: Atlas):
    homes = {entity.name: home(atlas, entity).id for entity in atlas.entities.values()}
    train = questions(atlas, "train")
    subqueries = [
        {step.subquery for question in train if third(question, homes) == part for step in question.decomposition}
        for part in range(3)
    ]
    assert min(map(len, subqueries)) > 500
    assert not (subqueries[0] & subqueries[1] or subqueries[0] & subqueries[2] or subqueries[1] & subqueries[2])
