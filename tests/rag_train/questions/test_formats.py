"""Each released format and its other spellings, and the real files if they are available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import DATA
from support.questions import ROW, SHAPES

from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.schema import Question


@pytest.mark.parametrize("kind", SHAPES)
def test_recognizes_each_released_format(tmp_path: Path, kind: str) -> None:
    row, expected = SHAPES[kind]
    for name, text in (("q.json", json.dumps([row], indent=1)), ("q.jsonl", json.dumps(row) + "\n")):
        (tmp_path / name).write_text(text)
        assert load_questions(tmp_path / name) == load_questions(tmp_path / name, kind) == [expected]


OURS = {"question": "When?", "answers": ["Dec(ember)? 25"]}


@pytest.mark.parametrize(
    ("place", "kind", "row", "metadata"),
    [
        ("triviaqa/test.jsonl", None, "flashrag", {"scoring": "triviaqa"}),
        ("FlashRAG/nq_test.jsonl", None, "flashrag", {"scoring": "squad"}),
        ("data/test.jsonl", "triviaqa", "flashrag", {"scoring": "triviaqa"}),
        ("popqa/test.jsonl", None, "flashrag", {"scoring": "popqa"}),
        ("hotpotqa/test.jsonl", None, "flashrag", {}),
        ("data/test.jsonl", None, "flashrag", {}),
        ("nq-dev-kilt.jsonl", None, "kilt", {"scoring": "squad"}),
        ("triviaqa-dev_id-kilt.jsonl", None, "kilt", {"scoring": "triviaqa"}),
        ("hotpotqa-dev-kilt.jsonl", None, "kilt", {}),
        ("fever-dev-kilt.jsonl", None, "kilt", {"scoring": "squad"}),
        ("eli5-dev-kilt.jsonl", None, "kilt", {"long_form": True}),
        ("wow-dev-kilt.jsonl", None, "kilt", {"scoring": "squad", "long_form": True}),
        ("curatedtrec/test.jsonl", None, "ours", {"scoring": "curatedtrec"}),
        ("CuratedTrec-test.txt", None, "ours", {"scoring": "curatedtrec"}),
        ("d/q.jsonl", "curatedtrec", "ours", {"scoring": "curatedtrec"}),
    ],
)
def test_a_shape_of_several_datasets_is_scored_as_its_dataset(
    tmp_path: Path, place: str, kind: str | None, row: str, metadata: dict[str, Any]
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(json.dumps(SHAPES[row][0] if row in SHAPES else OURS))
    [question] = load_questions(tmp_path / place, kind)
    found = {name: question.metadata[name] for name in ("scoring", "long_form") if name in question.metadata}
    assert found == metadata


def test_search_r1s_rows_have_ids_and_scoring_of_their_dataset(tmp_path: Path) -> None:
    sources = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "searchR1_nq")
    rows = [json.loads(ROW) | {"data_source": source, "ability": "fact-reasoning"} for source in sources]
    (tmp_path / "triviaqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = load_questions(tmp_path / "triviaqa.jsonl")
    assert [question.id for question in questions] == [f"{source}:q" for source in sources]
    scoring = ["squad", "triviaqa", "popqa", None, None, "musique", None, "squad"]
    assert [question.metadata.get("scoring") for question in questions] == scoring


def test_2wikimultihopqas_answers_have_their_aliases(tmp_path: Path) -> None:
    row, expected = SHAPES["2wikimultihopqa"]
    (tmp_path / "dev.json").write_text(json.dumps([row | {"answer_id": "Q1"}]))
    assert load_questions(tmp_path / "dev.json") == [expected]
    alias = {"Q_id": "Q1", "aliases": ["Anna"], "demonyms": ["Annish"]}
    (tmp_path / "id_aliases.json").write_text(json.dumps(alias) + "\n")
    assert load_questions(tmp_path / "dev.json")[0].answers == [*expected.answers, "Anna", "Annish"]
    (tmp_path / "id_aliases.json").write_text('{"Q_id": "Q1"}\n')
    with pytest.raises(UserError, match=r"id_aliases\.json: no field 'aliases'; download"):
        load_questions(tmp_path / "dev.json")


def test_reads_releases_that_are_a_single_object(tmp_path: Path) -> None:
    squad, trivia, asqa = (SHAPES[kind] for kind in ("squad", "triviaqa", "asqa"))
    asked = {"id": "q", "question": "Who directed A?", "answers": [{"text": "Ann", "answer_start": 0}]}
    article = {"title": "A", "paragraphs": [{"context": "Two.", "qas": [asked]}]}
    without_id = {key: value for key, value in asqa[0].items() if key != "sample_id"}
    for name, content, expected in (
        ("squad", {"version": "1.1", "data": [article]}, squad[1]),
        ("trivia", {"Version": 1.0, "Domain": "unfiltered-web", "Data": [trivia[0]]}, trivia[1]),
        ("asqa", {"train": {}, "dev": {"5": without_id}}, asqa[1]),
    ):
        for indent in (None, 4):
            (tmp_path / name).write_text(json.dumps(content, indent=indent))
            assert load_questions(tmp_path / name) == [expected]
    for content, problem in (('[{"title": "A", "paragraphs": [3]}]', "malformed"), ("[3]", "malformed")):
        (tmp_path / "bad").write_text(f'{{"data": {content}}}')
        with pytest.raises(UserError, match=f"bad, line 1: {problem} .*; download the file again"):
            load_questions(tmp_path / "bad")


def test_reads_dprs_tables_without_header(tmp_path: Path) -> None:
    path = tmp_path / "trivia-test.qa.csv"
    path.write_text('who, then?\t[\'Ann "A." Ray\', "Ann\'s"]\nwho was bo\t["Bo"]\n')
    first, second = load_questions(path)
    assert (first.id, first.question, first.answers) == ("0", "who, then?", ['Ann "A." Ray', "Ann's"])
    assert second.answers == ["Bo"] and second.metadata == {"scoring": "triviaqa"}


OF_THE_HUB = [
    ("2wikimultihopqa", {name: json.dumps for name in ("context", "supporting_facts", "evidences")}),
    ("popqa", {name: lambda views: float(views) for name in ("s_pop", "o_pop")}),
    ("strategyqa", {"facts": " ".join}),
    ("squad", {"answers": lambda given: [{"text": text, "answer_start": 0} for text in given["text"]]}),
    ("commonsenseqa", {"question": lambda asked: asked["stem"]}),
    (
        "ambigqa",
        {
            "annotations": lambda each: {
                key: [a.get(key, []) for a in each] for key in ("type", "answer", "qaPairs")
            }
        },
    ),
    ("kilt", {"output": lambda each: {key: [a.get(key) for a in each] for key in ("answer", "provenance")}}),
    (
        "dpr",
        {
            "positive_ctxs": lambda each: [
                {"psg_id": c["passage_id"], "title": c["title"], "text": c["text"]} for c in each
            ]
        },
    ),
    ("mmlu", {"choices": lambda texts: dict(zip("AB", texts, strict=True)), "answer": "AB".__getitem__}),
]


@pytest.mark.parametrize(("kind", "changes"), OF_THE_HUB)
def test_other_spellings_of_a_release_are_read_alike(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    row, expected = SHAPES[kind]
    changed = row | {name: change(row[name]) for name, change in changes.items() if name in row}
    if kind == "commonsenseqa":
        listed = row["question"]["choices"]
        changed["choices"] = {key: [choice[key] for choice in listed] for key in ("label", "text")}
    if kind == "strategyqa":
        del changed["decomposition"]
        expected = expected.model_copy(update={"hops": None, "metadata": {"facts": row["facts"]}})
    (tmp_path / "q.jsonl").write_text(json.dumps(changed))
    assert load_questions(tmp_path / "q.jsonl") == [expected]


def test_reads_the_files_that_people_write_themselves(tmp_path: Path) -> None:
    for row in (
        {"id": 1, "question": "who", "answers": ["poet"]},
        {"id": "1", "question": "who", "answer": "poet"},
        {"id": 1.0, "question": "who", "answers": "poet", "type": None},
        {"question_id": 1, "question": "who", "answer": "poet"},
        {"_id": "1", "question": "who", "answer": "['poet']"},
    ):
        (tmp_path / "q.jsonl").write_text(json.dumps(row))
        assert load_questions(tmp_path / "q.jsonl") == [Question(id="1", question="who", answers=["poet"])], row


def test_flashrags_golden_answers_index_the_choices(tmp_path: Path) -> None:
    row = {"id": "q", "question": "Which?", "golden_answers": [1], "choices": ["Bob", "Ann"], "metadata": {"n": 1}}
    for golden in ([1], ["1"], ["B"], ["Ann"]):
        (tmp_path / "q.jsonl").write_text(json.dumps(row | {"golden_answers": golden}))
        [question] = load_questions(tmp_path / "q.jsonl")
        assert question.question == "Which? (A) Bob (B) Ann" and question.answers == ["Ann", "B"]
        assert question.metadata == {"n": 1, "scoring": "choice"}


FILES = {
    "hotpotqa/train_100.json": 100,
    "hotpotqa/dev_hard.json": 104,
    "2wikimultihopqa/train_sample.json": 621,
    "2wikimultihopqa/dev.json": 106,
    "musique/train_100.jsonl": 100,
    "musique/dev.jsonl": 103,
    "popqa/with_passages.json": 493,
    "popqa/flashrag_test.jsonl": 502,
    "nq/flashrag_test.jsonl": 505,
    "triviaqa/flashrag_test.jsonl": 480,
    "bamboogle/flashrag_test.jsonl": 56,
    "webquestions/test.json": 1022,
    "strategyqa/dev.jsonl": 111,
    "cag_time/evotempqa.json": 221,
    "multihoprag/questions.json": 510,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_reads_real_files(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip("the real question files are not available")
    questions = load_questions(DATA / name)
    assert len(questions) == FILES[name]
    with_gold = [question for question in questions if question.gold_passages]
    gold_in_file = name.startswith(("hotpotqa", "2wiki", "musique", "popqa/with", "multihoprag"))
    assert len(with_gold) == (86 if name == "2wikimultihopqa/dev.json" else len(questions) if gold_in_file else 0)
    for question in questions:
        ids = {passage.id for passage in question.gold_passages}
        assert len(ids) == len(question.gold_passages)
        assert all(set(step.passage_ids) <= ids for step in question.decomposition)
        if not name.startswith("2wiki"):  # its evidences do not name passages
            assert all(step.passage_ids for step in question.decomposition)
        assert Question.model_validate_json(question.model_dump_json()) == question
