"""DRAGIN: retrieval at uncertain and important words, with a query of the words to which they attend."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from rag_train.formats.deeprag import one_line
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy
from rag_train.strategies.baselines.sentences import Ahead, look_ahead, think, thought_prompt

if TYPE_CHECKING:
    from rag_train.llm.transformers import Inspection

_FUNCTION_WORDS = """
a about above across after again against ago all almost along already also although always am among an and
another any anybody anyone anything are around as at away be became because become been before being below
between both but by can cannot could despite did do does doing done down during each either else enough ever
every everyone everything except few for from further had has have having he hence her here hers herself him
himself his how however i if in indeed instead into is it its itself just least less many may me might mine more
most much must my myself neither never no nobody none nor not nothing now of off often on once only onto or
other others our ours out over own perhaps quite rather shall she should since so some somebody someone
something soon still such than that the their theirs them themselves then there therefore these they this those
though through throughout thus to together too toward towards under until up upon us very was we were what when
where whereas whether which while who whom whose why will with within without would yes yet you your yours
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that are no nouns, adjectives, verbs, names or numbers, as the release's tagger would say."""


class Word(NamedTuple):
    """A word of the text, put together from its tokens.

    Attributes:
        start, end: its place in the text, in characters.
        tokens: numbers of its tokens.
    """

    start: int
    end: int
    tokens: Sequence[int]


@strategy("dragin", Bound(calls=17, retrievals=8))
@dataclass(frozen=True)
class DRAGIN(Strategy):
    """Write a sentence; if entropy times attention of a word exceeds a threshold, retrieve and write it again.

    The query consists of the words of question and thoughts to which these words attend most. As in the release,
    the attention to each word is divided by the mean over its sentence. Ours: a list of function words in place of
    a tagger, and the attention is averaged over the heads before its maximum is taken.
    """

    paper: ClassVar = "Su et al. 2024 (RIND, QFS); baseline of DeepRAG and DualRAG"
    roles: ClassVar = ()
    abilities: ClassVar = (Need("attention"),)

    threshold: float = 1.0
    """Threshold for the product of entropy (in nats) and attention. The release has 0.6 to 1.5, by model and
    dataset."""
    query_words: int = 25
    """Maximum number of words of a query."""
    rewrite: Literal["sentence", "rest"] = "sentence"
    """What is written again with the passages. sentence: the whole sentence (the release); rest: the sentence from
    the first word on that exceeds the threshold (the paper)."""
    max_sentences: int = 8
    """Maximum number of sentences."""

    async def solve(self, run: Run) -> Trajectory:
        async def write(text: str, passages: list[Passage]) -> tuple[Ahead, list[Passage]]:
            ahead = await look_ahead(run, "dragin", passages, text)
            kept, query = await self._query(run, thought_prompt(run, passages, text), text, ahead.text)
            if query:
                passages = await run.search(query)
                kept = kept if self.rewrite == "rest" else ""
                rest = await look_ahead(run, "dragin", passages, text + kept)
                ahead = rest._replace(text=kept + rest.text)
                run.retrieved(query, passages, ahead.text)
            return ahead, passages

        return await think(run, "dragin", self.max_sentences, write)

    async def _query(self, run: Run, prompt: str, thoughts: str, sentence: str) -> tuple[str, str]:
        """Return the part of ``sentence`` before the first word that triggers retrieval, and the query, if any."""
        if not sentence.strip():
            return "", ""
        llm: Any = self.kit.llm
        seen = await llm.inspect(prompt, sentence)
        text = prompt + sentence
        words = words_of(seen, text, len(prompt), len(text))
        hits = [word for word, value in importance(seen, text, words) if value > self.threshold]
        if not hits:
            return "", ""
        question = one_line(run.question.question)
        asked = max(0, prompt.rfind(question))
        before = [(asked, asked + len(question)), (len(prompt) - len(thoughts), len(prompt))]
        known = [word for start, end in before for word in words_of(seen, text, start, end)]
        query = attended(seen, text, [*known, *words], hits, self.query_words)
        return text[len(prompt) : hits[0].start].rstrip(), query or question


def words_of(seen: Inspection, text: str, begin: int, end: int) -> list[Word]:
    """Return the words of ``text[begin:end]``, which white space separates, with their tokens.

    Words are read from the text, not from the vocabulary's spelling.
    """
    words, i = [], 0
    for match in re.compile(r"\S+").finditer(text, begin, end):
        first, last = match.span()
        while i < len(seen.spans) and seen.spans[i][1] <= first:
            i += 1
        j = i
        while j < len(seen.spans) and seen.spans[j][0] < last:
            j += 1
        words.append(Word(first, last, range(i, j)))
    return words


def is_content(word: str) -> bool:
    """Whether a word is a noun, an adjective, a verb, a name or a number, rather than a function word."""
    bare = re.sub(r"^\W+|\W+$|['\u2019]s\b\W*$", "", word).lower()
    return bool(bare) and bare not in FUNCTION_WORDS


def importance(seen: Inspection, text: str, words: Sequence[Word]) -> list[tuple[Word, float]]:
    """Return the content words of the sentence, each with its entropy times its attention (RIND).

    The entropy of a word is the mean over its tokens. Its attention is the sum over its tokens of the highest
    attention from the sentence, divided by the mean over the sentence's words.
    """
    sentence = [word for word in words if word.tokens and word.tokens[0] >= seen.start]
    attention = [sum(float(seen.attention[i:, i].max()) for i in word.tokens) for word in sentence]
    mean = sum(attention) / max(1, len(attention))
    entropy = [sum(seen.entropy[i - seen.start] for i in word.tokens) / len(word.tokens) for word in sentence]
    return [
        (word, own * weight / mean)
        for word, own, weight in zip(sentence, entropy, attention, strict=True)
        if mean and is_content(text[word.start : word.end])
    ]


def attended(seen: Inspection, text: str, words: Sequence[Word], hits: Sequence[Word], count: int) -> str:
    """Return the ``count`` content words to which ``hits`` attend most, in the order of the text (QFS).

    The hits are not among them, because they are doubtful.
    """
    rows = [i for hit in hits for i in hit.tokens]
    scores = {
        word: float(seen.attention[rows][:, list(word.tokens)].sum())
        for word in words
        if word.tokens and word not in hits and is_content(text[word.start : word.end])
    }
    wanted = sorted(scores, key=lambda word: -scores[word])[:count]
    return " ".join(text[word.start : word.end].strip("\"'.,;:!?()[]") for word in sorted(wanted))
