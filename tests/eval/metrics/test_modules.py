"""Accuracy of modules on held-out examples."""

import asyncio
import json
from pathlib import Path

import pytest
from support.fakes import Says
from support.paths import MODEL

from rag_train.errors import PromptTooLong, UserError
from rag_train.eval.metrics.modules import ModuleScore, module_tables, validate
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.schema import Segment, SFTRecord


class Knows(Says):
    tokenizer = load_tokenizer(str(MODEL))


def record(task: str, prompt: str, *texts: str) -> SFTRecord:
    segments = [Segment(text=text, trained=i % 2 == 1) for i, text in enumerate(texts)]
    completion = "".join(texts)
    return SFTRecord(id=prompt, prompt=prompt, completion=completion, segments=segments, source="gold", task=task)


RECORDS = [
    *(
        record("route", f"q{i}", "Type:", f" {kind}\n")
        for i, kind in enumerate(["single", "several", "several", "several"])
    ),
    record("answer", "q", "Answer:", " Paris\n", "Context: x\nAnswer:", " Rome\n"),
]


def test_scores_exact_completions_and_confusions_of_classifiers():
    def say(prompt: str) -> str:
        return (
            " single\nmore" if prompt.endswith("Type:") else " Parisian\n" if "Context" not in prompt else " Rome\n"
        )

    answer, route = asyncio.run(validate(Knows(say), RECORDS))
    assert answer == ModuleScore(task="answer", n=2, right=1), "two completions of two examples are no classes"
    assert route.right == 1 and route.accuracy == 1 / 4
    assert route.confusion == {"several": {"single": 3}, "single": {"single": 1}}
    accuracies, confusion = module_tables([answer, route])
    assert accuracies.rows == [["answer", "2", "50.0"], ["route", "4", "25.0"]]
    assert confusion.columns == ["Wanted", "several", "single", "other"]
    assert confusion.rows == [["several", "0", "3", "0"], ["single", "0", "1", "0"]]
    (_, confusion) = module_tables(
        [ModuleScore(task="t", n=4, right=1, confusion={"a": {"x" * 99: 3}, "b": {"b": 1}})]
    )
    assert confusion.rows == [["a", "0", "0", "3"], ["b", "0", "1", "0"]]


def test_examples_that_are_refused_count_as_wrong_and_are_told():
    """One example that was too long ended the command with a traceback."""

    def say(prompt: str) -> str:
        if "q1" in prompt:
            raise PromptTooLong("9,000 tokens")
        return " several\n" if prompt.endswith("Type:") else " Rome\n"

    answer, route = asyncio.run(validate(Knows(say), RECORDS))
    assert (route.right, route.refused, answer.refused) == (2, {"too long": 1}, {})
    assert module_tables([answer, route])[0].notes == [
        "Examples refused, which count as wrong: route (too long 1)."
    ]
    with pytest.raises(UserError, match=r"all 6 examples were refused \(9,000 tokens\)"):
        asyncio.run(validate(Knows(PromptTooLong("9,000 tokens")), RECORDS))


def test_rejects_files_without_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from rag_train.cli import app as cli

    for text, message in (("", "no examples"), (json.dumps({"id": 1}), "line 1")):
        (tmp_path / "x.jsonl").write_text(text)
        monkeypatch.setattr("sys.argv", ["rag-train", "validate", str(MODEL), str(tmp_path / "x.jsonl")])
        with pytest.raises((SystemExit, UserError)) as end:
            cli.main()
        assert end.value.code == 2 and message in capsys.readouterr().err
