"""Engine calls of a transcript, for tests of stage rl."""

from __future__ import annotations

from typing import Any

from support.training import TOKENIZER

from rag_train.formats import deeprag
from rag_train.llm.base import Completion, TokenLogprob, Usage
from rag_train.schema import Passage
from rag_train.training.rl.rows import Turn

PROMPT = deeprag.question_prompt("Where was it?")
FOUND = "\n" + deeprag.context_lines([Passage(id="p", title="T", text="Follow up: this is no step.")])
FOUND += deeprag.INTERMEDIATE


def turn(prompt: str, text: str, stop: str | None = None, ids: list[int] | None = None) -> Turn:
    """An engine call that wrote ``text`` with a log-probability of -0.1, -0.2, ... for its tokens."""
    sampled: Any = TOKENIZER(text + (stop or ""))["input_ids"] if ids is None else ids
    logprobs = tuple((TokenLogprob(token, "", -0.1 * (i + 1)),) for i, token in enumerate(sampled))
    return Turn(prompt, Completion(text, tuple(sampled), Usage(9, len(sampled)), stop, logprobs=logprobs))


def searched(last: str = f" here\n{deeprag.FINAL} here\n") -> list[Turn]:
    """A transcript of a parametric and a retrieved step, in two calls."""
    known = deeprag.parametric_prompt("Who?") + " she\n"
    first = turn(PROMPT, known + deeprag.subquery_line("Where?"), deeprag.SEARCH)
    # The tokenizer joins the full stop and the line break after it, and so did the model.
    joined = TOKENIZER(first.written + "\n")["input_ids"]
    first = turn(PROMPT, first.completion.text, deeprag.SEARCH, joined)
    eos: list[Any] = [TOKENIZER.eos_token_id]
    prompt = PROMPT + first.written + FOUND
    return [first, turn(prompt, last, None, TOKENIZER(last)["input_ids"] + eos)]
