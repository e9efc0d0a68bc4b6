"""Token ids and loss masks of transcripts; a transcript is tokenised as one text, as at inference."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerFast

from rag_train.llm.checkpoint import beginning
from rag_train.llm.control import encoded
from rag_train.schema import Segment

IGNORE = -100
"""Label of a masked token, which PyTorch's cross-entropy ignores."""


def encode_segments(
    tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[Segment]], *, append_eos: bool = False
) -> list[tuple[list[int], list[int]]]:
    """Return token ids and labels (``IGNORE`` where masked) of each document, tokenised as one text.

    A document begins with the tokenizer's beginning-of-text token, if it has one, as prompts do at inference. A
    token is trained if it starts inside a trained segment. The model never has to write a token that starts in
    masked text and extends into trained text: at inference the prompt would end inside that token.
    """
    texts = ["".join(segment.text for segment in segments) for segments in documents]
    eos: Any = tokenizer.eos_token_id
    out = []
    for segments, (ids, starts) in zip(documents, encode_texts(tokenizer, texts), strict=True):
        ends = list(accumulate(len(segment.text) for segment in segments))
        owners = [segments[min(bisect_right(ends, start), len(ends) - 1)] for start in starts]
        trained = [start >= 0 and owner.trained for start, owner in zip(starts, owners, strict=True)]
        labels = [token if flag else IGNORE for token, flag in zip(ids, trained, strict=True)]
        if append_eos:
            ids = [*ids, eos]
            labels.append(eos)
        out.append((ids, labels))
    return out


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Return the token ids of each text, and for each token the offset of its first character.

    Unmarked control tokens are ordinary text, as in prompts. The offset of the beginning-of-text token is -1.
    """
    out = []
    for ids, spans in encoded(tokenizer, texts):
        first = beginning(tokenizer, ids)
        out.append(([*first, *ids], [-1] * len(first) + [start for start, _ in spans]))
    return out
