"""Tables of runs, in the form of the papers' tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rag_train.eval.matrix.cell import Cell
from rag_train.eval.metrics.boundary import DecisionCounts
from rag_train.eval.metrics.causes import CAUSES
from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.metrics.summary import RunSummary, counted, pool
from rag_train.table import NOTHING, Table

NEAR = 0.002
"""Difference up to which a score does not get a column of its own beside EM."""


def main_table(runs: Sequence[RunSummary]) -> Table:
    """Return answer scores and retrievals of each run, with intervals (DeepRAG, Tables 1 and 2).

    F1 and accuracy are left out if they are `NEAR` EM in every row, as with answers of one word. The number of
    questions is told if it is not the same for all.
    """
    left_out, scores = _near_em(runs)
    counts = ["Questions"] if len({run.questions for run in runs}) > 1 else []
    return Table(
        title="Answers and retrievals",
        caption="Scores in percent; mean retrievals per question, over all questions and over the questions "
        "answered correctly or incorrectly (exact match).",
        columns=["Strategy", *counts, *scores.values(), "Retrievals", "when correct", "when incorrect"],
        rows=[
            [
                run.name,
                *(str(run.questions) for _ in counts),
                *(_percent(getattr(run, name)) for name in scores),
                *(_number(i) for i in (run.retrievals, run.retrievals_correct, run.retrievals_incorrect)),
            ]
            for run in runs
        ],
        notes=[*left_out, _interval_note(runs), *_error_notes(runs)],
    )


def _near_em(runs: Sequence[RunSummary]) -> tuple[list[str], dict[str, str]]:
    """Return a note on the scores that are `NEAR` EM in all runs, and the titles of the others by field."""
    titles = {"em": "EM", "f1": "F1", "accuracy": "Accuracy"}
    near = [name for name in ("f1", "accuracy") if runs and all(_near(getattr(run, name), run.em) for run in runs)]
    names = " and ".join(titles[name] for name in near)
    note = [f"Not shown, as within {100 * NEAR:g} points of EM in every row: {names}."] if near else []
    return note, {name: title for name, title in titles.items() if name not in near}


def _near(first: Interval, second: Interval) -> bool:
    return abs(first.mean - second.mean) <= NEAR


def decision_table(runs: Sequence[RunSummary]) -> Table:
    """Return the agreement of decisions with each knowledge boundary of the runs (DeepRAG, Table 3)."""
    rows = []
    for run in runs:
        for boundary, counts in (("CoT", run.cot_boundary), ("facts", run.fact_boundary)):
            if counts:
                rows.append([run.name, boundary, *_decision_cells(counts)])
    return Table(
        title="Decisions and the knowledge boundary",
        caption="The positive class is not retrieving. CoT: one decision per question; a question is known if "
        "the chain of thought without retrieval answers it exactly (DeepRAG, appendix B.2). Facts: one decision "
        "per step; a fact is known if the model's training text contains it (mini world) or if the starting model "
        "was measured to know it (atlas). Unmatched steps ask for no fact of the boundary.",
        columns=["Strategy", "Boundary", "F1", "Accuracy", "Balanced acc.", "MCC", "Decisions", "Unmatched steps"],
        rows=rows,
    )


def parts_table(runs: Sequence[RunSummary]) -> Table:
    """Return scores and retrievals by number of hops and by type of question; F1 unless it is `NEAR` EM."""
    scores = {"em": "EM", "f1": "F1"}
    if all(_near(part.f1, part.em) for run in runs for part in run.parts):
        del scores["f1"]
    return Table(
        title="By hops and type",
        caption="Scores in percent; mean retrievals per question.",
        columns=["Strategy", "Part", "Questions", *scores.values(), "Retrievals"],
        rows=[
            [
                run.name,
                part.name,
                str(part.questions),
                *(_percent(getattr(part, name)) for name in scores),
                _number(part.retrievals),
            ]
            for run in runs
            for part in run.parts
        ],
        notes=[_interval_note(runs)],
    )


def cause_table(runs: Sequence[RunSummary]) -> Table:
    """Return the causes of wrong answers of the strategies that answer in steps."""
    told = [run for run in runs if run.causes]
    present = [name for name in CAUSES if any(cause.cause == name for run in told for cause in run.causes)]
    counts = [{cause.cause: str(cause.count) for cause in run.causes} for run in told]
    return Table(
        title="Causes of wrong answers",
        caption="Number of questions by the first step that left the annotated decomposition. "
        + "; ".join(f"{name}: {CAUSES[name]}" for name in present)
        + ".",
        columns=["Strategy", *(name.capitalize() for name in present)],
        rows=[
            [run.name, *(count.get(name, "0") for name in present)] for run, count in zip(told, counts, strict=True)
        ],
    )


def cost_table(runs: Sequence[RunSummary]) -> Table:
    """Return the model calls and tokens of each module of each strategy."""
    return Table(
        title="Cost",
        caption="Means per question: steps of the trajectory, and model calls and tokens of each module.",
        columns=["Strategy", "Steps", "Module", "Calls", "Prompt tokens", "Completion tokens"],
        rows=[
            [
                run.name,
                f"{run.steps:.2f}",
                module,
                f"{use.calls:.2f}",
                f"{use.prompt_tokens:,.0f}",
                f"{use.completion_tokens:,.1f}",
            ]
            for run in runs
            for module, use in run.tokens.items()
        ],
    )


def measures_table(runs: Sequence[RunSummary]) -> Table:
    """Return the measures that only some questions have, such as retrieval, ROUGE and a judge's verdicts."""
    columns = {
        "success": "Success",
        "gold_precision": "Precision",
        "gold_recall": "Recall",
        "compound": "Compound",
        "rouge2": "ROUGE-2",
        "rouge_l": "ROUGE-L",
        "judge": "Judge",
        "best_of_two_em": "Best of two: EM",
        "best_of_two_f1": "Best of two: F1",
        "best_of_two_accuracy": "Best of two: accuracy",
        "best_of_two_judge": "Best of two: judge",
    }
    shown = [name for name in columns if any(name in run.measures for run in runs)]
    return Table(
        title="Other measures",
        caption="In percent, over the questions that each measure applies to. Success: a retrieved passage "
        "contains a gold answer; precision and recall: retrieved passages against gold passages; compound: share "
        "of the requested facts that the answer contains; judge: answers that a language model calls correct. "
        "Best of two: the better score of an answer and of a short one taken from it (DualRAG's release); not "
        "comparable with scores of one answer.",
        columns=["Strategy", *(columns[name] for name in shown)],
        rows=[
            [run.name, *(_percent(run.measures[name]) if name in run.measures else NOTHING for name in shown)]
            for run in runs
            if shown
        ],
        notes=[
            _interval_note(runs),
            *_note("Answers refused by the judge, which count as wrong", [counted(r.unjudged) for r in runs], runs),
        ],
    )


