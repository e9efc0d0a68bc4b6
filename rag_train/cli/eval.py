"""The evaluation commands. Heavy modules are imported inside the commands, so that ``--help`` stays fast."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_train.cli.options import (
    EVALUATION,
    Adapter,
    Engine,
    Instructions,
    Json,
    Model,
    OptionalIndexes,
    Passages,
    Prompts,
    Reranker,
    Roles,
    Urls,
    announce,
    engine_config,
    kit_config,
    report,
)
from rag_train.errors import UserError
from rag_train.named_places import by_name, named, named_places

if TYPE_CHECKING:
    from rag_train.eval.matrix.cell import Cell
    from rag_train.eval.matrix.estimate import CellEstimate
    from rag_train.llm.engines import EngineConfig
    from rag_train.schema import Question

REPRODUCTION = Path("runs/reproduce/results")
STRATEGIES = ["direct", "cot", "rag", "deeprag"]
"""Strategies of `rag-train eval` without --strategy."""
evaluation = typer.Typer()

MatrixDirectory = Annotated[Path, typer.Argument(help="Directory that `rag-train eval` wrote.")]
Questions = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=][KIND:]PLACE",
        help="Question file as released (JSON, JSON Lines, CSV, TSV, Parquet), or hub:NAME,SPLIT; may be repeated.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD=PLACE,...",
        help="Fields of a file in any other format, such as question=q,answers=gold.text.",
    ),
]
Unanswerable = Annotated[
    str | None,
    typer.Option(
        metavar="skip|abstain",
        help="Questions that are marked as unanswerable: leave them out, or count a refusal to answer as right.",
    ),
]
Sample = Annotated[int | None, typer.Option(help="Number of questions to draw at random from each dataset.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of the question sample.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Answer a few questions of each cell, keep only the engine's cache, and estimate calls, tokens, "
        "time and disk for all.",
    ),
]
Output = Annotated[Path, typer.Option(help="Directory for answers, scores and tables; other cells in it are kept.")]


@evaluation.command("eval", rich_help_panel=EVALUATION)
def evaluate(
    questions: Questions,
    output: Output,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PLACE",
            help="Checkpoint or adapter directory, hub name, or the model's name on a server; may be repeated.",
        ),
    ] = None,
    index: OptionalIndexes = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=INDEX[,INDEX...]",
            help="Named retriever to compare with others, instead of --index; may be repeated.",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a strategy, optionally with settings: dualrag,outline=flat; may be repeated. "
            "By default direct, cot, rag and deeprag."
        ),
    ] = None,
    columns: Columns = None,
    unanswerable: Unanswerable = None,
    adapter: Adapter = None,
    role: Roles = None,
    reranker: Reranker = None,
    sample: Sample = None,
    seed: Seed = 0,
    engine: Engine = "vllm",
    url: Urls = None,
    passages: Passages = 3,
    instructions: Instructions = True,
    prompts: Prompts = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR", help="Evaluate a training run's checkpoints as they appear; keep the best."
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="With --watch: the measure that selects the best checkpoint; higher is better.")
    ] = "em",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Answer questions with every model, strategy and retriever; write answers, scores and tables.

    Each model is started once. Questions that were answered before under the same settings are not answered again.
    """
    from rag_train.questions.load import at_most, open_questions, parse_columns
    from rag_train.retrieval.specification import split
    from rag_train.strategies.kit import open_retrievers

    strategies = strategy or STRATEGIES
    if bool(model) == bool(watch):
        raise UserError("give either --model, or --watch with the output_dir of a training run")
    if bool(index) == bool(retriever):
        raise UserError("give either --index, or --retriever to compare named retrievers")
    places = [named("--model", text) for text in model or []]
    models = by_name("--model", [(name or Path(place).name, place) for name, place in places])
    config = kit_config(
        "", index or [], adapter, role, reranker, engine, url, passages, instructions, strategies, prompts
    )
    mapping = parse_columns(columns) if columns else None
    opened = [open_questions(spec, mapping, unanswerable) for spec in questions]
    datasets = by_name("--questions", [(name, at_most(asked, sample, seed)) for name, asked in opened])
    counts = ", ".join(
        f"{len(asked)} question{'s' * (len(asked) != 1)} of {name}" for name, asked in datasets.items()
    )
    others = "" if strategy else "; choose others with --strategy"
    announce(f"{counts}: {', '.join(strategies)}{others}")
    if index:
        by_kind = open_retrievers(index)
        retrievers = {next(iter(by_kind.values())).name: by_kind}
    else:
        indexes = named_places("--retriever", retriever or [])
        retrievers = {name: open_retrievers(split(places)) for name, places in indexes.items()}
    if dry_run:
        if watch:
            raise UserError("--dry-run: not with --watch, whose checkpoints are not there yet; give --model")
        from rag_train.eval.matrix.estimate import estimate_matrix

        cells = asyncio.run(estimate_matrix(config, models, strategies, datasets, retrievers, output, seed))
        _report_estimates(as_json, {each.cell: [each] for each in cells}, config.engine)
        return

    def run(models: dict[str, str]) -> list[Cell]:
        from rag_train.eval.matrix.run import run_matrix

        return asyncio.run(run_matrix(config, models, strategies, datasets, retrievers, output, seed))

    def run_checkpoint(name: str, place: str) -> list[Cell]:
        cells = run({name: place})
        _warn(output, cells)
        return cells

    if watch:
        from rag_train.eval.matrix.run import settings_of_watch
        from rag_train.eval.matrix.watch import watch_checkpoints

        settings = settings_of_watch(config, strategies, datasets, retrievers)
        best = watch_checkpoints(watch, metric, run_checkpoint, settings)
        report(as_json, best, f"{watch}/best: {best['checkpoint']}, {metric} {best[metric]:.4f}")
        return
    _report_cells(as_json, output, run(models))


