"""LoRA adapters on the model that they were trained on: loaded, and merged into an ordinary checkpoint.

A merge is made in fp32 and measured. Where the saved number format is coarser than the update, rounding gives the
old weight back: of an update of preference training, whose learning rates are small, bf16 may keep a few percent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from safetensors import safe_open
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, logging

from rag_train.errors import UserError
from rag_train.jobs.files import new_directory
from rag_train.llm.checkpoint import check_adapter, check_checkpoint, load_tokenizer, model_class
from rag_train.precision import exact_attention
from rag_train.training.card import write_merged_card

DTYPES = ("auto", "bfloat16", "float16", "float32")
"""Types in which the merged model can be written; auto: the type of the model."""
LEAST = 0.9
"""Share of an update that must survive the type of the merged weights."""


class Survival:
    """The share of an update of weights that is left after the weights are rounded to ``dtype``.

    It is the projection of the rounded update on the update, over all weights: to first order, the share of the
    change of any loss that the update brings about.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kept = self._all = 0.0

    def __bool__(self) -> bool:
        """Whether anything was updated."""
        return self._all > 0

    def add(self, before: torch.Tensor, after: torch.Tensor) -> None:
        update = after.double() - before.double()
        rounded = after.to(self._dtype).double() - before.double()
        self._kept += float((rounded * update).sum())
        self._all += float((update * update).sum())

    @property
    def share(self) -> float:
        """The share; 1 if nothing was updated."""
        return self._kept / self._all if self._all else 1.0


def load_adapter(base: PreTrainedModel, model: str, adapter: str, **options: Any) -> PeftModel:
    """Return ``base``, which was loaded from ``model``, with the adapter in the directory ``adapter``.

    ``options`` are those of PEFT's ``load_adapter``. Raises UserError if the adapter was trained on another
    architecture.
    """
    config: Any = PeftConfig.from_pretrained(adapter)
    config.lora_dropout = options.pop("dropout", 0.0)
    config.inference_mode = not options.get("is_trainable", False)
    try:
        adapted = PeftModel(base, config, autocast_adapter_dtype=options.get("autocast_adapter_dtype", True))
        loaded = adapted.load_adapter(adapter, "default", **options)
        differing = [*loaded.missing_keys, *loaded.unexpected_keys]
        if differing:  # PEFT only warns about these, and would load a part of the adapter
            raise ValueError(f"{len(differing)} weights are in only one of them, such as {differing[0]}")
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"adapter {adapter}: does not fit model {model} ({reason}); give the model that it was trained on "
            f"({config.base_model_name_or_path or 'adapter_config.json does not name it'})"
        ) from error
    return adapted


def load_merged(model: str, adapter: str, dtype: torch.dtype) -> tuple[PreTrainedModel, float]:
    """Load ``model`` with the LoRA ``adapter`` merged into it: W + (alpha / r) B A (Hu et al. 2021, section 4.1).

    The weights are in fp32. Returns the model, and the share of the update that ``dtype`` can hold. Raises
    UserError if the adapter was trained on another architecture, or if the merged model is not the model with it.
    """
    config = AutoConfig.from_pretrained(model)
    base = model_class(config).from_pretrained(model, dtype=torch.float32, **exact_attention(config))
    tied = _shared(base.get_input_embeddings(), base.get_output_embeddings())
    adapted = load_adapter(base.eval(), model, adapter).eval()
    with adapted.disable_adapter():
        before = _logits(adapted)
    expected = _logits(adapted)
    survival = Survival(dtype)
    if tied:
        _untie(base)
    for layer in adapted.modules():
        if isinstance(layer, BaseTunerLayer):
            with _measured(layer.get_base_layer(), survival):
                layer.merge()
        elif isinstance(layer, ModulesToSaveWrapper):
            new = layer.modules_to_save["default"].parameters()
            for was, weight in zip(layer.original_module.parameters(), new, strict=True):
                survival.add(was.detach(), weight.detach())
    merged: Any = adapted.unload()
    if tied:
        _tie(merged)
    valid_generation(merged)
    _require_same(adapter, _logits(merged), expected, before)
    return merged, survival.share


def survival_of(trainer: Any, model: str) -> float | None:
    """Return the share of what a training of all parameters learned that is left in weights saved in bf16.

    DeepSpeed trains fp32 weights and saves the bf16 weights that it computes with. Other trainings save what they
    train: for them, and if the weights of ``model``, which the training started from, have other names, None is
    returned. All processes call this.
    """
    if not (trainer.is_deepspeed_enabled and trainer.args.bf16):
        return None
    from deepspeed.utils import safe_get_full_fp32_param

    survival, files = Survival(torch.bfloat16), {}
    with ExitStack() as stack:
        for path in Path(model).glob("*.safetensors"):
            file = stack.enter_context(safe_open(path, "pt"))
            files |= dict.fromkeys(file.keys(), file)
        for name, parameter in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
            trained = safe_get_full_fp32_param(parameter)
            if trained is not None and name in files and trainer.is_world_process_zero():
                survival.add(files[name].get_tensor(name), trained.cpu())
    return survival.share if survival else None


