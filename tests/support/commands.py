"""The command line, called in this process, and the smallest files that it works on."""

from pathlib import Path

import pytest
from support.matrices import numbered

from rag_train.cli.app import main
from rag_train.retrieval.open import build_index


def call(*arguments: object) -> int | str | None:
    """Run `rag-train` with arguments; return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return end.value.code


def small_files(folder: Path, questions: int, title: str = "T") -> Path:
    """Write ``corpus.jsonl`` with one passage, its ``index``, and ``q.jsonl`` with numbered questions."""
    (folder / "corpus.jsonl").write_text(f'{{"id": "p", "title": "{title}", "text": "number 1 is good"}}\n')
    build_index("bm25", folder / "corpus.jsonl", folder / "index", lambda done: None)
    lines = (question.model_dump_json() + "\n" for question in numbered(*range(questions)))
    (folder / "q.jsonl").write_text("".join(lines))
    return folder
