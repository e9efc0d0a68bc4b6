"""Loading of question sets: each released format, the real files if they are available, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import DATA

from rag_train.errors import UserError
from rag_train.questions.formats import FORMATS
from rag_train.questions.load import StoredQuestions, load_questions, open_questions, parse_columns, sample
from rag_train.schema import GoldStep, Passage, Question

WIKIPEDIA = {
    "_id": "q",
    "question": "Who directed A?",
    "answer": "Ann",
    "type": "bridge",
    "supporting_facts": [["A", 0], ["A", 1], ["B", 0]],
    "context": [["A", ["One.", " Two."]], ["C", ["No."]], ["B", ["Three."]]],
}
GOLD = [Passage(id="A", title="A", text="One. Two."), Passage(id="B", title="B", text="Three.")]
SUPPORTING = ["One.", "Two.", "Three."]
COMMON = {"id": "q", "question": "Who directed A?", "answers": ["Ann"]}
TRIPLES = [["Ada", "director", "Ann"], ["Ann (director)", "date of birth", "1950"]]

SHAPES: dict[str, tuple[dict[str, Any], Question]] = {
    "hotpotqa": (
        WIKIPEDIA | {"level": "hard"},
        Question(
            **COMMON,
            type="bridge",
            hops=2,
            gold_passages=GOLD,
            metadata={"supporting": SUPPORTING, "level": "hard"},
        ),
    ),
    "2wikimultihopqa": (
        {key: value for key, value in WIKIPEDIA.items() if key != "context"} | {"evidences": TRIPLES},
        Question(
            **COMMON,
            type="bridge",
            hops=2,
            metadata={"evidences": TRIPLES},
            decomposition=[
                GoldStep(subquery="Who is the director of Ada?", answer="Ann", entity="Ada"),
                GoldStep(subquery="What is the date of birth of Ann?", answer="1950", entity="Ann"),
            ],
        ),
    ),
    "musique": (
        {
            "id": "q",
            "question": "Who directed A?",
            "answer": "Ann",
            "answer_aliases": ["Anne", "Ann"],
            "answerable": True,
            "paragraphs": [
                {"idx": 0, "title": "A", "paragraph_text": "One.", "is_supporting": True},
                {"idx": 1, "title": "C", "paragraph_text": "No.", "is_supporting": False},
                {"idx": 2, "title": "A", "paragraph_text": "Two.", "is_supporting": True},
            ],
            "question_decomposition": [
                {"id": 1, "question": "A >> studio", "answer": "B\\1", "paragraph_support_idx": 2},
                {
                    "id": 2,
                    "question": "who heads #1 with a #1 hit or #2?",
                    "answer": "Ann",
                    "paragraph_support_idx": 0,
                },
            ],
        },
        Question(
            id="q",
            question="Who directed A?",
            answers=["Ann", "Anne"],
            hops=2,
            metadata={"scoring": "musique"},
            gold_passages=[Passage(id="q/0", title="A", text="One."), Passage(id="q/2", title="A", text="Two.")],
            decomposition=[
                GoldStep(subquery="A >> studio", answer="B\\1", passage_ids=["q/2"], entity="A"),
                GoldStep(
                    subquery="who heads B\\1 with a B\\1 hit or #2?",
                    answer="Ann",
                    passage_ids=["q/0"],
                    entity="B\\1",
                ),
            ],
        ),
    ),
    "flashrag": (
        {"id": "q", "question": "Who directed A?", "golden_answers": ["Ann"], "metadata": {"pop": 3}},
        Question(**COMMON, metadata={"pop": 3}),
    ),
    "popqa": (
        {
            "id": 5,
            "question": "Who directed A?",
            "possible_answers": '["Ann", "Anne"]',
            "prop": "director",
            "subj": "A",
            "obj": "Ann",
            "s_pop": 10,
            "o_pop": 20,
            "paragraphs": [
                {"title": "C", "text": "No.", "is_supporting": False},
                {"title": "A", "text": "One.", "is_supporting": True},
            ],
        },
        Question(
            id="5",
            question="Who directed A?",
            answers=["Ann", "Anne"],
            type="director",
            hops=1,
            gold_passages=[Passage(id="5/1", title="A", text="One.")],
            metadata={"subj": "A", "obj": "Ann", "s_pop": 10, "o_pop": 20, "scoring": "popqa"},
        ),
    ),
    "squad": (
        {"id": "q", "title": "A", "context": "Two.", "question": "Who directed A?", "answers": {"text": ["Ann"]}},
        Question(
            **COMMON,
            hops=1,
            gold_passages=[Passage(id="q/0", title="A", text="Two.")],
            metadata={"scoring": "squad"},
        ),
    ),
    "triviaqa": (
        {
            "QuestionId": "q",
            "Question": "Who directed A?",
            "Answer": {"Value": "Ann", "Aliases": ["Ann!"], "NormalizedAliases": ["ann"], "HumanAnswers": ["Anne"]},
        },
        Question(**COMMON | {"answers": ["Ann", "ann", "Anne"]}, hops=1, metadata={"scoring": "triviaqa"}),
    ),
    "nq": (
        {"question": "Who directed A?", "answer": ["Ann"]},
        Question(**COMMON | {"id": "0"}, hops=1, metadata={"scoring": "squad"}),
    ),
    "dpr": (
        {
            "question": "Who directed A?",
            "answers": ["Ann"],
            "positive_ctxs": [
                {"passage_id": "7", "title": "A", "text": "One."},
                {"passage_id": "8", "title": "B", "text": "Two."},
            ],
        },
        Question(
            **COMMON | {"id": "0"},
            hops=1,
            gold_passages=[Passage(id="7", title="A", text="One.")],
            metadata={"scoring": "squad"},
        ),
    ),
    "commonsenseqa": (
        {
            "id": "q",
            "answerKey": "B",
            "question": {
                "stem": "Who directed A?",
                "choices": [{"label": "A", "text": "Bob"}, {"label": "B", "text": "Ann"}],
            },
        },
        Question(id="q", question="Who directed A? (A) Bob (B) Ann", answers=["Ann", "B"]),
    ),
    "asqa": (
        {
            "sample_id": 5,
            "ambiguous_question": "Who directed A?",
            "qa_pairs": [
                {"question": "?", "short_answers": ["Ann"]},
                {"question": "?", "short_answers": ["Bo", "B"]},
            ],
            "annotations": [{"long_answer": "Ann, then Bo."}, {"long_answer": "Both."}],
        },
        Question(
            id="5",
            question="Who directed A?",
            answers=["Ann, then Bo.", "Both."],
            metadata={"long_form": True, "answer_groups": [["Ann"], ["Bo", "B"]]},
        ),
    ),
    "eli5": (
        {"q_id": "q", "title": "Who", "selftext": "directed A?", "answers": {"text": ["Ann"], "score": [3]}},
        Question(**COMMON, metadata={"long_form": True}),
    ),
    "eli5-kilt": (
        {"id": "q", "input": "Who directed A?", "output": [{"answer": "Ann"}, {"provenance": []}]},
        Question(**COMMON, metadata={"long_form": True}),
    ),
    "bamboogle": (
        {"Question": "Who directed A?", "Answer": "Ann"},
        Question(**COMMON | {"id": "0"}, hops=2),
    ),
    "webquestions": ({"qId": "q", "qText": "Who directed A?", "answers": ["Ann"]}, Question(**COMMON)),
    "strategyqa": (
        {"qid": "q", "question": "Is it?", "answer": False, "facts": ["F"], "decomposition": ["D1", "D2"]},
        Question(
            id="q",
            question="Is it?",
            answers=["no"],
            hops=2,
            metadata={"decomposition": ["D1", "D2"], "facts": ["F"]},
        ),
    ),
    "cag": (
        {
            "id": 9,
            "question": "Who directed A?",
            "answers": [["Ann", "Anne"]],
            "q_date": "2023/11/17",
            "docs": [{"text": "One.", "date": float("nan")}],
        },
        Question(
            id="0",
            question="Who directed A?",
            answers=["Ann", "Anne"],
            metadata={"q_date": "2023/11/17", "docs": [{"text": "One.", "date": None}]},
        ),
    ),
    "multihoprag": (
        {
            "query": "Who directed A?",
            "answer": "Ann",
            "question_type": "inference_query",
            "evidence_list": [{"title": "A", "fact": "One.", "url": "https://a.example"}],
        },
        Question(
            id="0",
            question="Who directed A?",
            answers=["Ann"],
            type="inference_query",
            hops=1,
            gold_passages=[Passage(id="0/0", title="A", text="One.")],
        ),
    ),
}
ROW = json.dumps(SHAPES["flashrag"][0])


@pytest.mark.parametrize("kind", SHAPES)
def test_recognizes_each_released_format(tmp_path: Path, kind: str) -> None:
    row, expected = SHAPES[kind]
    for name, text in (("q.json", json.dumps([row], indent=1)), ("q.jsonl", json.dumps(row) + "\n")):
        (tmp_path / name).write_text(text)
        assert load_questions(tmp_path / name) == load_questions(tmp_path / name, kind) == [expected]


@pytest.mark.parametrize(
    ("place", "kind", "scoring"),
    [
        ("triviaqa/test.jsonl", None, "triviaqa"),
        ("FlashRAG/nq_test.jsonl", None, "squad"),
        ("data/test.jsonl", "triviaqa", "triviaqa"),
        ("popqa/test.jsonl", None, "popqa"),
        ("hotpotqa/test.jsonl", None, None),
        ("data/test.jsonl", None, None),
    ],
)
def test_flashrags_files_are_scored_as_their_dataset(
    tmp_path: Path, place: str, kind: str | None, scoring: str | None
) -> None:
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(ROW)
    [question] = load_questions(tmp_path / place, kind)
    assert question.answers == SHAPES["flashrag"][1].answers and question.metadata.get("scoring") == scoring


def test_reads_the_long_tail_of_flashrags_popqa(tmp_path: Path) -> None:
    rows = [
        {"id": str(views), "question": "?", "golden_answers": ["x"], "metadata": {"s_pop": views}}
        for views in (99, 100)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [q.id for q in load_questions(tmp_path / "q.jsonl", "popqa-longtail")] == ["99"]


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


def test_reads_our_own_format(tmp_path: Path) -> None:
    questions = [question.model_copy(update={"id": kind}) for kind, (_, question) in SHAPES.items()]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(question.model_dump_json() + "\n" for question in questions))
    assert load_questions(path) == questions
    stored = StoredQuestions(questions)
    assert list(stored) == questions and stored[1:3] == questions[1:3] and stored[-1] == questions[-1]
    assert set(SHAPES) | {"rag-train", "popqa-longtail"} == set(FORMATS)


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
    (tmp_path / "bad").write_text('{"data": [{"title": "A"}]}')
    with pytest.raises(UserError, match="bad, line 1: no field 'paragraphs'; "):
        load_questions(tmp_path / "bad")


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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (ROW + "\n" + ROW.replace("Ann", ""), "line 2: the question has no answer"),
        (ROW + "\n" + ROW.replace('["Ann"]', "[]"), "line 2: the question has no answer"),
        (ROW + "\n" + ROW.replace('["Ann"]', '"Ann"'), "line 2: malformed (the answers are not a list"),
        (ROW + "\n" + ROW.replace('["Ann"]', "[null]"), "line 2: malformed (an answer is neither"),
        (ROW + "\n" + ROW.replace('"question"', '"q"'), "line 2: no field 'question'"),
        (ROW + "\n" + ROW.replace("Who directed A?", ""), "line 2: question: String should have at least 1"),
        (ROW + "\n" + ROW.replace("Who", "\\ud800"), "surrogates not allowed"),
        (ROW + "\n\n" + ROW, "line 3: duplicate id 'q', first at line 1"),
        (ROW + "\n" + ROW[:-9], "line 2: invalid JSON"),
        (f"[{ROW},\n{ROW}]", "row 2: duplicate id 'q', first at row 1"),
        (f"[{ROW}, 3]", "row 2: not a JSON object"),
        (f"[{ROW}", "invalid JSON"),
        ('{"prompt": "?", "reply": "!"}', "line 1: no known format has the fields 'prompt, reply'"),
        (json.dumps(SHAPES["musique"][0] | {"answerable": False}), "line 1: the question has no answer"),
        (json.dumps(SHAPES["hotpotqa"][0] | {"supporting_facts": ["A"]}), "line 1: not enough values"),
        (json.dumps(SHAPES["popqa"][0] | {"possible_answers": "Ann"}), "line 1: malformed"),
        (json.dumps(SHAPES["2wikimultihopqa"][0] | {"_id": 3}), "line 1: id: Input should be a valid string"),
        ('{"id": "q", "question": "?", "answers": ["a"], "hop": 2}', "line 1: hop: Extra inputs"),
        ("[]", "no questions"),
        ("", "no questions"),
        ("[\udce9]", "not UTF-8"),
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
