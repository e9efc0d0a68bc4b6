"""Merging LoRA adapters into the model that they were trained on; the result is an ordinary checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, logging

from rag_train.errors import UserError
from rag_train.llm.checkpoint import check_adapter, check_checkpoint, load_tokenizer
from rag_train.training.card import write_merged_card

DTYPES = ("auto", "bfloat16", "float16", "float32")
"""Types in which the merged model can be written; auto: the type of the model."""


def load_merged(model: str, adapter: str, dtype: str = "auto") -> PreTrainedModel:
    """Load ``model`` with the LoRA ``adapter`` merged into it: W + (alpha / r) B A (Hu et al. 2021, section 4.1).

    ``dtype`` is one of ``DTYPES``. Raises UserError if the adapter was trained on another architecture.
    """
    base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    config = PeftConfig.from_pretrained(adapter)
    try:
        adapted = PeftModel(base, config)
        loaded = adapted.load_adapter(adapter, "default")
        differing = [*loaded.missing_keys, *loaded.unexpected_keys]
        if differing:  # PEFT only warns about these, and would merge a part of the adapter
            raise ValueError(f"{len(differing)} weights are in only one of them, such as {differing[0]}")
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"adapter {adapter}: does not fit model {model} ({reason}); give the model that it was trained on "
            f"({config.base_model_name_or_path or 'adapter_config.json does not name it'})"
        ) from error
    return adapted.merge_and_unload()


def merge(model: str, adapter: str, output: Path, dtype: str = "auto") -> None:
    """Write the merged model with its tokenizer (the adapter's if it has one) and card to the directory ``output``.

    The directory appears only when it is complete. Raises UserError if the adapter does not fit the model, or if
    ``output`` exists.
    """
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: unknown; give {', '.join(DTYPES)}")
    if output.exists():
        raise UserError(f"output {output}: already exists; choose another directory")
    check_checkpoint(model)
    check_adapter(adapter)
    logging.disable_progress_bar()
    tokenizer = load_tokenizer(adapter if (Path(adapter) / "tokenizer.json").is_file() else model)
    merged = load_merged(model, adapter, dtype)
    temporary = output.with_name(f"{output.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        merged.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_merged_card(temporary, model, Path(adapter))
        temporary.replace(output)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"output {output}: {error.strerror or error}; choose another directory") from error
