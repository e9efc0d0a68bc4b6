"""What the factories make of real annotations: counts of hops, of subjects, and of targets that cannot be known.

Usage: ``python -m rag_train.eval.benchmarks.gold_data --data DIR --index INDEX [--before DIR]``. ``--before`` names
a folder of files ``METHOD.jsonl`` that an earlier version made of the same questions with ``recipes/gold.yaml``;
they are measured with today's check. Without it, the counts from before stay as they are in the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.data_synth.knowable import unknown
from rag_train.data_synth.modules.registry import FACTORIES
from rag_train.data_synth.modules.run import synthesize_modules
from rag_train.files import read_records
from rag_train.provenance import save_result
from rag_train.questions.hops import SHORTHAND, is_shorthand, mentions
from rag_train.questions.load import load_questions
from rag_train.schema import SFTRecord

FILES = {"MuSiQue": "musique/train_100.jsonl", "2WikiMultihopQA": "2wikimultihopqa/train_sample.json"}


def as_released(path: Path) -> dict[str, int]:
    """Count MuSiQue's hops in shorthand, and those whose paragraph's title is not known when it is needed."""
    counts: Counter[str] = Counter()
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        titles = {paragraph["idx"]: paragraph["title"] for paragraph in row["paragraphs"]}
        known = row["question"]
        for step in row["question_decomposition"]:
            title = titles.get(step["paragraph_support_idx"], "")
            known += f" | {step['question']}"
            counts["hops"] += 1
            counts["hops in shorthand"] += SHORTHAND in step["question"]
            counts["subject not known"] += not mentions(known, title)
            counts["subject is the answer"] += mentions(title, step["answer"]) and mentions(step["answer"], title)
            known += f" | {step['answer']}"
    return dict(counts)


def as_loaded(path: Path) -> dict[str, int]:
    """Count the same of a file's questions as they are read."""
    counts: Counter[str] = Counter()
    for question in load_questions(path):
        known = question.question
        for step in question.decomposition:
            known += f" | {step.subquery}"
            counts["hops"] += 1
            counts["hops in shorthand"] += is_shorthand(step.subquery)
            counts["subject left out"] += not step.entity
            counts["subject not known"] += bool(step.entity) and not mentions(known, step.entity)
            known += f" | {step.short}"
    return dict(counts)


def examples(records: Sequence[SFTRecord]) -> dict[str, int]:
    """Count the examples, those with shorthand in the target, and those whose target cannot be known."""
    return {
        "examples": len(records),
        "in shorthand": sum(SHORTHAND in record.completion for record in records),
        "not known": sum(bool(unknown(record)) for record in records),
    }


def made(method: str, files: Sequence[Path], index: str) -> dict[str, Any]:
    """Run a factory on the files; return the counts of its examples and of what it left out."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, f"{method}.jsonl")
        recipe = FACTORIES[method].recipe(questions=list(files), index=index, output=str(output))
        summary = asyncio.run(synthesize_modules(FACTORIES[method], recipe))
        return examples(read_records(output, SFTRecord)) | {"left out": summary.rejected, "tasks": summary.counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the released question files")
    parser.add_argument("--index", required=True, help="index of a corpus with the questions' gold passages")
    parser.add_argument("--before", type=Path, help="folder of the files that an earlier version made")
    parser.add_argument("--output", type=Path, default=Path("docs/results"), help="folder of the result")
    arguments = parser.parse_args()
    path = arguments.output / "gold_data.json"
    files = {name: arguments.data / file for name, file in FILES.items()}
    after = {method: made(method, list(files.values()), arguments.index) for method in FACTORIES}
    if arguments.before:
        before = {m: examples(read_records(arguments.before / f"{m}.jsonl", SFTRecord)) for m in FACTORIES}
    else:
        before = json.loads(path.read_text(encoding="utf-8"))["before"]
    hops = {name: as_loaded(file) for name, file in files.items()}
    released = {"MuSiQue": as_released(files["MuSiQue"])}
    save_result(path, {"released": released, "hops": hops, "before": before, "after": after})


if __name__ == "__main__":
    main()
