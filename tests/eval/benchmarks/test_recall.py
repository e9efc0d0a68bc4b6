"""Retrieval measures against cases counted by hand, and gold passages in the real corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.paths import DATA

from rag_train.errors import UserError
from rag_train.eval.benchmarks.recall import evaluate, gold_passages, main, recall, reciprocal_rank
from rag_train.eval.metrics.measures import success
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import encode, read_corpus
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.schema import Passage, Question


def question(i: str, *golds: Passage, answer: str = "Rome") -> Question:
    return Question(id=i, question=f"question {i}", answers=[answer], gold_passages=list(golds))


def ranked(*ids: str) -> list[Passage]:
    return [Passage(id=id, text=f"text of {id}", score=1.0) for id in ids]


def test_finds_gold_passages_by_their_words() -> None:
    corpus = [
        Passage(id="1", title="Solaris (film)", text="A film , by Tarkovsky."),
        Passage(id="2", title="SOLARIS (film)", text="a film by  tarkovsky"),
        Passage(id="3", title="Solaris (novel)", text="A film, by Tarkovsky."),
        Passage(id="4", title="Ｗｉｄｅ", text="straße"),
    ]
    asked = [
        question("0", Passage(id="x", title="Solaris (Film)", text="A film, by Tarkovsky.")),
        question("1", Passage(id="x", title="Wide", text="Strasse"), Passage(id="y", title="WIDE", text="STRASSE")),
        question("2", Passage(id="x", title="Wide", text="another text"), corpus[2]),
        question("3", Passage(id="x", title="wide", text="")),
        question("4"),
    ]
    assert gold_passages(asked, iter(corpus)) == [[{"1", "2"}], [{"4"}], [set(), {"3"}], [{"4"}], []]


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "corpus.jsonl").exists(), reason="no real corpus next to this checkout")
def test_real_corpus_contains_every_gold_passage() -> None:
    names = {"hotpotqa": ("dev_hard", "train_100"), "2wikimultihopqa": ("dev", "train_sample")}
    files = [f"{folder}/{name}.json" for folder, both in names.items() for name in both]
    files += ["musique/dev.jsonl", "musique/train_100.jsonl", "popqa/with_passages.json"]
    asked = [question for file in files for question in load_questions(DATA / file)]
    golds = gold_passages(asked, read_corpus(DATA / "corpus.jsonl"))
    assert all(all(gold) for gold in golds)
    # The 20 questions without gold passages are rows of 2WikiMultihopQA without context.
    assert sum(map(len, golds)) > 3500 and golds.count([]) == 20


def test_copies_of_a_gold_passage_count_once() -> None:
    gold, found = [{"a"}, {"b", "b2"}], ranked("x", "b2", "b", "y", "a", "z")
    assert (recall(gold, found, 2), recall(gold, found, 4), recall(gold, found, 5)) == (0.5, 0.5, 1.0)
    assert (reciprocal_rank(gold, found), reciprocal_rank(gold, found[:1])) == (0.5, 0.0)


def test_success_needs_an_answer_in_title_or_text() -> None:
    asked = Question(id="0", question="q", answers=["The Hague", "Den Haag"])
    assert success(asked, [Passage(id="1", text="no"), Passage(id="2", text="In the  HAGUE.")])
    assert success(asked, [Passage(id="1", title="Den Haag", text="A city.")])
    assert not success(asked, [Passage(id="1", text="Haguenau")]) and not success(asked, [])


def test_evaluation_leaves_out_questions_without_gold_passages() -> None:
    class Fixed:
        name = "fixed"
        found = (ranked("a"), ranked("a"), [Passage(id="z", text="Rome, in the end of it all.")], [])

        def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            return [self.found[int(query[-1])][:k] for query in queries]

    measures = evaluate(Fixed(), [question(str(i)) for i in range(4)], [[{"a"}], [{"a"}, set()], [], [{"c"}]])
    assert measures["judged"] == 2 and measures["recall@2"] == measures["mrr"] == 50
    assert measures["success@10"] == 25 and "mrr" not in evaluate(Fixed(), [question("2")], [[]])
    with pytest.raises(UserError, match="no questions"):
        evaluate(Fixed(), [], [])


def test_each_file_and_the_questions_set_apart_have_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one name overwrote each other's measures."""
    passages = ranked("a", "b")
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(map(encode, passages)))
    build_bm25(passages, tmp_path / "index")
    files = [tmp_path / folder / "dev.jsonl" for folder in ("hotpotqa", "musique")]
    for file, letter in zip(files, "ab", strict=True):
        file.parent.mkdir()
        texts = (f"text of {letter}", "text")
        asked = [Question(id=t, question=t, answers=["x"], gold_passages=passages[:1]) for t in texts]
        file.write_text("".join(each.model_dump_json() + "\n" for each in asked))
    arguments = ["--corpus", tmp_path / "corpus.jsonl", "--index", tmp_path / "index", "--output", tmp_path]
    arguments += ["--questions", *files, "--apart", r"\b\w\b"]
    monkeypatch.setattr("sys.argv", ["recall", *map(str, arguments)])
    main()
    measures = json.loads((tmp_path / "recall.json").read_text())["measures"]
    assert [len(measures), *(each["judged"] for each in measures.values())] == [4, 2, 2, 1, 1]
    assert [each["mrr"] for each in measures.values()][2:] == [100, 50]
