"""Settings that the trainers of all stages share: training arguments, the model and its adapters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoConfig, TrainingArguments, set_seed
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import is_liger_kernel_available

from rag_train.errors import UserError
from rag_train.llm.checkpoint import base_of, model_class
from rag_train.precision import exact_attention
from rag_train.training.merge import load_adapter
from rag_train.training.recipe import TrainRecipe
from rag_train.training.tree import attention_for_trees
from rag_train.training.validation import validation_arguments


def trainer_arguments(recipe: TrainRecipe, checkpoints: Path) -> dict[str, Any]:
    """Return the arguments that SFTConfig and DPOConfig have in common.

    The model is loaded in bf16 under adapters and with DeepSpeed, which keeps its own fp32 weights. Otherwise it is
    loaded in fp32, because bf16 weights are too coarse for updates of these sizes.
    """
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    os.environ["ACCELERATE_MIXED_PRECISION"] = (
        "bf16" if recipe.precision == "bf16" else "no"
    )  # not the launcher's setting
    half = recipe.precision == "bf16" and (deepspeed or recipe.lora is not None)
    init: dict[str, Any] = {"dtype": "bfloat16" if half else "float32"} | exact_attention(model_config(recipe))
    if recipe.quantize == "4bit":  # as in QLoRA (Dettmers et al. 2023): NF4 with quantized scales
        init["quantization_config"] = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": init["dtype"],
        }
    return {
        "output_dir": str(checkpoints),
        "model_init_kwargs": init,
        "seed": recipe.seed,
        "learning_rate": recipe.lr,
        "lr_scheduler_type": recipe.schedule,
        "warmup_steps": recipe.warmup_ratio,
        "num_train_epochs": recipe.epochs or 1,
        "max_steps": recipe.steps or -1,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.gradient_accumulation,
        "use_cpu": not torch.accelerator.is_available(),
        "bf16": recipe.precision == "bf16",
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "pad_to_multiple_of": 64,  # few distinct shapes, so that memory and kernels are reused across batches
        "max_length": None,  # the rows are already shortened at segment boundaries
        "save_steps": recipe.save_steps,
        "save_only_model": recipe.save_only_model,
        "logging_steps": recipe.logging_steps,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": "non_padding",
        "report_to": "none",  # `tracked` adds the service that the recipe names
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        **validation_arguments(recipe),
    }


def lora_config(recipe: TrainRecipe):
    """Return the PEFT configuration, or None if all parameters are trained."""
    if recipe.lora is None:
        return None
    assert recipe.lora.alpha is not None
    return LoraConfig(
        r=recipe.lora.r,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=recipe.lora.dropout,
        target_modules=recipe.lora.target_modules,
        task_type="SEQ_2_SEQ_LM" if model_config(recipe).is_encoder_decoder else "CAUSAL_LM",
    )


def check_adapters(recipe: TrainRecipe, adapter: str) -> None:
    """Raise UserError unless the recipe trains adapters like the one that it starts from, in ``adapter``."""
    merge = f"or merge the adapter first (rag-train merge MODEL {adapter} OUTPUT --dtype float32)"
    config: Any = PeftConfig.from_pretrained(adapter)
    start = {"r": config.r, "alpha": config.lora_alpha}
    if not isinstance(config.target_modules, str):  # an expression
        start["target_modules"] = sorted(config.target_modules or ())
    if recipe.lora is None:
        raise UserError(f"model {adapter}: is an adapter; set lora.r={config.r} to go on training it, {merge}")
    asked = {"r": recipe.lora.r, "alpha": recipe.lora.alpha, "target_modules": sorted(recipe.lora.target_modules)}
    for key, value in start.items():
        if asked[key] != value:
            given, needed = (str(each).replace(" ", "").replace("'", "") for each in (asked[key], value))
            raise UserError(
                f"lora.{key}={given}: model {adapter} is an adapter with {needed}, which training goes on with; "
                f"set lora.{key}={needed}, {merge}"
            )


def parts_for_trl(recipe: TrainRecipe, args: Any) -> dict[str, Any]:
    """Return arguments and model for a trainer of TRL, which loads a model itself if it is no adapter."""
    if base_of(recipe.model)[1]:
        return {"args": args, "model": load_model(recipe, **args.model_init_kwargs)}
    return {"args": args, "model": recipe.model, "peft_config": lora_config(recipe)}


def model_config(recipe: TrainRecipe) -> Any:
    """Return the configuration of the model, or of the model under the adapters that training goes on with."""
    return AutoConfig.from_pretrained(base_of(recipe.model)[0])


def load_model(recipe: TrainRecipe, **init: Any) -> torch.nn.Module:
    """Load the model, with adapters if the recipe has any; ``init`` is passed to ``from_pretrained``.

    Adapters that the recipe starts from are loaded with their weights: training goes on with them, and what is
    computed before the first step, such as the reference of stage dpo, is theirs. Create TrainingArguments before
    this call, so that ZeRO-3 shards the weights while they are read.
    """
    base, adapter = base_of(recipe.model)
    model: Any = model_class(model_config(recipe)).from_pretrained(base, **init)
    if config := lora_config(recipe):
        set_seed(recipe.seed)  # for the adapters' initial weights
        same_type = is_deepspeed_zero3_enabled()  # ZeRO-3 gathers parameters together, which requires one type
        if adapter:
            options = {"is_trainable": True, "autocast_adapter_dtype": not same_type}
            model = load_adapter(model, base, adapter, dropout=config.lora_dropout, **options)
        else:
            model = get_peft_model(model, config, autocast_adapter_dtype=not same_type)
        if recipe.precision == "bf16":
            _keep_input_type(model)
        if recipe.gradient_checkpointing:
            model.enable_input_require_grads()
    return model


def _keep_input_type(model: torch.nn.Module) -> None:
    """Let autocast choose the type of the adapters' inputs, which PEFT would convert to fp32 before it."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.cast_input_dtype_enabled = False


def own_parts(recipe: TrainRecipe, checkpoints: Path, attention: str | None = None, **more: Any) -> dict[str, Any]:
    """Return arguments, with ``more`` of them, and model for a trainer whose rows have columns of our own.

    ``attention`` is the model's ``attn_implementation``; None leaves its own.
    """
    arguments = trainer_arguments(recipe, checkpoints)
    for name in ("max_length", "pad_to_multiple_of", "model_init_kwargs"):  # arguments of TRL, not of transformers
        init = arguments.pop(name)
    args = TrainingArguments(**arguments | {"remove_unused_columns": False, "label_names": []} | more)
    if attention:
        init |= {"attn_implementation": attention}
    return {"args": args, "model": load_model(recipe, **init)}


def tree_parts(recipe: TrainRecipe, checkpoints: Path) -> dict[str, Any]:
    """Return what a trainer takes whose rows are trees (`rag_train.training.tree`), one per forward pass.

    On a GPU, Liger's kernels replace the model's layers if the package is installed, except its fused
    cross-entropy: logits are computed at trained positions only.
    """
    parts = own_parts(
        recipe,
        checkpoints,
        attention_for_trees(model_config(recipe), recipe.attention),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        include_num_input_tokens_seen="all",
        use_liger_kernel=torch.cuda.is_available() and is_liger_kernel_available(),
        liger_kernel_config={"fused_linear_cross_entropy": False},
    )
    return parts | {"automatic": recipe.attention == "auto"}