def wording_table(runs: Sequence[RunSummary]) -> Table:
    """Return the words of three classes in subqueries (DeepRAG, Figure 4)."""
    return Table(
        title="Wording of subqueries",
        caption='Mean number per subquery; conjunctions are "and" and "or".',
        columns=["Strategy", "WH-words", "Pronouns", "Conjunctions"],
        rows=[
            [run.name, *(NOTHING if n is None else f"{n:.2f}" for n in (each.wh, each.pronouns, each.conjunctions))]
            for run in runs
            if (each := run.wording)
        ],
    )


def gain_table(runs: Sequence[RunSummary]) -> Table:
    """Return the information gain by depth (PlanRAG, Table 6)."""
    return Table(
        title="Information gain",
        caption="Mean grade from 0 to 10 that a language model gives the subqueries of a plan up to a depth; it "
        "does not see their answers. Plans: those that reach the depth; graded: those of them with a grade.",
        columns=["Strategy", "Depth", "Plans", "Graded", "Gain"],
        rows=[
            [
                run.name,
                str(depth),
                f"{plans:.0f}",
                f"{run.graded[depth]:.0f}",
                _number(run.measures.get(f"gain_{depth}")),
            ]
            for run in runs
            for depth, plans in run.plans.items()
        ],
        notes=[_interval_note(runs)],
    )


def depth_table(runs: Sequence[RunSummary], most: int = 5) -> Table:
    """Return the distribution of reasoning depths (PlanRAG, Table 1 and Figure 4b)."""

    def share(run: RunSummary, depth: int) -> float:
        return sum(part for deep, part in run.depths.items() if deep == depth or deep > depth == most)

    return Table(
        title="Depth of reasoning",
        caption="Questions in percent by the length of the plan's longest path, or by rounds if the strategy has "
        "no plan.",
        columns=["Strategy", *map(str, range(most)), f"{most} or more"],
        rows=[
            [run.name, *(f"{100 * share(run, depth):.1f}" for depth in range(most + 1))]
            for run in runs
            if run.depths
        ],
    )


def reliability_table(runs: Sequence[RunSummary]) -> Table:
    """Return the reliability of the probability of retrieving (`rag_train.eval.metrics.reliability`)."""
    rows = [
        [run.name, boundary, f"{reliability.count:,}", f"{reliability.ece:.3f}", f"{reliability.brier:.3f}"]
        for run in runs
        for boundary, reliability in (("CoT", run.cot_calibration), ("facts", run.fact_calibration))
        if reliability
    ]
    return Table(
        title="Reliability of the probability of retrieving",
        caption="Expected calibration error (ECE) and Brier score of the probability of retrieving as a forecast "
        "that the model lacks the knowledge.",
        columns=["Strategy", "Boundary", "Decisions", "ECE", "Brier"],
        rows=rows,
    )


