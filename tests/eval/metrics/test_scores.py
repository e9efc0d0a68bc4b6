"""Scores against the datasets' released scoring scripts, told here anew, and against cases computed by hand."""

from __future__ import annotations

import random
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA
from support.trajectories import QUESTIONS, RUN, step, trajectory, with_decisions

from rag_train.answers import accurate
from rag_train.errors import UserError
from rag_train.eval.metrics.measures import gold_overlap
from rag_train.eval.metrics.scores import align, pair_scores, score
from rag_train.eval.metrics.summary import summarize
from rag_train.questions.load import load_questions
from rag_train.schema import LLMCall, Passage, Question, Trajectory

SCRIPTED = {
    "hotpotqa/dev_hard.json": "hotpotqa",
    "2wikimultihopqa/train_sample.json": "hotpotqa",
    "musique/dev.jsonl": "musique",
    "triviaqa/flashrag_test.jsonl": "triviaqa",
    "nq/flashrag_test.jsonl": "squad",
}


def script(scoring: str, prediction: str, answer: str) -> tuple[bool, float]:
    """Return exact match and F1 as the released script of the dataset counts them."""
    mark, marks = (" ", string.punctuation + "‘’´`") if scoring == "triviaqa" else ("", string.punctuation)

    def tokens(text: str) -> list[str]:
        kept = "".join(mark if character in marks else character for character in text.lower())
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    left, right = tokens(prediction), tokens(answer)
    closed = (["yes"], ["no"], ["noanswer"])
    if scoring == "hotpotqa" and left != right and (left in closed or right in closed):
        return False, 0
    if scoring == "musique" and not (left and right):
        return left == right, float(left == right)
    same = sum(min(left.count(token), right.count(token)) for token in set(left))
    if same == 0:
        return left == right, 0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return left == right, (2 * precision * recall) / (precision + recall)


ADDED = ("the", "a", "An", "yes", "no", "noanswer", "", ".", "-", "’", "_", "‘x’", "and/or", "New-York", "\u00a0")
WHOLE = ("Yes.", "no", "noanswer", "the", "", "...", "A")


def perturbed(rng: random.Random, answers: Sequence[str]) -> str:
    """Return one of ``answers`` with random changes that the scripts treat differently."""
    words = rng.choice(answers).split() or [""]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(words) + 1)
        changed = [
            [*words[:at], rng.choice(ADDED), *words[at:]],
            words[:at] or ["the"],
            [word.upper() for word in words],
            [" ".join(words) + rng.choice("!,.?'’_")],
            words + words[:at],
            [rng.choice(WHOLE)],
            rng.sample(words, len(words)),
        ]
        words = rng.choice(changed)
    return " ".join(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTED)
