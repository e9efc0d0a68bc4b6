"""Retrieval measures against cases counted by hand, and gold passages in the real corpus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA

from rag_train.errors import UserError
from rag_train.eval.metrics.measures import success
from rag_train.eval.metrics.retrieval import (
    CHUNK,
    CUTOFFS,
    Gold,
    evaluate_retriever,
    gold_passages,
    gold_sentences,
    question_scores,
    retrieval_table,
    sentence_match,
)
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage, Question


def question(i: str, *golds: Passage, answer: str = "Rome") -> Question:
    return Question(id=i, question=f"question {i}", answers=[answer], gold_passages=list(golds))


def ranked(*ids: str) -> list[Passage]:
    """Return passages in the given order, all with the same score."""
    return [Passage(id=id, text=f"text of {id}", score=1.0) for id in ids]


class Fixed:
    name = "fixed"

    def __init__(self, found: Sequence[list[Passage]]):
        self.found = {f"question {i}": passages for i, passages in enumerate(found)}

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.found[query][:k] for query in queries]


# -- gold passages ----------------------------------------------------------------------------------------------


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
        question("3"),
    ]
    assert gold_passages(asked, iter(corpus)) == [
        Gold(found=[["1", "2"]], missing=0),
        Gold(found=[["4"]], missing=0),
        Gold(found=[["3"]], missing=1),
        Gold(found=[], missing=0),
    ]


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "corpus.jsonl").exists(), reason="no real corpus next to this checkout")
def test_real_corpus_contains_every_gold_passage() -> None:
    names = {"hotpotqa": ("dev_hard", "train_100"), "2wikimultihopqa": ("dev", "train_sample")}
    files = [f"{folder}/{name}.json" for folder, both in names.items() for name in both]
    files += ["musique/dev.jsonl", "musique/train_100.jsonl", "popqa/with_passages.json"]
    asked = [question for file in files for question in load_questions(DATA / file)]
    golds = gold_passages(asked, read_corpus(DATA / "corpus.jsonl"))
    assert sum(gold.missing for gold in golds) == 0
    # The 20 questions without gold passages are rows of 2WikiMultihopQA without context.
    assert sum(len(gold.found) for gold in golds) > 3500 and sum(not gold.found for gold in golds) == 20


@pytest.mark.skipif(not (DATA / "hotpotqa").exists(), reason="no real questions next to this checkout")
def test_real_gold_passages_contain_the_gold_sentences() -> None:
    for file in ("hotpotqa/dev_hard.json", "2wikimultihopqa/dev.json"):
        sentences = gold_sentences(DATA / file)
        judged = [q for q in load_questions(DATA / file) if q.gold_passages]
        assert len(judged) > 80
        for q in judged:
            assert sentence_match(sentences[q.id], q.gold_passages) == (1.0, 1.0)


@pytest.mark.parametrize("content", ["", "[1]", '[{"_id": "1"}]', '[{"supporting_facts": [1]}]', "[" * 99_999])
def test_rejects_files_without_gold_sentences(tmp_path: Path, content: str) -> None:
    (tmp_path / "questions.json").write_text(content)
    with pytest.raises(UserError, match="no supporting sentences"):
        gold_sentences(tmp_path / "questions.json")


# -- measures ---------------------------------------------------------------------------------------------------


def test_measures_of_a_ranking() -> None:
    gold = Gold(found=[["a"], ["b", "b2"]], missing=0)
    # b2 and b are copies of one gold passage, found at rank 2; the second copy has no rank.
    (scores,) = question_scores([question("0")], [gold], [ranked("x", "b2", "b", "y", "a", "z")], {})
    assert scores["recall@2"] == 0.5 and scores["recall@5"] == scores["recall@10"] == 1
    assert (scores["precision@2"], scores["precision@5"], scores["precision@10"]) == (0.5, 0.4, 0.2)
    assert scores["mrr"] == 0.5
    ideal = 1 + 1 / math.log2(3)
    assert scores["ndcg@2"] == pytest.approx(1 / math.log2(3) / ideal)
    assert scores["ndcg@5"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)


@given(
    golds=st.lists(st.sets(st.sampled_from("abcdefghijkl"), max_size=4), min_size=1, max_size=4),
    order=st.permutations("abcdefghijkl"),
    depth=st.integers(0, 10),
)
def test_trec_measures_follow_their_definitions(golds: list[set[str]], order: list[str], depth: int) -> None:
    """The given order counts, not scores or ids, also for questions without any passage."""
    asked = [question(str(i)) for i in range(len(golds))]
    found = [ranked(*order[:depth])] * len(golds)
    given_golds = [Gold(found=[[id] for id in sorted(gold)], missing=0) for gold in golds]
    for gold, scores in zip(golds, question_scores(asked, given_golds, found, {}), strict=True):
        if not gold:
            assert set(scores) == {f"success@{k}" for k in CUTOFFS}
            continue
        for k in CUTOFFS:
            hits = len(gold & set(order[: min(k, depth)]))
            assert scores[f"recall@{k}"] == pytest.approx(hits / len(gold))
            assert scores[f"precision@{k}"] == pytest.approx(hits / k)
        first = next((rank for rank, id in enumerate(order[:depth], 1) if id in gold), math.inf)
        assert scores["mrr"] == pytest.approx(1 / first)


def test_success_needs_an_answer_in_title_or_text() -> None:
    asked = Question(id="0", question="q", answers=["The Hague", "Den Haag"])
    assert success(asked, [Passage(id="1", text="no"), Passage(id="2", text="In the  HAGUE.")])
    assert success(asked, [Passage(id="1", title="Den Haag", text="A city.")])
    assert not success(asked, [Passage(id="1", text="Haguenau")]) and not success(asked, [])


def test_matches_gold_sentences_by_chunks() -> None:
    long = "Andrei Tarkovsky directed the film in the year 1972 and it was shown at Cannes, where it won a prize."
    assert len(long) > 2 * CHUNK - 1
    sentences = [long, "It is short."]
    halved = Passage(id="1", text="... 1972 AND it was shown at Cannes -- where it won a prize!")
    tail = Passage(id="2", text="a prize")  # the remainder after the last chunk does not count
    short = Passage(id="3", text="it is, short")
    assert sentence_match(sentences, [halved, tail]) == (0.0, 0.0)  # neither passage contains a whole chunk
    start = Passage(id="4", text="Andrei Tarkovsky directed the film in the year 1972 and")
    assert sentence_match(sentences, [start, tail]) == (0.5, 0.5)
    assert sentence_match(sentences, [start, tail, short, tail]) == (0.5, 1.0)
    assert sentence_match(sentences, []) == (0.0, 0.0)


@given(st.text(min_size=1).filter(lambda text: any(c.isalnum() for c in text)))
def test_passage_that_contains_the_sentence_matches(sentence: str) -> None:
    assert sentence_match([sentence], [Passage(id="1", text=f"Before. {sentence} After.")]) == (1.0, 1.0)


def test_evaluation_leaves_out_questions_without_gold_passages() -> None:
    asked = [question(str(i)) for i in range(4)]
    golds = [
        Gold(found=[["a"]], missing=0),
        Gold(found=[["a"]], missing=1),
        Gold(found=[], missing=0),
        Gold(found=[["c"]], missing=0),
    ]
    found = [ranked("a"), ranked("a"), [Passage(id="z", text="Rome, in the end of it all.")], []]
    run = evaluate_retriever(
        Fixed(found), asked, golds, {"2": ["Rome, in the end"], "9": ["nobody asked"]}, "set", batch=3
    )
    assert (run.retriever, run.dataset, run.questions, run.judged) == ("fixed", "set", 4, 2)
    assert run.measures["recall@2"].mean == 0.5 and run.measures["recall@2"].lo < 0.5 < run.measures["recall@2"].hi
    assert run.measures["success@2"].mean == 0.25
    assert run.measures["sentence_recall@2"].mean == run.measures["sentence_precision@2"].mean == 1
    assert run.queries_per_second == 4 / run.seconds
    table = retrieval_table([run, evaluate_retriever(Fixed(found), asked[2:3], golds[2:3])])
    assert table.rows[0][:6] == ["fixed", "set", "2", "50.0", "50.0", "50.0"]
    assert table.rows[1][2:8] == ["0", "–", "–", "–", "–", "–"]
    with pytest.raises(UserError, match="no questions"):
        evaluate_retriever(Fixed([]), [], [])
