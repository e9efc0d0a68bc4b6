"""What a training reads before its model: the libraries, the tokenizer, and the data as rows of token ids.

Heavy libraries are imported inside the functions, so that wrong settings are reported without waiting for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.progress import say
from rag_train.training.recipe import LoraRecipe, TrainRecipe
from rag_train.training.rl.rewards import Rewards


def require_packages(recipe: TrainRecipe) -> None:
    """Raise UserError if a package that the recipe needs is not installed."""
    if recipe.report_to != "none" and find_spec(recipe.report_to) is None:
        raise UserError(
            f"report_to={recipe.report_to}: the package is not installed; run pip install {recipe.report_to}"
        )
    if recipe.quantize != "none" and find_spec("bitsandbytes") is None:
        raise UserError(
            f"quantize={recipe.quantize}: bitsandbytes is not installed; run pip install bitsandbytes, or set "
            "quantize=none"
        )


def prepare_libraries() -> None:
    """Silence the libraries' logs and progress bars, turn off usage reports, and let memory segments grow."""
    import logging
    import warnings

    # Batches differ in size, and PyTorch reserves a block of a GPU's memory for each size unless segments can grow.
    # For packed rows on an H200 (two layers as wide as Qwen2.5-7B), 11.9 GB were reserved for 6.8 GB in use, and
    # 7.6 GB with growing segments. PyTorch reads the variable when it is imported or first used.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name of the same variable
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed warns on import that it found no GPU
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        _tell_locks_of_builds()

    import datasets
    import huggingface_hub.constants
    import transformers

    os.environ["TQDM_DISABLE"] = "1"
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


def _tell_locks_of_builds() -> None:
    """Name the locks that DeepSpeed will wait for: the lock of a build that was killed stays forever."""
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in sorted(root.glob("**/lock")):
        say(
            f"{lock}: another process compiles this extension of DeepSpeed, and training waits for it; if no other "
            "run is starting, delete this file"
        )


def with_precision(recipe: TrainRecipe, bf16: bool) -> TrainRecipe:
    """Return the recipe with its precision chosen, for a device that has instructions for ``bf16`` or not."""
    if recipe.precision == "auto":
        return replace(recipe, precision="bf16" if bf16 else "fp32")
    if recipe.precision == "bf16" and not bf16:
        say("precision=bf16: this machine has no instructions for bf16, fp32 would be many times faster")
    return recipe


def fitted(recipe: TrainRecipe) -> TrainRecipe:
    """Return the recipe with what follows from its model: an encoder-decoder has other names for its linear layers.

    Raises UserError if the model is no checkpoint, or for what an encoder-decoder cannot do.
    """
    from rag_train.llm.checkpoint import base_of, check_checkpoint
    from rag_train.training.memory import architecture
    from rag_train.training.setup import model_config

    check_checkpoint(base_of(recipe.model)[0])
    if not model_config(recipe).is_encoder_decoder:
        return recipe
    if recipe.stage != "sft":
        raise UserError(
            f"stage={recipe.stage}: model {recipe.model} is an encoder-decoder, which only stage sft trains; set "
            "stage=sft, or give a decoder-only model"
        )
    if recipe.pack_tokens:
        raise UserError(
            f"sft.pack_tokens={recipe.pack_tokens}: model {recipe.model} is an encoder-decoder, whose examples "
            "cannot share a row; set sft.pack_tokens=null, batch_size, and global_batch in examples instead of rows"
        )
    if recipe.lora is None or recipe.lora.target_modules != LoraRecipe().target_modules:
        return recipe
    names = {name.rpartition(".")[2] for name in architecture(recipe.model).linear} - {"lm_head"}
    return replace(recipe, lora=replace(recipe.lora, target_modules=sorted(names)))


