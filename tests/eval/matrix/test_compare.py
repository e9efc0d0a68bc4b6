"""Comparisons of cells."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.matrices import add_cell, numbered

from rag_train.errors import UserError
from rag_train.eval.matrix.compare import compare_cells, comparison_table


def test_compares_cells_question_by_question(tmp_path: Path) -> None:
    asked = numbered(*range(40))
    rng = random.Random(0)
    add_cell(tmp_path, "base", asked, ["no"] * 40)
    add_cell(tmp_path, "better", asked, ["yes" if n % 4 else "no" for n in range(40)])
    add_cell(tmp_path, "chance", asked, ["yes" if rng.random() < 0.05 else "no" for _ in asked])
    add_cell(tmp_path, "few", asked[:3], ["yes"] * 3)
    better, chance = compare_cells(tmp_path)
    assert (better.first, better.second, better.questions) == ("base/s/d/none/0", "better/s/d/none/0", 40)
    assert better.clusters == 10 and (better.only_first, better.only_second) == (0, 30)
    # Every cluster has the same share of correct answers.
    assert better.differences["em"].mean == better.differences["em"].lo == 0.75
    assert better.p == pytest.approx(2 / 2**30) and better.p_corrected == pytest.approx(4 / 2**30)
    assert chance.p_corrected >= chance.p > 0.05
    (alone,) = compare_cells(tmp_path, better.second, better.first)
    assert alone.differences["em"].mean == -0.75 and alone.p == alone.p_corrected
    text = comparison_table([better, chance]).markdown()
    assert "better/s/d/none/0" in text
    assert "Not compared, because they answer other questions (choose with --cell): few/s/d/none/0." in text
    with pytest.raises(UserError, match="no cell 'x'; give one of base/s/d"):
        compare_cells(tmp_path, "x")
    with pytest.raises(UserError, match="runs over different questions: only one of them answers 'q10'"):
        compare_cells(tmp_path, better.first, "few/s/d/none/0")
    with pytest.raises(UserError, match="no other cell has the questions of few"):
        compare_cells(tmp_path, "few/s/d/none/0")