@evaluation.command(rich_help_panel=EVALUATION)
def score(
    predictions: Annotated[Path, typer.Argument(help="Predictions of another system, in the dataset's format.")],
    questions: Annotated[str, typer.Option(metavar="[NAME=][KIND:]PLACE", help="The question file, as released.")],
    output: Output,
    name: Annotated[str, typer.Option(help="Name of the system.")],
    columns: Columns = None,
    unanswerable: Unanswerable = None,
    as_json: Json = False,
) -> None:
    """Add the predictions of another system to an evaluation.

    PREDICTIONS is a file for the scripts of HotpotQA, MuSiQue, SQuAD, TriviaQA or KILT, a log of FlashRAG or
    lm-evaluation-harness, a table with the columns id and prediction, or a file of trajectories.
    """
    from rag_train.eval.matrix.cell import CellName
    from rag_train.eval.matrix.predictions import load_predictions
    from rag_train.eval.matrix.store import write_cell, write_matrix
    from rag_train.questions.load import open_questions, parse_columns

    everything: list[Question] = []
    mapping = parse_columns(columns) if columns else None
    dataset, asked = open_questions(questions, mapping, unanswerable, everything)
    ids = {question.id for question in asked}
    left_out = {question.id for question in everything if question.id not in ids}
    loaded = load_predictions(predictions, everything, name)
    answers = [answer for answer in loaded if answer.question_id not in left_out]
    cell = write_cell(output, CellName(name, "predictions", dataset, "", 0), asked, answers, {"predictions": name})
    write_matrix(output, [cell])
    _report_cells(as_json, output, [cell])


