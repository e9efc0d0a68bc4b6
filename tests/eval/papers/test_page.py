"""The papers' tables and claims over a user's checkpoints, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.papers.claims import told
from rag_train.eval.papers.measured import Measurements
from rag_train.eval.papers.page import number, reproduce
from rag_train.eval.papers.printed import papers
from rag_train.eval.papers.sources import Request
from rag_train.schema import Decision, Question, Step, Trajectory

ASKED = ("2wikimultihopqa", "webquestions")


class Scripted:
    """A source of 40 questions of each dataset; question ``i`` is answered correctly if ``right(request, i)``.

    There are no answers by the strategy ``unanswered``.
    """

    def __init__(self, right: Callable[[Request, int], bool], unanswered: str = ""):
        self.right, self.unanswered = right, unanswered

    def settings(self) -> dict[str, Any]:
        return {"questions": 40}

    def about(self) -> list[str]:
        return ["Scripted & right."]

    def questions(self, name: str) -> list[Question]:
        return [Question(id=f"{name}-{i}", question=f"{name} {i}?", answers=["yes"]) for i in range(40)]

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        return {
            request: [
                Trajectory(
                    question_id=q.id,
                    question=q.question,
                    strategy=request.strategy,
                    answer="yes" if self.right(request, i) else "no",
                    steps=[Step(subquery="?", decision=Decision.RETRIEVE)] * (request.strategy != "deeprag"),
                )
                for i, q in enumerate(self.questions(request.questions))
            ]
            for request in requests
            if request.questions in ASKED and request.strategy != self.unanswered
        }


def written(output: Path, right: Callable[[Request, int], bool], unanswered: str = "") -> dict[str, Any]:
    """Reproduce DeepRAG's table 2, and return what the file has."""
    source: Any = Scripted(right, unanswered)
    reproduce("deeprag", "table2", source, output)
    return json.loads((output / "reproduction.json").read_text())


def deeprag_wins(request: Request, i: int) -> bool:
    return request.model == "stage2" or i % 4 == 0


def counts(found: dict[str, Any], claim: str) -> dict[str, int]:
    [counted] = [each["counts"] for each in found["claims"] if each["claim"] == claim]
    return counted


def test_every_cell_is_beside_the_printed_one(tmp_path: Path):
    found = written(tmp_path, deeprag_wins)
    table = papers()["deeprag"].tables["table2"]
    assert len(found["cells"]) == len(table.rows) * len(table.columns) and found["settings"] == {"questions": 40}
    [cell] = [c for c in found["cells"] if (c["row"], c["column"]) == ("DeepRAG", "2wikimultihopqa-em")]
    assert cell["printed"] == {"": 48.1} and cell["interval"]["mean"] == 100 and cell["model"] == "stage2"
    page = (tmp_path / "reproduction.html").read_text()
    assert "Scripted &amp; right." in page and "48.1 / 100" in page
    assert "48.1 / 100" in (tmp_path / "reproduction.md").read_text()
    assert (number(33342), number(0.0), number(48.10)) == ("33,342", "0", "48.1")


def test_comparisons_are_as_claimed_against_or_undecided(tmp_path: Path):
    claim = "deeprag-efficient-accuracy"
    held = counts(written(tmp_path, deeprag_wins), claim)
    assert held["as claimed"] and held["against"] == held["undecided"] == 0
    assert counts(written(tmp_path, lambda r, i: not deeprag_wins(r, i)), claim)["against"] == held["as claimed"]
    assert counts(written(tmp_path, lambda r, i: i % 2 == 0), claim)["undecided"] == held["as claimed"]


def test_rows_without_answers_are_not_run_and_say_why(tmp_path: Path):
    found = written(tmp_path, deeprag_wins, unanswered="flare,rule=mean")
    assert {cell["why"] for cell in found["cells"] if cell["row"] == "FLARE"} == {"no answers"}
    assert counts(found, "deeprag-flare-unstable")["not run"]


def test_rows_of_other_models_and_of_single_roles_are_not_measured():
    source: Any = Scripted(deeprag_wins)
    measurements, table = Measurements(source), papers()["levelrag"].tables["table1"]
    [row] = table.find("GPT4o")
    assert measurements.request(row, table, "popqa") is None
    assert measurements.missing(row) == "no model here stands for GPT4o"
    trained = [row for table in papers()["planrag"].tables.values() for row in table.rows if row.training]
    assert trained and "one role has a model of its own" in {measurements.missing(row) for row in trained}


@pytest.mark.parametrize(
    ("kind", "lo", "hi", "margin", "expected"),
    [
        ("higher", 1, 3, 0, "as claimed"),
        ("higher", -1, 3, 0, "undecided"),
        ("higher", -3, -1, 0, "against"),
        ("lower", -3, -1, 0, "as claimed"),
        ("at least", -4, 1, 5, "as claimed"),
        ("at least", -9, -6, 5, "against"),
        ("at most", -9, 4, 5, "as claimed"),
        ("at most", 6, 9, 5, "against"),
        ("within", -1, 1, 5, "as claimed"),
        ("within", -9, 9, 5, "undecided"),
        ("within", 6, 9, 5, "against"),
    ],
)
def test_each_kind_of_claim(kind: Any, lo: float, hi: float, margin: float, expected: str):
    assert told(kind, Interval(mean=(lo + hi) / 2, lo=lo, hi=hi), margin) == expected
