"""The printed tables: complete, consistent wherever the papers are, with valid names; and the claims about them."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml
from pydantic import ValidationError
from support.paths import ROOT

from rag_train.errors import UserError
from rag_train.eval.papers.printed import PAPERS, Paper, PaperClaim, PublishedTable, papers, table
from rag_train.questions.formats import FORMATS
from rag_train.strategies.registry import parse_strategy

CLAIMS = [pytest.param(paper, claim, id=claim.id) for paper in papers().values() for claim in paper.claims]

CONTRADICTED = {
    "deeprag-superior": "CoT-Retrieve, UAR and TAARE do as well or better on CAG; Stage I is behind on some F1",
    "deeprag-improves": "CoT-Retrieve, UAR and TAARE do better on CAG",
    "deeprag-cag-retrieve": "holds with Llama-3-8B only",
    "deeprag-popqa": "the gain over the best baseline is 1.79; 2.63 is Stage I's gain over CoT-Retrieve",
    "deeprag-webquestions": "the gain over the best baseline is 4.63",
    "deeprag-efficient-retrievals": "FLARE, DRAGIN, UAR and TAARE retrieve less on 2WikiMultihopQA",
    "deeprag-strong-models": "gpt-4o is better than DeepRAG on Qwen-2.5-7B",
    "dualrag-iterative": "GenGround has no better EM on HotpotQA than retrieving once",
    "dualrag-stands-out": "IRCoT and MetaRAG have a better EM and F1 on HotpotQA",
    "dualrag-tuned-all": "without training the Entity Identifier HotpotQA is better",
    "dualrag-short-answers": "F1 on PopQA is lower",
    "dualrag-scaling-others": "IRCoT's accuracy after eight iterations is higher",
    "dualrag-rerank": "accuracy on 2WikiMultihopQA is better without reranking",
    "dualrag-rerank-least": "on HotpotQA, leaving it out costs more than leaving out any other component",
    "hanrag-single-best": "F1 on TriviaQA is lower than with one retrieval",
    "hanrag-single-f1": "the difference is 1.60",
    "hanrag-modules": "accuracy rises without the Ending discriminator",
    "hanrag-refiner": "the difference is 14.3",
    "hanrag-oracle-single-f1": "the difference is 8.94",
    "levelrag-best": "RQ-RAG, ChatQA, RankRAG and BM25 are each better somewhere",
    "levelrag-scale": "Qwen2 72B is worse than 7B on PopQA",
    "levelrag-scale-llama": "Llama3.1 70B is worse than 8B on HotpotQA",
    "levelrag-gpt4o": "GPT4o is better on TriviaQA, and by accuracy on HotpotQA",
    "levelrag-no-retrieval": "GPT4o is better by accuracy on HotpotQA",
    "levelrag-triviaqa": "dense retrieval succeeds more often than Llama3.1 70B answers right",
    "levelrag-success": "BM25 succeeds more often on HotpotQA",
    "levelrag-sparse-nq": "the difference is 3.04; 1.83 is the gain in EM",
    "levelrag-counterparts": "many are better on TriviaQA, ChatQA and RankRAG on NQ",
    "levelrag-base-sparse": "Qwen2 72B lowers success and F1",
    "levelrag-over-hybrid": "F1 is printed as 39.32",
}
"""Claims that the numbers of their own paper contradict, with the contradiction."""

UNDECIDED = {
    *("deeprag-decomposes", "deeprag-strong-models-close"),
    *("dualrag-oracle", "dualrag-tuned-queries", "dualrag-tokens"),
    *("hanrag-figure", "hanrag-ending-accuracy", "levelrag-rankrag", "planrag-planner"),
    *("planrag-depth-multi", "planrag-depth-optimal", "planrag-depth-exceeded", "planrag-tokens"),
}
"""Claims about figures without numbers, and claims of closeness without a number."""


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "claim"), CLAIMS)
def test_claims_agree_with_the_papers_own_numbers_except_as_listed(paper: Paper, claim: PaperClaim):
    consistency = paper.check(claim)
    expected = None if claim.id in UNDECIDED else claim.id not in CONTRADICTED
    assert consistency.holds is expected, consistency.against


def test_exceptions_are_existing_claims():
    ids = [claim.id for paper in papers().values() for claim in paper.claims]
    assert len(ids) == len(set(ids)) and CONTRADICTED.keys() | UNDECIDED <= set(ids)


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


def test_the_docs_count_what_is_printed():
    tables = [published for paper in papers().values() for published in paper.tables.values()]
    numbers = sum(value is not None for published in tables for row in published.rows for value in row.values)
    claims = sum(len(paper.claims) for paper in papers().values())
    contradicted = f"{len(CONTRADICTED)} of the claims are contradicted"
    text = " ".join((ROOT / "docs/site/howto/evaluate.md").read_text(encoding="utf-8").split())
    assert f"{len(tables)} tables and figures with {numbers:,} numbers, and {claims} claims" in text
    assert contradicted in text


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
    ("paper", "id", "row", "column", "printed"),
    [
        ("deeprag", "table1", "Llama-3-8B / DeepRAG", "webquestions-f1", 45.24),
        ("deeprag", "table1", "Qwen-2.5-7B / TAARE", "cag-em", 40.81),
        ("deeprag", "table2", "Auto-RAG", "2wikimultihopqa-retrievals", 6.26),
        ("deeprag", "table3", "DRAGIN", "mcc", -0.045),
        ("deeprag", "figure6b", "all-node", "retrievals", 1.56),
        ("dualrag", "table1", "Knowledge Summarizer", "processed", 9559),
        ("dualrag", "table2", "Qwen2.5-7B-Instruct / DualRAG-FT", "musique-f1", 46.5),
        ("dualrag", "table12", "Max Iterations 2", "2wikimultihopqa-f1", 0.736),
        ("dualrag", "table13", "Max Iterations 5 / MetaRAG", "2wikimultihopqa-f1", 61.2),
        ("dualrag", "table17", "Mistral-Small-24B-Instruct-2501 / IRCoT", "musique-judge", 0.288),
        ("hanrag", "table1", "Self-RAG", "triviaqa-accuracy", 57.00),
        ("hanrag", "table2", "No retrieval", "compound-accuracy", None),
        ("hanrag", "table6", "-Ending discriminator", "musique-rounds", 4.56),
        ("hanrag", "router", "Revelator", "route-accuracy", 83.93),
        ("dualrag", "errors", "LLM reasoning hallucinations", "share", 75),
        ("planrag", "table1", "Depth 2", "strategyqa-count", 1175),
        ("planrag", "table2", "Llama3.1-instruct8B / Vanilla-RAG", "popqa-accuracy", 39.1),
        ("planrag", "table3", "Llama2 13B / Plan-Self-RAG", "musique-accuracy", 16.72),
        ("planrag", "table6", "Depth 6", "hotpotqa-gain", 10.0),
        ("levelrag", "table1", "RQ-RAG 7B", "hotpotqa-f1", 62.60),
        ("levelrag", "table1", "RankRAG 70B", "nq-success", None),
        ("levelrag", "table5", "GPT4o mini", "popqa-accuracy", 65.40),
    ],
)
def test_printed_values(paper: str, id: str, row: str, column: str, printed: float | None):
    published = table(paper, id)
    (found,) = published.find(row)
    assert published.value(found, column) == printed


def test_deeprag_averages_follow_from_the_values():
    """Averages that follow from the values show that both were read correctly."""
    wrong = []
    weights = {"table1": [1] * 10, "table4": [2, 1, 1, 1], "table6": [2, 1, 1, 1], "table7": [1] * 5}
    for id, weight in weights.items():
        for row in table("deeprag", id).rows:
            *cells, average = (value for value in row.values if value is not None)
            mean = sum(w * cell for w, cell in zip(weight, cells, strict=True)) / sum(weight)
            if abs(mean - average) > 0.0065:
                wrong.append((id, row.group, row.name))
    assert wrong == [("table1", "Llama-3-8B", "DeepRAG-Imi"), ("table4", "", "most"), ("table7", "", "most")]


def test_deeprags_relative_gain_is_the_mean_over_its_two_models():
    """The abstract's 21.99% is relative to the best baseline of each model by average."""
    published, gains = table("deeprag", "table1"), []
    for model in ("Llama-3-8B", "Qwen-2.5-7B"):
        averages = {row.name: published.value(row, "average") or 0 for row in published.rows if row.group == model}
        best = max(value for name, value in averages.items() if not name.startswith("DeepRAG"))
        gains.append(100 * (averages["DeepRAG"] - best) / best)
    assert gains == pytest.approx([13.15, 30.84], abs=0.005)
    assert sum(gains) / 2 == pytest.approx(21.99, abs=0.006)


