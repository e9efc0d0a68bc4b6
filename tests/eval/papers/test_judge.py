"""Verdicts on the papers' claims, and tables of printed and measured numbers, over scripted answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.miniworld.answers import Request
from rag_train.eval.miniworld.lab import QUESTION_SETS
from rag_train.eval.papers.judge import Comparison, JudgedClaim, evidence, judged
from rag_train.eval.papers.measured import UNMEASURED, Measurements
from rag_train.eval.papers.page import Reproduction, number, reproduce
from rag_train.eval.papers.printed import AS_GOOD, Paper, PaperClaim, chosen_tables, papers
from rag_train.eval.papers.protocol import Outcome, load_protocol
from rag_train.eval.papers.sources import MODELS, ROLES, MiniWorldSource
from rag_train.schema import Decision, Question, Step, Trajectory


class Scripted:
    """A source of 40 questions per set; question ``i`` is answered correctly if ``right(request, i)``.

    There are no answers by the strategy ``unanswered``.
    """

    def __init__(self, right: Callable[[Request, int], bool], unanswered: str = "", seed: int = 0):
        self.right, self.unanswered, self.world_seed = right, unanswered, seed

    default_model, question_set = MiniWorldSource.default_model, MiniWorldSource.question_set
    missing, left_out = MiniWorldSource.missing, MiniWorldSource.left_out
    start = MiniWorldSource.start

    def settings(self) -> dict[str, Any]:
        return {"questions": 40}

    def about(self) -> list[str]:
        return ["Scripted & right."]

    def questions(self, name: str) -> list[Question]:
        return [Question(id=f"{name}-{i}", question=f"{name} {i}?", answers=["yes"]) for i in range(40)]

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        return {request: self._answer(request) for request in requests if request.strategy != self.unanswered}

    def _answer(self, request: Request) -> list[Trajectory]:
        return [
            Trajectory(
                question_id=q.id,
                question=q.question,
                strategy=request.strategy,
                answer="yes" if self.right(request, i) else "no",
                steps=[Step(subquery="?", decision=Decision.RETRIEVE)]
                * {"taught": 2, "stage1": 0}.get(request.model, 1),
            )
            for i, q in enumerate(self.questions(request.questions))
        ]


def deeprag_wins(request: Request, i: int) -> bool:
    return request.model == "stage2" or i % 4 == 0


def told(comparison: Comparison) -> str:
    """Whether a comparison holds or fails by itself."""
    if comparison.holds is None or comparison.fails is None:
        return "not run"
    return "holds" if comparison.holds < 0.025 else "fails" if comparison.fails < 0.025 else "open"


def verdicts(right: Callable[[Request, int], bool], tmp_path, unanswered: str = "") -> dict[tuple[str, str], str]:
    sources = [Scripted(right, unanswered), Scripted(right, unanswered)]
    return {
        (claim.claim, c.worse): told(c)
        for claim in reproduce("deeprag", "table1", sources, tmp_path)
        for c in claim.comparisons
        if c.better == "DeepRAG" and "em" in c.metrics
    }


@pytest.mark.slow
def test_comparisons_hold_fail_or_cannot_be_told_apart(tmp_path):
    assert set(verdicts(deeprag_wins, tmp_path).values()) == {"holds"}
    assert set(verdicts(lambda request, i: not deeprag_wins(request, i), tmp_path).values()) == {"fails"}
    equal = verdicts(lambda request, i: i % 2 == 0, tmp_path)
    as_good = {worse: equal.pop(("deeprag-cag-adaptive", worse)) for worse in ("FLARE", "DRAGIN", "UAR", "TAARE")}
    assert set(equal.values()) == {"open"} and set(as_good.values()) == {"holds"}


@pytest.mark.slow
def test_reports_comparisons_without_answers_as_not_run(tmp_path):
    found = verdicts(deeprag_wins, tmp_path, unanswered="flare")
    assert {verdict for (_, worse), verdict in found.items() if worse == "FLARE"} == {"not run"}
    assert "holds" in found.values()
    page = (tmp_path / "reproduction.html").read_text()
    assert "no answers for &#39;FLARE&#39;" in page and "Scripted &amp; right." in page


def test_json_has_every_cell_with_the_value_of_each_seed(tmp_path):
    """H5: the file had orderings only, one of two backbones' printed differences, no settings and no version."""
    claims = reproduce("deeprag", "table2", [Scripted(deeprag_wins), Scripted(lambda r, i: i < 10)], tmp_path)
    found = Reproduction.model_validate_json((tmp_path / "reproduction.json").read_text())
    assert found.claims == claims and found.unit == "seed" and found.settings == {"questions": 40}
    assert found.code_version and found.seeds == [0, 0] and found.protocol == ""
    table = papers()["deeprag"].tables["table2"]
    assert len(found.cells) == len(table.rows) * len(table.columns)
    assert all(len(cell.seeds) == 2 or cell.why for cell in found.cells)
    [cell] = [c for c in found.cells if (c.row, c.column) == ("DeepRAG", "2wikimultihopqa-em")]
    assert cell.seeds == [100, 25] and cell.printed == {"": 48.1} and cell.model == "stage2"


