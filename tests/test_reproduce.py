"""The papers' tables beside measured numbers, and verdicts on their claims, over answers that are scripted here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest

from eval.miniature import KINDS, Cell
from eval.reproduce import MODELS, ROLES, UNMEASURED, MiniSource, Reproduction, chosen_tables
from eval.reproduction import claimed, reproduce, shown
from rag_train.errors import UserError
from rag_train.schema import Decision, Question, Step, Trajectory


class Scripted:
    """A source whose cells are right where ``right(cell, i)`` says so, over 40 questions of every kind."""

    def __init__(self, right: Callable[[Cell, int], bool], missing: str = ""):
        self.right, self.missing = right, missing

    plain, kind = MiniSource.plain, MiniSource.kind

    def about(self) -> list[str]:
        return ["Scripted & right."]

    def questions(self, kind: str) -> list[Question]:
        return [Question(id=f"{kind}-{i}", question=f"{kind} {i}?", answers=["yes"]) for i in range(40)]

    async def answers(self, cells: Iterable[Cell]) -> dict[Cell, list[Trajectory]]:
        return {cell: self._answer(cell) for cell in cells if cell.strategy != self.missing}

    def _answer(self, cell: Cell) -> list[Trajectory]:
        return [
            Trajectory(
                question_id=q.id,
                question=q.question,
                strategy=cell.strategy,
                answer="yes" if self.right(cell, i) else "no",
                steps=[Step(subquery="?", decision=Decision.RETRIEVE)]
                * {"taught": 2, "stage1": 0}.get(cell.model, 1),
            )
            for i, q in enumerate(self.questions(cell.kind))
        ]


def deeprag_wins(cell: Cell, i: int) -> bool:
    return cell.model == "stage2" or i % 4 == 0


def verdicts(right: Callable[[Cell, int], bool], tmp_path, missing: str = "") -> dict[tuple[str, str], str]:
    sources = [Scripted(right, missing), Scripted(right, missing)]
    return {
        (o.claim, o.worse): o.verdict
        for o in reproduce("deeprag", "table1", sources, tmp_path)
        if o.better == "DeepRAG" and o.metric == "em"
    }


def test_orderings_hold_fail_or_stay_open(tmp_path):
    assert set(verdicts(deeprag_wins, tmp_path).values()) == {"holds"}
    assert set(verdicts(lambda cell, i: not deeprag_wins(cell, i), tmp_path).values()) == {"fails"}
    assert set(verdicts(lambda cell, i: i % 2 == 0, tmp_path).values()) == {"cannot be told apart"}


def test_what_cannot_be_run_is_said_and_not_left_out(tmp_path):
    found = verdicts(deeprag_wins, tmp_path, missing="flare")
    assert {verdict for (_, worse), verdict in found.items() if worse == "FLARE"} == {"not run"}
    assert "holds" in found.values()
    written = json.loads((tmp_path / "reproduction.json").read_text())
    assert {o["claim"] for o in written} == {c for c, _ in found} | {o["claim"] for o in written}
    page = (tmp_path / "reproduction.html").read_text()
    assert "nothing here is &#39;FLARE&#39;" in page and "Scripted &amp; right." in page


def test_tables_stand_beside_the_printed_ones(tmp_path):
    reproduce("deeprag", "table2", [Scripted(deeprag_wins)] * 2, tmp_path)
    [row] = [r for r in (tmp_path / "reproduction.md").read_text().splitlines() if r.startswith("| DeepRAG |")]
    em, retrievals = row.split("|")[2:4]
    assert em.split("/")[0].strip() == "48.1" and "100" in em.split("/")[1]
    assert retrievals.split("/")[0].strip() == "1.09" and retrievals.split("/")[1].strip().startswith("1 ")


def test_every_table_of_the_five_papers_can_be_asked_for():
    tables = chosen_tables(None, None)
    reproduction = Reproduction([Scripted(deeprag_wins)])
    cells = {cell for _, _, one in tables for cell in reproduction.cells(one)}
    assert {cell.kind for cell in cells} == set(KINDS)
    assert {cell.model for cell in cells} == {"base", "student", *MODELS.values()}
    assert {cell.role for cell in cells} == {None, *ROLES.values()}


def outcomes(paper: str, table: str, right, tmp_path) -> dict[tuple[str, str, str], tuple[str, float]]:
    found = reproduce(paper, table, [Scripted(right), Scripted(right)], tmp_path)
    return {
        (o.better, o.worse, o.metric): (o.verdict, o.difference.mean if o.difference else float("nan"))
        for o in found
    }


def test_decisions_are_compared_by_their_measures_of_all_questions(tmp_path):
    # CoT knows every fourth question. All retrieve always, the first stage never.
    found = outcomes("deeprag", "table3", lambda cell, i: cell.strategy == "cot" and i % 4 == 0, tmp_path)
    assert found["DeepRAG", "FLARE", "decision_f1"] == ("cannot be told apart", 0)
    assert found["DeepRAG", "DeepRAG-Imi", "decision_f1"] == ("fails", pytest.approx(-0.4))
    assert found["DeepRAG", "DeepRAG-Imi", "balanced_accuracy"] == ("cannot be told apart", 0)


def test_two_columns_of_a_row_and_rows_of_two_tables_are_compared(tmp_path):
    found = outcomes("deeprag", "table2", lambda cell, i: i % 2 == 0, tmp_path)
    assert found["DeepRAG", "DeepRAG", "retrievals_correct against retrievals_incorrect"][1] == 0
    found = outcomes("dualrag", "table15", lambda cell, i: "rerank" in cell.strategy, tmp_path)
    assert found["w/o rerank", "w/o EI", "accuracy"] == ("holds", 1)


def test_depths_are_shares_of_plans(tmp_path):
    found = outcomes("planrag", "table1", lambda cell, i: True, tmp_path)  # two rounds each, and no plan
    assert found["Depth 2", "Depth 0", "depth_share"] == ("holds", 1)
    [row] = [r for r in (tmp_path / "reproduction.md").read_text().splitlines() if r.startswith("| Depth 2 |")]
    assert [cell.replace("\\", "").strip() for cell in row.split("|")[2:4]] == [
        "79.5 / 100 [100, 100]",
        "5884 / 40 [40, 40]",
    ]


def test_the_student_stands_for_the_smaller_model_that_is_fine_tuned(tmp_path):
    found = outcomes("dualrag", "table2", lambda cell, i: cell.model == "dualrag", tmp_path)
    assert found["DualRAG-FT", "DualRAG (student)", "em"] == ("holds", 1)
    assert found["DualRAG", "Direct", "em"] == found["DualRAG (student)", "Direct (student)", "em"]
    found = outcomes("planrag", "table5", lambda cell, i: cell.role is None, tmp_path)
    assert found["Plan8B", "Plan4o", "accuracy"] == ("fails", -1)


def test_only_what_trajectories_do_not_show_is_not_run(tmp_path):
    whys = {o.why for o in reproduce(None, None, [Scripted(deeprag_wins)], tmp_path) if o.verdict == "not run"}
    expected = {*(f"{name} takes {what}" for name, what in UNMEASURED.items()), "one and the same here"}
    assert {
        why for why in whys if not why.startswith("nothing here is") and "does not apply" not in why
    } <= expected


def test_unknown_tables_name_the_nearest():
    with pytest.raises(UserError, match="did you mean table1"):
        chosen_tables("deeprag", "tabel1")
    with pytest.raises(UserError, match="the papers are"):
        chosen_tables("deeprga", None)


def test_claims_are_summed_up(tmp_path):
    orderings = reproduce("deeprag", "table1", [Scripted(deeprag_wins)] * 2, tmp_path)
    claims = {claim.first.claim: claim for claim in claimed(orderings)}
    assert sum(sum(claim.counts.values()) for claim in claims.values()) == len(orderings)
    assert shown(None) == "-"
