"""A fake retriever, a small cross-encoder whose words are letters, and forgeries of index directories."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rank_bm25
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from rag_train.jobs.files import sha256
from rag_train.schema import Passage

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def ids(passages: Sequence[Passage]) -> list[str]:
    return [passage.id for passage in passages]


class Fake:
    """A retriever that records its calls, and finds the same passages for each query, or else the query itself.

    ``meet`` is called in each search.
    """

    service = ""

    def __init__(
        self, name: str = "fake", found: Sequence[Passage] | None = None, meet: Callable[[], Any] = lambda: None
    ):
        self.name = name
        self.identity: Any = name
        self.found = found
        self.meet = meet
        self.calls: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.meet()
        self.calls.append((list(queries), k))
        if self.found is None:
            return [[Passage(id=query, text=query, score=1 / 3)] for query in queries]
        return [list(self.found[:k]) for _ in queries]


def save_letters(directory: Path) -> None:
    """Save a BERT tokenizer with single letters as word pieces."""
    words = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)
    fast.save_pretrained(directory)


def bert(labels: int = 1) -> BertConfig:
    """Return the sizes of a small cross-encoder over letters; its random scores are far apart."""
    config = BertConfig(
        vocab_size=len(SPECIAL) + 2 * len(LETTERS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    config.num_labels = labels
    return config


def edit(directory: Path, **changes: object) -> None:
    """Change keys of an index's manifest."""
    manifest = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps(manifest | changes))


def forge(directory: Path, name: str, content: np.ndarray | bytes) -> None:
    """Replace a file of an index and its hash."""
    path = directory / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    files = json.loads((directory / "index.json").read_text())["files"]
    edit(directory, files=files | {name: {"bytes": path.stat().st_size, "sha256": sha256(path)}})


class LuceneFrequencies(rank_bm25.BM25Okapi):
    """rank-bm25 with Lucene's inverse document frequency, and without the factor k1 + 1, which ranks nothing."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, frequency in nd.items():
            idf = math.log(1 + (self.corpus_size - frequency + 0.5) / (frequency + 0.5))
            self.idf[word] = idf / (self.k1 + 1)
