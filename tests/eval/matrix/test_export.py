"""Export to other harnesses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.matrices import add_cell, numbered

from rag_train.errors import UserError
from rag_train.eval.matrix.export import export_matrix
from rag_train.eval.matrix.predictions import load_predictions
from rag_train.questions.load import load_questions


def test_exported_files_can_be_read_again(tmp_path: Path) -> None:
    asked = numbered(0, 1, 2)
    cell = add_cell(tmp_path / "m", "sys", asked, ["yes", None, "É"])
    (items, means) = export_matrix(tmp_path / "m", tmp_path / "f", "flashrag")
    assert items.name == "intermediate_data.json" and "em: 0.333" in means.read_text()
    assert load_questions(items)[2].answers == ["yes"], "the records are also questions in FlashRAG's format"
    (results, samples) = export_matrix(tmp_path / "m", tmp_path / "l", "lm-eval")
    assert json.loads(results.read_text())["results"]["s_d_none_0"]["exact_match,none"] == pytest.approx(1 / 3)
    for path in (items, samples, tmp_path / "m" / cell.trajectories):
        predictions = load_predictions(path, asked, "again")
        assert [(t.question_id, t.answer or "") for t in predictions] == [("q0", "yes"), ("q1", ""), ("q2", "É")]
    with pytest.raises(UserError, match="--format x: unknown format; give flashrag or lm-eval"):
        export_matrix(tmp_path / "m", tmp_path / "x", "x")
    assert not (tmp_path / "x").exists()
