"""Files as people have them: other tools' shapes, spreadsheets' tables, and predictions of other systems."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from support.commands import call
from support.paths import ROOT

from rag_train.answers import rules_of
from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.retrieval.open import open_retriever

FILES = ROOT / "tests/cases/files"
POET = [("1", ["poet"], "hotpotqa")]
FIRST = [("0", ["poet"], "squad")]
POPQA = [("4222362", ["politician", "political leader"], "popqa")]
READ: dict[str, list[tuple[str, list[str], str]]] = {
    "2wiki_hub_strings.jsonl": [("a1", ["Ann"], "hotpotqa")],
    "POPQA_UPPER.CSV": POPQA,
    "data_list.json": POET,
    "dpr_output.json": FIRST,
    "fid_nq.jsonl": FIRST,
    "flashrag/mmlu/test.jsonl": [("test_0", ["Jupiter", "C"], "choice")],
    "flashrag/nq/test.jsonl": [("test_0", ["Beyoncé"], "squad")],
    "flashrag/popqa/test.jsonl": [("test_0", ["politician"], "popqa")],
    "flashrag/strategyqa/dev.jsonl": [("dev_0", ["yes"], "hotpotqa")],
    "hotpot.parquet": [("5a7a0693", ["yes"], "hotpotqa")],
    "json_list.csv": [("0", ["politician", "political leader"], "hotpotqa")],
    "leak_heldout.jsonl": [("h1", ["poet"], "hotpotqa")],
    "leak_train.jsonl": [("t1", ["poet"], "hotpotqa")],
    "nq-dev-kilt.jsonl": [("6915", ["Tracy McConnell", "Tracy"], "squad")],
    "own_answer_string.jsonl": POET,
    "own_gz.jsonl.gz": POET,
    "own_int_id.jsonl": POET,
    "popqa_float_pop.csv": POPQA,
    "search_r1_test.jsonl": [
        ("nq:test_0", ["poet"], "squad"),
        ("triviaqa:test_0", ["Jack-in-the-box"], "triviaqa"),
        ("popqa:test_0", ["politician"], "popqa"),
    ],
    "strategyqa_hub_chilled.jsonl": [("4fd", ["yes"], "hotpotqa")],
    "triviaqa_brace_then_newline.json": [
        ("tc_3", ["Sunset Boulevard", "sunset blvd", "sunset boulevard"], "triviaqa")
    ],
}
"""Ids, answers and rules of comparison of the questions in a file."""
GOLD = {
    "2wiki_hub_strings.jsonl": ["Ann", "Bo"],
    "hotpot.parquet": ["Ann Ray", "Bo Lee"],
    "nq-dev-kilt.jsonl": ["1", "2"],
}
"""Ids of the gold passages, in files that have some."""
REFUSED = {
    "musique_full_dev.jsonl": "line 2: the question is marked as unanswerable; leave .* --unanswerable skip, or .*",
    "trivia_unk_test.jsonl": "line 1: the answer is '<unk>', .*: this split has no answers; give a split with .*",
    "unquoted_comma.csv": "line 3: 4 fields, but the header has 3; write each text .* comma in quotation marks",
}
SCORED: dict[str, tuple[str, list[str], float]] = {
    "csv_list.json": ("json_list.csv", ["--columns", "question=question,answers=answers"], 1),
    "kilt_pred.jsonl": ("nq-dev-kilt.jsonl", [], 1),
    "lmeval_triviaqa.jsonl": ("triviaqa_brace_then_newline.json", [], 1),
    "mmlu.json": ("flashrag/mmlu/test.jsonl", [], 1),
    "output_null.jsonl": ("hotpot.parquet", [], 0),
    "output_string.jsonl": ("hotpot.parquet", [], 1),
}
"""Questions of a file of predictions, further arguments, and the exact matches."""
FOUND: dict[str, tuple[int, str, list[tuple[str, list[str]]]]] = {
    "beir_emptytext.jsonl": (1, "beir_emptytext.jsonl: 1 row without text left out", []),
    "fuse_a.jsonl": (2, "", [("zebra", ["1"]), ("other", ["2"])]),
    "fuse_b.jsonl": (2, "", [("king", ["1"])]),
    "languages.jsonl": (
        26,
        "4 of 26 passages are in scripts without spaces between words",
        [
            ("Beyoncé", ["nfc", "nfd"]),
            (unicodedata.normalize("NFD", "Beyoncé"), ["nfc", "nfd"]),
            ("столица", ["ru1"]),
            ("수도이다", ["ko1"]),
            ("राजधानी", ["hi1"]),
            ("עיר", ["he1"]),
        ],
    ),
    "title_and_contents.jsonl": (1, "", [("prophet of zebra", ["0"]), ("Egypt", ["0"])]),
}
"""Passages of a corpus, what is said while it is indexed, and searches with the ids that they find."""


def files(folder: str, known: set[str]) -> list[str]:
    """The files of a folder, and those that are expected there."""
    here = {path.relative_to(FILES / folder).as_posix() for path in (FILES / folder).rglob("*") if path.is_file()}
    return sorted(here | known)


@pytest.mark.parametrize("name", files("questions", READ.keys() | REFUSED.keys()))
def test_questions_are_read_or_refused_with_a_remedy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = FILES / "questions" / name
    if name in REFUSED:
        with pytest.raises(UserError, match=f"{name}, {REFUSED[name]}$") as refused:
            load_questions(path)
        assert "\n" not in str(refused.value)
        return
    asked = load_questions(path)
    rules = [str(question.metadata.get("scoring", "hotpotqa")) for question in asked]
    assert [(q.id, q.answers, rule) for q, rule in zip(asked, rules, strict=True)] == READ[name]
    assert [passage.id for question in asked for passage in question.gold_passages] == GOLD.get(name, [])
    assert all(rules_of(question) for question in asked) and not capsys.readouterr().err


def test_unanswerable_questions_are_left_out_or_ask_for_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    path, answerable = FILES / "questions/musique_full_dev.jsonl", ("2hop__1_2", ["Danube", "Donau"])
    assert [(q.id, q.answers) for q in load_questions(path, unanswerable="skip")] == [answerable]
    assert "1 unanswerable question left out" in capsys.readouterr().err
    first, second = load_questions(path, unanswerable="abstain")
    assert (first.id, first.answers) == answerable and second.answers == ["unanswerable"]


@pytest.mark.slow
@pytest.mark.parametrize("name", files("predictions", set(SCORED)))
def test_predictions_are_scored(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, more, expected = SCORED[name]
    command = ["score", FILES / "predictions" / name, "--questions", FILES / "questions" / questions, *more]
    assert call(*command, "--name", "other", "--output", tmp_path, "--json") == 0
    [cell] = json.loads(capsys.readouterr().out)
    summary = cell["summary"]
    assert (summary["questions"], summary["em"]["mean"], summary["f1"]["mean"]) == (1, expected, expected)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["C", "(C) Jupiter", "Jupiter"])
def test_a_choice_is_right_as_a_letter_and_as_a_text(
    answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"test_0": answer}))
    command = ["score", tmp_path / "p.json", "--questions", FILES / "questions/flashrag/mmlu/test.jsonl"]
    assert call(*command, "--name", "other", "--output", tmp_path / "m", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["summary"]["em"]["mean"] == 1


def test_a_leak_is_found_through_other_quotation_marks(capsys: pytest.CaptureFixture[str]) -> None:
    train, held_out = (FILES / f"questions/leak_{name}.jsonl" for name in ("train", "heldout"))
    assert call("data", "check", train, "--against", held_out, "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"] == [
        {"what": "same text as an evaluation question", "lines": [1]}
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", files("corpora", set(FOUND)))
def test_corpora_are_indexed_and_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count, said, searches = FOUND[name]
    assert call("index", FILES / "corpora" / name, tmp_path / "i", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["passages"] == count and said in told.err
    retriever = open_retriever(str(tmp_path / "i"))
    found = retriever.search([query for query, _ in searches], 5) if searches else []
    assert [sorted(passage.id for passage in passages) for passages in found] == [ids for _, ids in searches]
    if name == "title_and_contents.jsonl":
        assert found[0][0].text == "Aaron is a prophet of zebra.\nHe lived in Egypt."


@pytest.mark.slow
def test_passages_of_different_corpora_are_not_fused(tmp_path: Path) -> None:
    for name in ("fuse_a", "fuse_b"):
        assert call("index", FILES / f"corpora/{name}.jsonl", tmp_path / name) == 0
    with pytest.raises(UserError, match=r"search different corpora, .*; index the same corpus file for each$"):
        open_retriever(f"rrf({tmp_path}/fuse_a, {tmp_path}/fuse_b)")
