"""Training examples: record files read as token ids and labels, tokenised as at inference.

Prompt and completion are tokenised as one text, so that the tokens are those that the model sees when it writes the
transcript itself. A token belongs to the segment in which it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.files import placed_records
from rag_train.formats.deeprag import decision_snippet, render_step
from rag_train.formats.prompting import as_turn
from rag_train.schema import Decision, PreferencePair, Segment, SFTRecord, Step
from rag_train.training.masking import IGNORE, encode_segments

T = TypeVar("T")

REMEDY = "give a file that `rag-train synth` wrote, or fix the line"


@dataclass
class DataReport:
    """Counts of a record file's examples and their tokens, for one epoch."""

    examples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    shortened: int = 0
    """Examples whose trailing segments were removed to fit in ``max_tokens``."""
    too_long: int = 0
    """Examples dropped because no trained segment fits in ``max_tokens``."""
    untrained: int = 0
    """Examples dropped because they have no trained segment."""


def sft_rows(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, chat: bool, balance: bool = False
) -> tuple[list[dict[str, list[int]]], DataReport]:
    """Read the SFTRecords in ``path`` as rows of ``input_ids`` and ``labels`` (``IGNORE`` where masked).

    The prompt and the segments that the program writes are masked (DeepRAG, section 3.3). The end-of-text token is
    appended and trained if the record is complete. An example longer than ``max_tokens`` is shortened: whole
    trailing segments are removed, so that it ends with a trained segment, and no end-of-text token follows. With
    ``balance``, every task gets an equal share of the same total number of examples. Raises UserError if a line is
    not valid or no example is left.
    """
    by_task: dict[str, list[tuple[list[int], list[int], bool]]] = {}
    report = DataReport()
    for place, record in placed_records(Path(path), SFTRecord, REMEDY):
        if "".join(segment.text for segment in record.segments) != record.completion:
            raise UserError(f"{place}: the segments do not add up to the completion; create the file again")
        if not any(segment.trained for segment in record.segments):
            report.untrained += 1
            continue
        prompt = as_turn(tokenizer, record.prompt) if chat and record.chat else record.prompt
        row = _fit(tokenizer, prompt, record, max_tokens)
        if row is None:
            report.too_long += 1
            continue
        by_task.setdefault(record.task if balance else "", []).append(row)
    share = sum(map(len, by_task.values())) // max(1, len(by_task))
    rows = []
    for examples in by_task.values():
        for ids, labels, whole in spread(examples, share) if balance else examples:
            rows.append({"input_ids": ids, "labels": labels})
            report.examples += 1
            report.tokens += len(ids)
            report.trained_tokens += sum(label != IGNORE for label in labels)
            report.shortened += not whole
    _require_examples(path, report, max_tokens)
    return rows, report


def spread(items: Sequence[T], n: int) -> list[T]:
    """Return ``n`` items at even distances over ``items``; if ``n`` is greater, items are repeated.

    Files hold one dataset after another, so that every dataset keeps its share.
    """
    return [items[i * len(items) // n] for i in range(n)]


def dpo_rows(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, chat: bool, balance: bool = False
) -> tuple[list[dict[str, list[int]]], DataReport]:
    """Read the PreferencePairs in ``path`` as rows of ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``.

    With ``balance``, each chosen snippet keeps n pairs, spread over the file, where the rarest snippet has n.

    No end-of-text token follows the snippets, because the transcript continues after them. A pair longer than
    ``max_tokens`` is dropped, because a shorter history would be another state. Raises UserError if a line is not
    valid, if the last token of a prompt extends into the completion, or if no pair is left.
    """
    by_snippet: dict[str, list[tuple[int, dict[str, list[int]]]]] = {}
    report = DataReport()
    for number, (place, pair) in enumerate(placed_records(Path(path), PreferencePair, REMEDY)):
        prompt = pair.prompt
        if chat:
            prompt = as_turn(tokenizer, prompt[: pair.history_start]) + prompt[pair.history_start :]
        prompt_ids, chosen_ids = _split(tokenizer, prompt, pair.chosen)
        same_prompt_ids, rejected_ids = _split(tokenizer, prompt, pair.rejected)
        if prompt_ids != same_prompt_ids or not chosen_ids or not rejected_ids:
            raise UserError(
                f"{place}: the prompt's last token extends into the completion; end the prompt with a line break"
            )
        if len(prompt_ids) + max(len(chosen_ids), len(rejected_ids)) > max_tokens:
            report.too_long += 1
            continue
        row = {"prompt_ids": prompt_ids, "chosen_ids": chosen_ids, "rejected_ids": rejected_ids}
        by_snippet.setdefault(pair.chosen, []).append((number, row))
    share = min(map(len, by_snippet.values()), default=0)
    numbered = [item for pairs in by_snippet.values() for item in (spread(pairs, share) if balance else pairs)]
    rows = [row for _, row in sorted(numbered, key=lambda item: item[0])]  # in the order of the file
    for row in rows:
        prompt, chosen, rejected = map(len, row.values())
        report.examples += 1
        report.tokens += 2 * prompt + chosen + rejected
        report.trained_tokens += chosen + rejected
    _require_examples(path, report, max_tokens)
    return rows, report


def _fit(
    tokenizer: Any, prompt: str, record: SFTRecord, max_tokens: int
) -> tuple[list[int], list[int], bool] | None:
    """Return ids, labels and whether all trained segments fit in ``max_tokens``; None if none of them fits."""
    head, segments = Segment(text=prompt, trained=False), record.segments
    for count in range(len(segments), 0, -1):
        if not segments[count - 1].trained:
            continue
        whole = not any(segment.trained for segment in segments[count:])
        [(ids, labels)] = encode_segments(
            tokenizer, [[head, *segments[:count]]], append_eos=whole and record.complete
        )
        if len(ids) <= max_tokens:
            return ids, labels, whole
    return None


def _split(tokenizer: Any, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Return the token ids of prompt and completion, tokenised together with the text that follows in a transcript.

    At inference, the full stop of "… in Wikipedia." and the line break after it may be a single token, whose
    probability is to be trained.
    """
    document = [
        Segment(text=prompt, trained=False),
        Segment(text=completion, trained=True),
        Segment(text=_following_text(completion), trained=False),
    ]
    [(ids, labels)] = encode_segments(tokenizer, [document])
    trained = [i for i, label in enumerate(labels) if label != IGNORE]
    if not trained:
        return ids, []
    return ids[: trained[0]], ids[trained[0] : trained[-1] + 1]


def _following_text(completion: str) -> str:
    for decision in Decision:
        if completion == decision_snippet(decision):
            step = render_step(Step(subquery="", decision=decision, answer="a"))
            return "".join(segment.text for segment in step).partition(completion)[2]
    return ""


def _require_examples(path: str | Path, report: DataReport, max_tokens: int) -> None:
    if not report.examples:
        raise UserError(
            f"data {path}: no example is left ({report.untrained} without a trained segment, {report.too_long} "
            f"longer than {max_tokens} tokens); raise max_tokens or create the file again"
        )
