"""Running an evaluation matrix: what is answered, what is kept, and what is written."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fakes import Found, Says
from support.matrices import contents, numbered

import rag_train.eval.matrix.run
from rag_train.errors import UserError
from rag_train.eval.matrix.cell import Cell, CellName, load_matrix
from rag_train.eval.matrix.run import run_matrix
from rag_train.eval.matrix.store import read_cell
from rag_train.formats.deeprag import FINAL
from rag_train.llm.base import EngineError
from rag_train.schema import Passage, Question
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig


class Fixed:
    name = "fixed"

    def __init__(self, corpus: str = "c"):
        self.corpus_sha256 = corpus

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[Passage(id="p", title="T", text=query)] for query in queries]


class FakeEngine:
    """Replaces `open_kit`: records started models and prompts; fails on prompts that contain ``fails``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.models: list[str] = []
        self.prompts: list[str] = []
        self.fails = ""
        monkeypatch.setattr(rag_train.eval.matrix.run, "open_kit", self._open)

    @asynccontextmanager
    async def _open(self, config: KitConfig, retrievers):
        self.models.append(config.model)
        yield Kit(Says(self._answer), Found([]), config.passages, False)

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if self.fails and self.fails in prompt:
            raise EngineError("no answer")
        lead = "" if prompt.endswith(FINAL) else f" Thus. {FINAL}"
        return f"{lead} yes" if "even" in prompt else f"{lead} no"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return FakeEngine(monkeypatch)


def evaluate(
    output: Path,
    asked: dict[str, list[Question]],
    models: Sequence[str] = ("a",),
    strategies: Sequence[str] = ("direct", "rag"),
    corpus: str = "c",
    **more,
) -> list[Cell]:
    config = KitConfig(model="", indexes=[], **more)
    named = {model: model for model in models}
    return asyncio.run(run_matrix(config, named, strategies, asked, {"r": {"": Fixed(corpus)}}, output))


def test_starts_a_model_once_and_answers_no_question_twice(started: FakeEngine, tmp_path: Path) -> None:
    first = evaluate(tmp_path, {"d": numbered(0, 1, 2)}, ["a", "b"])
    assert started.models == ["a", "b"] and len(started.prompts) == 2 * 2 * 3
    assert [cell.id for cell in first] == ["a/direct/d/r/0", "a/rag/d/r/0", "b/direct/d/r/0", "b/rag/d/r/0"]
    assert first[0].summary.em.mean == pytest.approx(2 / 3)
    before = contents(tmp_path)
    assert evaluate(tmp_path, {"d": numbered(0, 1, 2)}, ["a", "b"]) == first
    assert started.models == ["a", "b"] and contents(tmp_path) == before

    more = evaluate(tmp_path, {"d": numbered(4, 0, 1, 2), "e": numbered(1)}, ["a"])
    assert started.models == ["a", "b", "a"] and len(started.prompts) == 12 + 2 * 1
    assert more[0].summary.questions == 4 and more[0].summary.em.mean == 0.75
    cells = load_matrix(tmp_path).cells
    assert [cell.id for cell in cells][-2:] == ["a/direct/e/r/0", "a/rag/e/r/0"] and len(cells) == 6
    assert cells[2] == first[2], "the cell of the other model is unchanged"
    for cell in cells:
        asked, trajectories, scores = read_cell(tmp_path, cell)
        assert [q.id for q in asked] == [t.question_id for t in trajectories] == [s.question_id for s in scores]


def test_interrupted_run_ends_with_the_same_files(started: FakeEngine, tmp_path: Path) -> None:
    asked = {"d": numbered(*range(8))}
    evaluate(tmp_path / "whole", asked)
    started.prompts.clear()

    class Killed(BaseException):
        pass

    def answer(prompt: str) -> str:
        if len(started.prompts) == 11:
            raise Killed
        return FakeEngine._answer(started, prompt)

    patched = started._answer
    started._answer = answer  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises((Killed, BaseExceptionGroup)):
        evaluate(tmp_path / "killed", asked)
    started._answer = patched  # pyright: ignore[reportAttributeAccessIssue]
    evaluate(tmp_path / "killed", asked)
    assert len(started.prompts) < 2 * 16, "finished questions are not asked again"
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_does_not_overwrite_a_cell_with_other_settings(started: FakeEngine, tmp_path: Path) -> None:
    evaluate(tmp_path, {"d": numbered(0)})
    before = contents(tmp_path)
    for wrong, setting in (({"corpus": "other"}, "retrievers"), ({"passages": 5}, "passages")):
        with pytest.raises(
            UserError, match=f"answered with a different setting {setting!r}; give the model or the"
        ):
            evaluate(tmp_path, {"d": numbered(0)}, **wrong)
    assert contents(tmp_path) == before and started.models == ["a"]


def test_reports_and_keeps_failed_questions(started: FakeEngine, tmp_path: Path, capsys) -> None:
    started.fails = "number 2"
    (cell,) = evaluate(tmp_path, {"d": numbered(0, 2)}, strategies=["direct"])
    assert cell.summary.errors == 1 and cell.summary.em.mean == 0.5
    assert "a/direct/d/r/0: 1 of 2 questions failed" in " ".join(capsys.readouterr().err.split())
    assert [t.error for t in read_cell(tmp_path, cell)[1]] == [None, "no answer"]


def test_cell_ids_stay_in_the_directory(tmp_path: Path) -> None:
    assert CellName("../../x", "deeprag,threshold=0.2", "a b", "", 3).id == "_.._x/deeprag,threshold=0.2/a_b/none/3"
    assert CellName("..", "s", "d", "r", 0).id.startswith("none/")


def test_writes_tables(started: FakeEngine, tmp_path: Path) -> None:
    evaluate(tmp_path, {"d": numbered(0, 1), "e": numbered(2)}, ["a", "b"], ["cot", "rag"])
    text = (tmp_path / "tables.md").read_text()
    assert text.count("Answers and retrievals") == 2 and "| rag, b | 50.0" in text and "Depth of reasoning" in text
    assert r"\begin{tabular}" in (tmp_path / "tables.tex").read_text()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables.csv").read_text())))
    (row,) = [r for r in rows if (r["dataset"], r["model"], r["strategy"], r["measure"]) == ("d", "a", "rag", "em")]
    assert (row["mean"], row["questions"]) == ("0.5", "2")
    cells = {cell.id: cell.summary for cell in load_matrix(tmp_path).cells}
    boundary = cells["a/rag/d/r/0"].cot_boundary
    assert boundary and (boundary.fn, boundary.tn) == (1, 1), (
        "the boundary is the chain of thought of the same model"
    )