class ResultSet(NamedTuple):
    """The results of a dataset, or of one set of its questions."""

    name: str
    runs: list[RunSummary]
    """A run for each configuration, named by what distinguishes it from the others; seeds are joined."""
    seeds: list[RunSummary]
    """The same runs by seed."""


def result_sets(cells: Sequence[Cell]) -> list[ResultSet]:
    """Return the cells by dataset. Cells of one seed that answer different questions are in different sets."""
    parts = [part for part in ("model", "retriever") if len({getattr(cell, part) for cell in cells}) > 1]
    found: list[ResultSet] = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        own = [cell for cell in cells if cell.dataset == dataset]
        by_seed = {
            seed: {cell.questions for cell in own if cell.seed == seed} for seed in {cell.seed for cell in own}
        }
        if all(len(files) == 1 for files in by_seed.values()):
            groups = {dataset: own}
        else:
            files = dict.fromkeys(cell.questions for cell in own)
            groups = {
                f"{dataset} ({group[0].summary.questions:,} questions, {Path(file).name})": group
                for file in files
                if (group := [cell for cell in own if cell.questions == file])
            }
        for name, group in groups.items():
            seeds = [
                cell.summary.model_copy(update={"stage": ", ".join(getattr(cell, part) for part in parts)})
                for cell in group
            ]
            found.append(ResultSet(name, pool(seeds), seeds))
    return found


TABLES = (
    main_table,
    measures_table,
    parts_table,
    cause_table,
    decision_table,
    reliability_table,
    depth_table,
    wording_table,
    gain_table,
    cost_table,
)
"""The tables of an evaluation, in this order; those without rows are left out."""


def matrix_tables(cells: Sequence[Cell]) -> list[Table]:
    """Return all tables with rows of each `ResultSet`."""
    made = [(name, make(runs)) for name, runs, _ in result_sets(cells) for make in TABLES]
    return [replace(table, title=f"{name}: {table.title}") for name, table in made if table.rows]


def matrix_csv(cells: Sequence[Cell]) -> str:
    """Return CSV with a row per cell and measure: mean and interval, as fractions or counts."""
    rows = [
        [*cell.name, run.questions, int(run.errors), name, interval.mean, interval.lo, interval.hi]
        for cell, run in ((cell, cell.summary) for cell in cells)
        for name, interval in _intervals(run).items()
    ]
    out = io.StringIO()
    header = ["model", "strategy", "dataset", "retriever", "seed", "questions", "refused", "measure"]
    header += ["mean", "lo", "hi"]
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def _intervals(run: RunSummary) -> dict[str, Interval]:
    names = ("em", "f1", "accuracy", "retrievals", "retrievals_correct", "retrievals_incorrect")
    intervals = {name: getattr(run, name) for name in names}
    return {name: interval for name, interval in intervals.items() if interval is not None} | run.measures


def _decision_cells(counts: DecisionCounts) -> list[str]:
    measures = (counts.f1, counts.accuracy, counts.balanced_accuracy, counts.mcc)
    cells = [NOTHING if math.isnan(measure) else f"{measure:.3f}" for measure in measures]
    return [*cells, f"{counts.total:,}", f"{counts.unmatched:,}"]


def _percent(interval: Interval) -> str:
    return interval.text(1, 100)


def _number(interval: Interval | None) -> str:
    return interval.text(2) if interval else NOTHING


def _error_notes(runs: Sequence[RunSummary]) -> list[str]:
    def numbers(name: str) -> list[str]:
        return [f"{n:.0f} of {run.questions:,}" if (n := getattr(run, name)) else "" for run in runs]

    return [
        *_note("Questions that were refused, which count as wrong", [run.refusals for run in runs], runs),
        *_note("Questions in which the text of a module did not parse", numbers("unparsed"), runs),
        *_note("Questions in which a text was cut at max_tokens and not read", numbers("cut"), runs),
        *_note("Questions whose missing answer was asked for once more", numbers("asked_again"), runs),
        *_note("Questions for which no search found a passage", numbers("nothing_found"), runs),
    ]


def _note(what: str, counts: Sequence[str], runs: Sequence[RunSummary]) -> list[str]:
    """Return a note on the runs that have a count."""
    listed = [f"{run.name} ({count})" for run, count in zip(runs, counts, strict=True) if count]
    return [f"{what}: {', '.join(listed)}."] if listed else []


def _interval_note(runs: Sequence[RunSummary]) -> str:
    if any(len(run.seeds) > 1 for run in runs):
        return "In brackets: 95% t-interval across seeds, of scores within 0 and 100."
    return "In brackets: 95% interval over questions, Wilson's for scores and bootstrapped for other means."
