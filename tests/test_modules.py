"""Validation of a model's modules on held-out examples."""

import asyncio
import json
from pathlib import Path

import pytest
from replay import Says
from test_data_tools import MODEL

from eval.modules import ModuleScore, show, validate
from rag_train.errors import UserError
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.schema import Segment, SFTRecord


class Knows(Says):
    tokenizer = load_tokenizer(str(MODEL))


def record(task: str, prompt: str, *texts: str) -> SFTRecord:
    segments = [Segment(text=text, trained=i % 2 == 1) for i, text in enumerate(texts)]
    completion = "".join(texts)
    return SFTRecord(id=prompt, prompt=prompt, completion=completion, segments=segments, source="gold", task=task)


RECORDS = [
    *(record("route", f"q{i}", "Type:", f" {kind}\n") for i, kind in enumerate(["single", "several", "several"])),
    record("answer", "q", "Answer:", " Paris\n", "Context: x\nAnswer:", " Rome\n"),
]


def test_modules_are_right_to_the_letter_and_classifiers_confused():
    def say(prompt: str) -> str:
        return (
            " single\nmore" if prompt.endswith("Type:") else " Parisian\n" if "Context" not in prompt else " Rome\n"
        )

    answer, route = asyncio.run(validate(Knows(say), RECORDS))
    assert answer == ModuleScore(
        task="answer", n=2, right=1, confusion={"Paris": {"Parisian": 1}, "Rome": {"Rome": 1}}
    )
    assert route.right == 1 and route.accuracy == 1 / 3
    assert route.confusion == {"several": {"single": 2}, "single": {"single": 1}}
    show([answer, route])


def test_wrong_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from rag_train import cli

    for text, message in (("", "no examples"), (json.dumps({"id": 1}), "line 1")):
        (tmp_path / "x.jsonl").write_text(text)
        monkeypatch.setattr("sys.argv", ["rag-train", "validate", str(MODEL), str(tmp_path / "x.jsonl")])
        with pytest.raises((SystemExit, UserError)) as end:
            cli.main()
        assert end.value.code == 2 and message in capsys.readouterr().err
