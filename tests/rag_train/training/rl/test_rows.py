"""Rows of rollouts: the tokens that the engine sampled are trained, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts import FOUND, PROMPT, searched, turn
from support.training import TOKENIZER

from rag_train.formats import deeprag
from rag_train.schema import Passage
from rag_train.training.rl.rows import Row, Turn, decisions, encode_rollout, transcript

SNIPPETS = [deeprag.INTERMEDIATE, deeprag.SEARCH]


def stretches(row: Row) -> list[tuple[int, str]]:
    out: list[tuple[int, list[int]]] = []
    for flag, token in zip(row.trained, row.completion_ids, strict=True):
        if not out or out[-1][0] != flag:
            out.append((flag, []))
        out[-1][1].append(token)
    return [(flag, str(TOKENIZER.decode(ids))) for flag, ids in out]


def test_passages_are_masked_and_the_text_of_all_calls_is_trained():
    turns = searched()
    row = encode_rollout(TOKENIZER, turns, 999)
    assert TOKENIZER.decode(row.prompt_ids) == PROMPT
    first, second = turns[0].written + "\n", turns[1].written + "<|end|>"
    assert stretches(row) == [(1, first), (0, FOUND[1:]), (1, second)]
    assert row.lost == 0
    assert [round(p, 1) for p, flag in zip(row.logprobs, row.trained, strict=True) if flag] == [
        round(-0.1 * (i + 1), 1) for t in turns for i in range(len(t.completion.token_ids))
    ]


def test_decisions_are_the_first_tokens_of_their_snippets():
    row = encode_rollout(TOKENIZER, searched(), 999)
    assert {step: TOKENIZER.decode(row.completion_ids[at]) for step, at in row.decisions.items()} == {
        0: "Intermediate",
        1: "Let",
    }
    text = "".join(text for _, text in stretches(row))
    assert [text[at:].startswith(s) for at, s in zip(decisions(text).values(), SNIPPETS, strict=True)] == [True] * 2


def test_tokens_after_another_spelling_are_masked():
    """The model spelled "Who" with other tokens: what it wrote after them was sampled from another state."""
    [whole, last] = searched()
    text = whole.written + "\n"
    at = text.index("Who")
    ids = [*TOKENIZER(text[:at])["input_ids"], 0, *TOKENIZER(text[at:])["input_ids"]]
    row = encode_rollout(TOKENIZER, [turn(PROMPT, whole.completion.text, deeprag.SEARCH, ids), last], 999)
    assert stretches(row)[0] == (1, text[:at])
    assert stretches(row)[-1][0] == 1 and row.decisions == {}
    assert row.lost == len(ids) - len(TOKENIZER(text[:at])["input_ids"])


def test_decisions_are_numbered_as_the_steps_that_the_transcript_is_parsed_into():
    """An empty subquery opens no step, and a subquery without an answer is a step of its own."""
    lines = ["Follow up:", "Follow up: A?", "Follow up: B?", deeprag.SEARCH, "Intermediate answer: b"]
    text = "".join(f"{line}\n" for line in [*lines, "Follow up: C?", deeprag.INTERMEDIATE + " c"])
    found = decisions(text)
    assert {n: text[:at].splitlines()[-1] for n, at in found.items()} == {1: "Follow up: B?", 2: "Follow up: C?"}
    assert [deeprag.parse(text).steps[n].subquery for n in found] == ["B?", "C?"]


def test_a_forced_final_answer_is_not_part_of_the_transcript():
    turns = [*searched(), turn(PROMPT + deeprag.FINAL, " there")]
    assert transcript(turns) == turns[:2]
    assert encode_rollout(TOKENIZER, turns, 999).lost == len(TOKENIZER(" there")["input_ids"])


KNOWN = deeprag.parametric_prompt("Who?") + " she\n"
FOUND_NOTHING = deeprag.retrieved_prompt("Who?", [Passage(id="p", text="x")]) + " \n"


@pytest.mark.parametrize(
    ("asked", "written", "forced"),
    [(PROMPT, KNOWN, PROMPT + KNOWN), (PROMPT + FOUND_NOTHING.removesuffix(" \n"), "", PROMPT + FOUND_NOTHING)],
    ids=["after an answer", "instead of an answer"],
)
def test_stopping_too_early_is_trained_and_the_forced_answer_is_not(asked: str, written: str, forced: str):
    """The prompt that forces the final answer continues a text that has the format's exact form."""
    eos: list[Any] = [TOKENIZER.eos_token_id]
    stopped = turn(asked, written, None, TOKENIZER(written)["input_ids"] + eos)
    answer = turn(forced + deeprag.FINAL, " there", "\n")
    assert answer.prompt.startswith(stopped.prompt + stopped.written)
    row = encode_rollout(TOKENIZER, [stopped, answer], 999)
    assert stretches(row) == [(1, written + "<|end|>")]
    assert row.logprobs[-1] < 0 and row.lost == len(answer.completion.token_ids)


@given(st.integers(1, 300))
def test_a_long_row_is_cut(most: int):
    whole = encode_rollout(TOKENIZER, searched(), 999)
    cut = encode_rollout(TOKENIZER, searched(), most)
    size = max(0, most - len(whole.prompt_ids))
    assert cut.trained == (whole.trained[:size] or [0])
    assert len(cut.completion_ids) == len(cut.trained) == len(cut.logprobs) > 0
    assert cut.decisions == {step: at for step, at in whole.decisions.items() if at < size}


def test_a_call_without_text_leaves_one_masked_token():
    row = encode_rollout(TOKENIZER, [turn(PROMPT, "")], 999)
    assert (row.trained, len(row.completion_ids), row.decisions) == ([0], 1, {})
    eos: Any = TOKENIZER.eos_token_id
    ended = turn(PROMPT, "", None, [eos])
    assert encode_rollout(TOKENIZER, [ended], 999).trained == [1]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["Who?\n", "Follow up: a\n", deeprag.SEARCH, "\n", deeprag.INTERMEDIATE, "é漢"])))
def test_any_text_of_one_call_is_trained_as_it_was_sampled(parts: list[str]):
    text = "so " + "".join(parts)  # a line break would join that of the prompt
    ids = TOKENIZER(PROMPT + text)["input_ids"][len(TOKENIZER(PROMPT)["input_ids"]) :]
    row = encode_rollout(TOKENIZER, [turn(PROMPT, text, None, ids)], 999)
    assert row.lost == 0 and row.completion_ids[: len(ids)] == ids and all(row.trained[: len(ids)])
    assert all(row.completion_ids[at] == ids[at] for at in row.decisions.values())


def test_without_log_probabilities_nothing_is_trained():
    [only] = searched()[:1]
    bare = Turn(only.prompt, replace(only.completion, logprobs=()))
    assert sum(encode_rollout(TOKENIZER, [bare], 999).trained) == 0
