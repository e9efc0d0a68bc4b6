"""Writes the atlas as files: a corpus and questions, in the shapes that every command reads."""

from __future__ import annotations

from pathlib import Path

from rag_train.jobs.files import write_records
from rag_train.worlds.atlas.facts import SHARES, load_atlas
from rag_train.worlds.atlas.passages import corpus
from rag_train.worlds.atlas.questions import questions


def write_atlas(directory: Path, seed: int = 0) -> dict[str, int]:
    """Write corpus.jsonl, train.jsonl, dev.jsonl and test.jsonl, and return how many records each has.

    Raises UserError if a package with facts is not installed.
    """
    atlas = load_atlas()
    records = {"corpus": corpus(atlas)} | {split: questions(atlas, split, seed) for split in SHARES}
    for name, lines in records.items():
        write_records(directory / f"{name}.jsonl", lines)
    return {name: len(lines) for name, lines in records.items()} | {"facts": len(atlas.facts)}