@evaluation.command(rich_help_panel=EVALUATION)
def compare(
    directory: MatrixDirectory,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help="Id of a cell; give two. A single cell, by default the first, is compared with all others."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two cells question by question, with a paired bootstrap and McNemar's test."""
    from rag_train.eval.matrix.compare import compare_cells, comparison_table

    if len(chosen := cell or []) > 2:
        raise UserError(f"--cell: {len(chosen)} cells; give at most two")
    comparisons = compare_cells(directory, *chosen)
    report(as_json, comparisons, comparison_table(comparisons))


@evaluation.command(rich_help_panel=EVALUATION)
def judge(
    directory: MatrixDirectory,
    model: Model,
    measure: Annotated[
        str,
        typer.Option(
            metavar="answers|best-of-two|information-gain",
            help="Whether each answer is right; the better of it and of a short answer taken from it (DualRAG's "
            "release); or how much a plan's subqueries contribute (PlanRAG).",
        ),
    ] = "answers",
    engine: Engine = "vllm",
    url: Urls = None,
    prompts: Prompts = None,
    as_json: Json = False,
) -> None:
    """Judge all answers with a language model; the same model is asked each thing only once."""
    announce(f"{directory}: judging its answers with {model}")
    from rag_train.eval.matrix.verdicts import judge_matrix
    from rag_train.formats.instructions import OURS, given

    instructions = given("--prompts", True, prompts) or OURS
    judged = judge_matrix(directory, model, engine_config(engine, url), measure, instructions)
    _report_cells(as_json, directory, asyncio.run(judged))


@evaluation.command(rich_help_panel=EVALUATION)
def validate(
    model: Annotated[str, typer.Argument(help="Checkpoint directory or hub name.")],
    file: Annotated[Path, typer.Argument(help="Held-out examples that `rag-train synth` wrote.")],
    engine: Engine = "vllm",
    url: Urls = None,
    as_json: Json = False,
) -> None:
    """Measure how often each module writes its held-out example exactly; classifiers get a confusion matrix."""
    config = engine_config(engine, url)
    announce(f"{file}: examples to be written by {model}")
    from rag_train.eval.metrics.modules import module_tables, validate_file

    scores = asyncio.run(validate_file(model, config, file))
    report(as_json, scores, *module_tables(scores))


@evaluation.command(rich_help_panel=EVALUATION)
def export(
    directory: MatrixDirectory,
    output: Annotated[Path, typer.Argument(help="Directory to write.")],
    format: Annotated[str, typer.Option(help="flashrag or lm-eval (lm-evaluation-harness).")],
    as_json: Json = False,
) -> None:
    """Export the answers of an evaluation to the format of another harness."""
    from rag_train.eval.matrix.export import export_matrix

    files = export_matrix(directory, output, format)
    report(as_json, files, f"{output}: {len(files):,} files")


def _report_estimates(as_json: bool, groups: Mapping[str, list[CellEstimate]], engine: EngineConfig) -> None:
    """Print what the missing answers of the cells would take, a row for each group."""
    from rag_train.eval.matrix.estimate import estimate_table

    prices = (engine.input_price, engine.output_price)
    cells = [each for group in groups.values() for each in group]
    found = [{"cell": each.cell, "asked": each.asked} | each.figures(prices) for each in cells]
    nothing = "all questions are answered already; the command would only write scores and tables"
    report(as_json, found, estimate_table(groups, prices) if groups else nothing)


def _report_cells(as_json: bool, directory: Path, cells: Sequence[Cell]) -> None:
    """Print the cells, and last what is missing in them."""
    from rag_train.eval.matrix.tables import matrix_tables

    report(as_json, cells, *matrix_tables(cells))
    _warn(directory, cells)


def _warn(directory: Path, cells: Sequence[Cell]) -> None:
    from rag_train.eval.matrix.store import warnings

    for line in warnings(directory, cells):
        announce(line)


@evaluation.command(rich_help_panel=EVALUATION)
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="deeprag, dualrag, hanrag, planrag or levelrag; all papers if not given.")
    ] = None,
    table: Annotated[
        str | None, typer.Argument(help="Such as table1 or figure5; all tables of the paper if not given.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=MODEL", help="Model for a role: base, stage1, stage2, ...; may be repeated."),
    ] = None,
    questions: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET=FILE", help="Questions of hotpotqa, musique, ...; may be repeated."),
    ] = None,
    index: OptionalIndexes = None,
    reranker: Reranker = None,
    sample: Sample = None,
    seed: Seed = 0,
    engine: Engine = "vllm",
    url: Urls = None,
    passages: Passages = 3,
    work: Annotated[Path, typer.Option(help="Folder for models and answers, kept between runs.")] = Path("runs"),
    output: Annotated[Path, typer.Option(help="Folder for reproduction.html, .md and .json.")] = REPRODUCTION,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Measure the papers' tables next to their printed numbers, and count what supports their claims."""
    from rag_train.eval.papers.printed import chosen_tables

    chosen = chosen_tables(paper, table)  # raises UserError for unknown tables before any engine starts
    if not (model and questions and index):
        raise UserError("give --model base=..., --questions DATASET=FILE and --index")
    announce(f"{len(chosen)} tables, measured in {work / 'reproduce'}")
    from rag_train.eval.papers.page import estimate
    from rag_train.eval.papers.page import reproduce as run
    from rag_train.eval.papers.sources import CheckpointSource
    from rag_train.strategies.kit import open_retrievers

    models, files = named_places("--model", model), named_places("--questions", questions)
    config = kit_config(next(iter(models.values())), index, None, None, reranker, engine, url, passages, True)
    paths = {dataset: Path(file) for dataset, file in files.items()}
    source = CheckpointSource(models, paths, config, open_retrievers(index), sample, seed, work / "reproduce")
    if dry_run:
        _report_estimates(as_json, asyncio.run(estimate(paper, table, source)), config.engine)
        return
    report(as_json, run(paper, table, source, output))


@evaluation.command("report", rich_help_panel=EVALUATION)
def draw_report(
    results: Annotated[
        Path, typer.Argument(help="Directory that `rag-train eval` wrote, or demo.json of `rag-train demo`.")
    ],
    output: Annotated[Path, typer.Argument(help="HTML file to write.")],
) -> None:
    """Write the HTML page of an evaluation: a single file that works offline. Needs the extra eval."""
    if results.is_dir():
        from rag_train.eval.report.matrix import write_matrix_report

        write_matrix_report(output, results)
    else:
        from rag_train.eval.demo.page import write_report
        from rag_train.eval.demo.results import load_results

        write_report(output, load_results(results))
    print(output)
