"""Tokenizers as the engines and training use them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.training import TEMPLATE, build_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import Gemma3TextConfig, PreTrainedTokenizerFast

from rag_train.errors import UserError
from rag_train.formats.prompting import as_turn
from rag_train.llm.checkpoint import check_checkpoint, encode, load_tokenizer, vocabulary
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


@pytest.mark.parametrize(
    ("special", "eos", "template", "fits"),
    [
        (True, "<|end|>", None, True),
        (False, "<|end|>", None, False),  # from a text
        (True, "<image>", None, False),
        (True, "<|end|>", "{{ '<image>' }}", False),
    ],
)
def test_a_token_beyond_the_vocabulary_must_not_come_into_a_prompt(
    work: Path, tmp_path: Path, special: bool, eos: str, template: str | None, fits: bool
):
    """Gemma 3 of a billion parameters has a token for images, which its vocabulary ends before."""
    shutil.copytree(work / "model", tmp_path / "model")
    tokenizer = load_tokenizer(str(tmp_path / "model"))
    fill = [f"<{i}>" for i in range(vocabulary(str(work / "model")) - len(tokenizer))]
    tokenizer.add_tokens(fill)
    tokenizer.add_tokens(["<image>"], special_tokens=special)
    tokenizer.eos_token, tokenizer.chat_template = eos, template
    tokenizer.save_pretrained(tmp_path / "model")
    if fits:
        check_checkpoint(str(tmp_path / "model"))
    else:
        with pytest.raises(UserError, match="the tokenizer has 321 tokens, but the model's vocabulary has 320"):
            check_checkpoint(str(tmp_path / "model"))


def test_the_vocabulary_is_that_of_the_text_model(tmp_path: Path):
    """Released configurations of models with images nest it, and leave it out where it is the default."""
    for text, size in (({"vocab_size": 300}, 300), ({}, Gemma3TextConfig().vocab_size)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
        assert vocabulary(str(tmp_path)) == size
