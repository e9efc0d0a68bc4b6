"""The training recipe: one flat dataclass for both stages of DeepRAG (sections 3.3, 3.4 and 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, FilePath

from rag_train.errors import UserError

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class LoraRecipe:
    """Low-rank adapters in place of full parameters."""

    r: Count = 16
    """Rank of the adapters."""
    alpha: Count = 32
    """The adapters' output is scaled by alpha / r."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapters (SFT only; preference training runs without)."""
    target_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    """Names of the linear layers that get an adapter."""
    merge: bool = True
    """Save the model with the adapters merged into it; false: the adapters alone, for `rag-train merge` or
    `rag-train eval --adapter`."""


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """What to train, on what, and how. ``lr`` and ``epochs`` have no default: the stages' differ by 20 times."""

    stage: Literal["sft", "dpo"]
    """sft: imitation learning (section 3.3); dpo: chain of calibration (section 3.4)."""
    model: str
    """Model to start from: a checkpoint directory or a hub name. For dpo it is the reference as well."""
    data: FilePath
    """JSON Lines: SFTRecord for sft, PreferencePair for dpo."""
    output_dir: str
    """Where the model goes; checkpoints go to checkpoints/ below it until the run has finished."""
    lr: Positive
    """Peak learning rate (the authors': 1e-5 for sft, 5e-7 for dpo)."""
    epochs: Positive
    """Passes over the data (the authors': 1 for sft, 8 for dpo)."""
    seed: int = 0
    """Seed of the data order, of dropout and of the adapters' initial weights."""
    max_tokens: Count = 4096
    """Longest example in tokens, prompt included."""
    schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    """Learning rate after the warm-up."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    batch_size: Count = 1
    """Examples per device and forward pass."""
    gradient_accumulation: Count = 1
    """Forward passes per optimizer step."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16: mixed precision, the weights themselves kept in fp32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a fifth slower."""
    lora: LoraRecipe | None = None
    """Adapters; null trains all parameters."""
    quantize: Literal["none", "4bit"] = "none"
    """4bit: the weights under the adapters in 4 bits each (QLoRA, by bitsandbytes); the adapters are then merged
    into the weights as they were."""
    loss: Literal["sigmoid", "sigmoid_norm", "ipo"] = "sigmoid"
    """dpo, TRL's names: sigmoid: the paper's; sigmoid_norm: the same on log-probabilities averaged over a snippet's
    tokens; ipo: IPO, a squared loss on those averages, with beta for tau (Azar et al. 2023)."""
    beta: Positive = 0.4
    """dpo: how much the model pays for leaving the reference."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """dpo with loss=sigmoid: probability that a preference is the wrong way round (conservative DPO, Mitchell
    2023); 0 is the paper's loss."""
    sft_weight: Annotated[float, Field(ge=0)] = 0.0
    """dpo: weight of an imitation term on the chosen snippet, which keeps it likely; 0 is the paper's loss."""
    layout: Literal["pairs", "tree"] = "pairs"
    """dpo: pairs: TRL's trainer, every prompt read for each of its pair's snippets; tree: all sequences of a batch
    as one, every distinct prefix read once (the same loss)."""
    pack_tokens: Count | None = None
    """sft: fill rows with examples up to this many tokens, a row a forward pass (batch_size stays 1): no padding,
    every distinct prefix read once, the same loss. null: batches of batch_size examples, padded."""
    balance: bool = False
    """dpo: as many pairs for either decision (a search more often solves what the model knows). sft: as many
    examples of every task, rare ones repeated, an epoch as long as before (HANRAG, section 4.2)."""
    chat: Literal["auto", True, False] = "auto"
    """Wrap prompts in the tokenizer's chat template; auto: if it has one."""
    check_memory: bool = True
    """Refuse to start where the memory that training is estimated to need is more than the device has."""
    save_steps: Count = 500
    """Steps between checkpoints, from which a killed run goes on."""
    logging_steps: Count = 10
    """Steps between logged losses. Checkpoints are logged as well."""
    report_to: Literal["none", "wandb", "tensorboard"] = "none"
    """Where metrics go besides metrics.jsonl."""

    def __post_init__(self) -> None:
        if self.pack_tokens and self.batch_size > 1:
            raise UserError(f"batch_size={self.batch_size}: with pack_tokens a row is a batch; set batch_size=1")
        if self.label_smoothing and self.loss != "sigmoid":
            raise UserError(f"label_smoothing: not with loss={self.loss}; set one of them back")
        if self.quantize != "none" and self.lora is None:
            raise UserError(f"quantize={self.quantize}: such weights cannot be trained; set lora.r=16 as well")
