"""The papers' tables: the printed numbers beside measured ones, and what becomes of every ordering that they claim.

Measured with real models on the released questions (`Checkpoints`), or in the mini world (`Miniature`), where a
dataset stands for what is asked in it and every model is small: there numbers are not comparable with the printed
ones, but orderings are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isnan
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from eval.datasets import at_most, load_questions
from eval.metrics import (
    Interval,
    Score,
    Statistic,
    across_seeds,
    bootstrap_of,
    cot_counts,
    decisions_of,
    mean_of,
    score,
)
from eval.miniature import KINDS, Cell, Miniature
from eval.published import Claim, Column, Paper, Row, Table, papers, table
from eval.run import evaluate
from eval.scorers import wording
from rag_train.errors import UserError
from rag_train.progress import console
from rag_train.retrieval.base import Retriever
from rag_train.schema import Question, Record, Trajectory
from rag_train.strategies import build
from rag_train.strategies.opening import KitConfig, open_kit

STANDS_FOR: dict[str, str] = {
    "hotpotqa": "two-hop",
    "2wikimultihopqa": "comparison",
    "musique": "deep",
    "bamboogle": "two-hop",
    "strategyqa": "comparison",
    "compound": "compound",
}
"""The kind of questions that a dataset is, in the mini world; those not here ask for one hop."""

MODELS: dict[tuple[str, str, str], str] = {
    ("cot", "sft", ""): "taught",
    ("cot-rag", "sft", ""): "taught",
    ("deeprag", "sft", ""): "stage1",
    ("deeprag", "sft", "search.variant=most"): "stage1-most",
    ("deeprag", "sft", "search.variant=random"): "stage1-random",
    ("deeprag", "dpo", ""): "stage2",
    ("deeprag", "dpo", "pairs=all_nodes"): "stage2-all-nodes",
    ("deeprag", "dpo", "pairs=sentence_wise"): "stage2-sentence-wise",
    ("dualrag", "sft", ""): "dualrag",
    ("dualrag", "sft", "all but the Reasoner"): "dualrag",
    ("dualrag", "sft", "all but the Entity Identifier"): "dualrag",
    ("dualrag", "sft", "all but the Knowledge Summarizer"): "dualrag",
}
"""The model of a row by strategy, training and what is particular about that."""

ROLES: dict[tuple[str, str, str], tuple[str, str]] = {
    ("planrag", "sft", "the planner"): ("planner", "planrag"),
    ("dualrag", "sft", "all but the Reasoner"): ("reasoner", "student"),
    ("dualrag", "sft", "all but the Entity Identifier"): ("identifier", "student"),
    ("dualrag", "sft", "all but the Knowledge Summarizer"): ("summarizer", "student"),
}
"""The role that another model has, and that model, likewise."""

SAME = {"mean": "em", "judge": "accuracy", "input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
"""Measures that are another one of a `Score`: short answers need no judge."""

PERCENT = (*("em", "f1", "accuracy", "compound", "mean", "judge", "rouge2", "rouge_l"), "depth_share")
PERCENT += ("success", "gold_precision", "gold_recall")
"""Measures that tables print in percent."""

DEEP = 4
"""This deep, or deeper, is the last class of the papers."""

DECISIONS = ("decision_f1", "decision_accuracy", "balanced_accuracy", "mcc")
UNMEASURED = {
    "nouns": "a tagger",
    "verbs": "a tagger",
    "information_gain": "a judge",
    "examples": "the factories' counts",
}
"""What cannot be counted from trajectories, and what it takes."""


def statistic(metric: str) -> Statistic:
    """Of the sums that `Reproduction` makes of a measure."""
    if metric in DECISIONS:
        return decisions_of(metric.removeprefix("decision_"))
    return mean_of if metric != "depth_count" else lambda sums: sums[..., 0]


Verdict = Literal["holds", "fails", "cannot be told apart", "not run"]


class Ordering(Record):
    """What became of one claim about one pair of rows, in one metric."""

    paper: str
    claim: str
    text: str
    section: str
    table: str
    better: str
    worse: str
    metric: str
    difference: Interval | None
    """Of the better row's over the worse one's: paired over the questions of all seeds, those about one film or
    person resampled together."""
    verdict: Verdict
    why: str
    printed: list[float]
    """The differences in the paper, a column each."""


@dataclass(frozen=True)
class Side:
    """A row in some columns of one metric."""

    cells: tuple[Cell | None, ...]
    """None: what cannot be had."""
    metric: str
    depth: int | None = None

    @classmethod
    def of(cls, sides: Sequence[Side]) -> Side:
        """The same row in several columns, each cell once."""
        cells = dict.fromkeys(cell for side in sides for cell in side.cells)
        return replace(sides[0], cells=tuple(cells))


@dataclass
class Answers:
    """One cell over all seeds, in the seeds' order."""

    questions: list[list[Question]]
    trajectories: list[list[Trajectory]]

    @cached_property
    def scores(self) -> list[list[Score]]:
        return [score(q, t) for q, t in zip(self.questions, self.trajectories, strict=True)]


