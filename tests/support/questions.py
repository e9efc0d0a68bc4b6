"""Rows of each released question file, and the questions that are read from them."""

from __future__ import annotations

import json
from typing import Any

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
        Question(
            id="q",
            question="Who directed A? (A) Bob (B) Ann",
            answers=["Ann", "B"],
            metadata={"scoring": "choice"},
        ),
    ),
    "mmlu": (
        {"question": "Who directed A?", "subject": "film", "choices": ["Bob", "Ann"], "answer": 1},
        Question(
            id="0",
            question="Who directed A? (A) Bob (B) Ann",
            answers=["Ann", "B"],
            type="film",
            metadata={"scoring": "choice"},
        ),
    ),
    "ambigqa": (
        {
            "id": "q",
            "question": "Who directed A?",
            "annotations": [
                {"type": "singleAnswer", "answer": ["Ann", "Anne"]},
                {
                    "type": "multipleQAs",
                    "qaPairs": [{"question": "?", "answer": ["Bo"]}, {"question": "?", "answer": ["Ann"]}],
                },
            ],
        },
        Question(**COMMON | {"answers": ["Ann", "Anne", "Bo"]}),
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
    "kilt": (
        {
            "id": "q",
            "input": "Who directed A?",
            "output": [
                {"answer": "Ann", "provenance": [{"wikipedia_id": "7", "title": "A", "start_paragraph_id": 1}]},
                {"provenance": [{"wikipedia_id": 8, "title": "B"}, {"wikipedia_id": "7", "title": "A"}]},
            ],
        },
        Question(
            **COMMON,
            gold_passages=[Passage(id="7", title="A", text=""), Passage(id="8", title="B", text="")],
            metadata={"scoring": "squad"},
        ),
    ),
    "fid": (
        {"question": "Who directed A?", "target": "Ann", "answers": ["Anne", "Ann"], "ctxs": [{"title": "A"}]},
        Question(**COMMON | {"id": "0", "answers": ["Ann", "Anne"]}, hops=1, metadata={"scoring": "squad"}),
    ),
    "beir": (
        {"_id": "q", "text": "Who directed A?", "metadata": {"answer": "Ann"}},
        Question(**COMMON),
    ),
    "plain": ({"question": "Who directed A?", "answer": "Ann", "hops": ""}, Question(**COMMON | {"id": "0"})),
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
