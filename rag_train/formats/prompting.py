"""Prompts in the model's chat template, if it has one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from rag_train.formats.deeprag import question_prompt
from rag_train.formats.instructions import Given
from rag_train.llm.control import MARK, control_tokens, trusted
from rag_train.llm.thoughts import closed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TODAY = date(2024, 7, 26)
"""The date that chat templates get when they ask for today's, so that prompts in training and at inference are the
same on every day. It is the one that Llama's templates write if they are not told any."""


def as_turn(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """Return ``prompt`` as the user's turn, up to the beginning of the assistant's turn.

    Without a chat template (a base model), return ``prompt`` itself. A thought that the template begins is closed,
    because what follows the prompt is the answer.
    """
    if not tokenizer.chat_template:
        return prompt
    return _turns(tokenizer, [{"role": "user", "content": prompt.rstrip("\n")}])


def _turns(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> str:
    """Render the chat template, up to the beginning of the assistant's turn.

    Only the control tokens that the template writes are marked as such (`rag_train.llm.control`): those in the
    messages are text.
    """
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        hidden.append(match[0])
        return f"{MARK}{len(hidden) - 1};"

    untrusted = control_tokens(tokenizer).untrusted
    readable = [message | {"content": untrusted.sub(hide, message["content"])} for message in messages]
    text = tokenizer.apply_chat_template(
        readable, tokenize=False, add_generation_prompt=True, strftime_now=TODAY.strftime
    )
    assert isinstance(text, str)
    return re.sub(f"{MARK}(\\d+);", lambda match: hidden[int(match[1])], trusted(tokenizer, closed(text)))


def task_prompt(question: str, instructions: Given, *names: str) -> str:
    """Return instructions and question, as stored in the records, independent of the model's chat template."""
    texts = (instructions[name].text for name in names) if instructions else ()
    return "\n\n".join([*texts, question_prompt(question)])


def conversation(tokenizer: PreTrainedTokenizerBase, system: str, turns: Sequence[str]) -> str:
    """Return a conversation in the chat template, up to the beginning of the assistant's turn.

    The ``turns`` of user and assistant alternate. A template that has no system's turn gets the text of ``system``
    at the beginning of the user's first turn.
    """
    from jinja2 import TemplateError

    messages = [{"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)]
    try:
        return _turns(tokenizer, [{"role": "system", "content": system}, *messages])
    except TemplateError:
        messages[0]["content"] = f"{system}\n\n{turns[0]}"
        return _turns(tokenizer, messages)


def few_shot_prompt(tokenizer: PreTrainedTokenizerBase, examples: Sequence[tuple[str, str]], question: str) -> str:
    """Return a prompt that asks ``question`` after worked examples, each a question and its short answer.

    With a chat template, each example is a pair of turns.
    """
    if not tokenizer.chat_template:
        return "".join(f"Question: {q}\nAnswer: {a}\n" for q, a in examples) + f"Question: {question}\nAnswer:"
    turns = [
        message
        for q, a in examples
        for message in ({"role": "user", "content": q}, {"role": "assistant", "content": a})
    ]
    return _turns(tokenizer, [*turns, {"role": "user", "content": question}])