class Source(Protocol):
    """Who answers: one seed of the mini world, or real checkpoints."""

    def about(self) -> list[str]:
        """What a reader should know of the numbers, a sentence or more each."""
        ...

    def plain(self, row: Row, table: Table) -> str | None:
        """The model of a row that is not in `MODELS`; None if there is none."""
        ...

    def kind(self, dataset: str) -> str:
        """The name of the questions that stand for a dataset."""
        ...

    def questions(self, kind: str) -> list[Question]: ...

    async def answers(self, cells: Iterable[Cell]) -> dict[Cell, list[Trajectory]]:
        """The trajectories of those cells that can be had."""
        ...


class MiniSource(Miniature):
    def about(self) -> list[str]:
        stands = {kind: [name for name, its in STANDS_FOR.items() if its == kind] for kind in KINDS}
        return [
            "In miniature: films and people that are made up, and models of about one million parameters that were "
            "pretrained on about half of the facts about them. Numbers are not comparable with the printed ones.",
            "A dataset stands for what is asked in it: "
            + "; ".join(f"{' and '.join(names)} for {KINDS[kind]}" for kind, names in stands.items() if names)
            + f"; all others for {KINDS['single']}. {self.settings.questions} questions of each kind and seed, on "
            "films and people that no training question mentions.",
            "DeepRAG's stages are trained as the paper has it, on what its search finds. A model of this kind "
            "cannot be prompted: all other systems and baselines run on one that was taught every format from "
            f"{self.settings.lessons} annotated training questions, so their rows say what a method does once its "
            "modules are followed, not how well a model follows prompts.",
            f"The student was taught with {self.settings.few} questions instead; it stands for the small model of "
            f"DualRAG, and is fine-tuned on what the first makes of {self.settings.taught} questions, as is "
            "PlanRAG's planner. CoT is the pretrained model's own, CoT* the taught one's.",
            "Sparse and dense searchers are both BM25 (Lucene's syntax, and plain), for words are all the meaning "
            "there is. Nothing is on the web. The proxy of what a model knows (DeepRAG, Table 3) is the pretrained "
            "model's CoT.",
        ]

    def plain(self, row: Row, table: Table) -> str | None:
        """The model that was taught every format from gold annotations, for the base model cannot be prompted; but
        CoT as pretrained where it is fine-tuned, too, and for the papers' small model that a large one's data
        makes better, the student. Nothing here is on the web."""
        if row.strategy == "levelrag-web" or row.retriever == "web":
            return None
        tuned = {other.strategy for other in table.rows if other.group == row.group and other.trained == "sft"}
        if "dualrag" in tuned:
            return "student"
        return "base" if row.strategy in tuned & {"cot", "cot-rag"} else "taught"

    def kind(self, dataset: str) -> str:
        return STANDS_FOR.get(dataset, "single")