@pytest.mark.slow
def test_printed_differences_are_of_every_backbone_and_in_points(tmp_path):
    """H4: the Qwen rows were left out. H8: DualRAG's table 17 is printed in fractions."""
    claims = {c.claim: c for c in reproduce("deeprag", "table1", [Scripted(deeprag_wins)] * 2, tmp_path)}
    [comparison] = claims["deeprag-taare"].comparisons
    assert {(p.group, p.difference) for p in comparison.printed} == {("Llama-3-8B", 1.45), ("Qwen-2.5-7B", -1.0)}
    claims = {c.claim: c for c in reproduce("dualrag", "table16", [Scripted(deeprag_wins)] * 2, tmp_path)}
    assert -1.7 in [p.difference for c in claims["dualrag-flare"].comparisons for p in c.printed]
    assert (number(33342), number(0.0), number(48.10)) == ("33,342", "0", "48.1")


@pytest.mark.slow
def test_metrics_with_the_same_values_are_one_comparison(tmp_path):
    """H4: in a world of one-word answers, EM and F1 were counted as two confirmations."""
    claims = {c.claim: c for c in reproduce("deeprag", "table1", [Scripted(deeprag_wins)] * 2, tmp_path)}
    found = claims["deeprag-superior"].comparisons
    assert {tuple(c.metrics) for c in found} == {("em", "f1"), ("mean",)}
    assert {len(c.questions) for c in found if c.metrics == ["mean"]} == {5}


@pytest.mark.slow
def test_claims_about_a_dataset_are_measured_on_questions_of_its_kind(tmp_path):
    """H4: CAG's questions about changed facts and TriviaQA's were the same single hops."""
    claims = {c.claim: c for c in reproduce("deeprag", "table1", [Scripted(deeprag_wins)] * 2, tmp_path)}
    assert {tuple(c.questions) for c in claims["deeprag-cag-retrieve"].comparisons} == {("changed",)}


def test_one_dataset_refutes_a_claim_of_all_datasets(tmp_path):
    """Over the questions of both datasets together, DeepRAG is better here."""

    def right(request: Request, i: int) -> bool:
        better = request.questions == "mixed"
        return (i % 20 != 0 if better else i % 2 == 0) if request.model == "stage2" else i % 5 < 3

    found = {c.claim: c for c in reproduce("deeprag", "table2", [Scripted(right)] * 2, tmp_path)}
    claim = found["deeprag-efficient-accuracy"]
    assert {(*c.questions, told(c)) for c in claim.comparisons} == {("mixed", "holds"), ("single", "fails")}
    assert claim.verdict == "fails"
    assert found["deeprag-flare-unstable"].comparisons[0].questions == ["single against mixed"]


class Unequal(Scripted):
    """A source with fewer questions about changed facts."""

    def questions(self, name: str) -> list[Question]:
        return super().questions(name)[: 10 if name == "changed" else None]


