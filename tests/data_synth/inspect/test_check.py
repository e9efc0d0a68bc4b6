"""`rag-train data check`."""

import json
from pathlib import Path

import pytest
from support.commands import call
from support.paths import MODEL
from support.synthesis import HELD_OUT, example, write

from rag_train.data_synth.inspect.check import check
from rag_train.data_synth.inspect.records import read_record_file
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.schema import Plan, PlanNode, PreferencePair, Question, Trajectory
from rag_train.training.data import sft_rows


def test_reports_the_lengths_of_training_and_no_problems_for_a_clean_file(tmp_path: Path, capsys):
    path = write(tmp_path / "clean.jsonl", [example(str(i), f"Who is film {i}?") for i in range(9)])
    assert call("data", "check", str(path), "--tokenizer", str(MODEL), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    rows, training = sft_rows(path, load_tokenizer(str(MODEL)), max_tokens=9999, chat=False)
    assert report["findings"] == [] and report["statistics"]["groups"] == {"t, gold": 9}
    assert report["statistics"]["trained_share"] == training.trained_tokens / training.tokens
    assert report["statistics"]["lengths"]["greatest"] == max(len(row["input_ids"]) for row in rows)
    assert sum(bin["records"] for bin in report["statistics"]["histogram"]) == 9
    assert call("data", "check", str(path)) == 0
    assert "No problems" in capsys.readouterr().out


def test_reports_problems_with_line_numbers(tmp_path: Path, capsys):
    valid = example("0", "Who?")
    path = write(
        tmp_path / "bad.jsonl",
        [
            valid,
            example("1", "When was the director  of ZAZIE born"),  # the text of the evaluation question
            example("2", "Who starred in Zazie?"),  # the entity that the evaluation question starts from
            example("3", "When did Louis Malle marry Ada Lovelace?"),  # an entity of a later hop: no leak
            valid.model_copy(update={"completion": "Answer: b\n", "task": "u"}),
            valid.model_copy(update={"id": "5"}),
            example("6", "Who?", "b"),
            valid.model_copy(update={"id": "7", "prompt": "x", "segments": [], "completion": ""}),
        ],
    )
    with path.open("ab") as file:
        file.write(b'{"id": "8", "prompt": 3}\n\xff\n')
    against = write(tmp_path / "eval.jsonl", [HELD_OUT])
    assert call("data", "check", str(path), "--against", str(against), "--json") == 1
    findings = {finding["what"]: finding["lines"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert [lines for what, lines in findings.items() if what.startswith("invalid SFTRecord: ")] == [[9], [10]]
    assert {what: lines for what, lines in findings.items() if not what.startswith("invalid")} == {
        "same text as an evaluation question": [2],
        "shares an entity with an evaluation question": [3],
        "segments differ from the completion": [5],
        "no text is trained": [8],
        "repeats an id": [5],
        "repeats an earlier line": [6],
        "contradicts an earlier line": [7],
    }
    assert call("data", "check", str(path), "--against", str(against)) == 1
    assert "Problems" in capsys.readouterr().out
    assert call("data", "check", str(against), "--against", str(against)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "as a question file:"),
        ('{"a": 1}\n', "no records of one of the types SFTRecord, PreferencePair"),
        (None, "No such file or directory; give the path of a file of records"),
    ],
)
def test_rejects_files_without_records(tmp_path: Path, capsys, text: str | None, message: str):
    path = tmp_path / "file.jsonl"
    if text is not None:
        path.write_text(text)
    for command in ("check", "view"):
        assert call("data", command, str(path)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_reads_question_files_as_released(tmp_path: Path):
    path = tmp_path / "test.jsonl"
    path.write_text('{"id": "1", "question": "Who?", "golden_answers": ["A"]}\n')
    assert read_record_file(path).records == {1: Question(id="1", question="Who?", answers=["A"])}


def test_checks_pairs_and_plans(tmp_path: Path):
    pair = PreferencePair(id="a", prompt="p", chosen="x", rejected="x", history_start=2, node=0)
    report = check(write(tmp_path / "pairs.jsonl", [pair]))
    assert [finding.what for finding in report.findings] == [
        "history_start is outside the prompt", "chosen and rejected are the same"
    ]  # fmt: skip
    nodes = [PlanNode(id="Q1.1", question="a?", parents=["Q9.1"])]
    plan = Trajectory(question_id="q", question="q", strategy="planrag", plan=Plan(nodes=nodes))
    [finding] = check(write(tmp_path / "plans.jsonl", [plan])).findings
    assert finding.what == "plan: unknown parent" and finding.lines == [1]


def test_unicode_line_separators_do_not_split_records(tmp_path: Path):
    records = [example("0", "Who?", "a\u2028b\u2029c"), example("1", "When?\x85")]
    file = read_record_file(write(tmp_path / "separators.jsonl", records))
    assert file.records == {1: records[0], 2: records[1]} and file.invalid == []


def test_reports_targets_that_cannot_be_known(tmp_path: Path):
    records = [
        example("0", "Who?", "Who?"),
        example("1", "Where?", "Ohio"),
        example("2", "Where is A?", "Ada Lovelace"),
    ]
    [finding] = check(write(tmp_path / "unknown.jsonl", records)).findings
    assert finding.what == "target cannot be known from the prompt" and finding.lines == [2]