@dataclass
class Checkpoints:
    """Real models by role (``base``, and the values of `MODELS`), on question files by dataset."""

    models: Mapping[str, str]
    files: Mapping[str, Path]
    kit: KitConfig
    retrievers: dict[str, Retriever]
    sample: int | None
    seed: int
    work: Path

    def about(self) -> list[str]:
        models = ", ".join(f"{name} is {model}" for name, model in self.models.items())
        files = ", ".join(f"{name} from {path.name}" for name, path in self.files.items())
        sample = "all" if self.sample is None else str(self.sample)
        return [f"Models: {models}.", f"Questions: {files}, {sample} of each (seed {self.seed})."]

    def plain(self, row: Row, table: Table) -> str | None:
        return "base"

    def kind(self, dataset: str) -> str:
        return dataset

    def questions(self, kind: str) -> list[Question]:
        return at_most(load_questions(self.files[kind]), self.sample, self.seed)

    async def answers(self, cells: Iterable[Cell]) -> dict[Cell, list[Trajectory]]:
        by_model: dict[str, list[Cell]] = {}
        for cell in dict.fromkeys(cells):
            if cell.model in self.models and cell.kind in self.files and cell.role is None:
                by_model.setdefault(cell.model, []).append(cell)
        out: dict[Cell, list[Trajectory]] = {}
        for model, some in by_model.items():
            async with open_kit(replace(self.kit, model=self.models[model]), self.retrievers) as kit:
                for cell in some:
                    try:
                        build(cell.strategy, kit)
                    except UserError as error:  # it lacks a retriever: the other rows are worth having
                        console.print(f"{cell.strategy}: left out, {error}")
                        continue
                    file = self.work / model / f"{cell.strategy}-{cell.kind}.jsonl"
                    settings = {"model": self.models[model], "questions": str(self.files[cell.kind])}
                    out[cell] = await evaluate(cell.strategy, kit, self.questions(cell.kind), file, settings)
        return out