def test_an_average_over_datasets_gives_each_the_same_weight(tmp_path):
    right = Unequal(lambda request, i: request.questions == "changed" and "deeprag" in request.strategy)
    for sources in ([right, right], [right]):
        claims = {c.claim: c for c in reproduce("deeprag", "figure5", sources, tmp_path)}
        [comparison] = claims["deeprag-retrieve-accuracy"].comparisons
        assert comparison.questions == ["two-hop", "mixed", "changed", "rare", "single"]
        [average, *_] = Reproduction.model_validate_json((tmp_path / "reproduction.json").read_text()).cells
        assert average.seeds == [20] * len(sources) and average.interval and average.interval.hi < 40


def test_a_metric_that_applies_in_some_seeds_only_keeps_its_comparison(tmp_path):
    """DeepRAG makes no mistake in the first seed, so that its retrievals for wrong answers have no mean there."""

    def claim_of(*rights: Callable[[Request, int], bool]) -> JudgedClaim:
        claims = reproduce("deeprag", "table2", [Scripted(right) for right in rights], tmp_path)
        found = Reproduction.model_validate_json((tmp_path / "reproduction.json").read_text())
        assert found.claims == claims
        return {claim.claim: claim for claim in claims}["deeprag-more-when-wrong"]

    some = claim_of(deeprag_wins, lambda request, i: i < 10, lambda request, i: i < 20)
    assert [c.seeds for c in some.run] == [[None, 0, 0]] * 2 and some.verdict == "cannot be told apart"
    assert {(c.holds, c.fails) for c in some.run} == {(1, 1)} and "in 1 of 3 seeds" in some.run[0].why
    assert "in 1 of 3 seeds" in (tmp_path / "reproduction.html").read_text()
    none = claim_of(deeprag_wins, deeprag_wins)
    assert not none.run and none.verdict == "not run"


def test_every_claim_of_closeness_has_a_margin():
    """H4: without a margin, such a claim could only fail."""
    rules = load_protocol()
    close = {c.id for p in papers().values() for c in p.claims if c.kind in AS_GOOD}
    assert close - rules.left_out.keys() <= rules.margins.keys() <= close


def test_every_claim_that_compares_nothing_here_is_left_out():
    """Such claims counted for Holm's correction."""
    measurements, left_out = Measurements([Scripted(deeprag_wins)]), load_protocol().left_out

    def compares(paper: Paper, claim: PaperClaim) -> bool:
        tables = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
        columns = [{column.id: column for column in table.columns} for table in tables]
        pairs = [
            [
                measurements.measure(row, by_id[id], table)
                for row, by_id, id, table in zip(rows, columns, ids, tables, strict=True)
            ]
            for rows in paper.pairs(claim)
            for ids in paper.columns(claim)
        ]
        return any(
            first != second and None not in (*first.requests, *second.requests) and first.metric not in UNMEASURED
            for first, second in pairs
        )

    nothing = {c.id for paper in papers().values() for c in paper.claims if not compares(paper, c)}
    assert nothing <= left_out.keys()
    others = {c.id for paper in papers().values() for c in paper.claims if c.id in left_out} - nothing
    assert others == {"deeprag-decomposes", "deeprag-atomic", "dualrag-long-answers", "dualrag-other-models"}


def test_rows_of_other_models_are_not_measured():
    """Claims about GPT-4o and models of 70 billion parameters were judged by the mini model."""
    measurements, table = Measurements([Scripted(deeprag_wins)]), papers()["levelrag"].tables["table1"]
    [row] = table.find("GPT4o")
    assert measurements.request(row, table, "rare") is None
    assert measurements.missing(row) == "no model here stands for GPT4o"
    [row] = table.find("Qwen2 7B + Web")
    assert measurements.missing(row) == "nothing in the mini world is on the web"


