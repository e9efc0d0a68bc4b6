"""The choices of attention over trees, compared at the width of Qwen2.5-7B (make bench-attention).

Six architectures, two layers of random weights each, in bf16, with adapters and recomputed activations. A tree of
random tokens goes through each choice of `attention`. The log-probability of each token is compared with that in
its sequence alone, with plain attention, and the gradients of the adapters with those of the choice `sliced`. A
control lets every token attend to all earlier tokens of the row, other branches included. Layers with a window
have one that is shorter than the sequences. On the CPU, where FlexAttention has a forward pass only. Writes
bench_attention.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks import common

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

    from rag_train.training.tree import Tree

WIDTH = common.WIDTH | {"head_dim": 128}
"""Some architectures have other sizes of heads by default."""
WINDOW = 20
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {},
    "gemma2": {"sliding_window": WINDOW},
    "gemma3_text": {"sliding_window": WINDOW},
}
"""More settings of the model's configuration, by its type."""
CONTROL = "control"
TRUNK, BRANCHES, LENGTH = 48, 4, 40
"""Tokens that all sequences share, number of sequences, and tokens of each after the shared ones."""


def main() -> None:
    options = common.benchmark_parser(__doc__).parse_args()

    import torch

    from rag_train.progress import console
    from rag_train.provenance import save_result

    torch.compiler.set_stance("force_eager")  # of FlexAttention, whose compiled kernels are for GPUs
    rows = []
    for architecture in SHAPES:
        rows.extend(compare(architecture))
        for row in rows[-4:]:
            console.print(row)
        save_result(options.output / "bench_attention.json", {"width": WIDTH, "rows": rows})


def compare(architecture: str) -> list[dict[str, Any]]:
    """Return a row for each choice of attention and for the control, with None for what it cannot do."""
    import torch

    from rag_train.training.tree import IMPLEMENTATIONS, lay_out

    generator = torch.Generator().manual_seed(0)
    size = TRUNK + BRANCHES * LENGTH
    ids = torch.randint(0, WIDTH["vocab_size"], (size,), generator=generator).tolist()
    trunk, rest = ids[:TRUNK], ids[TRUNK:]
    sequences = [trunk + rest[LENGTH * n : LENGTH * (n + 1)] for n in range(BRANCHES)]
    tree = lay_out(sequences)
    tuned = adapted(architecture)
    expected = alone(tuned, sequences)
    same = {"architecture": architecture, "tied": tuned.config.tie_word_embeddings, "loss": -expected.mean().item()}
    rows: list[dict[str, Any]] = []
    right: torch.Tensor | None = None
    for choice in ("sliced", "sdpa", "flex", CONTROL):
        row: dict[str, Any] = {**same, "attention": choice, "difference": None, "seconds": None, "cosine": None}
        rows.append(row)
        if choice == "sdpa" and refused(tuned, choice):  # flex is refused on a CPU, where only its loss is asked
            continue
        tuned.set_attn_implementation(IMPLEMENTATIONS["sliced" if choice == CONTROL else choice])
        last = [len(tree.ids) - 1] * len(tree.ids) if choice == CONTROL else tree.last
        began = time.perf_counter()
        found = logprobs(tuned, replace(tree, last=last), sequences, trains=choice != "flex")
        row["seconds"] = time.perf_counter() - began
        row["difference"] = (found - expected).abs().mean().item()
        if choice != "flex":
            gradients = torch.cat([p.grad.float().flatten() for p in tuned.parameters() if p.grad is not None])
            tuned.zero_grad()
            if right is None:
                right = gradients
            else:
                row["cosine"] = torch.cosine_similarity(right, gradients, 0).item()
    return rows


def adapted(architecture: str) -> PeftModel:
    """Return a model of random weights with adapters, ready to train."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **(WIDTH | SHAPES[architecture]))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    tuned.train()
    return tuned


def refused(model: PeftModel, choice: str) -> bool:
    """Return whether training refuses a choice of attention for a model."""
    from rag_train.training.tree import attention_for_trees

    try:
        attention_for_trees(model.config, choice)
    except UserError:
        return True
    return False


def alone(model: PeftModel, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the log-probabilities of the sequences' tokens but the first, each sequence in its own row."""
    import torch

    model.set_attn_implementation("eager")
    found = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor([sequence])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            found.append(-torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    return torch.cat(found)


def logprobs(model: PeftModel, tree: Tree, sequences: Sequence[Sequence[int]], trains: bool) -> torch.Tensor:
    """Return the same from one row, and leave the gradients of the mean in the adapters if ``trains``."""
    import torch

    from rag_train.training.tree import path_logprobs

    at = [i for path in tree.paths for i in path[:-1]]
    targets = [token for sequence in sequences for token in sequence[1:]]
    with torch.set_grad_enabled(trains):
        row = [torch.tensor(values) for values in (tree.ids, tree.positions, tree.last, at, targets)]
        found = path_logprobs(model, *row)
    if trains:
        found.mean().backward()
    return found.detach()


if __name__ == "__main__":
    main()
