"""Looking ahead to the next sentence of a chain of thought, for methods that decide after each sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rag_train.formats import deeprag, reader
from rag_train.llm.base import TokenLogprob
from rag_train.schema import Passage
from rag_train.strategies.base import ANSWER_LINE, Run

AHEAD = replace(ANSWER_LINE, logprobs=1)
_END = re.compile(r"[.!?][\"')\]]*(?=\s+[\"'(\[]?[A-Z0-9]|\s*$)")
_NO_END = re.compile(r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Lt|Rev|No|vs|etc|e\.g|i\.e|c|ca))\.$")


async def look_ahead(
    run: Run, module: str, passages: Sequence[Passage], text: str
) -> tuple[str, list[TokenLogprob]]:
    """Write the sentence after ``text``; return it with its tokens. A sentence that was cut is empty.

    The model writes a line, because a tokenizer may show the end of a sentence only with the first token of the
    next one. What belongs to later sentences is left out.
    """
    got = await run.complete(module, thought_prompt(run, passages, text), AHEAD)
    sentence = first_sentence(got.text)
    if got.truncated and sentence == got.text:
        return "", []
    tokens, at = [], 0
    for token in got.chosen:
        if at < len(sentence):
            tokens.append(token)
        at += len(token.text)
    return sentence, tokens


async def final_answer(run: Run, module: str, passages: Sequence[Passage], text: str) -> str:
    """Ask for the answer after the thoughts in ``text``."""
    prompt = thought_prompt(run, passages, f"{text}\n{deeprag.FINAL}")
    return (await run.complete(module, prompt, ANSWER_LINE)).whole or ""


def thought_prompt(run: Run, passages: Sequence[Passage], text: str) -> str:
    """Return the prompt of a chain of thought that begins with ``text``."""
    body = reader.prompt(run.question.question, passages, reason=True).removesuffix(reader.THOUGHT)
    return run.prompt("cot_rag" if passages else "cot", body, reader.THOUGHT + text)


def first_sentence(text: str) -> str:
    """Return the text up to the end of its first sentence; initials and titles do not end a sentence."""
    ends = (
        match.end()
        for match in _END.finditer(text)
        if not _NO_END.search(text[max(0, match.end() - 8) : match.end()])
    )
    return text[: next(ends, len(text))]