@pytest.mark.parametrize(
    ("kind", "seeds", "margin", "expected"),
    [
        ("higher", [3, 4, 5], 0, "holds"),
        ("higher", [-1, 4, 5], 0, "open"),
        ("higher", [-3, -4, -5], 0, "fails"),
        ("lower", [-3, -4, -5], 0, "holds"),
        ("at least", [-1, 0, 1], 5, "holds"),
        ("at least", [-1, 0, 1], 0.5, "open"),
        ("at least", [-8, -9, -7], 2, "fails"),
        ("at least", [8, 9, 7], 2, "holds"),
        ("at most", [-1, 0, 1], 5, "holds"),
        ("at most", [-8, -9, -7], 2, "holds"),
        ("at most", [8, 9, 7], 2, "fails"),
        ("within", [-0.1, 0, 0.1], 2, "holds"),
        ("within", [-4, 0, 4], 2, "open"),
        ("within", [8, 9, 8.5], 2, "fails"),
        ("within", [-8, -9, -8.5], 2, "fails"),
    ],
)
def test_evidence_of_each_kind_of_claim(kind: Any, seeds: list[float], margin: float, expected: str):
    holds, fails = evidence(kind, effect_across_seeds(seeds), margin)
    assert told(Comparison(better="a", worse="b", metrics=["em"], holds=holds, fails=fails)) == expected


def claim(name: str, over: Any, *seeds: list[float]) -> JudgedClaim:
    effects = [effect_across_seeds(values) for values in seeds]
    comparisons = [
        Comparison(
            better="a", worse=str(i), metrics=["em"], effect=e, holds=evidence("higher", e, 0)[0],
            fails=evidence("higher", e, 0)[1],
        )
        for i, e in enumerate(effects)
    ]  # fmt: skip
    return JudgedClaim(
        paper="p", claim=name, text="", section="", table="", kind="higher", over=over, comparisons=comparisons
    )


UP, DOWN, OPEN = [9.0, 10, 11, 10, 9, 10], [-9.0, -10, -11, -10, -9, -10], [-1.0, 1, 2, -2, 0, 1]


def test_a_claim_about_each_comparison_needs_all_and_one_contradiction_refutes_it():
    claims = [
        claim("all", "each", UP, UP),
        claim("one against", "each", UP, DOWN, UP),
        claim("one open", "each", UP, OPEN),
        claim("half", "many", UP, DOWN),
        claim("most against", "many", UP, DOWN, DOWN, DOWN),
        claim("none", "each"),
    ]
    found = judged(claims, len(claims), 0.025)
    expected = ["holds", "fails", "cannot be told apart", "holds", "fails", "not run"]
    assert [c.verdict for c in found] == expected
    assert [c.deciding.worse if c.deciding else None for c in found] == ["1", "1", "1", "0", "3", None]


def test_holms_correction_is_over_all_claims_of_the_paper():
    weak = claim("weak", "each", [1.0, 2, 3, 2, 1, 6])
    assert judged([weak], 1, 0.025)[0].verdict == "holds"
    assert judged([weak], 20, 0.025)[0].verdict == "cannot be told apart"


def test_seeds_that_disagree_do_not_hold():
    """H2: over the questions of three seeds the interval excluded 0; over the seeds it does not."""
    seeds = [0.13, 0.05, 0.02]
    effect = effect_across_seeds(seeds)
    assert effect.mean > 0.05 and effect.lo < 0 and effect.p_above(0) > 0.025


def test_tables_show_printed_and_measured_numbers(tmp_path):
    reproduce("deeprag", "table2", [Scripted(deeprag_wins)] * 2, tmp_path)
    [row] = [r for r in (tmp_path / "reproduction.md").read_text().splitlines() if r.startswith("| DeepRAG |")]
    em, retrievals = row.split("|")[2:4]
    assert em.split("/")[0].strip() == "48.1" and "100" in em.split("/")[1]
    assert retrievals.split("/")[0].strip() == "1.09" and retrievals.split("/")[1].strip().startswith("1 ")
    page = (tmp_path / "reproduction.html").read_text()
    assert '<span class="printed">48.1</span> / <span class="measured">100' in page
    assert '<a href="#deeprag-table2">table2</a>' in page and 'id="deeprag-table2"' in page
    assert '<svg class="bar"' in page and "<script" not in page and 'id="show-1"' in page
    assert "These are not results of the protocol's test seeds" in page


