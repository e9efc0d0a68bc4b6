"""Tokenizers as the engines and training use them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.training import TEMPLATE, build_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from rag_train.formats.prompting import as_turn
from rag_train.llm.checkpoint import encode, load_tokenizer
from rag_train.llm.control import MARK
from rag_train.schema import Segment
from rag_train.training.masking import IGNORE, encode_segments


def with_bos(adds: bool) -> PreTrainedTokenizerFast:
    """A tokenizer with a beginning-of-text token; whether it puts the token before every text, as Llama's does."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    if adds:
        special = [("<s>", tokenizer.bos_token_id)]
        tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=special)
    return tokenizer


@pytest.mark.parametrize("adds", [True, False])
def test_prompts_and_examples_begin_as_the_tokenizer_says(adds: bool):
    tokenizer = with_bos(adds)
    bos = [tokenizer.bos_token_id] if adds else []
    plain = tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert encode(tokenizer, "ab") == bos + plain
    assert encode(tokenizer, MARK + "<s>ab") == [tokenizer.bos_token_id, *plain], "a chat template has written it"
    document = [Segment(text="a", trained=False), Segment(text="b", trained=True)]
    [(ids, labels)] = encode_segments(tokenizer, [document], append_eos=True)
    assert ids == bos + plain + [tokenizer.eos_token_id]
    assert labels == [IGNORE] * len(bos) + [IGNORE, plain[1], tokenizer.eos_token_id]


@pytest.mark.parametrize(
    ("thinking", "turn"), [(None, "<u>q</u><a>"), (True, "<u>q</u><a>"), (False, "<u>q</u><a>-")]
)
def test_thinking_is_a_switch_of_the_chat_template(thinking: bool | None, turn: str, tmp_path: Path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    assert as_turn(load_tokenizer(str(tmp_path), thinking), "q") == turn
