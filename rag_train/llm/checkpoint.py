"""Checks of model and adapter directories, made before an expensive engine start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from rag_train.errors import UserError
from rag_train.llm.control import encoded
from rag_train.llm.hub import PATIENCE, is_hub_name, refusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_checkpoint(model: str) -> None:
    """Raise UserError unless the local directory ``model`` holds a config, weights and a matching tokenizer.

    A name that is not an existing directory and does not look like a path is taken for a hub name: the hub is asked
    once whether it has the model, unless a copy is on this machine.
    """
    path = Path(model)
    if is_hub_name(model):
        return _check_hub(model)
    if not path.exists():
        raise UserError(f"model directory {model}: not found; give a checkpoint directory or a hub name")
    for name, remedy in (
        ("config.json", "give a checkpoint directory"),
        ("tokenizer.json", "copy the tokenizer files of its base model into the directory"),
    ):
        if not (path / name).is_file():
            raise UserError(f"model directory {model}: no {name}; {remedy}")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise UserError(f"model directory {model}: no *.safetensors weights; save the model in safetensors format")
    for file in weights:
        _check_weights(file)
    from transformers import CONFIG_MAPPING

    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = int(config["vocab_size"])
        own_code = "auto_map" in config and config["model_type"] not in CONFIG_MAPPING
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"model directory {model}: config.json is not a model config ({error!r}); save the model again"
        ) from error
    if own_code:
        raise UserError(
            f"model directory {model}: needs Python code of its own (auto_map), which is never run; "
            "give a model of an architecture that transformers has"
        )
    tokens = len(load_tokenizer(model))
    if tokens > size:
        raise UserError(
            f"model directory {model}: the tokenizer has {tokens} tokens, but the model's vocabulary has {size}; "
            "copy the tokenizer files of its base model into the directory"
        )


def _check_weights(file: Path) -> None:
    try:
        with safe_open(file, "np"):
            pass
    except (SafetensorError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"model weights {file}: {reason}; copy or save the model again") from error


def _check_hub(model: str) -> None:
    try:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return
        HfApi().model_info(model, timeout=PATIENCE)
    except Exception as error:  # errors of the hub, of its client and of the network
        raise refusal(model, error) from error


def check_adapter(adapter: str) -> int:
    """Return the rank of the LoRA adapter in the directory ``adapter``.

    Raises UserError if the directory does not hold a LoRA adapter.
    """
    path = Path(adapter) / "adapter_config.json"
    if not path.is_file():
        raise UserError(
            f"adapter {adapter}: no adapter_config.json; give a directory with an adapter saved by PEFT"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ranks = [int(rank) for rank in (config["r"], *config.get("rank_pattern", {}).values())]
        own_code = bool(config.get("megatron_config"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"adapter {adapter}: adapter_config.json is not the config of a LoRA adapter ({error!r}); "
            "save the adapter again with PEFT"
        ) from error
    if own_code:
        raise UserError(
            f"adapter {adapter}: names a Python module to import (megatron_config); give another adapter"
        )
    return max(ranks)


def check_vocabulary(adapter: str, model: str) -> None:
    """Raise UserError if the vocabulary sizes of the LoRA adapter and the local ``model`` differ.

    The adapter's vocabulary size is read from its embeddings, its output layer, or the tokenizer in its directory.
    An adapter with none of these passes, and so does any adapter if ``model`` is a hub name.
    """
    config = Path(model) / "config.json"
    if not config.is_file():
        return
    size = json.loads(config.read_text()).get("vocab_size")
    sizes = set(_vocabulary_sizes(adapter))
    tokens = (Path(adapter) / "tokenizer.json").is_file() and len(load_tokenizer(adapter))
    if sizes - {size} or tokens > size:
        raise UserError(
            f"adapter {adapter}: made for a vocabulary of {max(sizes - {size}, default=tokens)} tokens, but model "
            f"{model} has {size}; give the model that the adapter was trained on"
        )


def _vocabulary_sizes(adapter: str) -> Iterator[int]:
    """Yield the vocabulary size of each embedding and output layer in the adapter, by PEFT's names for them."""
    for file in Path(adapter).glob("*.safetensors"):
        _check_weights(file)
        with safe_open(file, "np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                if "embed_tokens" in name or "lm_head" in name:
                    shape = tensors.get_slice(name).get_shape()
                    if name.endswith(("lora_embedding_A", "lora_embedding_A.weight")):
                        yield shape[1]
                    elif not name.endswith(("lora_A.weight", "lora_embedding_B", "lora_embedding_B.weight")):
                        yield shape[0]


def beginning(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return the token that ``tokenizer`` puts before every text, unless ``ids`` already begin with it.

    Chat templates write this token themselves; prompts without a template do not have it.
    """
    first = tokenizer("")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] != list(ids[:1]) else []


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Return the token ids of a prompt, with the beginning-of-text token if the tokenizer has one.

    Of the control tokens in the prompt, only those that a chat template or a format has written become control
    tokens; see `rag_train.llm.control`.
    """
    [(ids, _)] = encoded(tokenizer, [prompt])
    return [*beginning(tokenizer, ids), *ids]


def load_tokenizer(model: str, thinking: bool | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``model`` exactly as its tokenizer.json describes it.

    ``thinking`` sets the variable with which chat templates, such as Qwen3's, switch thinking on or off; None
    leaves the template's own default.

    AutoTokenizer is not used: for several architectures, including Qwen2, transformers 5 rebuilds the tokenizer
    from the vocabulary and ignores the pre-tokenizer in the file.

    Raises UserError if the tokenizer cannot be read.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    except Exception as error:  # the tokenizers library raises bare Exception on bad files
        raise UserError(f"model {model}: cannot read its tokenizer ({type(error).__name__}: {error})") from error
    if thinking is not None and isinstance(tokenizer.chat_template, str):
        switch = f"{{%- set enable_thinking = {str(thinking).lower()} -%}}"
        tokenizer.chat_template = switch + tokenizer.chat_template
    return tokenizer
