"""Checks of model and adapter directories, made before an expensive engine start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from rag_train.errors import UserError
from rag_train.llm.control import encoded
from rag_train.llm.hub import commit_of, copy_of, is_hub_name, snapshot
from rag_train.provenance import weights_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ADD_TOKENS = 'add these to it, as "Encoder-decoders" in docs/site/howto/train.md shows'
"""What to do about a tokenizer that has no token for a line break or a brace."""


def check_checkpoint(model: str) -> None:
    """Raise UserError unless the local directory ``model`` holds a config, weights and a matching tokenizer.

    A name that is not an existing directory and does not look like a path is taken for a hub name: the hub is asked
    once whether it has the model, unless a copy is on this machine.
    """
    path = Path(model)
    if is_hub_name(model):
        if copy_of(model) is None:
            commit_of(model)
        return
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
    size, tokenizer = vocabulary(model), load_tokenizer(model)
    if _exceeds(tokenizer, size):
        raise UserError(
            f"model directory {model}: the tokenizer has {len(tokenizer)} tokens, but the model's vocabulary has "
            f"{size}; copy the tokenizer files of its base model into the directory"
        )


def vocabulary(model: str) -> int:
    """Return the size of the vocabulary in the config of a local ``model``.

    Raises UserError if the config cannot be read, or if the model needs code of its own.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    path = Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        own_code = "auto_map" in config and config["model_type"] not in CONFIG_MAPPING
        if not own_code:  # released configs leave out what is the default of their class
            return int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    except Exception as error:  # classes of configs check their values with errors of many types
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"model directory {model}: config.json is not a model config ({reason}); save the model again"
        ) from error
    raise UserError(
        f"model directory {model}: needs Python code of its own (auto_map), which is never run; "
        "give a model of an architecture that transformers has"
    )


def _exceeds(tokenizer: PreTrainedTokenizerBase, size: int) -> bool:
    """Return whether ``tokenizer`` can give a prompt a token that is not in a vocabulary of ``size``.

    Special tokens do not come from text. Those that only stand for what a text model cannot read, such as an image,
    may be beyond the vocabulary; those that the tokenizer writes itself may not.
    """
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    written = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token}
    return any(
        number >= size and (token not in special or token in written or token in template)
        for token, number in tokenizer.get_vocab().items()
    )


def _check_weights(file: Path) -> None:
    try:
        with safe_open(file, "np"):
            pass
    except (SafetensorError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"model weights {file}: {reason}; copy or save the model again") from error


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
        kind = str(config.get("peft_type", "LORA"))
        own_code = bool(config.get("megatron_config"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"adapter {adapter}: adapter_config.json is not the config of a LoRA adapter ({error!r}); "
            "save the adapter again with PEFT"
        ) from error
    if kind != "LORA":
        raise UserError(f"adapter {adapter}: of type {kind}; give a LoRA adapter")
    if own_code:
        raise UserError(
            f"adapter {adapter}: names a Python module to import (megatron_config); give another adapter"
        )
    return max(ranks)


def base_of(model: str) -> tuple[str, str | None]:
    """Return the model to load for ``model``, and the adapter to load onto it.

    These are ``model`` itself and None, or for the directory of a LoRA adapter the model that it was trained on, at
    the commit that it names, and the directory. Raises UserError if that model is not named or not here.
    """
    if not (Path(model) / "adapter_config.json").is_file():
        return model, None
    check_adapter(model)
    config = json.loads((Path(model) / "adapter_config.json").read_text(encoding="utf-8"))
    base, commit = config.get("base_model_name_or_path"), config.get("revision")
    problem = None
    if not base:
        problem = "names no base model"
    elif not is_hub_name(base) and not Path(base).exists():
        problem = f"its base model {base} is not here"
    elif (Path(base) / "adapter_config.json").is_file():
        raise UserError(
            f"adapter {model}: its base model {base} is an adapter itself; merge that one first (rag-train merge)"
        )
    if problem:
        raise UserError(
            f"adapter {model}: {problem}; write its place as base_model_name_or_path into adapter_config.json, or "
            f"give --model MODEL --adapter {model}"
        )
    return (snapshot(base, commit) if commit and is_hub_name(base) else base), model


def fits(adapter: str, model: str) -> bool:
    """Return whether ``model`` is the one that ``adapter`` was trained on, by name or by weights.

    An adapter that names no model, or one that is not here, is taken to fit.
    """
    try:
        base, _ = base_of(adapter)
    except UserError:
        return True
    weights = weights_sha256(base)
    return base == model or (weights is not None and weights == weights_sha256(model))


def check_vocabulary(adapter: str, model: str) -> None:
    """Raise UserError if the vocabulary sizes of the LoRA adapter and the local ``model`` differ.

    The adapter's vocabulary size is read from its embeddings, its output layer, or the tokenizer in its directory.
    An adapter with none of these passes, and so does any adapter if ``model`` is a hub name.
    """
    if not (Path(model) / "config.json").is_file():
        return
    size = vocabulary(model)
    sizes = set(_vocabulary_sizes(adapter))
    tokenizer = load_tokenizer(adapter) if (Path(adapter) / "tokenizer.json").is_file() else None
    if sizes - {size} or (tokenizer and _exceeds(tokenizer, size)):
        made_for = max(sizes - {size}, default=len(tokenizer or ()))
        raise UserError(
            f"adapter {adapter}: made for a vocabulary of {made_for} tokens, but model {model} has {size}; give "
            "the model that the adapter was trained on"
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


def is_encoder_decoder(model: str) -> bool:
    """Return whether ``model``, a checkpoint directory or a Hub name, has an encoder that reads the prompt."""
    from transformers import PreTrainedConfig

    return bool(PreTrainedConfig.get_config_dict(model)[0].get("is_encoder_decoder"))


def model_class(config: Any) -> Any:
    """Return the class of transformers that loads a model of this config."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def unwritable(tokenizer: Any, text: str) -> str:
    """Return the line breaks and braces in ``text`` that ``tokenizer`` cannot write: T5's, for example, has none.

    Without them, a plan, JSON or a text of several lines cannot be read back.
    """

    def lost(sign: str) -> bool:
        return sign not in tokenizer.decode(tokenizer(f"a{sign}a", add_special_tokens=False)["input_ids"])

    return "".join(sign for sign in "\n{}" if sign in text and lost(sign))


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
