"""Presets of popular models: what a training recipe with ``model_preset: NAME`` leaves to the preset.

The shapes are those of the models' released configurations. From them, `Preset.sizes` counts parameters without a
download and without torch; a test compares it with the classes of transformers.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from rag_train.errors import UserError

LORA = "-lora"
"""Ending of a preset's name that stands for adapters instead of all parameters."""
EXAMPLES_PER_STEP = 64
"""Examples per optimizer step, over all processes, as in the recipes of the five systems."""


@dataclass(frozen=True)
class Preset:
    """A model on the Hub, its model type in transformers, and the shape of its decoder."""

    hub: str
    family: str
    hidden: int
    layers: int
    mlp: int
    heads: int
    key_heads: int
    """Heads of keys and of values."""
    head: int
    """Numbers of a head."""
    vocabulary: int
    tied: bool = False
    """Whether input and output embeddings are the same weights."""

    def configuration(self) -> dict[str, Any]:
        """Return the keys of the model's configuration in transformers that have its shape."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.mlp,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
        }

    def linear(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of outputs and inputs of each linear layer by its name."""
        queries, keys = self.heads * self.head, self.key_heads * self.head
        shapes = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.mlp, self.hidden),
            "mlp.up_proj": (self.mlp, self.hidden),
            "mlp.down_proj": (self.hidden, self.mlp),
        }
        found = {f"model.layers.{i}.{name}": shape for i in range(self.layers) for name, shape in shapes.items()}
        return found | {"lm_head": (self.vocabulary, self.hidden)}

    def parameters(self) -> int:
        """Return the number of parameters, embeddings included; tied embeddings count once."""
        matrices = sum(out * into for name, (out, into) in self.linear().items() if name != "lm_head")
        biases = self.layers * (self.heads + 2 * self.key_heads) * self.head if self.family == "qwen2" else 0
        norms = self.layers * self.hidden * (4 if self.family.startswith("gemma") else 2) + self.hidden
        if self.family in ("qwen3", "gemma3_text"):  # norms of queries and keys
            norms += self.layers * 2 * self.head
        return matrices + biases + norms + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def key_value_bytes(self) -> int:
        """Return the size of the keys and values of a token in bf16."""
        return 2 * 2 * self.layers * self.key_heads * self.head