def test_test_seeds_are_measured_on_several_days_and_judged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rules = load_protocol()
    test = rules.seeds.test
    monkeypatch.setattr(Scripted, "settings", lambda self: rules.settings)
    monkeypatch.setattr("rag_train.eval.papers.page.committed_hash", lambda path: "0123456789ab")
    monkeypatch.setattr("rag_train.eval.papers.page.logged", lambda what, seeds: nullcontext(Outcome()))
    monkeypatch.setattr("rag_train.eval.papers.measured.bootstrap_of", None)  # values need no resampling

    def sources(seeds: Sequence[int]) -> list[Scripted]:
        # Seed by seed, DeepRAG is right more often; the others are right for every fourth question.
        def right(request: Request, i: int, seed: int) -> bool:
            return i % 20 < (seed - test[0] + 8 if "deeprag" in request.strategy else 5)

        return [Scripted(partial(right, seed=seed), seed=seed) for seed in seeds]

    assert reproduce("deeprag", "table2", sources(test[:2]), tmp_path) == []
    assert not (tmp_path / "reproduction.json").exists()
    claims = reproduce("deeprag", "table2", sources(test[2:]), tmp_path)
    found = Reproduction.model_validate_json((tmp_path / "reproduction.json").read_text())
    assert (found.seeds, found.unit, found.protocol) == (test, "seed", "0123456789ab")
    together = [Scripted(source.right) for source in sources(test)]
    assert claims == reproduce("deeprag", "table2", together, tmp_path / "together")
    em, *_ = (cell.seeds for cell in found.cells if (cell.row, cell.metric) == ("DeepRAG", "em"))
    assert em == pytest.approx([5 * (seed - test[0] + 8) for seed in test])


@pytest.mark.slow
def test_intervals_of_shares_lie_between_0_and_100(tmp_path):
    """U4: with two seeds that differ, the t-interval of exact match reached from -585 to 685."""
    for sources in ([deeprag_wins, lambda request, i: False], [lambda request, i: False]):
        reproduce("deeprag", "table2", [Scripted(right) for right in sources], tmp_path)
        [row] = [r for r in (tmp_path / "reproduction.md").read_text().splitlines() if r.startswith("| DeepRAG |")]
        low, high = re.findall(r"[-\d.e]+", row.split("|")[2].split("/")[1])[1:]
        assert 0 <= float(low) < float(high) <= 100


def test_all_tables_request_every_question_set_model_and_role():
    tables = chosen_tables(None, None)
    measurements = Measurements([Scripted(deeprag_wins)])
    requests = {request for _, _, table in tables for request in measurements.requests(table)}
    assert {request.questions for request in requests} == set(QUESTION_SETS)
    assert {request.model for request in requests} == {"taught", "student", *MODELS.values()}
    assert {request.role for request in requests} == {None, *ROLES.values()}


class Whole(Scripted):
    """A source that leaves nothing out."""

    def left_out(self) -> dict[str, str]:
        return {}


def outcomes(
    paper: str, table: str, right, tmp_path, source: type[Scripted] = Scripted
) -> dict[tuple[str, str, str], tuple[str, float]]:
    found = reproduce(paper, table, [source(right), source(right)], tmp_path)
    return {
        (c.better, c.worse, metric): (told(c), c.effect.mean if c.effect else float("nan"))
        for claim in found
        for c in claim.comparisons
        for metric in c.metrics
    }


