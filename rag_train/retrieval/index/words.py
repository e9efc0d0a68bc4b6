"""The words of texts, for sparse indexes and their queries: how a text is divided, and which words are the same."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import Stemmer

from rag_train.errors import UserError
from rag_train.progress import say
from rag_train.schema import Passage

LONGEST_QUERY = 10_000
"""Characters of a query that count: more than any question, and few enough that no query takes long."""

LANGUAGES = (*Stemmer.algorithms(), "none")
"""Snowball's languages, and ``none``: words as they are written, and no stop words."""

_SCRIPTS = {
    **dict.fromkeys(("arabic", "persian"), "arabic"),
    **dict.fromkeys(("hindi", "nepali"), "devanagari"),
    **dict.fromkeys(("russian", "serbian"), "cyrillic"),
    **{"armenian": "armenian", "greek": "greek", "tamil": "tamil", "yiddish": "hebrew"},
}
"""Scripts of the languages that are not written in Latin letters."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese, which have no spaces between words, and of Korean,
whose words end in particles."""
_HAS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_RUN = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_LETTER = re.compile(r"[^\W\d_]")
_NOT_LATIN = re.compile(r"[^\W\d_\x00-\u024f]")
_INVISIBLE = re.compile("[\u00ad\u200c-\u200f\u2060\ufeff]|(?<=i)\u0307")
"""Soft hyphens, joiners and marks of direction; and the dot that is left of a Turkish capital I in lower case."""
_ELIDED = frozenset("cdjlmnst")
"""Stop words of bm25s that stand before an apostrophe only, where `split` drops them: "vitamine C" has no other."""


def split(text: str) -> list[str]:
    """Return the words of a text, all in lower case and in Unicode's form NFKC: equal words have equal characters.

    A word is a row of letters, digits and combining marks. A word of one character counts as any other
    ("Apollo 9"), and takes a following ``++`` or ``#`` ("C++", "C#"); it is dropped where an apostrophe joins it to
    a longer word or to the word before ("film's", "O'Brien"). A row of letters of a script without spaces becomes
    pairs of neighbouring letters.
    """
    if text.isascii():
        return _word().findall(text.lower())
    words = _word().findall(_INVISIBLE.sub("", unicodedata.normalize("NFKC", text).lower()))
    if not _HAS_UNSPACED.search(text):
        return words
    return [piece for word in words for run in _RUN.findall(word) for piece in _pairs(run)]


@cache
def _word() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code))[0] == "M")
    letter = rf"[\w{marks}]"
    return re.compile(rf"{letter}{letter}+|(?<!\w['’]){letter}(?:\+\+|\#)?(?!['’]{letter}{letter})")


def _pairs(run: str) -> list[str]:
    if len(run) < 3 or not _HAS_UNSPACED.match(run):
        return [run]
    return [run[i : i + 2] for i in range(len(run) - 1)]


class Words:
    """The words of texts in one language, stemmed and without stop words.

    Make one for each thread: a Snowball stemmer is not thread-safe.

    Args:
        language: one of `LANGUAGES`. Snowball's stemmer reduces words to stems. bm25s' list of stop words is used,
            if it has one of the language; of English, it is Lucene's.

    Raises:
        UserError: if the language is unknown.
    """

    def __init__(self, language: str):
        from bm25s import stopwords  # on first use: bm25s takes long to import

        if language not in LANGUAGES:
            raise UserError(f"language {language!r}: unknown; give one of {', '.join(LANGUAGES)}")
        name = "EN" if language == "english" else language.upper()
        self._stopwords = frozenset(getattr(stopwords, f"STOPWORDS_{name}", ())) - _ELIDED
        self._stem = None if language == "none" else Stemmer.Stemmer(language).stemWord
        self._stems: dict[str, str] = {}

    def __call__(self, text: str) -> list[str]:
        """Return the words of a text."""
        return [word for word in self.with_gaps(text) if word]

    def with_gaps(self, text: str) -> list[str]:
        """Return the words of a text, with an empty string in place of each stop word."""
        known, found = self._stems, split(text)
        for word in found:
            if word not in known:
                known[word] = "" if word in self._stopwords else self._stem(word) if self._stem else word
        return [known[word] for word in found]


def indexed_text(passage: Passage) -> str:
    """Return the searchable text of a passage: its title and its text."""
    return f"{passage.title} {passage.text}"


def telling_scripts(passages: Iterable[Passage], language: str) -> Iterator[Passage]:
    """Yield the passages, and say at the end how many are in scripts of which a search finds less.

    These are scripts that the language's stemmer does not read, and scripts without spaces between words.
    """
    own = _SCRIPTS.get(language, "latin")
    foreign: Counter[str] = Counter()
    total = unspaced = 0
    for passage in passages:
        total += 1
        script = _script(passage.text)
        unspaced += script == ""
        if script and script not in (own, "hangul"):  # Korean has spaces, and its words are pairs, too
            foreign[script] += 1
        yield passage
    if unspaced:
        say(
            f"{unspaced:,} of {total:,} passages are in scripts without spaces between words, such as Chinese: "
            "indexed as pairs of characters"
        )
    if foreign and language != "none":
        scripts = ", ".join(script.capitalize() for script, _ in foreign.most_common())
        say(
            f"{foreign.total():,} of {total:,} passages are in scripts that the stemmer of {language} does not "
            f"read ({scripts}): a search finds their words only as they are written; --language sets another"
        )


def _script(text: str) -> str | None:
    """Return the script of most letters at the beginning of a text, as Unicode names it.

    It is "" for scripts without spaces, and None without letters.
    """
    start = text[:500]
    letters = [] if start.isascii() else _NOT_LATIN.findall(start)
    if 4 * len(letters) < len(start):
        return "latin" if _LETTER.search(start) else None
    names = Counter(unicodedata.name(letter, "unknown").partition(" ")[0].lower() for letter in letters[:50])
    script = names.most_common(1)[0][0]
    return "" if script != "hangul" and any(map(_HAS_UNSPACED.match, letters)) else script
