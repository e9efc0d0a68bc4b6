"""Thoughts that a model writes before its answer, such as ``<think>...</think>``: the answer does not have them."""

from __future__ import annotations

import re
from dataclasses import replace

from rag_train.llm.base import Completion

_NAME = "(?i:think|thinking|thought|reasoning|seed:think)"
_BEGIN = re.compile(rf"<{_NAME}>|\[THINK\]")
_END = re.compile(rf"</{_NAME}>|\[/THINK\]")
_WHOLE = re.compile(rf"(?:{_BEGIN.pattern}).*?(?:{_END.pattern})", re.DOTALL)
_BEGUN = re.compile(rf"({_BEGIN.pattern})\s*$")


def spoken(text: str) -> str | None:
    """Return ``text`` without thoughts; None if the text ends within a thought.

    A thought that the prompt has begun has only an end in the text.
    """
    said = _END.split(_WHOLE.sub("", text))[-1]
    if _BEGIN.search(said):
        return None
    return text if said == text else said.lstrip("\n")


def without_thoughts(completion: Completion) -> Completion:
    """Return a completion without thoughts and their tokens.

    A text that ends within a thought is cut: it has no answer.
    """
    said = spoken(completion.text)
    if said == completion.text:
        return completion
    if said is None:
        return replace(completion, text="", token_ids=(), logprobs=(), stop=None, truncated=True)
    first, at = 0, 0
    tokens = [token.text for token in completion.chosen]
    ends = [match.end() for match in _END.finditer("".join(tokens))]
    while ends and first < len(tokens) and at + len(tokens[first]) <= ends[-1]:
        at += len(tokens[first])
        first += 1
    return replace(
        completion, text=said, token_ids=completion.token_ids[first:], logprobs=completion.logprobs[first:]
    )


def closed(turn: str) -> str:
    """Return a prompt with an empty thought in place of one that it begins: the answer is what is asked for."""
    if not (begun := _BEGUN.search(turn)):
        return turn
    return f"{turn.rstrip()}\n\n{begun[1][0]}/{begun[1][1:]}\n\n"
