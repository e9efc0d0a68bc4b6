"""From a question to the text a model is given: an instruction from ``prompts/``, and a chat turn if need be."""

from __future__ import annotations

from importlib.resources import files

from transformers import PreTrainedTokenizerBase

from rag_train.formats.deeprag import question_prompt


def instruction(name: str) -> str:
    """The text of ``prompts/<name>.txt`` without its leading ``#`` lines, which cite the source."""
    text = (files("rag_train") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip()


def as_turn(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """``prompt`` as the user's turn, up to where the assistant's answer begins; a tokenizer without a chat
    template (a base model's) gets it as it is."""
    if not tokenizer.chat_template:
        return prompt
    turn = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.rstrip("\n")}], tokenize=False, add_generation_prompt=True
    )
    assert isinstance(turn, str)
    return turn


def task_prompt(question: str, task: str | None) -> str:
    """Instruction and question: what the records keep, independent of the model's chat template.

    ``task`` names the instruction file; None is for models trained without one, such as the mini model.
    """
    head = f"{instruction(task)}\n\n" if task else ""
    return head + question_prompt(question)
