"""Settings, tokenizer and searchable text of BM25, for building and for searching an index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import Stemmer

from rag_train.answers import composed
from rag_train.errors import UserError
from rag_train.progress import console
from rag_train.schema import Passage

LONGEST_QUERY = 10_000
"""Characters of a query that count: more than any question, and few enough that no query takes long."""

_WORD = re.compile(r"\b\w\w+\b")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True)
class BM25Config:
    """Settings of the tokenizer and of BM25.

    Attributes:
        lowercase: whether to ignore case.
        stopwords: ``en`` removes Lucene's 33 English stop words.
        stemmer: ``english`` reduces words to their stems with Snowball's English stemmer.
        k1: how slowly repetitions of a term saturate; above 0.
        b: how strongly long passages are discounted; from 0 to 1.
        method: the scoring formula; ``lucene`` is used by Lucene, Elasticsearch and Pyserini.
    """

    lowercase: bool = True
    stopwords: Literal["en"] | None = "en"
    stemmer: Literal["english"] | None = "english"
    k1: float = 1.5
    b: float = 0.75
    method: Literal["lucene"] = "lucene"

    def __post_init__(self) -> None:
        if not 0 < self.k1 < float("inf"):
            raise UserError(f"bm25: k1 is {self.k1}; give a number above 0, such as 1.5")
        if not 0 <= self.b <= 1:
            raise UserError(f"bm25: b is {self.b}; give a number from 0 to 1, such as 0.75")


def tokenizer(config: BM25Config) -> Callable[[str], list[str]]:
    """Return a function that splits text into words of two or more characters, removes stop words and stems.

    Both ways of writing an accent in Unicode give the same words.
    Create one tokenizer per thread: a Snowball stemmer is not thread-safe.
    """
    from bm25s.stopwords import STOPWORDS_EN

    stopwords = frozenset(STOPWORDS_EN if config.stopwords else ())
    stem = Stemmer.Stemmer(config.stemmer).stemWords if config.stemmer else list

    def tokenize(text: str) -> list[str]:
        text = composed(text)
        words = _WORD.findall(text.lower() if config.lowercase else text)
        return stem([word for word in words if word not in stopwords])

    return tokenize


def indexed_text(passage: Passage) -> str:
    """Return the searchable text of a passage: its title and its text."""
    return f"{passage.title} {passage.text}"


def telling_unspaced(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yield the passages, and say at the end how many are in scripts whose words this module cannot tell apart."""
    total = unspaced = 0
    for passage in passages:
        total += 1
        unspaced += not passage.text.isascii() and 2 * len(_UNSPACED.findall(passage.text)) > len(passage.text)
        yield passage
    if unspaced:
        console.print(
            f"{unspaced:,} of {total:,} passages are in scripts without spaces between words, such as Chinese: a "
            "search for one of their words will not find them; use --kind dense",
            soft_wrap=True,
        )
