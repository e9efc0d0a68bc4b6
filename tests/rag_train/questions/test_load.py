"""Loading of question sets: files, the Hub, columns, unanswerable questions, and invalid files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.questions import ROW, SHAPES

from rag_train.errors import UserError
from rag_train.questions.formats import FORMATS
from rag_train.questions.load import StoredQuestions, load_questions, open_questions, parse_columns, sample
from rag_train.schema import Question


def test_reads_our_own_format(tmp_path: Path) -> None:
    questions = [question.model_copy(update={"id": kind}) for kind, (_, question) in SHAPES.items()]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(question.model_dump_json() + "\n" for question in questions))
    assert load_questions(path) == questions
    stored = StoredQuestions(questions)
    assert list(stored) == questions and stored[1:3] == questions[1:3] and stored[-1] == questions[-1]
    assert set(SHAPES) | {"rag-train", "popqa-longtail", "wow", "curatedtrec"} == set(FORMATS)


def test_reads_csv_tsv_and_popqa_long_tail(tmp_path: Path) -> None:
    row, expected = SHAPES["popqa"]
    named = ("id", "subj", "prop", "obj", "possible_answers", "question", "s_pop", "o_pop")
    lines = ["\t".join(named), "\t".join('"' + str(row[n]).replace('"', '""') + '"' for n in named)]
    lines.append(lines[1].replace('"5"', '"6"', 1).replace('"10"', '"100"'))
    (tmp_path / "popQA.tsv").write_text("\n".join(lines) + "\n")
    (name, both), (tail, one) = (open_questions(f"{kind}{tmp_path}/popQA.tsv") for kind in ("", "popqa-longtail:"))
    assert (name, tail) == ("popQA", "popqa-longtail") and [q.id for q in both] == ["5", "6"]
    assert one == both[:1] == [expected.model_copy(update={"gold_passages": []})]
    (tmp_path / "b.csv").write_text("Question,Answer\nWho directed A?,Ann\n")
    assert open_questions(f"bam={tmp_path}/b.csv") == ("bam", [SHAPES["bamboogle"][1]])


def test_a_list_in_a_cell_is_a_list_also_by_columns(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("q,a\nwho,\"['politician', 'leader']\"\n")
    [question] = load_questions(tmp_path / "q.csv", columns={"question": "q", "answers": "a"})
    assert (question.id, question.answers) == ("0", ["politician", "leader"])
    [question] = load_questions(tmp_path / "q.csv", "triviaqa", columns={"question": "q", "answers": "a"})
    assert question.metadata == {"scoring": "triviaqa"}, "the kind says how answers are compared"


@pytest.mark.parametrize(
    "row",
    [
        {"context": "c", "answers": "poet"},
        {"context": "c", "answers": "{'text': array(['poet'], dtype=object), 'answer_start': array([3])}"},
        {"context": "c", "answers": "['poet']", "is_impossible": "False"},
        {"ctxs": "[]", "answers": "poet"},
        {"docs": "[]", "answers": "['poet']"},
        {"golden_answers": "['poet']"},
        {"Question": "who", "Answer": "['poet']"},
        {"supporting_facts": "[]", "context": "[]", "type": "t", "level": "l", "answer": "poet"}
        | {"answer_aliases": "['poet']"},
        {"question_type": "t", "evidence_list": "[{'title': 't', 'fact': 'f'}]", "answer": "poet"},
        {"question_id": "1", "answer": "poet"},
    ],
)
def test_a_text_in_place_of_a_list_is_no_list_of_letters(tmp_path: Path, row: dict[str, str]) -> None:
    fields = {"": "0", "id": "1", "question": "who"} | row  # pandas' index has no name
    with (tmp_path / "q.csv").open("w") as file:
        csv.writer(file).writerows([fields.keys(), fields.values()])
    [question] = load_questions(tmp_path / "q.csv")
    assert (question.question, question.answers) == ("who", ["poet"])


def test_unanswerable_questions_are_refused_skipped_or_ask_for_a_refusal(tmp_path: Path, capsys: Any) -> None:
    musique, squad = SHAPES["musique"][0], SHAPES["squad"][0]
    impossible = squad | {"id": "r", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "Bo"}]}
    of_hub = squad | {"id": "r", "answers": {"text": [], "answer_start": []}}
    for rows, ids in (
        ([musique, musique | {"answerable": False}], ["q", "q/unanswerable"]),
        ([squad, impossible], ["q", "r"]),
        ([squad, of_hub], ["q", "r"]),
    ):
        (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(
            UserError, match=r"line 2: .* unanswerable; leave .* --unanswerable skip, or .* abstain"
        ):
            load_questions(tmp_path / "q.jsonl")
        assert [q.id for q in load_questions(tmp_path / "q.jsonl", unanswerable="skip")] == ids[:1]
        assert "1 unanswerable question left out" in capsys.readouterr().err
        first, second = load_questions(tmp_path / "q.jsonl", unanswerable="abstain")
        assert (second.id, second.answers, second.metadata) == (
            ids[1],
            ["unanswerable"],
            {"scoring": "unanswerable"},
        )
        assert first.answers[0] == "Ann" and "1 unanswerable question scored" in capsys.readouterr().err
    (tmp_path / "q.jsonl").write_text(json.dumps(of_hub))
    with pytest.raises(UserError, match="all questions are marked as unanswerable"):
        load_questions(tmp_path / "q.jsonl", unanswerable="skip")
    with pytest.raises(UserError, match="--unanswerable maybe: unknown; give skip or abstain"):
        open_questions(str(tmp_path / "q.jsonl"), unanswerable="maybe")


def test_reads_other_formats_by_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"q": "Who directed A?", "gold": [{"text": "Ann"}, {"text": "Anne"}], "n": 2}))
    columns = parse_columns("question=q,answers=gold.text,hops=n")
    assert load_questions(path, columns=columns) == [
        Question(id="0", question="Who directed A?", answers=["Ann", "Anne"], hops=2)
    ]
    with pytest.raises(UserError, match="line 1: no field 'g'; correct the row or the columns"):
        load_questions(path, columns=parse_columns("question=q,answers=g"))
    for wrong in ("question=q", "question=q,answers=a,kind=k", "question,answers=a"):
        with pytest.raises(UserError, match=r"--columns .*; give FIELD=PLACE pairs"):
            parse_columns(wrong)


def test_loads_hub_datasets_with_the_datasets_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    row = SHAPES["hotpotqa"][0] | {"id": "q"}
    del row["_id"]
    row["supporting_facts"] = dict(
        zip(("title", "sent_id"), zip(*row["supporting_facts"], strict=True), strict=True)
    )
    row["context"] = dict(zip(("title", "sentences"), zip(*row["context"], strict=True), strict=True))
    for field in ("supporting_facts", "context"):
        row[field] = dict(sorted(row[field].items()))  # as older releases of the library give them
    rows = datasets.Dataset.from_list([row])
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*names: str, split: str):
        asked.append((*names, split))
        if split == "gone":
            raise ValueError("Unknown split\nmore")
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    expected = SHAPES["hotpotqa"][1]
    assert open_questions("hub:hotpotqa/hotpot_qa,distractor,validation") == ("hotpot_qa", [expected])
    assert asked == [("hotpotqa/hotpot_qa", "distractor", "validation")]
    for place, problem in (("hub:a/b,gone", "Unknown split; check name"), ("hub:a,b,c,d", "not a dataset")):
        with pytest.raises(UserError, match=problem):
            load_questions(place)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (ROW + "\n" + ROW.replace("Ann", ""), "line 2: the question has no answer"),
        (ROW + "\n" + ROW.replace('["Ann"]', "[]"), "line 2: the question has no answer"),
        (ROW + "\n" + ROW.replace('["Ann"]', '[["Ann"]]'), "line 2: malformed (an answer is neither"),
        (ROW + "\n" + ROW.replace('["Ann"]', "[null]"), "line 2: the question has no answer (null): this"),
        (ROW.replace("Ann", "<unk>"), "line 1: the answer is '<unk>', a placeholder: this split has no answers"),
        (ROW[:-1] + ', "id": "r"}', "line 1: duplicate key 'id'; remove one of the two"),
        (ROW + "\n" + ROW.replace('"question"', '"q"'), "line 2: no field 'question'"),
        (ROW + "\n" + ROW.replace("Who directed A?", ""), "line 2: question: String should have at least 1"),
        (ROW + "\n" + ROW.replace("Who", "\\ud800"), "surrogates not allowed"),
        (ROW + "\n\n" + ROW, "line 3: duplicate id 'q', first at line 1"),
        (ROW + "\n" + ROW[:-9], "line 2: invalid JSON"),
        (f"[{ROW},\n{ROW}]", "row 2: duplicate id 'q', first at row 1"),
        (f"[{ROW}, 3]", "row 2: not a JSON object"),
        (f"[{ROW}", "invalid JSON"),
        (
            '{"id": "q", "question": "?"}',
            "line 1: no field of answers among 'id, question': test splits have none; give",
        ),
        ('{"prompt": "?", "target": "!"}', "the fields 'prompt, target'; name the fields with --columns question="),
        (json.dumps(SHAPES["musique"][0] | {"answerable": False}), "leave such questions out with --unanswerable"),
        (json.dumps(SHAPES["commonsenseqa"][0] | {"answerKey": ""}), "line 1: the question has no answer (its key"),
        (json.dumps(SHAPES["mmlu"][0] | {"answer": -1}), "line 1: the question has no answer (its key is -1)"),
        (json.dumps(SHAPES["mmlu"][0] | {"answer": "Cy"}), "line 1: the answer 'Cy' is none of the choices"),
        (json.dumps(SHAPES["kilt"][0] | {"output": []}), "line 1: no output has an answer: this split"),
        (json.dumps(SHAPES["beir"][0] | {"metadata": {}}), "line 1: BEIR's queries have judgements"),
        (json.dumps(SHAPES["hotpotqa"][0] | {"supporting_facts": ["A"]}), "line 1: not enough values"),
        (json.dumps(SHAPES["popqa"][0] | {"s_pop": "many"}), "line 1: could not convert"),
        (json.dumps(SHAPES["2wikimultihopqa"][0] | {"_id": [3]}), "line 1: id: Input should be a valid string"),
        ('{"id": "q", "question": "?", "answers": ["a"], "hop": 2}', "line 1: hop: Extra inputs are not permitted"),
        ('{"id": "q", "question": "?", "answers": ["a"], "hop": 2}', "or name its fields with --columns question="),
        ("[]", "no questions"),
        ("", "no questions"),
        ("[\udce9]", "not UTF-8"),
        ("PK\3\4", "q.json: a ZIP archive or a spreadsheet; unpack it"),
        (None, "No such file"),
    ],
)
def test_error_for_invalid_file_names_file_and_line(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "q.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as caught:
        load_questions(path)
    message = str(caught.value)
    assert problem in message and "q.json" in message and "; " in message and "\n" not in message


def test_rejects_unknown_format_and_lists_known_formats(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown question format 'quad'; the formats are .*hotpotqa"):
        load_questions(tmp_path, "quad")


def test_sample_is_determined_by_seed_and_keeps_order() -> None:
    questions = [Question(id=str(i), question="?", answers=["a"]) for i in range(50)]
    drawn = sample(questions, 10, seed=3)
    assert drawn == sample(questions, 10, seed=3) != sample(questions, 10, seed=4)
    assert [q.id for q in drawn] == sorted({q.id for q in drawn}, key=int)
    assert sample(questions, 50, seed=0) == questions
    with pytest.raises(UserError, match="cannot sample 51 of 50"):
        sample(questions, 51, seed=0)
