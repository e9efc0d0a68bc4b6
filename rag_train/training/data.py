"""From record files to token ids: the text of training is tokenised as the text of inference is.

Prompt and completion are tokenised as one text, so no token differs from what the model meets when it writes the
transcript itself. A token belongs to the stretch of text in which it starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from rag_train.errors import UserError
from rag_train.formats.deeprag import decision_snippet, render_step
from rag_train.formats.prompting import as_turn
from rag_train.schema import Decision, PreferencePair, Record, Segment, SFTRecord, Step
from rag_train.training.masking import IGNORE, encode_segments

R = TypeVar("R", bound=Record)


@dataclass
class DataReport:
    """What became of a record file; tokens are those of one epoch."""

    examples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    shortened: int = 0
    """Examples that lost trailing segments to ``max_tokens``."""
    too_long: int = 0
    """Examples dropped because nothing trained fits in ``max_tokens``."""
    untrained: int = 0
    """Examples dropped because no segment is trained."""


def sft_rows(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, chat: bool, balance: bool = False
) -> tuple[list[dict[str, list[int]]], DataReport]:
    """``input_ids`` and ``labels`` (``IGNORE`` where masked) of every SFTRecord in ``path``.

    The prompt and the segments that the harness writes are masked (DeepRAG, section 3.3); the end-of-text token
    is appended and trained. An example of more than ``max_tokens`` loses whole trailing segments, up to one that
    is trained, and gets no end-of-text token: its text has no end. With ``balance``, every task has its equal share
    of as many examples. Raises UserError on a bad line, or if no example is left.
    """
    by_task: dict[str, list[tuple[list[int], list[int], bool]]] = {}
    report = DataReport()
    for place, record in read_records(path, SFTRecord):
        if "".join(segment.text for segment in record.segments) != record.completion:
            raise UserError(f"{place}: the segments do not add up to the completion; make the file again")
        if not any(segment.trained for segment in record.segments):
            report.untrained += 1
            continue
        prompt = as_turn(tokenizer, record.prompt) if chat else record.prompt
        row = _fit(tokenizer, prompt, record.segments, max_tokens)
        if row is None:
            report.too_long += 1
            continue
        by_task.setdefault(record.task if balance else "", []).append(row)
    share = sum(map(len, by_task.values())) // max(1, len(by_task))
    rows = []
    for of_task in by_task.values():
        # Evenly through the file, whether there are too many or too few.
        chosen = (of_task[i * len(of_task) // share] for i in range(share)) if balance else of_task
        for ids, labels, whole in chosen:
            rows.append({"input_ids": ids, "labels": labels})
            report.examples += 1
            report.tokens += len(ids)
            report.trained_tokens += sum(label != IGNORE for label in labels)
            report.shortened += not whole
    _require_some(path, report, max_tokens)
    return rows, report


def dpo_rows(
    path: str | Path, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, chat: bool, balance: bool = False
) -> tuple[list[dict[str, list[int]]], DataReport]:
    """``prompt_ids``, ``chosen_ids`` and ``rejected_ids`` of every PreferencePair in ``path``.

    With ``balance``, the first pairs of each chosen snippet only, as many as the rarest snippet has.

    No end-of-text token follows the snippets, since the transcript goes on after them. A pair of more than
    ``max_tokens`` is dropped: a shorter history would be another state. Raises UserError on a bad line, on a
    prompt whose last token runs into the completion, or if no pair is left.
    """
    rows, report = [], DataReport()
    pairs = list(read_records(path, PreferencePair))
    share = min(Counter(pair.chosen for _, pair in pairs).values(), default=0)
    taken: Counter[str] = Counter()
    for place, pair in pairs:
        taken[pair.chosen] += 1
        if balance and taken[pair.chosen] > share:
            continue
        prompt = pair.prompt
        if chat:
            prompt = as_turn(tokenizer, prompt[: pair.history_start]) + prompt[pair.history_start :]
        prompt_ids, chosen_ids = _split(tokenizer, prompt, pair.chosen)
        same_prompt_ids, rejected_ids = _split(tokenizer, prompt, pair.rejected)
        if prompt_ids != same_prompt_ids or not chosen_ids or not rejected_ids:
            raise UserError(
                f"{place}: a token of the prompt's end runs into the completion; end the prompt with a line break"
            )
        tokens = len(prompt_ids) + max(len(chosen_ids), len(rejected_ids))
        if tokens > max_tokens:
            report.too_long += 1
            continue
        rows.append({"prompt_ids": prompt_ids, "chosen_ids": chosen_ids, "rejected_ids": rejected_ids})
        report.examples += 1
        report.tokens += 2 * len(prompt_ids) + len(chosen_ids) + len(rejected_ids)
        report.trained_tokens += len(chosen_ids) + len(rejected_ids)
    _require_some(path, report, max_tokens)
    return rows, report


def _fit(
    tokenizer: Any, prompt: str, segments: Sequence[Segment], max_tokens: int
) -> tuple[list[int], list[int], bool] | None:
    head = Segment(text=prompt, trained=False)
    for count in range(len(segments), 0, -1):
        if not segments[count - 1].trained:
            continue
        whole = not any(segment.trained for segment in segments[count:])
        [(ids, labels)] = encode_segments(tokenizer, [[head, *segments[:count]]], append_eos=whole)
        if len(ids) <= max_tokens:
            return ids, labels, whole
    return None


def _split(tokenizer: Any, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Token ids of the prompt and of the completion, in the context of what follows it in a transcript.

    At inference the full stop of "… in Wikipedia." and the line break after it may be one token: the one that
    is to become more or less probable.
    """
    document = [
        Segment(text=prompt, trained=False),
        Segment(text=completion, trained=True),
        Segment(text=_what_follows(completion), trained=False),
    ]
    [(ids, labels)] = encode_segments(tokenizer, [document])
    trained = [i for i, label in enumerate(labels) if label != IGNORE]
    if not trained:
        return ids, []
    return ids[: trained[0]], ids[trained[0] : trained[-1] + 1]


def _what_follows(completion: str) -> str:
    for decision in Decision:
        if completion == decision_snippet(decision):
            step = render_step(Step(subquery="", decision=decision, answer="a"))
            return "".join(segment.text for segment in step).partition(completion)[2]
    return ""


def read_records(path: str | Path, cls: type[R]) -> Iterator[tuple[str, R]]:
    """Each record with its place, "file, line n"."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path}, line {number}"
                try:
                    yield place, cls.model_validate_json(line)
                except ValidationError as error:
                    problem = error.errors()[0]
                    where = ".".join(str(part) for part in problem["loc"])
                    raise UserError(
                        f"{place}: not a {cls.__name__} ({where + ': ' if where else ''}{problem['msg']}); "
                        "mend or remove the line, or make the file again"
                    ) from None
    except OSError as error:
        raise UserError(f"data {path}: {error.strerror}; give the path of a {cls.__name__} file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"data {path}: not UTF-8 text; make the file again") from error


def _require_some(path: str | Path, report: DataReport, max_tokens: int) -> None:
    if not report.examples:
        raise UserError(
            f"data {path}: no example is left ({report.untrained} without a trained segment, {report.too_long} "
            f"longer than {max_tokens} tokens); raise max_tokens or make the file again"
        )