@pytest.mark.slow
def test_compares_decisions_by_metrics_over_all_questions(tmp_path):
    # CoT answers every fourth question. Every strategy retrieves for all questions; only stage 1 never does.
    found = outcomes("deeprag", "table3", lambda request, i: request.strategy == "cot" and i % 4 == 0, tmp_path)
    assert found["DeepRAG", "FLARE", "decision_f1"] == ("open", 0)
    assert found["DeepRAG", "DeepRAG-Imi", "decision_f1"] == ("fails", pytest.approx(-0.4))
    assert found["DeepRAG", "DeepRAG-Imi", "balanced_accuracy"] == ("open", 0)


def test_compares_two_columns_of_a_row_and_rows_of_two_tables(tmp_path):
    found = outcomes("deeprag", "table2", lambda request, i: i % 2 == 0, tmp_path)
    assert found["DeepRAG", "DeepRAG", "retrievals_correct against retrievals_incorrect"][1] == 0
    found = outcomes("dualrag", "table15", lambda request, i: "rerank" in request.strategy, tmp_path, Whole)
    assert found["w/o rerank", "w/o EI", "accuracy"] == ("holds", 100)


def test_claims_that_are_left_out_have_their_reason_and_do_not_count_for_the_correction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    families: list[int] = []

    def spied(claims: list[JudgedClaim], family: int, level: float) -> list[JudgedClaim]:
        families.append(family)
        return judged(claims, family, level)

    monkeypatch.setattr("rag_train.eval.papers.judge.judged", spied)
    claims = reproduce("dualrag", "table15", [Scripted(deeprag_wins)] * 2, tmp_path)
    why = load_protocol().left_out["dualrag-rerank"]
    assert {(c.verdict, *{comparison.why for comparison in c.comparisons}) for c in claims} == {("not run", why)}
    assert why in (tmp_path / "reproduction.html").read_text()
    [family] = families
    left_out = [c.id for c in papers()["dualrag"].claims if c.id in load_protocol().left_out]
    assert len(left_out) == 5 and family == len(papers()["dualrag"].claims) - 5


def test_measures_depths_as_shares_of_plans(tmp_path):
    found = outcomes("planrag", "deeper", lambda request, i: True, tmp_path)  # two rounds each, no plan
    assert found["Depth > 1", "Depth ≤ 1", "depth_share"] == ("holds", 100)
    found = outcomes("planrag", "table1", lambda request, i: True, tmp_path)
    assert found["Depth 0", "Depth 2", "depth_share"] == ("fails", -100)
    [row] = [r for r in (tmp_path / "reproduction.md").read_text().splitlines() if r.startswith("| Depth 2 |")]
    assert [cell.replace("\\", "").strip() for cell in row.split("|")[2:4]] == [
        "79.5 / 100 [100, 100]",
        "5,884 / 40 [40, 40]",
    ]


@pytest.mark.slow
def test_student_represents_the_smaller_model_that_is_fine_tuned(tmp_path):
    found = outcomes("dualrag", "table2", lambda request, i: request.model == "dualrag", tmp_path)
    assert found["DualRAG-FT", "DualRAG (student)", "em"] == ("holds", 100)
    assert found["DualRAG", "Direct", "em"] == found["DualRAG (student)", "Direct (student)", "em"]
    found = outcomes("planrag", "table5", lambda request, i: request.role is None, tmp_path)
    assert found["Plan8B", "Plan4o", "accuracy"] == ("fails", -100)


@pytest.mark.slow
def test_runs_every_ordering_that_trajectories_can_decide(tmp_path):
    found = reproduce(None, None, [Scripted(deeprag_wins)], tmp_path)
    whys = {c.why for claim in found for c in claim.comparisons if c.why}
    expected = {*(f"{name} needs {tool}" for name, tool in UNMEASURED.items()), *load_protocol().left_out.values()}
    others = {why for why in whys if not why.startswith("no model here stands for")}
    assert {why for why in others if "does not apply" not in why} <= expected


def test_unknown_tables_and_papers_suggest_the_nearest_name():
    with pytest.raises(UserError, match="did you mean table1"):
        chosen_tables("deeprag", "tabel1")
    with pytest.raises(UserError, match="did you mean deeprag"):
        chosen_tables("deeprga", None)
