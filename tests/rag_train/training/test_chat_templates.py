"""Loss masks under the chat templates of four model families, each with a small tokenizer of the same type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from support.training import QWEN_SPLIT, sft_record, write
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rag_train.formats.prompting import as_turn
from rag_train.llm.control import encoded, unmarked
from rag_train.schema import Segment, SFTRecord
from rag_train.training.data import sft_rows
from rag_train.training.masking import IGNORE

TEMPLATES = Path(__file__).parent / "templates"
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


def module_record() -> SFTRecord:
    """A record with masked and trained segments in turn, with a leading space and other scripts."""
    parts = [
        ("Reasoner:", False),
        (' {"thought": "größer?"}\n', True),
        ("Context: 漢字 😀\n", False),
        ("Done.", True),
    ]
    segments = [Segment(text=text, trained=trained) for text, trained in parts]
    completion = "".join(segment.text for segment in segments)
    return SFTRecord(id="m", prompt="Question: Why?\n", completion=completion, segments=segments, source="gold")


RECORDS = [sft_record(3, passages=2), sft_record(12), module_record()]


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
    lines = [line for r in RECORDS[:2] for line in (r.prompt + r.completion).splitlines(not sentencepiece)]
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


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Family, PreTrainedTokenizerFast]:
    return FAMILIES[request.param], tokenizer_of(request.param)


def test_prompt_becomes_user_turn(family: tuple[Family, PreTrainedTokenizerFast]):
    assert unmarked(as_turn(family[1], "Why?\n")) == family[0].turn


@pytest.mark.slow
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.id)
def test_trained_tokens_equal_tokens_written_at_inference(
    family: tuple[Family, PreTrainedTokenizerFast], record: SFTRecord, tmp_path: Path
):
    """Wherever the model starts to write, the text before is tokenised as in training."""
    _, tokenizer = family
    [row], _ = sft_rows(write(tmp_path / "sft.jsonl", [record]), tokenizer, max_tokens=2000, chat=True)
    ids, labels = row["input_ids"], row["labels"]

    def text(count: int) -> str:
        return str(tokenizer.decode(ids[:count], skip_special_tokens=False))

    turn = as_turn(tokenizer, record.prompt)
    [(read, _)] = encoded(tokenizer, [turn])
    assert read == tokenizer(unmarked(turn), add_special_tokens=False)["input_ids"]
    assert ids[: len(read)] == read and set(labels[: len(read)]) == {IGNORE}
    assert tokenizer.bos_token is None or text(len(ids)).count(str(tokenizer.bos_token)) == 1
    assert ids[-1] == labels[-1] == tokenizer.eos_token_id
    assert text(len(ids) - 1) == unmarked(turn) + record.completion

    stretches = [[True, ""]] if record.segments[0].trained else [[False, ""]]
    for segment in record.segments:  # adjacent segments of the same type form a stretch
        if segment.trained != stretches[-1][0]:
            stretches.append([segment.trained, ""])
        stretches[-1][1] += segment.text
    written, place = turn, len(read)
    for trained, stretch in stretches:
        assert encoded(tokenizer, [written])[0][0] == ids[:place]
        end = place
        while end < len(ids) - 1 and (labels[end] != IGNORE) == trained:
            end += 1
        assert text(end)[len(text(place)) :] == stretch
        written, place = written + stretch, end
    assert place == len(ids) - 1