def test_dualrag_totals_follow_from_the_values():
    *parts, total = table("dualrag", "table8").rows
    for i, printed in enumerate(total.values):
        assert printed == pytest.approx(sum(part.values[i] or 0 for part in parts), abs=0.01)
    for row in table("dualrag", "table7").rows:
        *cells, mean = (value or 0 for value in row.values)
        assert mean == pytest.approx(sum(cells) / 3, abs=0.05)


def test_planrag_depth_shares_follow_from_the_counts():
    """StrategyQA is left out: its printed counts are 50 too many."""
    published = table("planrag", "table1")
    for dataset in ("hotpotqa", "musique", "popqa"):
        total = sum(published.value(row, f"{dataset}-count") or 0 for row in published.rows)
        for row in published.rows:
            share, count = published.value(row, f"{dataset}-share"), published.value(row, f"{dataset}-count")
            assert share is not None and count is not None
            assert share == pytest.approx(100 * count / total, abs=0.11)


@pytest.mark.parametrize(
    ("paper", "first", "second"),
    [
        ("deeprag", ("table2", "DeepRAG"), ("table1", "Llama-3-8B / DeepRAG")),
        ("deeprag", ("table7", "random"), ("table4", "random")),
        ("dualrag", ("table3", "DualRAG"), ("table2", "Qwen2.5-72B-Instruct / DualRAG")),
        ("dualrag", ("table4", "DualRAG-FT"), ("table2", "Qwen2.5-7B-Instruct / DualRAG-FT")),
        ("dualrag", ("table4", "w/o FT"), ("table2", "Qwen2.5-7B-Instruct / DualRAG")),
        ("dualrag", ("table13", "Max Iterations 5 / IRCoT"), ("table2", "Qwen2.5-72B-Instruct / IRCOT")),
        ("hanrag", ("table3", "HANRAG"), ("table1", "HANRAG")),
        ("hanrag", ("table4", "HANRAG"), ("table2", "HANRAG")),
        ("hanrag", ("table5", "HANRAG (ours)"), ("table2", "HANRAG")),
        ("planrag", ("figure1", "ReAct / With Plan"), ("table3", "Llama3.1 instruct8B / PlanRAG SubQ")),
        ("levelrag", ("table4", "Qwen2 7B"), ("table2", "+ supplement")),
        ("levelrag", ("table5", "Qwen2 7B"), ("table3", "+ feedback")),
        ("levelrag", ("table7", "Sparse Searcher"), ("table1", "Sparse Searcher 7B")),
        ("levelrag", ("table7", "Web Searcher"), ("table1", "Qwen2 7B + Web")),
    ],
)
def test_values_printed_twice_agree(paper: str, first: tuple[str, str], second: tuple[str, str]):
    cells = []
    for id, name in (first, second):
        published = table(paper, id)
        (row,) = published.find(name)
        cells.append({column.id: published.value(row, column.id) for column in published.columns})
    shared = cells[0].keys() & cells[1].keys()
    assert shared and {id: cells[0][id] for id in shared} == {id: cells[1][id] for id in shared}


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
        table(paper, id)
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


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"kind": "higher", "columns": ["em"]}, False),
        ({"kind": "lower", "columns": ["em"], "worse_columns": ["em"], "better": ["b"], "worse": ["a"]}, False),
        ({"kind": "higher", "columns": ["f1"]}, None),
        ({"kind": "at least", "columns": ["em"]}, True),
        ({"kind": "at most", "columns": ["em"]}, True),
        ({"kind": "at least", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"]}, None),
        ({"kind": "at most", "columns": ["f1"], "worse": ["a"], "worse_columns": ["em"]}, None),
        ({"kind": "higher", "columns": ["em", "f1"], "worse_columns": ["em", "em"], "over": "many"}, True),
        ({"kind": "higher", "columns": ["em"], "over": "many"}, False),
        ({"kind": "within", "columns": ["em"], "margin": 0}, True),
        ({"kind": "within", "columns": ["em"]}, None),
        ({"kind": "within", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"], "margin": 1.4}, True),
        ({"kind": "within", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"], "margin": 1.3}, False),
        ({"kind": "lower", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"], "margin": 1.5}, True),
        ({"kind": "lower", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"], "margin": 1.41}, False),
        ({"kind": "lower", "columns": ["em"], "worse": ["a"], "worse_columns": ["f1"], "margin": 1.4}, True),
    ],
)
def test_checks_claims_against_printed_values(settings: dict[str, object], holds: bool | None):
    """A tie is no improvement and no loss; "many" are at least half; a margin agrees to its last place.

    A loss does not contradict a claim that rows are equally good, unless the text says how near they are.
    """
    paper = Paper.model_validate({"paper": "p", "source": "", "tables": {"t": TABLE}, "claims": [CLAIM | settings]})
    assert paper.check(paper.claims[0]).holds is holds