@contextmanager
def _measured(layer: torch.nn.Module, survival: Survival) -> Iterator[None]:
    """Let the weights of ``layer`` be changed in fp64 inside the block, and add the change to ``survival``."""
    weights = list(layer.parameters(recurse=False))
    before = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.data = weight.data.double()
    yield
    for weight, was in zip(weights, before, strict=True):
        survival.add(was, weight.detach())
        weight.data = weight.data.float()


def _shared(embeddings: Any, head: Any) -> bool:
    return head is not None and head.weight is embeddings.weight


def _untie(base: Any) -> None:
    """Give the output layer weights of its own if an adapter is on it or on the embeddings that it is tied to.

    Otherwise the adapter of one of them would be merged into both.
    """
    layers = [base.get_input_embeddings(), base.get_output_embeddings()]
    if any(isinstance(layer, BaseTunerLayer) for layer in layers):
        parts: list[Any] = [
            layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer for layer in layers
        ]
        if _shared(*parts):
            parts[1].weight = torch.nn.Parameter(parts[1].weight.detach().clone())


def _tie(merged: Any) -> None:
    """Let output layer and embeddings share their weights again, or state in the config that they are different."""
    embeddings, head = merged.get_input_embeddings(), merged.get_output_embeddings()
    if same := torch.equal(embeddings.weight, head.weight):  # as before, or both were trained as one
        head.weight = embeddings.weight
    for config in (merged.config, merged.config.get_text_config()):
        config.tie_word_embeddings = same
    if not same:
        tied = merged.all_tied_weights_keys.items()
        own = {name: other for name, other in tied if merged.get_parameter(name) is not head.weight}
        merged.all_tied_weights_keys = own


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    """Return the logits of a short text."""
    few = min(1000, model.config.get_text_config().vocab_size)
    ids = torch.randint(few, (1, 16), generator=torch.Generator().manual_seed(0))
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return model(input_ids=ids, use_cache=False, **decoder).logits[0]


def _require_same(place: str, got: torch.Tensor, expected: torch.Tensor, before: torch.Tensor) -> None:
    """Raise UserError unless ``got`` are the ``expected`` logits, up to rounding and a small part of the change."""
    allowed = 1e-4 * expected.std() + 0.05 * (expected - before).square().mean().sqrt()
    if not (error := (got - expected).square().mean().sqrt()) <= allowed:  # also if it is NaN
        raise UserError(
            f"adapter {place}: merged into its model it would be another model (logits differ by {error:.2g}); "
            "keep the adapter, which can be evaluated, served and trained as it is"
        )


def merge(model: str, adapter: str, output: Path, dtype: str = "auto", force: bool = False) -> float:
    """Write the merged model with its tokenizer (the adapter's if it has one) and card to the directory ``output``.

    Returns the share of the update that is left in the weights as they are saved. The directory appears only when
    it is complete and was read back. Raises UserError if the adapter does not fit the model, if ``output`` exists,
    or if the share is less than ``LEAST``, unless ``force`` is true.
    """
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: unknown; give {', '.join(DTYPES)}")
    if output.exists():
        raise UserError(f"output {output}: already exists; choose another directory")
    check_checkpoint(model)
    check_adapter(adapter)
    logging.disable_progress_bar()
    tokenizer = load_tokenizer(adapter if (Path(adapter) / "tokenizer.json").is_file() else model)
    saved = _saved_type(model) if dtype == "auto" else getattr(torch, dtype)
    loaded, share = load_merged(model, adapter, saved)
    merged: Any = loaded
    if share < LEAST and not force:
        raise UserError(
            f"adapter {adapter}: {_name(saved)} keeps {share:.1%} of what it learned, because its update is "
            "smaller than the distance between two such numbers; keep the adapter, which can be evaluated, served "
            f"and trained as it is, or save in float32 (rag-train merge {model} {adapter} OUTPUT --dtype float32); "
            "--force merges nevertheless"
        )
    try:
        with new_directory(output) as unfinished:
            for weight in merged.parameters():  # not the frequencies of positions, which models compute in fp32
                weight.data = weight.data.to(saved)
            merged.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            apart = merged.config.is_encoder_decoder
            write_merged_card(unfinished, model, Path(adapter), _name(saved), share, encoder_decoder=apart)
            expected = _logits(merged.float())
            del merged, loaded
            config = AutoConfig.from_pretrained(unfinished)
            written = model_class(config).from_pretrained(
                unfinished, dtype=torch.float32, **exact_attention(config)
            )
            _require_same(adapter, _logits(written.eval()), expected, expected)
    except OSError as error:
        raise UserError(f"output {output}: {error.strerror or error}; choose another directory") from error
    return share


def _saved_type(model: str) -> torch.dtype:
    """Return the type in which the weights of ``model`` were saved."""
    return getattr(AutoConfig.from_pretrained(model), "dtype", None) or torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def valid_generation(model: Any) -> None:
    """Reduce the generation settings of ``model`` to its tokens if transformers would refuse to save them.

    Some released models have values for sampling although they do not sample, where the values have no effect.
    """
    inner: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    if (settings := getattr(inner, "generation_config", None)) is None:
        return
    try:
        settings.validate(strict=True)
    except ValueError:
        tokens = {name: value for name, value in settings.to_diff_dict().items() if name.endswith("_token_id")}
        inner.generation_config = GenerationConfig(**tokens)
