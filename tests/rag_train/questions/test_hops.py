"""Annotated hops as questions, with the subjects that they name."""

import pytest
from support.paths import DATA

from rag_train.questions.hops import TEMPLATES, fold, is_shorthand, mentions, names_in, read_hop
from rag_train.questions.load import load_questions


@pytest.mark.parametrize(
    ("text", "named", "answer", "question", "subject"),
    [
        ("Hello Love >> performer", ["X"], "Hank Snow", "Who is the performer of Hello Love?", "Hello Love"),
        ("Peak (Colorado ) >> part of", ["X"], "Range", "What is Peak (Colorado) part of?", "Peak (Colorado)"),
        ("Paris >> not a relation", ["Paris"], "x", "Paris >> not a relation", "Paris"),
        ("Who led Rome 's army ?", ["Italy", "Rome (city)"], "Sulla", "Who led Rome's army?", "Rome"),
        ("where was Ada Lovelace born", ["London"], "London", "where was Ada Lovelace born?", "Ada Lovelace"),
        ("Which city is Rome?", ["Rome"], "Rome", "Which city is Rome?", ""),
        ("who broke the salt law", ["Salt March"], "Gandhi", "who broke the salt law?", ""),
    ],
)  # fmt: skip
def test_a_hop_is_a_question_about_a_subject_that_it_names(text, named, answer, question, subject):
    assert read_hop(text, named, answer) == (question, subject)
    assert is_shorthand(question) == ("not a relation" in text)


def test_every_template_asks_about_its_subject():
    for template in TEMPLATES.values():
        assert template.count("{}") == 1 and template.endswith("?") and template[0].isupper()


def test_names_are_compared_without_case_accents_and_possessive_endings():
    assert mentions("the composer of aschenbrodel", "Aschenbrödel") and not mentions("Romeo", "Rome")
    assert fold("The Rank Organisation's") == fold("rank organisation") and mentions("A=Hank", "Hank")
    assert names_in("In what state is Ellis Island or the Isle of Man?") == ["Ellis Island", "Isle of Man"]


@pytest.mark.skipif(not DATA.exists(), reason="the real question sets are not here")
@pytest.mark.parametrize(
    "file", ["musique/train_100.jsonl", "musique/dev.jsonl", "2wikimultihopqa/train_sample.json"]
)
def test_real_hops_are_questions_about_subjects_other_than_their_answers(file: str):
    steps = [step for question in load_questions(DATA / file) for step in question.decomposition]
    assert not any(is_shorthand(step.subquery) for step in steps)
    named = [step for step in steps if step.entity]
    assert len(named) > 0.9 * len(steps)
    assert all(mentions(step.subquery, step.entity) and fold(step.entity) != fold(step.answer) for step in named)
