"""The commands of evaluation. Heavy imports wait until a command needs them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rag_train.errors import UserError
from rag_train.options import (
    Adapters,
    Engine,
    Instructions,
    Json,
    Model,
    Passages,
    Reranker,
    Urls,
    engine_config,
    kit_config,
    numbers,
)
from rag_train.progress import console

if TYPE_CHECKING:
    from eval.matrix import Cell
    from eval.tables import Table

T = TypeVar("T")
evaluation = typer.Typer()

Matrix = Annotated[Path, typer.Argument(help="Directory that `rag-train eval` wrote.")]
Questions = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=][KIND:]PLACE",
        help="Questions as released (JSON, JSON Lines, CSV, TSV), or hub:NAME,SPLIT; may be repeated.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="FIELD=PLACE,...", help="For files of any other shape: question=q,answers=gold.text."),
]
Output = Annotated[Path, typer.Option(help="Directory for answers, scores and tables; what is there stays.")]


@evaluation.command("eval")
def evaluate(
    questions: Questions,
    output: Output,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PLACE",
            help="Checkpoint or adapter directory, hub name, or the name a server gives it; may be repeated.",
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND=]PLACE",
            help="Index directory, retrieval service's address, or (web=) a web search; the first is the main one. "
            "KIND is sparse, dense or web, for strategies that want one.",
        ),
    ] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=INDEX[,INDEX...]",
            help="In place of --index, to compare retrievers: each INDEX as there; may be repeated.",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="See `rag-train strategies`; may be repeated, with settings: dualrag,outline=flat."),
    ] = None,
    columns: Columns = None,
    adapter: Adapters = None,
    reranker: Reranker = None,
    sample: Annotated[int | None, typer.Option(help="Questions drawn at random from each set.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    engine: Engine = "vllm",
    url: Urls = None,
    passages: Passages = 3,
    instructions: Instructions = True,
    watch: Annotated[
        Path | None,
        typer.Option(metavar="RUN_DIR", help="Evaluate a training's checkpoints as they appear; keep the best."),
    ] = None,
    metric: Annotated[str, typer.Option(help="watch: what the best checkpoint has most of.")] = "em",
    as_json: Json = False,
) -> None:
    """Answer questions with every model, strategy and retriever; write answers, scores and tables.

    Each model is started once. What was answered before under the same settings is not asked again.
    """
    from eval.datasets import at_most, open_questions, parse_columns
    from eval.matrix import run_matrix
    from eval.tables import matrix_tables
    from rag_train.strategies import check
    from rag_train.strategies.opening import open_retrievers

    strategies = strategy or ["direct", "cot", "rag", "deeprag"]
    for name in strategies:
        check(name)
    if bool(model) == bool(watch):
        raise UserError("give --model, or --watch with a training's output_dir: one of the two")
    if bool(index) == bool(retriever):
        raise UserError("give --index, or --retriever to name some: one of the two")
    models = _named("--model", [_model(one) for one in model or []])
    config = kit_config("", index or [], adapter, reranker, engine, url, passages, instructions)
    mapping = parse_columns(columns) if columns else None
    opened = [open_questions(spec, mapping) for spec in questions]
    datasets = _named("--questions", [(name, at_most(asked, sample, seed)) for name, asked in opened])
    if index:
        found = open_retrievers(index)
        retrievers = {next(iter(found.values())).name: found}
    else:
        retrievers = _named("--retriever", [(n, open_retrievers(i)) for n, i in map(_retriever, retriever or [])])

    def run(models: dict[str, str]) -> list[Cell]:
        return asyncio.run(run_matrix(config, models, strategies, datasets, retrievers, output, seed))

    if watch:
        from eval.watch import watch as follow

        best = follow(watch, metric, lambda name, place: run({name: place}))
        line = f"{watch}/best: {best['checkpoint']}, {metric} {best[metric]:.4f}"
        print(json.dumps(best) if as_json else line)
        return
    _show(run(models), matrix_tables, as_json)


@evaluation.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="Answers of another system, in its dataset's format.")],
    questions: Annotated[str, typer.Option(metavar="[NAME=][KIND:]PLACE", help="The questions, as released.")],
    output: Output,
    name: Annotated[str, typer.Option(help="What to call the system.")],
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Put the answers of another system into an evaluation's tables.

    PREDICTIONS: as the scripts of HotpotQA, MuSiQue, SQuAD or TriviaQA take them, as FlashRAG or
    lm-evaluation-harness log them, or trajectories.
    """
    from eval.datasets import open_questions, parse_columns
    from eval.matrix import Name, write_cell, write_matrix
    from eval.predictions import load_predictions
    from eval.tables import matrix_tables

    dataset, asked = open_questions(questions, parse_columns(columns) if columns else None)
    answers = load_predictions(predictions, asked, name)
    cell = write_cell(output, Name(name, "predictions", dataset, "", 0), asked, answers, {"predictions": name})
    write_matrix(output, [cell])
    _show([cell], matrix_tables, as_json)


