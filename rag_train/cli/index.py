"""The command that builds an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_train.cli.options import DATA, Json, report

indexing = typer.Typer()


@indexing.command(rich_help_panel=DATA)
def index(
    corpus: Annotated[
        Path, typer.Argument(help="JSON (Lines), CSV, TSV or Parquet: BEIR's, FlashRAG's, DPR's, KILT's.")
    ],
    output: Annotated[
        str, typer.Argument(help="Index directory to write, or elastic://HOST:PORT/INDEX, or a Milvus collection.")
    ],
    kind: Annotated[str, typer.Option(help="bm25, lucene (phrases, -term, ^boost) or dense.")] = "bm25",
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
    from rag_train.progress import console, progress, up_to
    from rag_train.retrieval.index.directory import MANIFEST
    from rag_train.retrieval.open import index_corpus
    from rag_train.rows import count_lines

    if Path(output, MANIFEST).is_file():
        console.print(f"{output}: already an index; it stays in use until the new one replaces it", soft_wrap=True)
    with progress(f"indexing {corpus.name}", count_lines(corpus)) as advance:
        passages = index_corpus(
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
    if kind == "dense":
        from rag_train.training.processes import end_processes

        end_processes()
    report(as_json, {"index": output, "passages": passages}, f"{output}: {passages:,} passages")
