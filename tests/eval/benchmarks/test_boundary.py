"""Reading the boundary: states of facts, the probe, and the area under the ROC curve."""

from __future__ import annotations

import numpy as np
import pytest

from rag_train.eval.benchmarks.boundary import auroc, probe, states
from rag_train.eval.miniworld.lab import multi_hop
from rag_train.miniworld.world import World


def test_auroc_counts_pairs_in_order_and_half_of_the_ties():
    positive = np.array([True, True, False, False])
    assert auroc(np.array([3.0, 2.0, 1.0, 0.0]), positive) == 1
    assert auroc(np.array([3.0, 0.0, 1.0, 0.0]), positive) == (1 + 1 + 0.5 + 0) / 4


def test_a_probe_finds_the_direction_that_separates_the_labels():
    random = np.random.default_rng(0)
    features, direction = random.normal(size=(400, 8)), random.normal(size=8)
    labels = features @ direction > 0.3
    found = probe(features[:300] * 5 + 2, labels[:300], features[300:] * 5 + 2, 1e-3)
    assert ((found > 0) == labels[300:]).mean() > 0.95
    shuffled = probe(features[:300], random.permutation(labels[:300]), features[300:], 1e-3)
    assert auroc(shuffled, labels[300:]) == pytest.approx(0.5, abs=0.2)


def test_a_state_ends_with_the_subquery_after_the_answers_before_it(mini_world: World):
    questions = multi_hop(mini_world.questions("dev"))
    question = next(each for each in questions if each.hops == 2)
    first, second = states([question]).items()
    before, after = question.decomposition
    assert (first[0], second[0]) == (before.subquery, after.subquery)
    assert first[1].text == f"Question: {question.question}\nFollow up: {before.subquery}\n"
    assert second[1].text == (f"{first[1].text}Intermediate answer: {before.short}\nFollow up: {after.subquery}\n")
    assert [state.known for state in states([question]).values()] == [before.known, after.known]
    facts = {gold.subquery for each in questions for gold in each.decomposition}
    assert states(questions).keys() == facts
