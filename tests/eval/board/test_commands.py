"""The commands for the next step."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.paths import ROOT
from typer.main import get_command

from rag_train.cli.app import app
from rag_train.eval.board.commands import (
    ROLES,
    STRATEGIES,
    TRAINING,
    after_evaluation,
    after_synthesis,
    after_training,
    before_chat,
)
from rag_train.strategies.registry import parse_strategy

DATA = {"stage": "sft", "model": "base", "index": "wiki", "held_out": ["a b.json"], "sample": 9, "earlier": []}


def texts(commands: list) -> list[str]:
    return [command.text for command in commands]


def test_deeprag_goes_on_from_stage_to_stage():
    train, check = texts(after_synthesis(Path("runs/sft.jsonl"), DATA))
    assert train == (
        "rag-train train recipes/deeprag_sft.yaml model=base data=runs/sft.jsonl output_dir=runs/sft-model"
    )
    assert check == "rag-train data check runs/sft.jsonl --against 'a b.json'"
    evaluate, serve, pairs = texts(after_training(Path("m"), True, DATA))
    assert evaluate == (
        "rag-train eval --model m --questions 'a b.json' --index wiki --strategy deeprag --output m-eval"
    )
    assert serve == "rag-train serve strategy deeprag --model m --index wiki"
    assert shlex.split(pairs) == [
        *("rag-train", "synth", "deeprag", "recipes/deeprag_synth.yaml"),
        *("stage=pairs", "model=m", "output=m-pairs.jsonl"),
        *('held_out=["a b.json"]', 'index="wiki"', "sample=9", "earlier=[9]"),
    ]


def test_a_role_is_evaluated_beside_a_generator_and_unknown_places_are_left_open():
    evaluate, serve = texts(after_training(Path("m"), True, {"method": "planrag"}))
    assert evaluate.startswith(
        "rag-train eval --model GENERATOR --role planner=m --questions QUESTIONS --index INDEX"
    )
    assert serve == "rag-train serve strategy planrag --model GENERATOR --role planner=m --index INDEX"
    evaluate, serve = texts(after_training(Path("m"), True, {}))
    assert "--strategy" not in evaluate and serve.startswith("rag-train serve strategy STRATEGY ")
    assert texts(after_training(Path("m"), False, {})) == ["rag-train train m/recipe.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRAINING, "levelrag", ""])
def test_commands_name_what_exists(kind: str):
    key = "stage" if kind in STRATEGIES or kind == "cot" else "method"
    settings = {key: kind, "model": "m"} if kind else {}
    commands = after_synthesis(Path("d.jsonl"), settings) + after_training(Path("m"), True, settings)
    known = get_command(app).commands
    for command in texts(commands + after_evaluation(Path("e")) + before_chat(Path("runs"))):
        words = shlex.split(command)
        assert words[0] == "rag-train" and words[1] in known
        assert all((ROOT / word).is_file() for word in words if re.fullmatch(r"recipes/.+", word))
        if "--strategy" in words:
            strategy, _ = parse_strategy(words[words.index("--strategy") + 1])
            assert ROLES.get(kind) in (None, *strategy.roles)
        if words[1] == "serve" and words[3] != "STRATEGY":
            parse_strategy(words[3])
