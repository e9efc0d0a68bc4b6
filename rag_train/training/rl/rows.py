"""Sampled transcripts as rows of token ids: what the model wrote is trained, what the program wrote is masked.

A transcript grows over several engine calls, each of which reads it as one text. It is therefore tokenised as one
text, like a record of Stage I. A token is trained only if the engine sampled exactly this token: where the model
spelled a text with other tokens than the tokenizer, the rest of that call is masked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_train.formats import deeprag
from rag_train.llm.base import Completion
from rag_train.llm.control import unmarked
from rag_train.schema import Decision
from rag_train.strategies.deeprag import decision_offsets
from rag_train.training.masking import encode_texts


@dataclass(frozen=True)
class Turn:
    """An engine call: the prompt that the engine read, and what it wrote, with log-probabilities."""

    prompt: str
    completion: Completion

    @property
    def written(self) -> str:
        """The text that the model wrote, with the stop string that ended it."""
        return self.completion.text + (self.completion.stop or "")


@dataclass
class Row:
    """A transcript as token ids. The lists about the completion have an entry for each of its tokens.

    Attributes:
        prompt_ids: tokens up to the first that the model wrote.
        completion_ids: all later tokens, those of passages included.
        trained: 1 for a token that the model sampled, 0 for any other.
        logprobs: log-probability of a trained token in the engine, 0 for any other.
        decisions: index in the completion of each decision's first token, by the number of its step.
        lost: number of sampled tokens that are not in the row, or not trained.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    trained: list[int]
    logprobs: list[float]
    decisions: dict[int, int] = field(default_factory=dict)
    lost: int = 0


def transcript(turns: Sequence[Turn]) -> list[Turn]:
    """Return the calls that continue the text of the call before them, from the first one on.

    A call that begins a new text ends the transcript. So does the call that forces the final answer: where the text
    has the format's exact form, that prompt continues it too. The transcript must stay as the model ended it, so
    that the end of text that came too early is trained.
    """
    kept = list(turns[:1])
    for turn in turns[1:]:
        is_forced = turn.prompt.endswith(deeprag.FINAL)
        before = unmarked(kept[-1].prompt) + kept[-1].written  # a format marks its own tags in what was written
        if is_forced or not unmarked(turn.prompt).startswith(before):
            break
        kept.append(turn)
    return kept


def decisions(text: str) -> dict[int, int]:
    """Return the offset of each decision in a transcript, by the number of its step in the parsed transcript.

    An empty subquery opens no step.
    """
    snippets = tuple(map(deeprag.decision_snippet, Decision))
    found: dict[int, int] = {}
    for offset in decision_offsets(text):
        before = deeprag.parse(text[:offset])
        if before.open_subquery and text.startswith(snippets, offset):
            found[len(before.steps)] = offset
    return found


def encode_rollout(tokenizer: Any, turns: Sequence[Turn], max_tokens: int) -> Row:
    """Return the row of a rollout's calls, cut at ``max_tokens`` tokens."""
    kept = transcript(turns)
    head, text = len(kept[0].prompt), kept[-1].prompt + kept[-1].written
    [(ids, starts)] = encode_texts(tokenizer, [text])
    if kept[-1].completion.token_ids[-1:] == (tokenizer.eos_token_id,):
        ids, starts = [*ids, tokenizer.eos_token_id], [*starts, len(text)]
    trained, logprobs = _sampled(ids, starts, kept)
    begin = bisect_left(starts, head)
    row = Row(ids[:begin], ids[begin:max_tokens], trained[begin:max_tokens], logprobs[begin:max_tokens])
    if not row.completion_ids:  # the model wrote nothing, or the prompt is too long; TRL needs a token
        row.completion_ids, row.trained, row.logprobs = [tokenizer.eos_token_id], [0], [0.0]
    row.lost = sum(len(turn.completion.token_ids) for turn in turns) - sum(row.trained)
    tokens = {step: bisect_left(starts, head + at) - begin for step, at in decisions(text[head:]).items()}
    row.decisions = {step: at for step, at in tokens.items() if at < len(row.trained) and row.trained[at]}
    return row


def _sampled(ids: Sequence[int], starts: Sequence[int], turns: Sequence[Turn]) -> tuple[list[int], list[float]]:
    """Return whether the engine sampled each token, and its log-probability there.

    The tokens of a call count up to the first that is not the one that the engine sampled.
    """
    trained, logprobs = [0] * len(ids), [0.0] * len(ids)
    for turn in turns:
        first = bisect_left(starts, len(turn.prompt))
        for place, token in enumerate(turn.completion.chosen, first):
            if place == len(ids) or ids[place] != token.token_id:
                break
            trained[place], logprobs[place] = 1, token.logprob
    return trained, logprobs
