"""Targets that cannot be known from their prompts.

A model that is trained on such a target learns to invent. The factories leave them out, and `rag-train data check`
reports them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rag_train.questions.hops import fold, mentions
from rag_train.schema import PreferencePair, SFTRecord

FIXED = {
    *("a", "b", "c", "yes", "no", "true", "false", "nothing"),
    *("straightforward question", "single step question", "compound question", "complex question"),
}
"""Folded targets that are a choice, not knowledge."""
_TAG = re.compile(r"<A\d+\.\d+>|Q\d+\.\d+:?")
_SMALL = {"i", "what", "who", "whom", "whose", "where", "when", "which", "why", "how", "in", "of", "on", "to"}


def unknown(record: SFTRecord) -> list[str]:
    """Return what the trained text of an example from annotations says but its prompt does not.

    Of sentences and questions, only names and numbers are compared, of everything else the whole text. Examples
    from other sources say nothing by this measure: a model's own search may answer from memory.
    """
    if record.source != "gold":
        return []
    known = without_instruction(record)
    return [part for text in targets(record) for part in _parts(text) if not mentions(known, part)]


def targets(record: SFTRecord) -> Iterator[str]:
    """Yield the texts of the trained segments; of JSON, each string."""
    for segment in record.segments:
        text = segment.text.strip()
        if segment.trained and text.startswith(("{", "[")):
            yield from strings(text)
        elif segment.trained:
            yield text


def without_instruction(record: SFTRecord | PreferencePair) -> str:
    """Return the record's prompt without its instruction, which ends with a blank line; a whole prompt has none."""
    whole = isinstance(record, SFTRecord) and record.whole_prompt
    return record.prompt if whole else record.prompt.rpartition("\n\n")[2]


def strings(text: str) -> Iterator[str]:
    """Yield the strings in a JSON text; nothing if it is not valid JSON."""
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while values:
        match values.pop():
            case str() as value:
                yield value
            case list() as value:
                values += value
            case dict() as value:
                values += value.values()


def _parts(text: str) -> Iterator[str]:
    """Yield what a prompt must contain of a target."""
    text = _TAG.sub(" ", text)
    if text.rstrip().endswith("?") or (len(text.split()) > 3 and text.rstrip().endswith((".", "!"))):
        yield from names(text)
        return
    for part in text.split("&&"):  # HANRAG's answers to compound questions
        if fold(part) and fold(part) not in FIXED:
            yield part


def names(text: str) -> Iterator[str]:
    """Yield the names and numbers in a text; the capital of a sentence's first word makes no name."""
    for sentence in re.split(r"(?<=[.!?:;])\s+", text):
        for i, word in enumerate(sentence.split()):
            capital = i and word.strip("\"'“‘(")[:1].isupper() and fold(word) not in _SMALL
            if (capital or any(c.isdigit() for c in word)) and fold(word):
                yield word
