"""Files as people have them: other tools' shapes, spreadsheets' tables, and predictions of other systems."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from support.commands import call
from support.paths import ROOT

from rag_train.answers import rules_of
from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.retrieval.open import open_retriever

FILES = ROOT / "tests/cases/files"
EXPECTED = yaml.safe_load((FILES / "expected.yaml").read_text(encoding="utf-8"))
READ, GOLD, REFUSED, SCORED, FOUND = (EXPECTED[key] for key in ("read", "gold", "refused", "scored", "found"))


def files(folder: str, known: Iterable[str]) -> list[str]:
    """Return the files of a folder, and those that are expected there."""
    here = {path.relative_to(FILES / folder).as_posix() for path in (FILES / folder).rglob("*") if path.is_file()}
    return sorted(here | {*known})


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
    assert [[q.id, q.answers, rule] for q, rule in zip(asked, rules, strict=True)] == READ[name]
    assert [passage.id for question in asked for passage in question.gold_passages] == GOLD.get(name, [])
    assert all(rules_of(question) for question in asked) and not capsys.readouterr().err


def test_unanswerable_questions_are_left_out_or_ask_for_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    path, answerable = FILES / "questions/musique_full_dev.jsonl", ("2hop__1_2", ["Danube", "Donau"])
    assert [(q.id, q.answers) for q in load_questions(path, unanswerable="skip")] == [answerable]
    assert "1 unanswerable question left out" in capsys.readouterr().err
    first, second = load_questions(path, unanswerable="abstain")
    assert (first.id, first.answers) == answerable and second.answers == ["unanswerable"]


@pytest.mark.slow
@pytest.mark.parametrize("name", files("predictions", SCORED))
def test_predictions_are_scored(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = SCORED[name]
    command = ["score", FILES / "predictions" / name, "--questions", FILES / "questions" / case["questions"]]
    assert call(*command, *case["arguments"], "--name", "other", "--output", tmp_path, "--json") == 0
    [cell] = json.loads(capsys.readouterr().out)
    summary = cell["summary"]
    assert (summary["questions"], summary["em"]["mean"], summary["f1"]["mean"]) == (
        1,
        case["matches"],
        case["matches"],
    )


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
@pytest.mark.parametrize("name", files("corpora", FOUND))
def test_corpora_are_indexed_and_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, searches = FOUND[name], FOUND[name]["searches"]
    assert call("index", FILES / "corpora" / name, tmp_path / "i", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["passages"] == case["passages"] and case["said"] in told.err
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
