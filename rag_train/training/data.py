"""Training examples: record files read as token ids and labels, tokenised as at inference.

Prompt and completion are tokenised as one text, so that the tokens are those that the model sees when it writes the
transcript itself. A token belongs to the segment in which it starts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import transformers
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.formats.deeprag import decision_snippet, render_step
from rag_train.formats.prompting import as_turn
from rag_train.llm.checkpoint import ADD_TOKENS, unwritable
from rag_train.llm.control import control_tokens, encoded, trusted
from rag_train.schema import Decision, PreferencePair, Segment, SFTRecord, Step
from rag_train.strategies.baselines import rq_rag, selfrag
from rag_train.training.masking import IGNORE, encode_segments
from rag_train.training.rows import TOKENS, R, stored_rows

REMEDY = "give a file that `rag-train synth` wrote, or fix the line"
COUNTS = {"group": pa.string(), "tokens": pa.int32(), "trained": pa.int32(), "whole": pa.bool_()}
"""Columns that the report and the balance are computed from; ``group`` is the task or the chosen snippet."""
SFT = ("input_ids", "labels")
APART = ("input_ids", "target_ids", "labels")
"""Columns for encoder-decoders: the encoder's tokens, the decoder's, and the labels of the latter."""
DPO = ("prompt_ids", "chosen_ids", "rejected_ids")
OWN_TOKENS = {"rq_rag": rq_rag.TOKENS, "selfrag": selfrag.OWN}
"""Control tokens that formats write themselves, by the records' task."""


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
    """Examples dropped because no token is trained: the first one cannot be, and a trained segment may be empty."""
    unwritable: int = 0
    """Examples dropped because the tokenizer has no token for a character that an encoder-decoder has to write."""


def sft_rows(
    path: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int,
    chat: bool,
    balance: bool = False,
    apart: bool = False,
) -> tuple[Dataset, DataReport]:
    """Read the SFTRecords in ``path`` as rows of ``input_ids`` and ``labels`` (``IGNORE`` where masked).

    The prompt and the segments that the program writes are masked (DeepRAG, section 3.3). The end-of-text token is
    appended and trained if the record is complete. An example longer than ``max_tokens`` is shortened: whole
    trailing segments are removed, so that it ends with a trained segment, and no end-of-text token follows. With
    ``balance``, every task gets an equal share of the same total number of examples. Raises UserError if a line is
    not valid or no example is left.

    With ``apart``, for encoder-decoders, the rows have `APART`: the encoder reads all that comes before the first
    trained segment, as the prompt at inference, and the decoder has the rest. Raises UserError if a trained text
    has line breaks or braces that the tokenizer cannot write.

    The rows are on disk (see `stored_rows`).
    """
    names = APART if apart else SFT
    encode = partial(_sft_row, apart=apart)
    rows, refused = _stored(path, SFTRecord, encode, names, tokenizer, max_tokens, chat)
    if balance and len(rows):
        tasks = _groups(rows)
        share = len(rows) // len(tasks)
        rows = rows.select(np.concatenate([spread(numbers, share) for numbers in tasks]))
    return rows.select_columns(list(names)), _report(path, rows, refused, max_tokens)


def dpo_rows(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, chat: bool, balance: bool = False
) -> tuple[Dataset, DataReport]:
    """Read the PreferencePairs in ``path`` as rows of ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``.

    With ``balance``, each chosen snippet keeps n pairs, spread over the file, where the rarest snippet has n.

    No end-of-text token follows the snippets, because the transcript continues after them. A pair longer than
    ``max_tokens`` is dropped, because a shorter history would be another state. Raises UserError if a line is not
    valid, if the last token of a prompt extends into the completion, or if no pair is left.

    The rows are on disk (see `stored_rows`).
    """
    rows, refused = _stored(path, PreferencePair, _dpo_row, DPO, tokenizer, max_tokens, chat)
    if balance and len(rows):
        snippets = _groups(rows)
        share = min(map(len, snippets))
        rows = rows.select(np.sort(np.concatenate([spread(numbers, share) for numbers in snippets])))
    return rows.select_columns(list(DPO)), _report(path, rows, refused, max_tokens)


def document(tokenizer: PreTrainedTokenizerBase, record: SFTRecord, chat: bool = True) -> list[Segment]:
    """Return the text of a record as a model reads it: the prompt, as a turn if it has one, and the segments.

    Its control tokens are those of the chat template and of the record's format (`rag_train.llm.control`).
    """
    prompt = as_turn(tokenizer, record.prompt) if chat and record.chat else record.prompt
    segments = [Segment(text=prompt, trained=False), *record.segments]
    if not (own := OWN_TOKENS.get(record.task)):
        return segments
    return [Segment(text=trusted(tokenizer, each.text, own), trained=each.trained) for each in segments]


