"""Thoughts are no part of an answer, whatever engine wrote them."""

import asyncio

import pytest
from support.fakes import CHAT, Says

from rag_train.formats.prompting import as_turn
from rag_train.llm.base import Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.call_log import CallLog
from rag_train.llm.thoughts import after_thoughts, without_thoughts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Paris", "Paris"),
        ("<think>\nRome?\n</think>\n\nParis", "Paris"),
        ("Rome?\n</think>\nParis", "Paris"),
        ("<THINK>a</THINK> Paris", " Paris"),
        ("<reasoning>a</reasoning>[THINK]b[/THINK]Paris", "Paris"),
        ("<think>\nRome", None),
        (" [thinking] Rome", None),
        ("Paris <think>", None),
        ("<think>a</think> Paris <think>b", None),
        ("a < b, [think], <thinker>", "a < b, [think], <thinker>"),
        ("<think>a<think>b</think>c</think>d", "d"),
    ],
)
def test_thoughts_are_left_out_and_an_open_thought_is_no_text(text: str, said: str | None):
    assert after_thoughts(text) == said


def test_tokens_of_thoughts_go_with_them():
    words = ["<think>", "Rome", "</think>", "\n", "Par", "is"]
    logprobs = tuple((TokenLogprob(i, word, -1.0),) for i, word in enumerate(words))
    got = without_thoughts(Completion("".join(words), tuple(range(6)), Usage(1, 6), logprobs=logprobs))
    assert got.text == "Paris" and [token.text for token in got.chosen] == ["\n", "Par", "is"]


def test_a_text_that_ends_within_a_thought_counts_as_cut():
    log = CallLog(Says("<think>\nIt could be Paris"))
    got = asyncio.run(log.complete("reader", "q", Sampling()))
    assert got.truncated and got.whole is None and not got.text
    assert [call.cut for call in log.calls] == [True]
    kept = asyncio.run(log.complete("controller", "q", Sampling(thoughts=True)))
    assert kept.text.startswith("<think>")


@pytest.mark.parametrize(("begun", "end"), [("<think>\n", "</think>\n\n"), ("[THINK]", "[/THINK]\n\n"), ("", "")])
def test_a_thought_that_the_template_begins_is_closed(begun: str, end: str):
    class Template:
        chat_template = CHAT.chat_template

        def apply_chat_template(self, *args, **more) -> str:
            return CHAT.apply_chat_template(*args, **more) + begun

    assert as_turn(Template(), "q") == f"<user>q<assistant>{begun.strip()}{end and chr(10) * 2}{end}"