def test_em_and_f1_equal_the_released_scripts_on_real_questions(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip("no real questions next to this checkout")
    scoring = SCRIPTED[name]
    questions = load_questions(DATA / name)
    assert all(question.metadata.get("scoring", "hotpotqa") == scoring for question in questions)
    rng = random.Random(0)
    seen: Counter[float] = Counter()
    for number in range(10_000):
        question = rng.choice(questions)
        answers = question.answers + (["", "the"] if number % 50 == 0 else [])
        metadata = {} if scoring == "hotpotqa" else {"scoring": scoring}
        asked = question.model_copy(update={"answers": answers, "metadata": metadata})
        prediction = perturbed(rng, answers if rng.random() < 0.8 else rng.choice(questions).answers)
        answered = Trajectory(question_id=question.id, question="", strategy="s", answer=prediction)
        (ours,) = score([asked], [answered])
        theirs = [script(scoring, prediction, answer) for answer in answers]
        assert (ours.em, ours.f1) == (max(em for em, _ in theirs), max(f1 for _, f1 in theirs)), prediction
        seen[ours.f1] += 1
    assert len(seen) > 20 and 0 < seen[0.0] < 9_000 and 0 < seen[1.0] < 9_000


def test_scoring_rules_of_datasets_differ() -> None:
    def f1(prediction: str, answer: str, scoring: str) -> float:
        metadata = {"scoring": scoring} if scoring else {}
        question = Question(id="q", question="?", answers=[answer], metadata=metadata)
        return score([question], [Trajectory(question_id="q", question="", strategy="s", answer=prediction)])[0].f1

    for scoring, closed, empty, hyphen in (
        ("", 0.0, 0.0, 0.0),
        ("musique", 0.5, 1.0, 0.0),
        ("squad", 0.5, 0.0, 0.0),
        ("triviaqa", 0.5, 0.0, 1.0),
        ("popqa", 0.0, 0.0, 0.0),
    ):
        assert f1("yes it is", "yes", scoring) == closed
        assert f1("the", "a.", scoring) == empty
        assert f1("New-York", "new york", scoring) == hyphen
    with pytest.raises(UserError, match="question 'q': unknown scoring 'bleu'; give one of hotpotqa"):
        f1("a", "b", "bleu")


CHOICES = ["Jupiter", "C"]
PATTERNS = [r"Dec(ember)? 25", "Christ.*", "C++ ("]
NONE = ["unanswerable"]


@pytest.mark.parametrize(
    ("scoring", "answers", "prediction", "em", "accuracy"),
    [
        *(("choice", CHOICES, text, 1, 1) for text in ("C", "c.", "(C)", "jupiter", "(C) Jupiter", "C. Jupiter")),
        *(("choice", CHOICES, text, 1, 1) for text in ("The answer is C.", "Answer: (c)", "Correct option: C")),
        ("choice", CHOICES, "It is Jupiter.", 0, 1),
        *(("choice", CHOICES, text, 0, 0) for text in ("B", "(B) Mars", "C. Mars", "It is planet C, the Mars", "")),
        ("choice", ["Mars", "A"], "A", 1, 1),
        *(("choice", ["Mars", "A"], text, 0, 0) for text in ("the", "...", "a planet", "It is a planet.", "An")),
        *(("curatedtrec", PATTERNS, text, 1, 1) for text in ("december 25", "Christmas day", "c++ (")),
        ("curatedtrec", PATTERNS, "on Dec 25", 0, 1),
        ("curatedtrec", PATTERNS, "May 1", 0, 0),
        *(("unanswerable", NONE, text, 1, 1) for text in ("", " ", "Unanswerable.", "I don't know.", "noanswer")),
        ("unanswerable", NONE, "The question cannot be answered based on the given passages.", 1, 1),
        ("unanswerable", NONE, "There is not enough information.", 1, 1),
        ("unanswerable", NONE, "The year is unknown, but Ann wrote it in Ulm.", 0, 1),
        *(("unanswerable", NONE, text, 0, 0) for text in (None, "Danube", "no", "I know the answer")),
    ],
)
def test_choices_patterns_and_refusals(
    scoring: str, answers: list[str], prediction: str | None, em: int, accuracy: int
) -> None:
    question = Question(id="q", question="?", answers=answers, metadata={"scoring": scoring})
    (ours,) = score([question], [Trajectory(question_id="q", question="", strategy="s", answer=prediction)])
    assert (ours.em, ours.accuracy) == (em, accuracy)
    assert ours.f1 == em or (scoring == "choice" and 0 < ours.f1 < 1 == accuracy)


@pytest.mark.parametrize("scoring", ["hotpotqa", "popqa", "musique", "squad", "triviaqa", "curatedtrec", "choice"])
def test_both_ways_of_writing_an_accent_are_the_same_answer(scoring: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Beyoncé Knowles") for form in ("NFC", "NFD"))
    for answer, prediction in ((composed, decomposed), (decomposed, composed)):
        rules = {"scoring": scoring, "long_form": True}
        question = Question(id="q", question="?", answers=[answer], metadata=rules)
        (ours,) = score([question], [Trajectory(question_id="q", question="", strategy="s", answer=prediction)])
        assert (ours.em, ours.f1, ours.accuracy, ours.rouge_l) == (1, 1, 1, 1)


def test_any_passage_of_a_gold_page_counts() -> None:
    pages = [Passage(id="1", title="Ann", text=""), Passage(id="2", title="Bo", text="")]
    question = Question(id="q", question="?", answers=["x"], gold_passages=pages)
    found = [Passage(id=str(i), title=title, text=f"Text {i}.") for i, title in enumerate(("ANN", "Ann", "Cy"))]
    assert gold_overlap(question, found) == (0.5, 0.5)


@given(st.text("aAbB ."), st.lists(st.text("aAb.", min_size=1), min_size=1))
def test_popqas_accuracy_is_that_of_its_script(prediction: str, answers: list[str]) -> None:
    in_script = any(a in prediction or a.lower() in prediction or a.capitalize() in prediction for a in answers)
    question = Question(id="q", question="?", answers=answers, metadata={"scoring": "popqa"})
    (ours,) = score([question], [Trajectory(question_id="q", question="", strategy="s", answer=prediction)])
    assert ours.accuracy == in_script


@pytest.mark.parametrize(
    ("prediction", "yes", "no"),
    [("No. Not yes.", 0, 0), ("Yes, it is.", 1, 0), ("no", 0, 1), ("Yesterday", 0, 0), (None, 0, 0)],
)
def test_a_prediction_with_yes_and_no_answers_neither(prediction: str | None, yes: int, no: int) -> None:
    assert (accurate(prediction, ["yes"]), accurate(prediction, ["no"])) == (yes, no)
    assert accurate("The No and Yes Club", ["No and Yes Club"])


@pytest.mark.parametrize("ids", [["1", "2"], ["1", "2", "3", "3"], ["1", "2", "4"]])
def test_rejects_missing_duplicate_and_unknown_ids(ids: list[str]):
    with pytest.raises(UserError, match=r"[34]"):
        score(QUESTIONS, [with_decisions(i, "x") for i in ids])


def test_counts_costs_and_retrieval() -> None:
    gold = [Passage(id="g1", title="Ann", text="She directed A."), Passage(id="g2", title="B", text="Bo’s film")]
    same, other = Passage(id="7", title="ANN", text="She  directed A!"), Passage(id="8", title="C", text="no")
    question = Question(id="q", question="?", answers=["bo's"], gold_passages=gold)
    calls = [LLMCall(module="m", prompt_tokens=10, completion_tokens=2)] * 3
    run = trajectory(
        step(passages=[same, other], queries=["x", "y"], round=0),
        step(round=0),
        step(decision="parametric"),
        calls=calls,
    )
    (scored,) = score([question], [run])
    assert (scored.retrievals, scored.rounds, scored.steps, scored.llm_calls) == (3, 1, 3, 3)
    assert (scored.prompt_tokens, scored.completion_tokens) == (30, 6)
    assert (scored.success, scored.gold_precision, scored.gold_recall) == (0.0, 0.5, 0.5)
    assert gold_overlap(question, []) == (0.0, 0.0)
    (parametric,) = score([question], [trajectory(step(decision="parametric"))])
    assert parametric.success is parametric.gold_precision is parametric.rouge2 is parametric.compound is None
    summary = summarize([question], [run], strategy="s")
    assert set(summary.measures) == {
        "rounds", "prompt_tokens", "completion_tokens", "success", "gold_precision", "gold_recall"
    }  # fmt: skip


def test_rejects_runs_over_different_questions() -> None:
    scores = score(QUESTIONS, RUN)
    with pytest.raises(UserError, match="only one of them answers '3'; answer the same"):
        pair_scores(scores, scores[:2])
    with pytest.raises(UserError, match="their order differs"):
        pair_scores(scores, scores[::-1])
    assert [question.id for question, _ in align(QUESTIONS, RUN)] == ["1", "2", "3"]