class Reproduction:
    """All answers that some tables need, of one or more sources of a sort: the seeds."""

    def __init__(self, sources: Sequence[Source]):
        self.sources = sources
        self.answers: dict[Cell, Answers] = {}

    async def run(self, tables: Iterable[Table]) -> None:
        wanted = dict.fromkeys(cell for one in tables for cell in self.cells(one))
        # What the model knows, for Table 3 of DeepRAG.
        wanted |= dict.fromkeys(_cot(cell.kind) for cell in wanted)
        for source in self.sources:
            for cell, trajectories in (await source.answers(wanted)).items():
                answers = self.answers.setdefault(cell, Answers([], []))
                answers.questions.append(source.questions(cell.kind))
                answers.trajectories.append(trajectories)

    def kinds(self, column: Column, columns: Sequence[Column]) -> list[str]:
        """The kinds of questions that a column is measured on."""
        names = [column.dataset] if column.dataset else [c.dataset for c in columns if c.dataset] or ["hotpotqa"]
        return list(dict.fromkeys(self.sources[0].kind(n) for name in names if name for n in name.split("+")))

    def cell(self, row: Row, table: Table, kind: str) -> Cell | None:
        """None where we have no such strategy, or nobody to answer by it."""
        if row.strategy is None:
            return None
        strategy = row.strategy.partition("-")[0].partition(",")[0]
        model = MODELS.get((row.strategy, row.trained, row.training)) or MODELS.get(
            (strategy, row.trained, row.training)
        )
        plain = self.sources[0].plain(row, table)
        if plain is None:
            return None
        return Cell(model or plain, row.strategy, kind, ROLES.get((strategy, row.trained, row.training)))

    def cells(self, one: Table) -> Iterator[Cell]:
        for column in one.columns:
            for row, kind in product(one.rows, self.kinds(column, one.columns)):
                if cell := self.cell(row, one, kind):
                    yield cell

    def measured(self, row: Row, column: Column, table: Table) -> Interval | None:
        """Mean and interval over the seeds, or over the questions of one; None where there is nothing to measure.

        Shares are in percent.
        """
        side = self._side(row, column, table)
        if column.metric in UNMEASURED or not all(cell in self.answers for cell in side.cells):
            return None
        of = statistic(column.metric)
        if len(self.sources) == 1:
            found = bootstrap_of(self._addends(side, 0), of, None)
        else:
            found = across_seeds(
                [float(of(self._addends(side, seed).sum(axis=0))) for seed in range(len(self.sources))]
            )
        scale = 100.0 if column.metric in PERCENT else 1.0
        found = Interval(mean=scale * found.mean, lo=scale * found.lo, hi=scale * found.hi)
        return None if isnan(found.mean) else found

    def _side(self, row: Row, column: Column, table: Table) -> Side:
        cells = [self.cell(row, table, kind) for kind in self.kinds(column, table.columns)]
        return Side(tuple(cells), column.metric, row.depth if row.depth is not None else column.depth)

    def _addends(self, side: Side, seed: int) -> np.ndarray:
        """What each question adds to the sums of a measure (`statistic`), of shape (questions, sums)."""
        return np.concatenate([self._of_cell(side, cell, seed) for cell in side.cells if cell])

    def _of_cell(self, side: Side, cell: Cell, seed: int) -> np.ndarray:
        asked, answered = self.answers[cell].questions[seed], self.answers[cell].trajectories[seed]
        scores = self.answers[cell].scores[seed]
        match side.metric:
            case "decision_f1" | "decision_accuracy" | "balanced_accuracy" | "mcc":
                cot = self.answers[_cot(cell.kind)].trajectories[seed]
                rows = [counts.table for counts in cot_counts(asked, answered, cot)]
            case "retrievals_correct" | "retrievals_incorrect":
                right = side.metric == "retrievals_correct"
                rows = [(s.retrievals, 1) if bool(s.em) is right else (0, 0) for s in scores]
            case "depth_share" | "depth_count":
                rows = [(min(s.depth, DEEP) == side.depth, 1) for s in scores]
            case "wh_words" | "conjunctions":
                words = [wording(trajectory) for trajectory in answered]
                rows = [(wh if side.metric == "wh_words" else conjunctions, n) for n, wh, conjunctions in words]
            case metric:
                values = [getattr(s, SAME.get(metric, metric)) for s in scores]
                rows = [(value or 0, value is not None) for value in values]
        return np.array(rows, dtype=np.float64)

    def orderings(self, name: str, paper: Paper, tables: Sequence[str]) -> list[Ordering]:
        """Every ordering that the paper claims of ``tables``, one for each pair of rows and each metric."""
        out: dict[tuple[str, str, str, Side, Side], Ordering] = {}
        for claim in paper.claims:
            if claim.table not in tables:
                continue
            first, second = paper.tables[claim.table], paper.tables[claim.worse_table or claim.table]
            for (better, worse), columns in product(paper.pairs(claim), _by_metric(paper, claim)):
                sides = (
                    Side.of([self._side(better, a, first) for a, _ in columns]),
                    Side.of([self._side(worse, b, second) for _, b in columns]),
                )
                key = claim.id, better.name, worse.name, *sides
                if key not in out:  # rows of several backbone models are one here
                    out[key] = self._ordering(name, paper, claim, better, worse, columns, *sides)
        return list(out.values())

    def _ordering(
        self,
        name: str,
        paper: Paper,
        claim: Claim,
        better: Row,
        worse: Row,
        columns: list[tuple[Column, Column]],
        first: Side,
        second: Side,
    ) -> Ordering:
        used = {a.id for a, _ in columns}
        printed = [
            c.difference
            for c in paper.comparisons(claim)
            if (c.better, c.worse) == (better, worse) and (not c.column or c.column in used)
        ]
        metrics = list(dict.fromkeys(column.metric for column in columns[0]))

        def verdict(verdict: Verdict, why: str = "", difference: Interval | None = None) -> Ordering:
            return Ordering(
                paper=name,
                claim=claim.id,
                text=claim.text,
                section=claim.section,
                table=claim.table,
                better=_called(better, first),
                worse=_called(worse, second),
                metric=" against ".join(metrics),
                difference=difference,
                verdict=verdict,
                why=why,
                printed=printed,
            )

        for metric in metrics:
            if metric in UNMEASURED:
                return verdict("not run", f"{metric} takes {UNMEASURED[metric]}")
        for row, side in ((better, first), (worse, second)):
            if not all(cell in self.answers for cell in side.cells):
                return verdict("not run", f"nothing here is {row.name!r}")
        if first == second:
            return verdict("not run", "one and the same here")
        difference = self._difference(first, second)
        if isnan(difference.mean):
            return verdict("not run", f"{' or '.join(metrics)} does not apply to these questions")
        margin = claim.margin or 0.0
        if claim.kind == "within":
            scaled = margin / 100 if metrics[0] in PERCENT else margin
            if -scaled <= difference.lo and difference.hi <= scaled:
                return verdict("holds", difference=difference)
            apart = difference.lo > scaled or difference.hi < -scaled
            return verdict("fails" if apart else "cannot be told apart", difference=difference)
        lo, hi = (difference.lo, difference.hi) if claim.kind == "higher" else (-difference.hi, -difference.lo)
        return verdict("holds" if lo > 0 else "fails" if hi < 0 else "cannot be told apart", difference=difference)

    def _difference(self, first: Side, second: Side) -> Interval:
        """The first's measure less the second's; what is of one seed and about one film or person is resampled
        together."""
        a, b = (
            np.concatenate([self._addends(side, seed) for seed in range(len(self.sources))])
            for side in (first, second)
        )
        # The sums of both sides stand in one row, so that whatever is known of a cluster is drawn with it.
        width = a.shape[1]
        rows = np.zeros((len(a) + len(b), width + b.shape[1]))
        rows[: len(a), :width] = a
        rows[len(a) :, width:] = b
        x, y = statistic(first.metric), statistic(second.metric)
        clusters = [*self._clusters(first), *self._clusters(second)]
        return bootstrap_of(rows, lambda sums: x(sums[..., :width]) - y(sums[..., width:]), clusters)

    def _clusters(self, side: Side) -> Iterator[str]:
        for seed, cell in product(range(len(self.sources)), filter(None, side.cells)):
            for question in self.answers[cell].questions[seed]:
                about = question.decomposition[0].entity if question.decomposition else ""
                yield f"{seed}/{about or question.id}"


