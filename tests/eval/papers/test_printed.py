"""The printed tables and the claims about them: well formed, with names of strategies and datasets that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest
from support.fakes import Found, Says

from rag_train.errors import UserError
from rag_train.eval.papers.printed import PAPERS, chosen_tables, papers
from rag_train.questions.formats import FORMATS
from rag_train.schema import Question
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build, parse_strategy


def distinct(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


@pytest.mark.parametrize("name", PAPERS)
def test_tables_are_whole_and_name_strategies_and_datasets_that_exist(name: str):
    for published in papers()[name].tables.values():
        assert distinct([column.id for column in published.columns])
        assert distinct([f"{row.group} / {row.name}" for row in published.rows])
        for row in published.rows:
            assert len(row.values) == len(published.columns)
            if row.strategy:
                parse_strategy(row.strategy)
        for column in published.columns:
            assert set((column.dataset or "hotpotqa").split("+")) <= {*FORMATS, "compound"}


@pytest.mark.parametrize("name", PAPERS)
def test_claims_name_tables_rows_and_columns_that_exist(name: str):
    paper = papers()[name]
    assert distinct([claim.id for claim in paper.claims])
    for claim in paper.claims:
        assert claim.id.startswith(f"{name}-") and paper.pairs(claim)  # a KeyError for an unknown table or row
        tables = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
        for ids, table in zip(zip(*paper.columns(claim), strict=True), tables, strict=True):
            assert set(ids) <= {column.id for column in table.columns}


@pytest.mark.parametrize(
    ("paper", "id", "problem"),
    [
        ("deprag", "table1", "unknown paper 'deprag'; did you mean deeprag?"),
        ("deeprag", "tabel1", "unknown table 'tabel1' of deeprag; did you mean table1?"),
        ("hanrag", "x", "unknown table 'x' of hanrag; choose one of table1, table2, table3, table4, table5, "),
    ],
)
def test_rejects_unknown_papers_and_tables(paper: str, id: str, problem: str):
    with pytest.raises(UserError) as error:
        chosen_tables(paper, id)
    assert str(error.value).startswith(problem)


def test_ircot_of_hanrags_tables_makes_eight_rounds_with_a_model_that_does_not_stop():
    """The rows average up to 5.53 rounds, which the default of five sentences cannot reach."""
    tables = papers()["hanrag"].tables.values()
    rows = [(table, row) for table in tables for row in table.rows if row.name == "IRCoT"]
    columns = [(i, row) for table, row in rows for i, each in enumerate(table.columns) if each.metric == "rounds"]
    assert max(row.values[i] or 0 for i, row in columns) == 5.53
    for spec, rounds in ({str(row.strategy): 8 for _, row in rows} | {"ircot": 5}).items():
        numbers = count()
        kit = Kit(Says(lambda _, n=numbers: f" Thought {next(n)}."), Found([]), instructions=False)
        got = asyncio.run(build(spec, kit).answer(Question(id="q", question="Who?", answers=["x"])))
        assert got.rounds == got.retrievals == rounds
