"""The commands for the next step after a synthesis, a training, a sweep or an evaluation, for the page to copy.

Words in capitals, such as INDEX, are left for the user to fill in.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

Settings = Mapping[str, Any]
"""The settings of a synthesis, as its sidecar has them."""

TRAINING = {
    "cold_start": "deeprag_sft",
    "sft": "deeprag_sft",
    "pairs": "deeprag_dpo",
    "cot": "cot_sft",
    "cot_retrieve": "cot_sft",
    "dualrag": "dualrag_sft",
    "hanrag": "hanrag_sft",
    "planrag": "planrag_sft",
    "adaptive-rag": "adaptive_rag",
    "uar": "uar",
}
"""The training recipe for the data of each method, or of each of DeepRAG's stages."""
STRATEGIES = {"cold_start": "deeprag", "sft": "deeprag", "pairs": "deeprag", "cot_retrieve": "cot-retrieve"}
"""The strategy of a model trained on the data of one of DeepRAG's stages; methods have the names of strategies."""
ROLES = {"hanrag": "revelator", "planrag": "planner", "adaptive-rag": "classifier", "uar": "classifier"}
"""The role of a trained model beside an untouched generator, by method."""
FOLLOWING = {"cold_start": "sft", "sft": "pairs"}
"""DeepRAG's stage of data that is made with the model trained on the data of another stage."""


class Command(NamedTuple):
    """A command, and what it is for."""

    label: str
    text: str


def _command(label: str, *words: object) -> Command:
    return Command(label, shlex.join(["rag-train", *map(str, words)]))


def after_synthesis(file: Path, settings: Settings) -> list[Command]:
    """Return the commands that check and train on the records in ``file``."""
    held_out = [word for path in settings.get("held_out", [])[:1] for word in ("--against", path)]
    commands = [_command("Check", "data", "check", file, *held_out)]
    if recipe := TRAINING.get(_kind(settings)):
        model = [f"model={settings['model']}"] if "stage" in settings else []
        place = f"output_dir={file.with_suffix('')}-model"
        commands.insert(0, _command("Train", "train", f"recipes/{recipe}.yaml", *model, f"data={file}", place))
    return commands


def after_training(folder: Path, finished: bool, settings: Settings) -> list[Command]:
    """Return the commands that continue or use a training on data that were made with ``settings``."""
    if not finished:
        return [_command("Continue, if it was stopped", "train", folder / "recipe.yaml")]
    commands = [evaluate(folder, settings), serve(folder, settings)]
    if stage := FOLLOWING.get(settings.get("stage", "")):
        words = [f"stage={stage}", f"model={folder}", f"output={folder}-{stage}.jsonl"]
        same = ("questions", "held_out", "index", "sample")
        words += [f"{key}={json.dumps(settings[key])}" for key in same if settings.get(key)]
        if settings.get("sample"):
            words.append(f"earlier={[*settings.get('earlier', []), settings['sample']]}")
        synthesis = ("synth", "deeprag", "recipes/deeprag_synth.yaml", *words)
        commands.append(_command("Make the next stage's data", *synthesis))
    return commands


def evaluate(folder: Path, settings: Settings) -> Command:
    """Return the command that evaluates the model in ``folder``, whose data were made with ``settings``."""
    kind = _kind(settings)
    model = _model(folder, kind)
    asked = [word for path in settings.get("held_out") or ["QUESTIONS"] for word in ("--questions", path)]
    index = settings.get("index") or "INDEX"
    strategy = ["--strategy", STRATEGIES.get(kind, kind)] if kind else []
    return _command("Evaluate", "eval", *model, *asked, "--index", index, *strategy, "--output", f"{folder}-eval")


def serve(folder: Path, settings: Settings) -> Command:
    """Return the command that answers questions with the model in ``folder``, for the chat."""
    kind = _kind(settings)
    model, index = _model(folder, kind), settings.get("index") or "INDEX"
    strategy = STRATEGIES.get(kind, kind) or "STRATEGY"
    return _command("Answer questions, for the chat", "serve", "strategy", strategy, *model, "--index", index)


def before_chat(root: Path) -> list[Command]:
    """Return the commands that start a service and the board with its address."""
    service = _command("Answer questions", "serve", "strategy", "STRATEGY", "--model", "MODEL", "--index", "INDEX")
    return [service, _command("Start the board again", "board", root, "--chat", "NAME=http://127.0.0.1:8000")]


def after_evaluation(folder: Path) -> list[Command]:
    """Return the commands that compare the cells of a matrix, and write its page to a file."""
    report = _command("Save the report as a file", "report", folder, folder / "report.html")
    return [_command("Compare its cells", "compare", folder), report]


def _model(folder: Path, kind: str) -> list[str | Path]:
    role = ROLES.get(kind)
    return ["--model", "GENERATOR", "--role", f"{role}={folder}"] if role else ["--model", folder]


def _kind(settings: Settings) -> str:
    return settings.get("method") or settings.get("stage") or ""
