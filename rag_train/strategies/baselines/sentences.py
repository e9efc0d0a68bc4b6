"""Chains of thought that are written sentence by sentence, for methods that decide on each sentence."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rag_train.formats import deeprag, reader
from rag_train.llm.base import TokenLogprob
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import ANSWER_LINE, Run

AHEAD = replace(ANSWER_LINE, logprobs=1)
_END = re.compile(r"[.!?][\"')\]]*(?=\s+[\"'(\[]?[A-Z0-9]|\s*$)")
_NO_END = re.compile(r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Lt|Rev|No|vs|etc|e\.g|i\.e|c|ca))\.$")


class Ahead(NamedTuple):
    """The next sentence, its tokens, and whether the model ends its thoughts with it."""

    text: str
    tokens: Sequence[TokenLogprob]
    last: bool


Write = Callable[[str, list[Passage]], Awaitable[tuple[Ahead, list[Passage]]]]
"""Writes the sentence after a text, given the passages of the sentence before; returns it with its passages."""


async def think(run: Run, module: str, most: int, write: Write) -> Trajectory:
    """Write at most ``most`` sentences and then the answer, unless one of the sentences states it."""
    sentences: list[str] = []
    passages: list[Passage] = []
    for _ in range(most):
        ahead, passages = await write("".join(f" {sentence}" for sentence in sentences), passages)
        sentence = deeprag.one_line(ahead.text)
        if not sentence or sentence in sentences:
            break
        sentences.append(sentence)
        if ahead.last or reader.parse(sentence)[1]:
            break
    else:
        run.cut(f"ended after max_sentences={most}")
    reasoning, answer = reader.parse(" ".join(sentences))
    if answer is None:
        before = f" {reasoning}\n" if reasoning else "\n"
        prompt = thought_prompt(run, passages, before + deeprag.FINAL)
        answer = (await run.complete(module, prompt, ANSWER_LINE)).whole
    return run.done(answer, reasoning)


async def look_ahead(run: Run, module: str, passages: Sequence[Passage], text: str) -> Ahead:
    """Write the sentence after ``text``. A sentence that was cut is empty.

    The model writes a line, because a tokenizer may show the end of a sentence only with the first token of the
    next one. What belongs to later sentences is left out.
    """
    got = await run.complete(module, thought_prompt(run, passages, text), AHEAD)
    sentence = first_sentence(got.text)
    if got.truncated and sentence == got.text:
        return Ahead("", [], True)
    tokens, at = [], 0
    for token in got.chosen:
        if at < len(sentence):
            tokens.append(token)
        at += len(token.text)
    return Ahead(sentence, tokens, not got.text[len(sentence) :].strip())


def thought_prompt(run: Run, passages: Sequence[Passage], text: str) -> str:
    """Return the prompt of a chain of thought that begins with ``text``."""
    fields = reader.fields(run.question.question, passages)
    return run.prompt("cot_rag" if passages else "cot", fields, reader.THOUGHT, begun=text)


def first_sentence(text: str) -> str:
    """Return the text up to the end of its first sentence; initials and titles do not end a sentence."""
    ends = (
        match.end()
        for match in _END.finditer(text)
        if not _NO_END.search(text[max(0, match.end() - 8) : match.end()])
    )
    return text[: next(ends, len(text))]