def _by_metric(paper: Paper, claim: Claim) -> list[list[tuple[Column, Column]]]:
    """The columns that are compared, for the better rows and for the worse, those of one metric together."""
    better, worse = (
        {column.id: column for column in paper.tables[id].columns}
        for id in (claim.table, claim.worse_table or claim.table)
    )
    out: dict[tuple[str, str], list[tuple[Column, Column]]] = {}
    for a, b in paper.columns(claim):
        out.setdefault((better[a].metric, worse[b].metric), []).append((better[a], worse[b]))
    return list(out.values())


def _called(row: Row, side: Side) -> str:
    """In the mini world, the student stands for the smaller of two backbone models."""
    return f"{row.name} (student)" if any(cell and cell.model == "student" for cell in side.cells) else row.name


def _cot(kind: str) -> Cell:
    """What the base model answers without retrieving."""
    return Cell("base", "cot", kind)


def chosen_tables(paper: str | None, id: str | None) -> list[tuple[str, str, Table]]:
    """(paper, id, table) of what was asked for. Raises UserError for an unknown paper or table."""
    if paper and id:
        return [(paper, id, table(paper, id))]
    if paper and paper not in papers():
        raise UserError(f"unknown paper {paper!r}; the papers are {', '.join(papers())}")
    return [(n, tid, t) for n, one in papers().items() if paper in (None, n) for tid, t in one.tables.items()]