def spread(items: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` items at even distances over ``items``; if ``n`` is greater, items are repeated.

    Files hold one dataset after another, so that every dataset keeps its share.
    """
    return items[np.arange(n) * len(items) // n]


def _stored(
    path: str | Path,
    kind: type[R],
    encode: Callable[[Any, int, bool, str, R], dict[str, Any] | str],
    names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    chat: bool,
) -> tuple[Any, Counter[str]]:
    """Return `stored_rows` with the token columns ``names``, keyed by all that determines a record's tokens."""
    columns = {name: TOKENS for name in names} | COUNTS
    settings = _settings(tokenizer, names, max_tokens, chat)
    return stored_rows(Path(path), kind, partial(encode, tokenizer, max_tokens, chat), columns, settings, REMEDY)


def _settings(tokenizer: Any, names: Sequence[str], max_tokens: int, chat: bool) -> dict[str, Any]:
    parts = [tokenizer.chat_template, tokenizer.bos_token_id, tokenizer.eos_token_id]
    parts += sorted(control_tokens(tokenizer).ids.items())
    whole = tokenizer.backend_tokenizer.to_str() + json.dumps(parts)
    return {
        "columns": list(names),
        "max_tokens": max_tokens,
        "chat": chat,
        "tokenizer": hashlib.sha256(whole.encode()).hexdigest(),
        "transformers": transformers.__version__,
    }


def _groups(rows: Dataset) -> list[np.ndarray]:
    """Return the numbers of each group's rows, groups in the order of their first row."""
    codes = rows.data.column("group").combine_chunks().dictionary_encode().indices.to_numpy()
    return [np.flatnonzero(codes == code) for code in range(codes.max() + 1)]


def _report(path: str | Path, rows: Dataset, refused: Counter[str], max_tokens: int) -> DataReport:
    counts: Any = rows.select_columns(["tokens", "trained", "whole"]).with_format("numpy")[:]
    report = DataReport(
        examples=len(rows),
        tokens=int(counts["tokens"].sum()),
        trained_tokens=int(counts["trained"].sum()),
        shortened=len(rows) - int(counts["whole"].sum()),
        too_long=refused["too_long"],
        untrained=refused["untrained"],
        unwritable=refused["unwritable"],
    )
    if not report.examples:
        remedy = "raise max_tokens or create" if report.too_long else "create"
        raise UserError(
            f"data {path}: no example is left ({report.untrained} without a trained token, {report.too_long} "
            f"longer than {max_tokens} tokens, {report.unwritable} that the tokenizer cannot write); {remedy} the "
            "file again"
        )
    return report


def _sft_row(
    tokenizer: Any, max_tokens: int, chat: bool, place: str, record: SFTRecord, *, apart: bool
) -> dict[str, Any] | str:
    if "".join(segment.text for segment in record.segments) != record.completion:
        raise UserError(f"{place}: the segments do not add up to the completion; create the file again")
    if not any(segment.trained for segment in record.segments):
        return "untrained"
    segments, read = document(tokenizer, record, chat), []
    if apart:
        _require_writable(tokenizer, place, segments)
        prompt = list(takewhile(lambda segment: not segment.trained, segments))
        segments = segments[len(prompt) :]
        [(read, _)] = encoded(tokenizer, ["".join(segment.text for segment in prompt)], whole=True)
    fitting = _fit(tokenizer, segments, record.complete, max_tokens - len(read))
    if fitting is None:
        return "too_long"
    ids, labels, whole = fitting
    if all(label == IGNORE for label in (labels if apart else labels[1:])):
        return "untrained"
    if apart and tokenizer.unk_token_id in labels:
        return "unwritable"
    return {
        **({"input_ids": read, "target_ids": ids} if apart else {"input_ids": ids}),
        "labels": labels,
        "group": record.task,
        "tokens": len(read) + len(ids),
        "trained": sum(label != IGNORE for label in labels),
        "whole": whole,
    }


def _require_writable(tokenizer: Any, place: str, segments: Sequence[Segment]) -> None:
    """Raise UserError if a trained text has line breaks, before its end, or braces that the tokenizer lacks."""
    text = "".join(segment.text for segment in segments if segment.trained).rstrip("\n")
    if lost := unwritable(tokenizer, text):
        signs = " ".join(lost).replace("\n", "line breaks")
        raise UserError(f"{place}: the model's tokenizer cannot write what is trained here ({signs}); {ADD_TOKENS}")


def _dpo_row(tokenizer: Any, max_tokens: int, chat: bool, place: str, pair: PreferencePair) -> dict[str, Any] | str:
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
        return "too_long"
    trained = len(chosen_ids) + len(rejected_ids)
    return {
        "prompt_ids": prompt_ids,
        "chosen_ids": chosen_ids,
        "rejected_ids": rejected_ids,
        "group": pair.chosen,
        "tokens": 2 * len(prompt_ids) + trained,
        "trained": trained,
        "whole": True,
    }


def _fit(
    tokenizer: Any, segments: Sequence[Segment], complete: bool, max_tokens: int
) -> tuple[list[int], list[int], bool] | None:
    """Return ids, labels and whether all trained segments fit in ``max_tokens``; None if none of them fits."""
    for count in range(len(segments), 0, -1):
        if not segments[count - 1].trained:
            continue
        whole = not any(segment.trained for segment in segments[count:])
        [(ids, labels)] = encode_segments(tokenizer, [segments[:count]], append_eos=whole and complete)
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
