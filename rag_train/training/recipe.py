"""The training recipe: keys that all stages share, and one section for each stage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, FilePath

from rag_train.errors import UserError
from rag_train.formats.instructions import Given, given
from rag_train.model_presets import fill_from_preset
from rag_train.recipe import Count, load_recipe
from rag_train.training.rl.rewards import Rewards

Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class LoraRecipe:
    """Low-rank adapters, trained in place of all parameters."""

    r: Count = 16
    """Rank of the adapters."""
    alpha: Count | None = None
    """The output of the adapters is scaled by alpha / r. null: twice r, so that ranks are compared at one scale."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before the adapters; stage dpo trains without dropout."""
    target_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    """Names of the linear layers that get an adapter. With an encoder-decoder, whose layers have other names, the
    default is all of them."""
    merge: bool = False
    """Save the model with the adapters merged into it, in the number format of the model, as `rag-train merge`
    does; if that format is too coarse for what was learned, the adapters are kept and the run ends with an error.
    false: save the adapters, whose directory every command takes as a model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", self.alpha or 2 * self.r)


@dataclass(frozen=True, kw_only=True)
class SFTRecipe:
    """Keys of stage sft."""

    pack_tokens: Count | None = None
    """Pack examples into rows of up to this many tokens, one row per forward pass (batch_size stays 1): no padding,
    and prefixes that examples share are computed once. The loss is the same. null: padded batches of batch_size
    examples."""
    weight: Literal["example", "token"] = "token"
    """Weights in the loss of an optimizer step. example: all examples have the same weight, long or short, as in
    DeepRAG's release, whose batches have one example. token: all trained tokens have the same weight, so that long
    examples count more."""


@dataclass(frozen=True, kw_only=True)
class DPORecipe:
    """Keys of stage dpo."""

    loss: Literal["sigmoid", "sigmoid_norm", "ipo"] = "sigmoid"
    """Loss, by its name in TRL. sigmoid: the paper's. sigmoid_norm: the same on log-probabilities averaged over the
    tokens of a snippet. ipo: IPO, a squared loss on these averages, with beta as its tau (Azar et al. 2023)."""
    beta: Positive = 0.4
    """Strength of the penalty for departing from the reference model; the authors use 0.4."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """With loss sigmoid: probability that a preference label is wrong (conservative DPO, Mitchell 2023); 0 is the
    paper's loss."""
    sft_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of an imitation term on the chosen snippet, which keeps its probability high; 0 is the paper's
    loss."""
    layout: Literal["pairs", "tree"] = "pairs"
    """pairs: TRL's trainer, which computes every prompt once for each of its two snippets. tree: all sequences of a
    batch in one row, so that every distinct prefix is computed once. The loss is the same."""


@dataclass(frozen=True, kw_only=True)
class RLRecipe:
    """Keys of stage rl. A rollout is a question that a strategy answers with sampled tokens."""

    index: str
    """Retriever of the rollouts: a directory of `rag-train index`, or another PLACE of `rag-train eval --index`."""
    passages: Count = 3
    """Passages that a retrieval returns."""
    instructions: bool = True
    """Whether prompts begin with the strategy's instruction, like DeepRAG's in the records of Stages I and II."""
    prompts: str | None = None
    """Directory of files in place of the package's instructions, by name; null: those of the package. Evaluate and
    serve the model with the same files."""
    strategy: Literal["deeprag", "dualrag", "planrag", "search-r1"] = "deeprag"
    """Strategy of the rollouts. deeprag, dualrag and planrag start from a model that writes their formats.
    search-r1 (Jin et al. 2025) can start from any model that follows instructions. With dualrag, all modules are
    trained, by one call of each rollout, drawn at random. With planrag, the planner is trained; the other modules
    answer greedily with the same weights."""
    max_steps: Count = 6
    """Maximum number of subqueries, after which the controller must answer; with dualrag, of retrieval rounds; with
    search-r1, of turns before the last. Not for planrag."""
    call_tokens: Count = 256
    """Maximum number of tokens of an engine call. Not for dualrag and planrag, whose modules have limits."""
    group: Annotated[int, Field(ge=2)] = 8
    """Rollouts of each question, whose rewards are compared. Divides the rollouts of a step, which are batch_size
    times gradient_accumulation, or global_batch."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """Engine of the rollouts. transformers: the trained model itself. vllm: on the same GPU, with a copy of the
    weights; faster, and new weights are sent to it at every step."""
    ahead: bool = False
    """With engine vllm: make the rollouts of the next generation while the model trains on those of this one. Their
    weights are older by one generation; see correction."""
    gpu_memory: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """With engine vllm: share of the GPU's memory that vLLM uses, for weights and key-value cache."""
    max_context: Count | None = None
    """With engine vllm: tokens of the longest prompt and its continuation. null: the model's own limit, for which
    the key-value cache of a model with a long context may be too small."""
    reward: dict[str, Weight] = field(default_factory=lambda: {"exact_match": 1.0})
    """Weights of what a rollout is rewarded for: exact_match (an answer that equals an accepted one), f1 (of the
    answer's tokens), format (a transcript that the model ended by itself), or module:function, which gets a
    question and a trajectory. A part that is not named has no weight."""
    price: dict[str, Weight] = field(default_factory=dict)
    """What a rollout pays, in units of the reward: for each of its retrievals (queries to the retriever), calls (of
    the engine) and tokens (that the model writes), or by module:function. A sweep over rl.price.retrievals draws
    the frontier of accuracy against retrievals."""
    credit: Literal["trajectory", "tree"] = "trajectory"
    """Advantage of a token. trajectory: that of its rollout in its group, for all tokens (GRPO). tree: the same,
    except at decisions: at the states that a question's rollouts visit, both decisions are rolled out, and the
    decision's token gets the difference of the mean rewards of the two subtrees. A question has at most as many
    states tried as it has rollouts."""
    branches: Count = 2
    """With credit tree: rollouts of each of the two decisions at a state."""
    scale: Literal["group", "none"] = "group"
    """group: advantages are divided by the standard deviation of the question's rewards, as in GRPO. none: not, as
    in Dr. GRPO (Liu et al. 2025), so that questions with nearly equal rewards count less. With group, a small price
    counts as much as a large one where all rollouts of a question are right. Credit tree needs none: it compares
    differences of rewards across questions."""
    loss: Literal["dapo", "grpo"] = "dapo"
    """Loss, by its name in TRL. dapo: mean over the trained tokens of a step. grpo: mean over each rollout's
    tokens, then over the rollouts, so that tokens of long rollouts count less; dropped rollouts count as 0."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """A token's probability ratio is clipped at 1 - clip_low; without effect with updates 1."""
    clip_high: Positive = 0.28
    """A token's probability ratio is clipped at 1 + clip_high, by default higher than below, which keeps entropy
    (DAPO, Yu et al. 2025)."""
    kl: Weight = 0.0
    """Weight of the divergence from the starting model, which is then kept in memory."""
    correction: Positive = 2.0
    """Upper limit of the importance weight of a token, its probability in training over that in the engine."""
    layout: Literal["rollouts", "tree"] = "tree"
    """rollouts: TRL's batches, with a padded row for each rollout. tree: all rollouts of a batch in one row, so
    that every distinct prefix is computed once. The loss is the same."""
    updates: Count = 1
    """Optimizer steps on the rollouts of one generation, which are as many as those steps need; divides
    save_steps."""
    budget: Count | None = None
    """Tokens, read and written by the engine, after which the training ends: a measure to compare runs that spend
    them differently, such as with another credit or group. null: train to the end of the epochs."""
    collapse: Count | None = 50
    """Stop if for this many steps no rollout differs in reward from the others of its group, or the entropy is 0.
    null: never."""

    def __post_init__(self) -> None:
        """Read the user's prompts, so that their mistakes show before a model is opened."""
        _ = self.given

    @cached_property
    def given(self) -> Given:
        """The instructions that prompts begin with."""
        return given("rl.prompts:", self.instructions, self.prompts)


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """Settings of a training run. ``lr`` and its length have no default, because stages differ by a factor of 20
    and of 8."""

    stage: Literal["sft", "dpo", "rl"]
    """sft: imitation learning (DeepRAG, section 3.3). dpo: chain of calibration (section 3.4). rl: reinforcement
    learning from the rewards of sampled transcripts."""
    model: str
    """Model to start from: a checkpoint directory or a Hub name, or the directory of adapters, which training then
    goes on with (lora must have their settings). In stage dpo it is the reference model, too. With model_preset it
    can be left out."""
    revision: str | None = None
    """Commit, tag or branch of a Hub model. null: the newest commit, which the finished model's card names and a
    resumed run keeps."""
    data: FilePath
    """JSON Lines file: SFTRecord for stage sft, PreferencePair for stage dpo. For stage rl a question set, in any
    format that `rag-train eval --questions` reads."""
    eval_data: FilePath | None = None
    """Held-out records of the same type, on questions that are not in data: loss and accuracy on them are measured
    every eval_steps and at the end. null: no validation. Not for stage rl."""
    eval_steps: Count = 100
    """Optimizer steps between evaluations on eval_data."""
    keep: Literal["last", "best"] = "last"
    """Weights that are kept: those of the last step, or those of the best evaluation, by loss in stage sft and by
    accuracy in stage dpo. best also writes a checkpoint at every evaluation that is the best so far."""
    patience: Count | None = None
    """Stop after this many evaluations in a row that are no better than the best before. null: train to the end."""
    output_dir: str
    """Directory for the trained model. Checkpoints are kept in its folder checkpoints/ until the run has
    finished."""
    lr: Positive
    """Peak learning rate (the authors use 1e-5 for sft, 5e-7 for dpo; 1e-6 is usual for rl)."""
    epochs: Positive | None = None
    """Passes over the data (the authors use 1 for sft, 8 for dpo). Give either epochs or steps."""
    steps: Count | None = None
    """Optimizer steps, in place of epochs: the data are passed over until they are made."""
    model_preset: str | None = None
    """Popular model, such as qwen2.5-7b or, with adapters, qwen2.5-7b-lora. Stands for the model and for batch and
    memory keys that the recipe leaves out, by the number of GPUs."""
    seed: int = 0
    """Seed of the data order, of dropout and of the adapters' initial weights."""
    max_tokens: Count = 4096
    """Maximum length of an example in tokens, prompt included. In stage rl, later tokens of a rollout are not
    trained."""
    balance: bool = False
    """Balance the data. sft: every task gets an equal number of examples (rare tasks are repeated, frequent tasks
    are thinned out), and the epoch keeps its length. dpo: both decisions get an equal number of pairs (surplus
    pairs are dropped), because the search more often prefers the parametric answer."""
    chat: Literal["auto", True, False] = "auto"
    """Wrap prompts in the tokenizer's chat template. auto: if it has a template."""
    schedule: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    """Learning rate schedule after the warm-up."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps in which the learning rate rises from 0."""
    batch_size: Count = 1
    """Examples (rollouts in stage rl) per device and forward pass; at most as many with global_batch."""
    global_batch: Count | None = None
    """Examples per optimizer step over all devices (packed rows with sft.pack_tokens). gradient_accumulation
    follows from it, so that the same recipe takes the same steps on any number of devices that divides it. null:
    batch_size times gradient_accumulation times the number of devices."""
    gradient_accumulation: Count = 1
    """Forward passes per optimizer step; an error with global_batch."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16: mixed precision; the weights stay in fp32 unless adapters or DeepSpeed are used. auto: bf16, but fp32
    on processors and GPUs that have no instructions for bf16, where it is many times slower."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: needs less memory and is about 20% slower."""
    attention: Literal["auto", "flex", "sliced", "sdpa"] = "auto"
    """Attention over packed rows and trees. flex: PyTorch's FlexAttention, on GPUs. sliced: plain matrix products
    over the ancestors of 128 tokens at a time. sdpa: PyTorch's fused kernel with a mask of all pairs of tokens.
    auto: on a GPU flex, tried on a small tree first, or else sdpa, with a line that says why; on a CPU sliced."""
    lora: LoraRecipe | None = None
    """Train adapters. null: train all parameters."""
    quantize: Literal["none", "4bit"] = "none"
    """4bit: load the weights under the adapters in 4 bits (QLoRA, with bitsandbytes). With lora.merge, the adapters
    are merged into the weights that were not quantised."""
    check_memory: bool = True
    """Refuse to start if the estimated memory of training exceeds the memory of the device."""
    save_steps: Count = 500
    """Steps between checkpoints, of which the newest is kept: an interrupted run continues from it."""
    save_only_model: bool = False
    """true: checkpoints have the weights only, a seventh of the disk in a DeepSpeed training of all parameters; an
    interrupted run then starts again from its first step. false: they also have the state of the optimizer."""
    logging_steps: Count = 10
    """Steps between logged losses. The loss is also logged at every checkpoint."""
    report_to: Literal["none", "wandb", "tensorboard"] = "none"
    """Where to send metrics in addition to metrics.jsonl."""
    sft: SFTRecipe | None = None
    """Keys of stage sft; an error in another stage. null: the defaults."""
    dpo: DPORecipe | None = None
    """Keys of stage dpo; an error in another stage. null: the defaults."""
    rl: RLRecipe | None = None
    """Keys of stage rl, which needs at least rl.index; an error in another stage."""

    fill_in = staticmethod(fill_from_preset)

    def __post_init__(self) -> None:
        for other in {"sft", "dpo", "rl"} - {self.stage}:
            if getattr(self, other) is not None:
                raise UserError(f"{other}: stage is {self.stage}; remove the section {other} or set stage: {other}")
        if self.stage == "rl":
            self._check_rl()
        elif getattr(self, self.stage) is None:
            object.__setattr__(self, self.stage, SFTRecipe() if self.stage == "sft" else DPORecipe())
        if (self.epochs is None) == (self.steps is None):
            problem = "missing" if self.steps is None else f"steps={self.steps} is given as well"
            raise UserError(f"epochs: {problem}; give epochs (passes over the data) or steps, not both")
        for key, asked in (("keep", self.keep == "best"), ("patience", self.patience is not None)):
            if asked and self.eval_data is None:
                raise UserError(f"{key}={getattr(self, key)}: needs held-out examples; set eval_data=FILE as well")
        if self.pack_tokens and self.batch_size > 1:
            raise UserError(
                f"batch_size={self.batch_size}: with sft.pack_tokens, each packed row is a batch; set batch_size=1"
            )
        if self.global_batch and self.gradient_accumulation > 1:
            raise UserError(
                f"gradient_accumulation={self.gradient_accumulation}: follows from "
                f"global_batch={self.global_batch}; remove it, or set global_batch=null"
            )
        if self.dpo and self.dpo.label_smoothing and self.dpo.loss != "sigmoid":
            raise UserError(
                f"dpo.label_smoothing: not possible with dpo.loss={self.dpo.loss}; set dpo.loss=sigmoid, or "
                "dpo.label_smoothing=0"
            )
        if self.quantize != "none" and self.lora is None:
            raise UserError(f"quantize={self.quantize}: quantised weights cannot be trained; set lora.r=16 as well")

    def _check_rl(self) -> None:
        """Raise UserError for keys that stage rl cannot use together."""
        if self.rl is None:
            raise UserError("rl: missing; stage rl searches while it trains, set at least rl.index")
        for key, default in (("eval_data", None), ("balance", False), ("chat", "auto")):
            if getattr(self, key) != default:
                raise UserError(
                    f"{key}: not possible in stage rl, which prompts as `rag-train eval` does; remove it"
                )
        if self.rl.ahead and self.rl.engine != "vllm":
            raise UserError(
                "rl.ahead: engine transformers samples with the model that trains meanwhile; set rl.engine=vllm"
            )
        if self.rl.credit == "tree" and self.rl.strategy != "deeprag":
            raise UserError(
                f"rl.credit=tree: rl.strategy={self.rl.strategy} has no decisions between two texts; set "
                "rl.credit=trajectory"
            )
        if self.rl.credit == "tree" and self.rl.scale != "none":
            raise UserError(
                "rl.credit=tree: compares differences of rewards across questions, which cannot be divided by each "
                "question's deviation; set rl.scale=none"
            )
        Rewards(self.rl.reward, self.rl.price)
        rollouts = self.global_batch or self.batch_size * self.gradient_accumulation
        if rollouts % self.rl.group:
            raise UserError(
                f"rl.group={self.rl.group}: does not divide the {rollouts} rollouts of a step; set "
                f"global_batch={self.rl.group * -(-rollouts // self.rl.group)}"
            )
        if self.save_steps % self.rl.updates:
            raise UserError(
                f"rl.updates={self.rl.updates}: a checkpoint between updates on the same rollouts could not be "
                f"continued from; set save_steps={self.rl.updates * -(-self.save_steps // self.rl.updates)}"
            )

    def on(self, processes: int) -> TrainRecipe:
        """Return the recipe with ``batch_size`` and ``gradient_accumulation`` in place of ``global_batch``.

        Raises UserError if ``global_batch`` cannot be divided among the processes in equal batches, or in stage rl
        in whole groups.
        """
        if self.global_batch is None:
            return self
        each, rest = divmod(self.global_batch, processes)
        if rest or not each:
            raise UserError(
                f"global_batch={self.global_batch}: not a multiple of the number of processes, {processes}; set "
                f"global_batch={processes * (each + 1)}"
            )
        if self.rl and each % self.rl.group:
            fitting = processes * self.rl.group * -(-each // self.rl.group)
            raise UserError(
                f"global_batch={self.global_batch}: rl.group={self.rl.group} does not divide the {each} rollouts "
                f"of each of {processes} processes; set global_batch={fitting}"
            )
        size = min(self.batch_size, each)
        if each % size:
            fitting = max(number for number in range(1, size) if each % number == 0)
            raise UserError(
                f"global_batch={self.global_batch}: batch_size={size} does not divide the {each} examples of each "
                f"process; set batch_size={fitting}"
            )
        return replace(self, global_batch=None, batch_size=size, gradient_accumulation=each // size)

    @property
    def pack_tokens(self) -> int | None:
        """Tokens of a packed row; None for padded batches and in stage dpo."""
        return self.sft.pack_tokens if self.sft else None

    @property
    def criterion(self) -> str:
        """Metric of the evaluations by which the best one is found."""
        return "eval_loss" if self.stage == "sft" else "eval_accuracy"

    @property
    def trees(self) -> bool:
        """Whether the rows are trees (`rag_train.training.tree`)."""
        return bool(self.pack_tokens) or "tree" in (self.dpo and self.dpo.layout, self.rl and self.rl.layout)


def load_train_recipe(path: str | Path, overrides: Sequence[str] = ()) -> TrainRecipe:
    """Read a training recipe; in a W&B sweep, each run gets a subdirectory of ``output_dir``.

    `wandb agent` passes the same ``output_dir`` to all runs. Raises UserError as `load_recipe` does.
    """
    recipe = load_recipe(TrainRecipe, path, overrides)
    if "WANDB_SWEEP_ID" in os.environ:
        recipe = replace(recipe, output_dir=f"{recipe.output_dir}/{os.environ['WANDB_RUN_ID']}")
    return recipe
