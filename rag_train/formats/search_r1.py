"""Search-R1's transcripts: the model's thoughts, searches and answer in tags, and the passages that it gets.

The wording is that of the released code, so that its checkpoints read what they were trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rag_train.schema import Passage

STOPS = ("</search>", "</answer>")
"""Ends of the two actions, at which the model's turn ends."""
INVALID = (
    "\nMy previous action is invalid. "
    "If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. "
    "Let me try again.\n"
)
"""What the program writes after a turn without an action."""

TAGS = tuple(f"<{end}{name}>" for name in ("think", "search", "information", "answer") for end in ("", "/"))
"""The format's tags, which some checkpoints have as tokens of their own."""

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class Action(NamedTuple):
    """An action, ``search`` or ``answer``, with its query or answer."""

    kind: str
    text: str


def action(turn: str) -> Action | None:
    """Return the first action in the text of a turn, or None if there is none or its tags are empty."""
    match = _ACTION.search(turn)
    text = match[2].strip() if match else ""
    return Action(match[1], text) if match and text else None


def information(passages: Sequence[Passage], own: Callable[[str], str] = str) -> str:
    """Return the passages as the program inserts them after a search. ``own`` marks the tags around them."""
    text = "\n".join(f"Doc {i}(Title: {passage.title}) {passage.text}" for i, passage in enumerate(passages, 1))
    return f"\n\n{own('<information>')}{text}{own('</information>')}\n\n"
