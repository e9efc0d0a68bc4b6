"""The commands of the tutorial, run one after another (make tutorial).

They run in an empty folder with links to the repository's folders that they name. Writes tutorial.json, from which
the tutorial page takes outputs, examples and figures: what each command printed, the first question, record and
pairs that show what the page explains, the counts of both searches, and the evaluation.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error
from rag_train.eval.benchmarks.first_hour import run
from rag_train.working_files import PACKAGE

MODEL = "rag_train/miniworld/checkpoint/controller"
COMMANDS = {
    "world": "rag-train world runs/tutorial/world",
    "train": "grep -v '\"hops\":1,' runs/tutorial/world/train.jsonl > runs/tutorial/train.jsonl",
    "test": "grep -v '\"hops\":1,' runs/tutorial/world/test.jsonl > runs/tutorial/test.jsonl",
    "index": "rag-train index runs/tutorial/world/corpus.jsonl runs/tutorial/index",
    "synth": "rag-train synth deeprag docs/tutorial/synth.yaml",
    "view": "rag-train data view runs/tutorial/sft.jsonl",
    "check": "rag-train data check runs/tutorial/sft.jsonl --against runs/tutorial/test.jsonl",
    "sft": "rag-train train docs/tutorial/sft.yaml",
    "pairs": "rag-train synth deeprag docs/tutorial/synth.yaml stage=pairs model=runs/tutorial/stage1 "
    "'earlier=[1200]' sample=1500 output=runs/tutorial/pairs.jsonl",
    "dpo": "rag-train train docs/tutorial/dpo.yaml",
    "eval": f"rag-train eval --model base={MODEL} --model stage1=runs/tutorial/stage1 "
    "--model stage2=runs/tutorial/stage2 --questions test=runs/tutorial/test.jsonl --sample 300 "
    "--index runs/tutorial/index --strategy cot --strategy deeprag --strategy deeprag-retrieve --no-instructions "
    "--output runs/tutorial/eval",
    "compare": "rag-train compare runs/tutorial/eval --cell stage2/deeprag/test/bm25/0",
    "report": "rag-train report runs/tutorial/eval runs/tutorial/eval.html",
}
"""Name on the page -> command."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    options = parser.parse_args()

    from rag_train.provenance import save_result

    with exit_on_user_error(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for linked in (PACKAGE, PACKAGE.parent / "docs"):
            (folder / linked.name).symlink_to(linked)
        (folder / "runs/tutorial").mkdir(parents=True)
        steps = {}
        for step, command in COMMANDS.items():
            steps[step] = asdict(run(command, folder, expected=1 if step == "check" else 0))  # it finds problems
            print(f"{steps[step]['seconds']:6.1f} s  {command[:90]}", flush=True)
        save_result(options.output / "tutorial.json", {"steps": steps} | examples(folder / "runs/tutorial"))


def examples(folder: Path) -> dict[str, Any]:
    """Return what the page shows of the files that the commands have written."""
    from rag_train.eval.matrix.cell import load_matrix
    from rag_train.eval.matrix.compare import compare_cells
    from rag_train.files import read_records
    from rag_train.schema import Decision, PreferencePair, Question, SFTRecord

    both = [Decision.PARAMETRIC, Decision.RETRIEVE]
    records = read_records(folder / "sft.jsonl", SFTRecord)
    pairs = groupby(read_records(folder / "pairs.jsonl", PreferencePair), lambda pair: pair.id.split("/")[0])
    differ = (own for own in map(list, (own for _, own in pairs)) if len({p.chosen for p in own}) == len(own) == 2)
    compared = compare_cells(folder / "eval", "stage2/deeprag/test/bm25/0", "base/deeprag-retrieve/test/bm25/0")
    return {
        "question": read_records(folder / "train.jsonl", Question)[0].model_dump(mode="json"),
        "record": next(
            each.model_dump(mode="json") for each in records if [step.decision for step in each.steps] == both
        ),
        "pairs": [pair.model_dump(mode="json") for pair in next(differ)],
        "searches": {
            name: json.loads((folder / f"{name}.jsonl.meta.json").read_text()) for name in ("sft", "pairs")
        },
        "cells": [cell.model_dump(mode="json") for cell in load_matrix(folder / "eval").cells],
        "compared": compared[0].model_dump(mode="json"),
    }


if __name__ == "__main__":
    main()