@evaluation.command()
def compare(
    directory: Matrix,
    cell: Annotated[
        list[str] | None, typer.Option(help="A cell's id; give two. One, or the first, is compared with all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Is one cell better than another? Paired bootstrap and McNemar's test, question by question."""
    from eval.compare import compare as run
    from eval.compare import comparison_table

    if len(chosen := cell or []) > 2:
        raise UserError(f"--cell: {len(chosen)} cells; give at most two")
    comparisons = run(directory, *chosen)
    if as_json:
        print(json.dumps([one.model_dump(mode="json") for one in comparisons]))
    else:
        console.print(comparison_table(comparisons).rich())


@evaluation.command()
def judge(
    directory: Matrix,
    model: Model,
    engine: Engine = "vllm",
    url: Urls = None,
    as_json: Json = False,
) -> None:
    """Have a language model say which answers are right; no answer is judged twice by the same model."""
    from eval.judge import judge as run
    from eval.tables import matrix_tables

    _show(asyncio.run(run(directory, model, engine_config(engine, url))), matrix_tables, as_json)


@evaluation.command()
def validate(
    model: Annotated[str, typer.Argument(help="Checkpoint directory or hub name.")],
    file: Annotated[Path, typer.Argument(help="Held-out examples, as `rag-train synth` writes them.")],
    engine: Engine = "vllm",
    url: Urls = None,
    as_json: Json = False,
) -> None:
    """How often each module writes its example to the letter; of routers and judges, what they say instead."""
    from eval.modules import run, show

    scores = asyncio.run(run(model, engine_config(engine, url), file))
    if as_json:
        print(json.dumps([score.model_dump(mode="json") for score in scores]))
    else:
        show(scores)


@evaluation.command()
def export(
    directory: Matrix,
    output: Annotated[Path, typer.Argument(help="Directory to write.")],
    format: Annotated[str, typer.Option(help="flashrag or lm-eval (lm-evaluation-harness).")],
    as_json: Json = False,
) -> None:
    """Write an evaluation's answers in the format of another harness."""
    from eval.export import export as run

    files = run(directory, output, format)
    print(json.dumps([str(file) for file in files]) if as_json else f"{output}: {len(files):,} files")


def _show(cells: Sequence[Cell], tables: Callable[[Sequence[Cell]], list[Table]], as_json: bool) -> None:
    if as_json:
        print(json.dumps([cell.model_dump(mode="json") for cell in cells]))
    else:
        for table in tables(cells):
            console.print(table.rich())


def _model(spec: str) -> tuple[str, str]:
    """``NAME=PLACE`` in two; without a name, the last part of the place. An equals sign within a path is none."""
    name, equals, place = spec.partition("=")
    return (name, place) if equals and "/" not in name else (Path(spec).name, spec)


def _retriever(spec: str) -> tuple[str, list[str]]:
    name, _, indexes = spec.partition("=")
    if not name or not indexes or "/" in name:
        raise UserError(f"--retriever {spec}: not of the form NAME=INDEX,INDEX")
    return name, indexes.split(",")


def _named(option: str, pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    names = [name for name, _ in pairs]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise UserError(f"{option}: two are called {doubled!r}; write NAME=PLACE to tell them apart")
    return dict(pairs)


@evaluation.command()
def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="deeprag, dualrag, hanrag, planrag or levelrag; all if not given.")
    ] = None,
    table: Annotated[
        str | None, typer.Argument(help="Such as table1 or figure5; all of the paper's if not given.")
    ] = None,
    miniworld: Annotated[
        bool, typer.Option("--miniworld", help="In miniature: models and questions of the mini world.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="miniworld: comma-separated seeds.")] = "0,1,2",
    split: Annotated[str, typer.Option(help="miniworld: dev to choose, test to report.")] = "test",
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=MODEL", help="base, stage1, stage2, ...: who answers; may be repeated."),
    ] = None,
    questions: Annotated[
        list[str] | None, typer.Option(metavar="DATASET=FILE", help="hotpotqa, musique, ...; may be repeated.")
    ] = None,
    index: Annotated[list[str] | None, typer.Option(metavar="[KIND=]PLACE", help="As in `rag-train eval`.")] = None,
    reranker: Reranker = None,
    sample: Annotated[
        int | None, typer.Option(help="Questions of each dataset (miniworld: of each kind, 60).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    engine: Engine = "vllm",
    url: Urls = None,
    passages: Passages = 3,
    work: Annotated[Path, typer.Option(help="Where models and answers are kept between runs.")] = Path("runs"),
    output: Annotated[Path, typer.Option(help="Where reproduction.md and .json go.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """The papers' tables: printed numbers beside measured ones, and which of the papers' claims hold."""
    from eval.reproduce import Checkpoints, MiniSource, chosen_tables
    from eval.reproduction import reproduce as run

    chosen_tables(paper, table)  # unknown ones are told before anything is trained
    if miniworld:
        from eval.miniature import Settings

        settings = Settings(work=work / "miniature", split=split, questions=sample or Settings.questions)
        sources = [MiniSource(number, settings) for number in numbers("--seeds", seeds)]
    else:
        from rag_train.strategies.opening import open_retrievers

        if not (model and questions and index):
            raise UserError(
                "reproduce: give --miniworld, or --model base=..., --questions DATASET=FILE and --index"
            )
        models, files = _pairs("--model", model), _pairs("--questions", questions)
        config = kit_config(next(iter(models.values())), index, None, reranker, engine, url, passages, True)
        paths = {dataset: Path(file) for dataset, file in files.items()}
        folder = work / "reproduce"
        sources = [Checkpoints(models, paths, config, open_retrievers(index), sample, seed, folder)]
    orderings = run(paper, table, sources, output)
    if as_json:
        print(json.dumps([ordering.model_dump(mode="json") for ordering in orderings]))


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    for pair in given:
        if "=" not in pair:
            raise UserError(f"{option} {pair}: not of the form KEY=VALUE")
    return dict(pair.split("=", 1) for pair in given)


@evaluation.command("report")
def draw_report(
    results: Annotated[Path, typer.Argument(help="Directory of an evaluation matrix, or the demo's demo.json.")],
    output: Annotated[Path, typer.Argument(help="HTML file to write.")],
) -> None:
    """Draw the page of an evaluation: one file, for any browser, without a network."""
    if results.is_dir():
        from eval.pages.report import write_matrix_report

        write_matrix_report(output, results)
    else:
        from eval.report import load_results, write_report

        write_report(output, load_results(results))
    print(output)
