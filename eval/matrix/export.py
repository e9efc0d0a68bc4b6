"""Exports the answers of an evaluation matrix to the formats of other harnesses.

FlashRAG: a directory per cell with ``intermediate_data.json`` and ``metric_score.txt``, as its evaluator writes
them. lm-evaluation-harness: a directory per model with ``results_*.json`` and a ``samples_*.jsonl`` per task, as
``--log_samples`` writes them; each strategy on a dataset is a task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.matrix.cell import MATRIX, Cell, load_matrix
from rag_train.eval.matrix.store import read_cell
from rag_train.eval.metrics.measures import retrieved
from rag_train.eval.metrics.scores import Score
from rag_train.jobs.files import write_text
from rag_train.schema import Question, Trajectory

NAMES = {"em": "exact_match", "f1": "f1", "accuracy": "acc"}
"""Names of our measures in lm-evaluation-harness."""


def export_matrix(directory: Path, output: Path, format: str) -> list[Path]:
    """Write all cells to ``output`` and return the paths of the files.

    Raises UserError, before any file is written, if the matrix is damaged or the format unknown.
    """
    cells = load_matrix(directory).cells
    contents = {cell.id: read_cell(directory, cell) for cell in cells}
    if format == "flashrag":
        files = {path: text for cell in cells for path, text in _flashrag(cell, *contents[cell.id])}
    elif format == "lm-eval":
        stamp = datetime.fromtimestamp((directory / MATRIX).stat().st_mtime).isoformat().replace(":", "-")
        files = {
            path: text
            for model in dict.fromkeys(cell.model for cell in cells)
            for path, text in _lm_eval(model, [(c, *contents[c.id]) for c in cells if c.model == model], stamp)
        }
    else:
        raise UserError(f"--format {format}: unknown format; give flashrag or lm-eval")
    for path, text in files.items():
        write_text(output / path, text)
    return [output / path for path in files]


CellContents = tuple[Cell, Sequence[Question], Sequence[Trajectory], Sequence[Score]]


def _flashrag(
    cell: Cell, questions: Sequence[Question], trajectories: Sequence[Trajectory], scores: Sequence[Score]
) -> list[tuple[str, str]]:
    items = [
        {
            "id": question.id,
            "question": question.question,
            "golden_answers": question.answers,
            "output": {
                "pred": trajectory.answer or "",
                "refused": trajectory.refused,
                "retrieval_result": [
                    {"id": passage.id, "contents": f"{passage.title}\n{passage.text}"}
                    for passage in retrieved(trajectory)
                ],
                "metric_score": {"em": score.em, "f1": score.f1, "acc": score.accuracy},
            },
            "metadata": question.metadata,
        }
        for question, trajectory, score in zip(questions, trajectories, scores, strict=True)
    ]
    summary = cell.summary
    means = {"em": summary.em.mean, "f1": summary.f1.mean, "acc": summary.accuracy.mean}
    return [
        (f"{cell.id}/intermediate_data.json", _json(items, indent=4)),
        (f"{cell.id}/metric_score.txt", "".join(f"{name}: {mean}\n" for name, mean in means.items())),
    ]


def _lm_eval(model: str, cells: Sequence[CellContents], stamp: str) -> list[tuple[str, str]]:
    folder, *_ = cells[0][0].id.partition("/")
    tasks = {cell.id.partition("/")[2].replace("/", "_"): (cell, scores) for cell, _, _, scores in cells}
    results = {
        "results": {task: {"alias": task} | _aggregates(scores) for task, (_, scores) in tasks.items()},
        "configs": {
            task: {
                "task": task,
                "output_type": "generate_until",
                "metric_list": [{"metric": name, "aggregation": "mean"} for name in NAMES.values()],
                "num_fewshot": 0,
                "metadata": {
                    "version": 1.0,
                    "strategy": cell.strategy,
                    "retriever": cell.retriever,
                    "refused": cell.summary.refused,
                },
            }
            for task, (cell, _) in tasks.items()
        },
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {task: dict.fromkeys(NAMES.values(), True) for task in tasks},
        "n-samples": {task: {"original": len(s), "effective": len(s)} for task, (_, s) in tasks.items()},
        "config": {"model": "rag-train", "model_args": f"pretrained={model}"},
        "model_source": "rag-train",
        "model_name": model,
        "model_name_sanitized": folder,
    }
    files = [(f"{folder}/results_{stamp}.json", _json(results, indent=2))]
    for task, (_, questions, trajectories, scores) in zip(tasks, cells, strict=True):
        lines = [
            _json(_sample(number, *sample))
            for number, sample in enumerate(zip(questions, trajectories, scores, strict=True))
        ]
        files.append((f"{folder}/samples_{task}_{stamp}.jsonl", "".join(f"{line}\n" for line in lines)))
    return files


def _aggregates(scores: Sequence[Score]) -> dict[str, float | str]:
    """Return the mean and its standard error of each measure; the error of a single question is "N/A"."""
    aggregates: dict[str, float | str] = {}
    for ours, theirs in NAMES.items():
        values = [getattr(score, ours) for score in scores]
        aggregates[f"{theirs},none"] = sum(values) / len(values)
        aggregates[f"{theirs}_stderr,none"] = stdev(values) / sqrt(len(values)) if len(values) > 1 else "N/A"
    return aggregates


def _sample(number: int, question: Question, trajectory: Trajectory, score: Score) -> dict[str, Any]:
    doc = {"id": question.id, "question": question.question, "answers": question.answers}
    prediction, target = trajectory.answer or "", str(question.answers)
    return {
        "doc_id": number,
        "doc": doc,
        "target": target,
        "arguments": {"gen_args_0": {"arg_0": question.question, "arg_1": {}}},
        "resps": [[prediction]],
        "filtered_resps": [prediction],
        "filter": "none",
        "metrics": list(NAMES.values()),
        "doc_hash": _hash(_json(doc, indent=2)),
        "prompt_hash": _hash(question.question),
        "target_hash": _hash(target),
        "refused": trajectory.refused,
    } | {theirs: getattr(score, ours) for ours, theirs in NAMES.items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)
