"""Thoughts that a model writes before its answer, such as ``<think>...</think>``: the answer does not have them."""

from __future__ import annotations

import re
from dataclasses import replace

from rag_train.llm.base import Completion

_NAME = "(?:seed:)?(?:think|thinking|thought|thoughts|reasoning)"
_OPEN = re.compile(rf"[<\[◁]{_NAME}[>\]▷]|<\|start_thinking\|>|<\|channel\|>analysis", re.IGNORECASE)
_TAG = re.compile(rf"<{_NAME}>", re.IGNORECASE)
"""A beginning that is taken for one anywhere in a text: in prose, words in brackets may mean something else."""
_CLOSE = re.compile(rf"[<\[◁]/{_NAME}[>\]▷]|<\|end_thinking\|>|<\|channel\|>final<\|message\|>", re.IGNORECASE)
_BEGUN = re.compile(rf"([<\[◁])({_NAME}[>\]▷])\s*$", re.IGNORECASE)


def has_thoughts(text: str) -> bool:
    """Whether a text begins with marked thoughts, or holds the mark of their end."""
    return bool(_OPEN.match(text.lstrip()) or _CLOSE.search(text))


def after_thoughts(text: str) -> str | None:
    """Return what follows the thoughts, or ``text`` if there are none; None if the text ends within thoughts.

    Thoughts that the prompt has begun have only an end in the text.
    """
    ends = list(_CLOSE.finditer(text))
    after = text[ends[-1].end() :].lstrip("\n") if ends else text
    return None if _OPEN.match(after.lstrip()) or _TAG.search(after) else after


def without_thoughts(completion: Completion) -> Completion:
    """Return a completion without thoughts and their tokens; one that ends within thoughts is cut."""
    text = after_thoughts(completion.text)
    if text == completion.text:
        return completion
    if text is None:
        return replace(completion, text="", token_ids=(), logprobs=(), stop=None, truncated=True)
    tokens = [token.text for token in completion.chosen]
    end = max((match.end() for match in _CLOSE.finditer("".join(tokens))), default=0)
    first = next((i for i in range(len(tokens)) if sum(map(len, tokens[: i + 1])) > end), len(tokens))
    return replace(
        completion, text=text, token_ids=completion.token_ids[first:], logprobs=completion.logprobs[first:]
    )


def closed(turn: str) -> str:
    """Return a prompt whose last thought is empty and closed if the prompt begins one: an answer is asked for."""
    return _BEGUN.sub(r"\1\2\n\n\1/\2\n\n", turn)
