"""Token ids and loss masks of transcripts; a transcript is tokenised as one text, as at inference."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from rag_train.llm.checkpoint import beginning
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
    encodings = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    out = []
    for segments, ids, offsets in zip(documents, encodings["input_ids"], encodings["offset_mapping"], strict=True):
        labels, ends, position = [], [], 0
        for segment in segments:
            position += len(segment.text)
            ends.append(position)
        current = 0
        for token, (start, _) in zip(ids, offsets, strict=True):
            while current < len(ends) - 1 and start >= ends[current]:
                current += 1
            labels.append(token if segments[current].trained else IGNORE)
        first = beginning(tokenizer, ids)
        ids = [*first, *ids]
        labels[:0] = [IGNORE] * len(first)
        if append_eos:
            ids = [*ids, tokenizer.eos_token_id]
            labels.append(tokenizer.eos_token_id)
        out.append((ids, labels))
    return out
