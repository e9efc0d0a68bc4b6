"""Small tokenizers of the types of four model families, with their chat templates, and of two other types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.training import QWEN_SPLIT, sft_record
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent.parent / "rag_train" / "training" / "templates"
LLAMA_SPLIT = QWEN_SPLIT.replace(r"|\p{N}", r"|\p{N}{1,3}")


@dataclass(frozen=True)
class Family:
    bos: str | None
    eos: str
    special: list[str]
    """Other special tokens."""
    turn: str
    """Expected result of ``as_turn`` for "Why?"."""


LLAMA_HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n"
FAMILIES = {
    "qwen2_5": Family(
        None,
        "<|im_end|>",
        ["<|im_start|>"],
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama3_1": Family(
        "<|begin_of_text|>",
        "<|eot_id|>",
        ["<|start_header_id|>", "<|end_header_id|>"],
        "<|begin_of_text|>" + LLAMA_HEAD.format("system") + "Cutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\n<|eot_id|>" + LLAMA_HEAD.format("user") + "Why?<|eot_id|>"
        "" + LLAMA_HEAD.format("assistant"),
    ),
    "mistral": Family("<s>", "</s>", ["[INST]", "[/INST]"], "<s>[INST] Why?[/INST]"),
    "gemma": Family(
        "<bos>",
        "<eos>",
        ["<start_of_turn>", "<end_of_turn>"],
        "<bos><start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
    ),
}


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """Train a small BPE tokenizer: over bytes for Qwen and Llama, over characters with byte fallback for Mistral
    and Gemma, which write a space as ▁."""
    family, sentencepiece = FAMILIES[name], name in ("mistral", "gemma")
    special = [token for token in (family.bos, family.eos, *family.special) if token]
    if sentencepiece:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        alphabet = []
    else:
        tokenizer = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(LLAMA_SPLIT if name == "llama3_1" else QWEN_SPLIT), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        pieces, alphabet = [], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=pieces + special, initial_alphabet=alphabet, show_progress=False
    )
    records = [sft_record(3, passages=2), sft_record(12)]
    lines = [line for r in records for line in (r.prompt + r.completion).splitlines(not sentencepiece)]
    tokenizer.train_from_iterator(lines * 3, trainer)  # SentencePiece encodes a line break as a byte
    if sentencepiece:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if name == "mistral":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
            steps.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(steps)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=family.bos,
        eos_token=family.eos,
        additional_special_tokens=family.special,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return fast


def unigram(texts: Sequence[str] = (), size: int = 400) -> PreTrainedTokenizerFast:
    """Train a small Unigram tokenizer, as T5's and XLM-R's: its special tokens are pieces of its vocabulary.

    With ``texts`` of one's own to train on, it has no line breaks and no braces, as T5's.
    """
    tokenizer = Tokenizer(models.Unigram())
    if texts:
        tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    record, characters = sft_record(3), "".join(map(chr, range(33, 127)))
    if texts:
        texts = [re.sub(r"[{}]", "", text) for text in texts]
    tokenizer.train_from_iterator(
        texts or [record.prompt + record.completion, characters] * 3,
        trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def word_piece() -> PreTrainedTokenizerFast:
    """Train a small WordPiece tokenizer in lower case, as BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    record, characters = sft_record(3), " ".join(map(chr, range(33, 127)))
    tokenizer.train_from_iterator(
        [record.prompt + record.completion, characters] * 3,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["[CLS]", "$A", "[SEP]"],
        pair=["[CLS]", "$A", "[SEP]", "$B", "[SEP]"],
        special_tokens=list(ids.items()),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        sep_token="[SEP]",
        cls_token="[CLS]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )
