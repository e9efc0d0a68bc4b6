"""Loss masks under the chat templates of four model families, each with a small tokenizer of the same type."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tokenizers import FAMILIES, Family, tokenizer_of
from support.training import TEMPLATE, build_tokenizer, pair, sft_record, write
from transformers import PreTrainedTokenizerFast

from rag_train.formats.prompting import as_turn
from rag_train.llm.control import encoded, unmarked
from rag_train.schema import Segment, SFTRecord
from rag_train.training.data import dpo_rows, sft_rows
from rag_train.training.masking import IGNORE


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


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Family, PreTrainedTokenizerFast]:
    return FAMILIES[request.param], tokenizer_of(request.param)


def test_prompt_becomes_user_turn(family: tuple[Family, PreTrainedTokenizerFast]):
    assert unmarked(as_turn(family[1], "Why?\n")) == family[0].turn


def test_history_of_a_pair_is_not_part_of_the_users_turn(tmp_path: Path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    [row], _ = dpo_rows(write(tmp_path / "dpo.jsonl", [pair(1)]), tokenizer, max_tokens=500, chat=True)
    assert tokenizer.decode(row["prompt_ids"]) == "<u>Question: Where was 1 born?</u><a>Follow up: Who?\n"


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
