"""The commands that download public data sets, and that check and view files of records."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.options import DATA, Json, ListsRetrievers, report

indexing = typer.Typer()
records = typer.Typer(no_args_is_help=True, help="Download public data sets; check and view files of records.")

RecordFile = Annotated[
    Path, typer.Argument(help="JSON Lines file of training examples, preference pairs, trajectories or questions.")
]


@indexing.command(rich_help_panel=DATA, cls=ListsRetrievers)
def index(
    corpus: Annotated[
        Path, typer.Argument(help="JSON (Lines), CSV, TSV or Parquet: BEIR's, FlashRAG's, DPR's, KILT's.")
    ],
    output: Annotated[
        str, typer.Argument(help="Index directory to write, or elastic://HOST:PORT/INDEX, or a Milvus collection.")
    ],
    kind: Annotated[str, typer.Option(help="Kind of index; listed below.")] = "bm25",
    language: Annotated[
        str, typer.Option(help="bm25, lucene: whose words are stemmed: one of Snowball's, such as german; or none.")
    ] = "english",
    encoder: Annotated[
        str | None,
        typer.Option(help="dense: directory or hub name; by default all-MiniLM-L6-v2 from its Python package."),
    ] = None,
    vectors: Annotated[
        str, typer.Option(help="dense: FAISS index factory string, such as IVF4096,PQ64 or HNSW32.")
    ] = "Flat",
    search: Annotated[str, typer.Option(help="dense: FAISS search parameters, such as nprobe=32.")] = "",
    bf16: Annotated[bool, typer.Option("--bf16", help="dense: encode in bfloat16, which is faster.")] = False,
    as_json: Json = False,
) -> None:
    """Build an index. If a build was interrupted, the same command continues it.

    To encode a dense index in several processes, run
    `accelerate launch -m rag_train.cli index ...`.

    The encoder of a Milvus collection is part of its address:
    milvus://HOST:PORT/COLLECTION?encoder=MODEL or milvus:FILE.db/COLLECTION?encoder=MODEL.
    """
    from rag_train.progress import progress, say, up_to
    from rag_train.retrieval.index.directory import MANIFEST
    from rag_train.retrieval.open import build_index
    from rag_train.rows import count_lines

    if Path(output, MANIFEST).is_file():
        say(f"{output}: already an index; it stays in use until the new one replaces it")
    with progress(f"indexing {corpus.name}", count_lines(corpus)) as advance:
        passages = build_index(
            kind,
            corpus,
            output,
            up_to(advance),
            encoder=encoder,
            vectors=vectors,
            search=search,
            bf16=bf16,
            language=language,
        )
    if "WORLD_SIZE" in os.environ:  # one of the processes of a launch
        from rag_train.training.processes import end_processes

        end_processes()
    report(as_json, {"index": output, "passages": passages}, f"{output}: {passages:,} passages")


@records.command("list")
def list_data(as_json: Json = False) -> None:
    """List the data sets that `rag-train data get` can download. Piped, a row is a line with tabs."""
    from rag_train.downloads.catalogue import CATALOGUE
    from rag_train.table import NOTHING, Table

    sizes = {name: NOTHING if data.size is None else _size(data.size) for name, data in CATALOGUE.items()}
    rows = [
        [name, sizes[name], " ".join(file.name for file in data.files), data.licence, data.repository]
        for name, data in CATALOGUE.items()
    ]
    columns = ["name", "download", "files", "licence", "repository"]
    table = Table("Data sets", "rag-train data get NAME downloads one.", columns, rows)
    piped = "\n".join("\t".join(row) for row in rows)
    keyed = [dict(zip(columns, row, strict=True)) for row in rows]
    report(as_json, keyed, table if sys.stdout.isatty() else piped)


@records.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="Data set, for example hotpotqa; `rag-train data list` has all.")],
    directory: Annotated[Path, typer.Argument(help="Directory for the folder NAME with the files.")] = Path("data"),
    as_json: Json = False,
) -> None:
    """Download a public data set from the Hugging Face Hub, at a fixed revision and with its hashes checked.

    The files are read by `questions:` and `--questions` or, corpora, by `rag-train index`. If a download was
    interrupted, the same command continues it. source.json in the folder has revision, licence and hashes.
    """
    from rag_train.downloads.catalogue import find
    from rag_train.downloads.fetch import get

    data = find(name)
    size = "" if data.size is None else f", about {_size(data.size)}"
    print(f"{data.title}: {data.repository} at {data.revision[:7]}, licence {data.licence}{size}", file=sys.stderr)
    done = get(name, data, directory / name)
    lines = [str(path) for path in done.files] if done.new else [f"{path} (already here)" for path in done.files]
    report(as_json, {"new": done.new, "folder": str(done.folder)} | done.source, "\n".join(lines))


@records.command("pool")
def pool_passages(
    questions: Annotated[
        list[Path], typer.Argument(help="Question files with passages: HotpotQA, 2WikiMultihopQA, MuSiQue, PopQA.")
    ],
    output: Annotated[Path, typer.Option(help="Corpus to write, JSON Lines for `rag-train index`.")],
    as_json: Json = False,
) -> None:
    """Make a corpus of the passages that question files bring along, each passage once.

    DualRAG searches 2WikiMultihopQA and MuSiQue in such corpora, of training and development questions.
    """
    from rag_train.questions.pool import pool

    passages = pool(questions, output)
    report(as_json, {"corpus": str(output), "passages": passages}, f"{output}: {passages:,} passages")


@records.command("check")
def check_data(
    file: RecordFile,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer (directory or hub name) to measure lengths in tokens, not in characters."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Question file kept for evaluation: report records that leak it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check schema, duplicates, leaked questions and lengths.

    Exit code 0: no problems; 1: problems found; 2: the file cannot be read.
    """
    from rag_train.data_synth.inspect.check import check, render_report

    result = check(file, tokenizer, against)
    report(as_json, result, render_report(result))
    raise typer.Exit(bool(result.findings))


@records.command("view")
def view_data(
    file: RecordFile,
    output: Annotated[Path | None, typer.Option(help="HTML file to write; default: FILE.html.")] = None,
    most: Annotated[
        int, typer.Option(help="Maximum number of records shown, spread evenly over the file.", min=1)
    ] = 2000,
) -> None:
    """Write an HTML page that shows the records, and the rejected items, one by one."""
    from rag_train.data_synth.inspect.view import write_page

    print(write_page(file, output or Path(f"{file}.html"), most))


def _size(size: int) -> str:
    for unit, power in (("GB", 1e9), ("MB", 1e6)):
        if size >= power:
            return f"{size / power:,.1f} {unit}"
    return f"{size / 1e3:,.0f} kB"
