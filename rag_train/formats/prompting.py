"""Prompts: an instruction from ``prompts/``, the question, and the model's chat template, if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from rag_train.formats.deeprag import question_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def instruction(name: str) -> str:
    """Return the text of ``prompts/<name>.txt`` without its ``#`` lines, which cite the source."""
    text = (files("rag_train") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip()


def as_turn(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """Return ``prompt`` as the user's turn, up to the beginning of the assistant's turn.

    Without a chat template (a base model), return ``prompt`` itself.
    """
    if not tokenizer.chat_template:
        return prompt
    turn = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.rstrip("\n")}], tokenize=False, add_generation_prompt=True
    )
    assert isinstance(turn, str)
    return turn


def task_prompt(question: str, task: str | None) -> str:
    """Return instruction and question, as stored in the records, independent of the model's chat template.

    ``task`` is the name of the instruction; None for models that were trained without one, such as the mini model.
    """
    head = f"{instruction(task)}\n\n" if task else ""
    return head + question_prompt(question)


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
    prompt = tokenizer.apply_chat_template(
        [*turns, {"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    assert isinstance(prompt, str)
    return prompt
