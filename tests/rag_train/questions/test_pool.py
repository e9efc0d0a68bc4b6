"""A corpus of the passages that question files bring along."""

import json
from pathlib import Path

import pytest
from support.commands import call

from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.questions.pool import pool
from rag_train.retrieval.corpus import read_corpus

WIKI = {
    "_id": "w",
    "question": "Were A and B born in the same city?",
    "answer": "no",
    "type": "comparison",
    "supporting_facts": [["A", 0]],
    "context": [["A", ["A was born in C.", " C is a city."]], ["B", ["B was born in D."]]],
    "evidences": [["A", "place of birth", "C"]],
}
MUSIQUE = {
    "id": "2hop__1",
    "question": "Which river is A's city on?",
    "answer": "Seine",
    "answer_aliases": [],
    "question_decomposition": [{"question": "A >> city", "answer": "C", "paragraph_support_idx": 0}],
    "paragraphs": [
        {"idx": 0, "title": "A", "paragraph_text": "A lives in C.", "is_supporting": True},
        {"idx": 1, "title": "B", "paragraph_text": "B was born in D.", "is_supporting": False},
    ],
}


def write(path: Path, *rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_passage_of_all_questions_is_in_the_corpus_once(tmp_path: Path, capsys):
    wiki = write(tmp_path / "2wiki.jsonl", WIKI, WIKI | {"_id": "again"}, WIKI | {"_id": "none", "context": []})
    musique = write(tmp_path / "musique.jsonl", MUSIQUE)
    assert call("data", "pool", str(wiki), str(musique), "--output", str(tmp_path / "corpus.jsonl")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'corpus.jsonl'}: 3 passages\n"
    passages = {passage.id: passage for passage in read_corpus(tmp_path / "corpus.jsonl")}
    assert {id: (passage.title, passage.text) for id, passage in passages.items()} == {
        "A": ("A", "A was born in C. C is a city."),
        "B": ("B", "B was born in D."),
        "A/2": ("A", "A lives in C."),
    }
    for passage in load_questions(wiki)[0].gold_passages:
        assert passages[passage.id].text == passage.text


def test_files_without_passages_are_refused(tmp_path: Path):
    plain = write(tmp_path / "q.jsonl", {"question": "Who?", "answers": ["x"]})
    with pytest.raises(UserError, match=r"q\.jsonl: its questions bring no passages; give files of HotpotQA's"):
        pool([plain], tmp_path / "corpus.jsonl")
    broken = write(tmp_path / "b.jsonl", WIKI | {"context": [["A"]]})
    with pytest.raises(UserError, match=r"b\.jsonl, line 1: no passages as released"):
        pool([broken], tmp_path / "corpus.jsonl")
    assert not (tmp_path / "corpus.jsonl").exists()