# Shapes: hidden, layers, MLP, query heads, key heads, head, vocabulary.
PRESETS = {
    "smollm2-135m": Preset(
        "HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 576, 30, 1536, 9, 3, 64, 49152, tied=True
    ),
    "smollm2-360m": Preset(
        "HuggingFaceTB/SmolLM2-360M-Instruct", "llama", 960, 32, 2560, 15, 5, 64, 49152, tied=True
    ),
    "smollm2-1.7b": Preset(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 2048, 24, 8192, 32, 32, 64, 49152, tied=True
    ),
    "qwen2.5-0.5b": Preset("Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 896, 24, 4864, 14, 2, 64, 151936, tied=True),
    "qwen2.5-1.5b": Preset("Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1536, 28, 8960, 12, 2, 128, 151936, tied=True),
    "qwen2.5-3b": Preset("Qwen/Qwen2.5-3B-Instruct", "qwen2", 2048, 36, 11008, 16, 2, 128, 151936, tied=True),
    "qwen2.5-7b": Preset("Qwen/Qwen2.5-7B-Instruct", "qwen2", 3584, 28, 18944, 28, 4, 128, 152064),
    "qwen2.5-14b": Preset("Qwen/Qwen2.5-14B-Instruct", "qwen2", 5120, 48, 13824, 40, 8, 128, 152064),
    "qwen2.5-32b": Preset("Qwen/Qwen2.5-32B-Instruct", "qwen2", 5120, 64, 27648, 40, 8, 128, 152064),
    "qwen3-0.6b": Preset("Qwen/Qwen3-0.6B", "qwen3", 1024, 28, 3072, 16, 8, 128, 151936, tied=True),
    "qwen3-1.7b": Preset("Qwen/Qwen3-1.7B", "qwen3", 2048, 28, 6144, 16, 8, 128, 151936, tied=True),
    "qwen3-4b": Preset("Qwen/Qwen3-4B", "qwen3", 2560, 36, 9728, 32, 8, 128, 151936, tied=True),
    "qwen3-8b": Preset("Qwen/Qwen3-8B", "qwen3", 4096, 36, 12288, 32, 8, 128, 151936),
    "llama3.2-1b": Preset(
        "meta-llama/Llama-3.2-1B-Instruct", "llama", 2048, 16, 8192, 32, 8, 64, 128256, tied=True
    ),
    "llama3.2-3b": Preset(
        "meta-llama/Llama-3.2-3B-Instruct", "llama", 3072, 28, 8192, 24, 8, 128, 128256, tied=True
    ),
    "llama3.1-8b": Preset("meta-llama/Llama-3.1-8B-Instruct", "llama", 4096, 32, 14336, 32, 8, 128, 128256),
    "llama3.3-70b": Preset("meta-llama/Llama-3.3-70B-Instruct", "llama", 8192, 80, 28672, 64, 8, 128, 128256),
    "mistral-7b": Preset("mistralai/Mistral-7B-Instruct-v0.3", "mistral", 4096, 32, 14336, 32, 8, 128, 32768),
    "gemma2-2b": Preset("google/gemma-2-2b-it", "gemma2", 2304, 26, 9216, 8, 4, 256, 256000, tied=True),
    "gemma2-9b": Preset("google/gemma-2-9b-it", "gemma2", 3584, 42, 14336, 16, 8, 256, 256000, tied=True),
    "gemma3-1b": Preset("google/gemma-3-1b-it", "gemma3_text", 1152, 26, 6912, 4, 1, 256, 262144, tied=True),
}


def find_preset(name: str) -> Preset:
    """Return the preset ``name``, with or without `LORA`.

    Raises UserError, with the names that are near, if there is none.
    """
    if preset := PRESETS.get(name.removesuffix(LORA)):
        return preset
    near = difflib.get_close_matches(name.lower().removesuffix(LORA), PRESETS, n=3)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"the presets are {', '.join(PRESETS)}"
    raise UserError(f"model_preset: no preset {name[:80]!r}; {remedy}")


def preset_keys(name: str) -> dict[str, Any]:
    """Return the keys of a training recipe that the preset ``name`` stands for.

    Activations are recomputed from one billion parameters on. Weights under adapters are quantised if they are
    larger than the 80 GB of a GPU, because every process loads all of them.
    """
    preset, adapters = find_preset(name), name.endswith(LORA)
    large = preset.parameters() > 1e9
    keys: dict[str, Any] = {
        "model": preset.hub,
        "batch_size": 1,
        "global_batch": EXAMPLES_PER_STEP,
        "gradient_checkpointing": large,
    }
    if adapters:
        keys["lora"] = {}  # the default names of linear layers are those of all these families
        keys["quantize"] = "4bit" if 2 * preset.parameters() > 80e9 else "none"
    return keys


def fill_from_preset(data: dict[str, Any]) -> None:
    """Add to a recipe's data the keys that its ``model_preset`` stands for and that it leaves out.

    Raises UserError if there is no such preset, or if the recipe's model is that of another one.
    """
    if not isinstance(name := data.get("model_preset"), str):
        return
    preset, model = find_preset(name), data.get("model")
    if model != preset.hub and model in [other.hub for other in PRESETS.values()]:
        raise UserError(
            f"model: {model} is not the model of the preset {name}; remove it, or set model={preset.hub}"
        )
    keys = preset_keys(name)
    if "gradient_accumulation" in data:  # it would follow from global_batch
        del keys["global_batch"]
    for key, value in keys.items():
        data.setdefault(key, value)