def load_data(recipe: TrainRecipe):
    """Return the tokenizer, the rows of token ids and the `DataReport`; the recipe is one of `fitted`."""
    from rag_train.llm.checkpoint import base_of, check_vocabulary, load_tokenizer
    from rag_train.training.masking import IGNORE
    from rag_train.training.rows import TokenColumn, largest_token
    from rag_train.training.setup import check_adapters, model_config

    base, adapter = base_of(recipe.model)
    if adapter:
        check_vocabulary(adapter, base)
        check_adapters(recipe, adapter)
    tokenizer = load_tokenizer(adapter if adapter and (Path(adapter) / "tokenizer.json").is_file() else base)
    for problem, valid in (
        ("is not a fast tokenizer, which the loss mask needs; use a model with tokenizer.json", tokenizer.is_fast),
        (
            "has no end-of-text token; set eos_token in tokenizer_config.json",
            tokenizer.eos_token_id is not None,
        ),
        ("has no chat template; set chat=auto", tokenizer.chat_template or recipe.chat is not True),
    ):
        if not valid:
            raise UserError(f"model {recipe.model}: the tokenizer {problem}")
    if recipe.rl:
        from rag_train.training.rl.trainer import question_rows

        return tokenizer, *question_rows(recipe.data, tokenizer, Rewards(recipe.rl.reward, recipe.rl.price))
    rows, report = _read(recipe, recipe.data, tokenizer, balance=recipe.balance)
    if "target_ids" in rows.column_names and any(IGNORE in labels for labels in TokenColumn(rows, "labels")):
        say(
            f"data {recipe.data}: targets go on after masked text, which the decoder reads; the transformers "
            "engine does not serve such a model as it was trained, because it gives the encoder all of a prompt"
        )
    largest = largest_token(rows)
    vocabulary = model_config(recipe).get_text_config().vocab_size
    if largest >= vocabulary:
        raise UserError(
            f"model {recipe.model}: the tokenizer gives token {largest}, but the model's vocabulary ends at "
            f"{vocabulary - 1}; copy the tokenizer files of the model's own base there"
        )
    return tokenizer, rows, report


def _read(recipe: TrainRecipe, path: Path, tokenizer: Any, *, balance: bool = False):
    """Return the rows of token ids in ``path`` and their `DataReport`."""
    from rag_train.training.data import dpo_rows, sft_rows
    from rag_train.training.setup import model_config

    chat = bool(tokenizer.chat_template) if recipe.chat == "auto" else recipe.chat
    options = {"max_tokens": recipe.max_tokens, "chat": chat, "balance": balance}
    if recipe.stage == "dpo":
        return dpo_rows(path, tokenizer, **options)
    return sft_rows(path, tokenizer, **options, apart=model_config(recipe).is_encoder_decoder)


def load_held_out(recipe: TrainRecipe, tokenizer: Any) -> Any:
    """Return the rows of ``eval_data``, or None if the recipe has none."""
    if recipe.eval_data is None:
        return None
    rows, _ = _read(recipe, recipe.eval_data, tokenizer)
    require_disjoint(recipe.data, recipe.eval_data)
    return rows


def require_disjoint(data: Path, eval_data: Path) -> None:
    """Raise UserError if a question is in both files, by its id or by its prompt."""
    held_out = list(_questions(eval_data))  # the smaller file; the other one is read as a stream
    asked = {key for keys in held_out for key in keys}
    known = {key for keys in _questions(data) for key in keys if key in asked}
    shared = [keys[0][1] for keys in held_out if known.intersection(keys)]
    if shared:
        raise UserError(
            f"eval_data {eval_data}: {len(shared)} of its examples ask questions that are in data {data} too, the "
            f"first with id {shared[0]!r}; remove these questions from one of the two files"
        )


def _questions(path: Path) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield the id and the prompt of each record's question. Ids of records go on after the question's id and "/",
    prompts of pairs with the transcript so far."""
    with path.open(encoding="utf-8", newline="\n") as lines:
        for record in map(json.loads, lines):
            prompt = record["prompt"][: record.get("history_start")]
            yield ("id", record["id"].partition("/")[0]), ("prompt", prompt)
