"""What counts as a word in sparse indexes, in each language, and what indexing says about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.retrieval.index.words import Words, split
from rag_train.retrieval.open import build_index, load_index
from rag_train.schema import Passage

TEXTS = {
    "zh1": "北京是中华人民共和国的首都，位于华北平原。",
    "zh2": "黄山为三山五岳中三山之一，位于安徽省。",
    "ja": "東京は日本の首都です。人口は多い。",
    "ko": "서울은 대한민국의 수도이다.",
    "th": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
    "hi": "नई दिल्ली भारत की राजधानी है।",
    "ar": "الْقَاهِرَةُ هِيَ عَاصِمَةُ مِصْرَ",
    "ru": "Москва — столица России.",
    "nfc": "Beyonc\u00e9 Knowles is a singer.",
    "nfd": "The cafe\u0301 M\u00fcller.",
    "c": "C was made by Dennis Ritchie.",
    "cpp": "C++ is a language by Stroustrup.",
    "vitamin A": "Vitamin A is retinol.",
    "vitamin C": "Vitamin C is ascorbic acid.",
    "8": "Apollo 8 orbited the Moon.",
    "9": "Apollo 9 tested the lander.",
    "width": "ＡＢＣ is fullwidth, soft\u00adhyphen is not.",
    "tr": "İSTANBUL is a city",
}
PASSAGES = [Passage(id=id, text=text) for id, text in TEXTS.items()]

FOUND = {
    "Who flew on Apollo 9?": "9",
    "Apollo 9's crew": "9",
    "C++": "cpp",
    "made in C": "c",
    "vitamin C": "vitamin C",
    "黄山在哪个省": "zh2",
    "日本の首都": "ja",
    "서울": "ko",
    "ประเทศไทย": "th",
    "दिल्ली": "hi",
    "столица": "ru",
    "Beyonce\u0301": "nfc",
    "caf\u00e9 muller m\u00fcller": "nfd",
    "abc": "width",
    "softhyphen": "width",
    "Istanbul": "tr",
}


@pytest.fixture(scope="module", params=[BM25Index, LuceneIndex])
def index(request: pytest.FixtureRequest) -> Any:
    return request.param.build(PASSAGES)


@pytest.mark.parametrize("query", FOUND)
def test_finds_the_passage_with_the_words_of_the_query(index: Any, query: str) -> None:
    assert [passage.id for passage in index.search([query], 1)[0]] == [FOUND[query]]


@pytest.mark.parametrize(
    ("language", "query", "found"),
    [
        ("russian", "в столице", ["ru"]),
        ("english", "столице", []),
        ("arabic", "القاهرة", ["ar"]),
        ("none", "is", 4),
    ],
)
def test_the_language_sets_stems_and_stop_words(language: str, query: str, found: Any) -> None:
    for kind in (BM25Index, LuceneIndex):
        index = kind.build(PASSAGES, language)
        ids = [passage.id for passage in index.search([query], 4)[0]]
        assert (len(ids) if isinstance(found, int) else ids) == found
        assert language in str(index.identity)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The film's O'Brien, I'm 'S'", ["the", "film", "brien", "i", "s"]),
        ("C#, C++11 and notepad++", ["c#", "c++", "11", "and", "notepad"]),
        ("2020年に東京へ 山", ["2020", "年に", "に東", "東京", "京へ", "山"]),
        ("E=mc² zero\u200bwidth", ["e", "mc2", "zero", "width"]),
        ("", []),
    ],
)
def test_splits_texts(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_one_letter_before_an_apostrophe_is_no_word_but_alone_it_is() -> None:
    assert Words("french")("l'avion, la vitamine C") == ["avion", "vitamin", "c"]


def test_indexing_says_what_a_search_will_find_less_of(tmp_path: Path, capsys: Any) -> None:
    lines = (passage.model_dump_json(include={"id", "text"}) for passage in PASSAGES)
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    for kind in ("bm25", "lucene"):
        build_index(kind, tmp_path / "c.jsonl", tmp_path / kind, lambda _: None)
        said = " ".join(capsys.readouterr().err.split())
        assert "4 of 18 passages are in scripts without spaces" in said
        assert "3 of 18 passages are in scripts that the stemmer of english does not read" in said
        build_index(kind, tmp_path / "c.jsonl", tmp_path / kind, lambda _: None, language="none")
        assert "stemmer" not in capsys.readouterr().err
        assert "'none'" in str(load_index(tmp_path / kind).identity)
        with pytest.raises(UserError, match="unknown; give one of"):
            build_index(kind, tmp_path / "c.jsonl", tmp_path / kind, lambda _: None, language="klingon")
    with pytest.raises(UserError, match="--language is for bm25"):
        build_index("dense", tmp_path / "c.jsonl", tmp_path / "d", lambda _: None, language="german")
