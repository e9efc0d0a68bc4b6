"""The printed tables and the claims about them: well formed, with names of strategies and datasets that exist."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml
from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.eval.papers.printed import PAPERS, Paper, PublishedTable, chosen_tables, papers
from rag_train.questions.formats import FORMATS
from rag_train.strategies.registry import parse_strategy


@pytest.mark.parametrize("name", PAPERS)
def test_strategies_datasets_and_claim_ids_are_known(name: str):
    paper = papers()[name]
    for published in paper.tables.values():
        for row in published.rows:
            if row.strategy:
                parse_strategy(row.strategy)
        for column in published.columns:
            assert set((column.dataset or "hotpotqa").split("+")) <= {*FORMATS, "compound"}
    assert all(claim.id.startswith(f"{name}-") for claim in paper.claims)


def test_every_way_of_answering_has_a_strategy():
    """The rows left are modules, counts of examples, and models of which the paper states no method."""
    without = {
        (name, id, row.name)
        for name, paper in papers().items()
        for id, published in paper.tables.items()
        for row in published.rows
        if row.strategy is None and any(column.metric != "examples" for column in published.columns)
    }
    modules = {("dualrag", "table8", name) for name in ("Infer", "EI", "KS")}
    assert without == {("deeprag", "table6", "QwQ-32B"), ("deeprag", "table6", "gpt-4o-turbo"), *modules}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_yaml_keys_are_unique(name: str):
    """YAML silently keeps the last of two equal keys."""
    nodes = [yaml.compose((files("rag_train.eval.papers") / f"{name}.yaml").read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"{node.start_mark}"
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


@pytest.mark.parametrize(
    ("paper", "id", "problem"),
    [
        ("deprag", "table1", "unknown paper 'deprag'; did you mean deeprag?"),
        ("deeprag", "tabel1", "unknown table 'tabel1' of deeprag; did you mean table1?"),
        (
            "hanrag",
            "x",
            "unknown table 'x' of hanrag; choose one of table1, table2, table3, table4, table5, table6, "
            "figure3, router",
        ),
    ],
)
def test_rejects_unknown_papers_and_tables(paper: str, id: str, problem: str):
    with pytest.raises(UserError) as error:
        chosen_tables(paper, id)
    assert str(error.value) == problem


TABLE = {
    "title": "t",
    "section": "1",
    "unit": "percent",
    "columns": [{"id": "em", "metric": "em"}, {"id": "f1", "metric": "f1"}],
    "rows": [{"name": "a", "values": [1, 2.5]}, {"name": "b", "values": [1, None]}],
}
CLAIM = {"id": "c", "text": "", "section": "1", "table": "t", "better": ["a"], "worse": ["b"]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rows": [{"name": "a", "values": [1]}]}, "1 values for 2 columns"),
        ({"rows": [{"name": "a", "values": [1, 2]}] * 2}, "duplicate names:  / a"),
        ({"rows": [{"name": "a", "values": [1, float("nan")]}]}, "finite"),
        ({"columns": [{"id": "em", "metric": "em"}] * 2}, "duplicate names: em"),
        ({"colums": []}, "Extra inputs"),
    ],
)
def test_rejects_malformed_tables(change: dict[str, object], problem: str):
    with pytest.raises(ValidationError, match=problem):
        PublishedTable.model_validate(TABLE | change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"table": "u"}, "unknown table, row or column 'u'"),
        ({"better": ["x"]}, "unknown table, row or column 'x'"),
        ({"columns": ["x"]}, "unknown table, row or column 'x'"),
        ({"better": ["g / a"]}, "unknown table, row or column 'g / a'"),
        ({"worse_columns": ["em", "f1"]}, "longer"),
    ],
)
def test_rejects_malformed_claims(change: dict[str, object], problem: str):
    claim = CLAIM | {"kind": "higher", "columns": ["em"]} | change
    with pytest.raises(ValidationError, match=problem):
        Paper.model_validate({"paper": "p", "source": "", "tables": {"t": TABLE}, "claims": [claim]})
