"""Metrics against hand-counted cases and known identities; tables and the page treat every text as data."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics import (
    Counts,
    across_seeds,
    bootstrap,
    boundary_by_cot,
    boundary_by_facts,
    mcnemar,
    paired_bootstrap,
    paired_bootstrap_mcc,
    score,
)
from eval.report import Claim, Example, Provenance, ReportData, load_results, save_results, write_report
from eval.summary import pool, summarize
from eval.tables import decision_table, main_table
from rag_train.answers import contains, exact_match, f1
from rag_train.errors import UserError
from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory

EVIL = "<script>alert(1)</script>"


def trajectory(i: str, answer: str | None, *decisions: Decision) -> Trajectory:
    steps = [Step(subquery=f"fact {n}?", decision=d, answer="x") for n, d in enumerate(decisions)]
    calls = [LLMCall(module="controller", prompt_tokens=10, completion_tokens=2)]
    return Trajectory(question_id=i, question="q", strategy="s", steps=steps, answer=answer, calls=calls)


QUESTIONS = [
    Question(id="1", question="q", answers=["The Hague", "Den Haag"], hops=2),
    Question(id="2", question="q", answers=["yes"], hops=2),
    Question(id="3", question=EVIL, answers=[EVIL], hops=3),
]
RUN = [
    trajectory("3", None, Decision.RETRIEVE, Decision.RETRIEVE),
    trajectory("1", "den haag.", Decision.PARAMETRIC),
    trajectory("2", "yes it is", Decision.RETRIEVE),
]
COT = [trajectory("1", "Den Haag"), trajectory("2", "no"), trajectory("3", "no")]


def test_answers_are_compared_as_the_official_scripts_do():
    assert exact_match("the  HAGUE!", ["Hague"]) and not exact_match("", ["x"]) and not exact_match(None, ["x"])
    assert f1("yes it is", ["yes"]) == 0.0 and f1("a b c", ["b c d"]) == pytest.approx(2 * 0.8 / (2 * 1))
    assert contains("it is The Hague, yes", ["hague"]) and not contains("Haguenau", ["Hague"])


def test_counts_by_hand():
    run = summarize(QUESTIONS, RUN, strategy="s", cot=COT, known={"fact 0?": True, "fact 1?": False})
    assert run.em.mean == pytest.approx(1 / 3) and run.accuracy.mean == pytest.approx(2 / 3)
    assert run.retrievals.mean == 1.0 and run.retrievals_correct and run.retrievals_correct.mean == 0.0
    assert run.retrieval_counts == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    assert boundary_by_cot(QUESTIONS, RUN, COT) == Counts(tp=1, fp=0, fn=0, tn=2)
    assert boundary_by_facts(RUN, {"Fact 0": True, "fact 1?": False}) == Counts(tp=1, fp=0, fn=2, tn=1)
    assert pool([run]) == [run]


def test_the_difference_in_mcc_is_paired():
    right, wrong = Counts(tp=1, fp=0, fn=0, tn=1), Counts(tp=0, fp=1, fn=1, tn=0)
    same = paired_bootstrap_mcc([right, wrong] * 20, [right, wrong] * 20)
    assert (same.mean, same.lo, same.hi) == (0, 0, 0)
    better = paired_bootstrap_mcc([right, wrong] * 20, [right] * 40)
    assert better.mean == pytest.approx(1.0) and 0.5 < better.lo < 1.0


def test_copies_of_a_question_add_nothing_if_they_are_one_cluster():
    right, wrong = Counts(tp=1, fp=0, fn=0, tn=1), Counts(tp=0, fp=1, fn=1, tn=0)
    first, second = [right, wrong] * 20, [right, right] * 20
    names = [str(i) for i in range(40)]
    once = paired_bootstrap_mcc(first, second)
    copied = paired_bootstrap_mcc(first * 5, second * 5, names * 5)
    narrow = paired_bootstrap_mcc(first * 5, second * 5)
    assert copied.mean == pytest.approx(once.mean) == pytest.approx(narrow.mean)
    assert narrow.hi - narrow.lo < 0.6 * (copied.hi - copied.lo) < 0.8 * (once.hi - once.lo)
    scores = [score(QUESTIONS, RUN) * 10 for _ in range(2)]
    assert paired_bootstrap(*scores, "em", [s.question_id for s in scores[0]]).mean == 0.0


@pytest.mark.parametrize("ids", [["1", "2"], ["1", "2", "3", "3"], ["1", "2", "4"]])
def test_missing_doubled_and_unknown_ids(ids: list[str]):
    with pytest.raises(UserError, match=r"[34]"):
        score(QUESTIONS, [trajectory(i, "x") for i in ids])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2))
def test_mcc_is_the_correlation(decisions: list[tuple[bool, bool]]):
    known, retrieved = map(np.array, zip(*decisions, strict=True))
    counts = Counts(
        tp=int((known & ~retrieved).sum()),
        fp=int((~known & ~retrieved).sum()),
        fn=int((known & retrieved).sum()),
        tn=int((~known & retrieved).sum()),
    )
    if known.std() and retrieved.std():
        assert counts.mcc == pytest.approx(np.corrcoef(known, ~retrieved)[0, 1])
    else:
        assert counts.mcc == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_intervals_hold_the_mean(values: list[float]):
    interval = bootstrap(values, resamples=200)
    assert interval.lo - 1e-9 <= interval.mean <= interval.hi + 1e-9
    assert interval == bootstrap(values, resamples=200)


def test_across_seeds_and_mcnemar():
    interval = across_seeds([1.0, 2.0, 3.0])
    assert interval.hi - interval.mean == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    first = score(QUESTIONS, RUN)
    assert mcnemar(first, first) == 1.0


def test_the_page_escapes_every_text(tmp_path):
    run = summarize(QUESTIONS, RUN, strategy=EVIL, stage=EVIL, cot=COT, known={"fact 0?": True})
    evil = RUN[0].model_copy(
        update={"answer": EVIL, "steps": [Step(subquery=EVIL, decision="retrieve", answer=EVIL)]}
    )
    data = ReportData(
        title=EVIL,
        summary=EVIL,
        claims=[Claim(text=EVIL, held=True, evidence=EVIL)],
        runs=[run],
        curves=[],
        timings=[],
        examples=[Example(question=QUESTIONS[2], trajectories={run.name: evil})],
        provenance=Provenance(machine=EVIL, code_version=EVIL, versions={EVIL: EVIL}, seeds=[0], recipe=EVIL),
    )
    save_results(tmp_path / "r.json", data)
    assert load_results(tmp_path / "r.json") == data
    write_report(tmp_path / "r.html", data)
    page = (tmp_path / "r.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    for table in (main_table([run]), decision_table([run])):
        assert "<script>" not in table.html()
        assert all((table.markdown(), table.latex(), table.csv(), table.rich()))
