"""The attention of trees, by each implementation that works here, on the same tree."""

from __future__ import annotations

from typing import Any

from rag_train.jobs.files import read_records
from rag_train.schema import PreferencePair
from rag_train.selftest.registry import part
from rag_train.selftest.work import CONTROLLER, Work

CLOSE = 1e-2
"""Most by which log-probabilities (in nats) and the gradient (as a share) may differ from SDPA's, in fp32."""


@part("attention over trees", short=True)
def attention(work: Work) -> str:
    """Compare FlexAttention (on GPUs) and sliced attention with SDPA, forward and backward."""
    import torch
    from transformers import AutoModelForCausalLM

    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.training.tree import IMPLEMENTATIONS, labelled_row, path_logprobs, tensors

    device = "cuda" if work.gpus else "cpu"
    tokenizer: Any = load_tokenizer(str(CONTROLLER))
    pairs = read_records(work.examples("dpo"), PreferencePair)[:8]
    texts = [pair.prompt + side for pair in pairs for side in (pair.chosen, pair.rejected)]
    row = tensors([labelled_row((ids, ids) for ids in tokenizer(texts)["input_ids"])])
    row = {name: values.to(device) for name, values in row.items()}

    found: dict[str, tuple[Any, Any]] = {}
    for name in ("sdpa", "sliced", *(["flex"] if work.gpus else [])):
        model: Any = AutoModelForCausalLM.from_pretrained(CONTROLLER, attn_implementation=IMPLEMENTATIONS[name])
        model.to(device)
        logprobs = path_logprobs(model, row)
        logprobs.sum().backward()
        found[name] = logprobs.detach(), torch.cat([each.grad.flatten() for each in model.parameters()])
    logprobs, gradient = found.pop("sdpa")
    told = []
    for name, (others, slope) in found.items():
        far, turned = (others - logprobs).abs().max().item(), ((slope - gradient).norm() / gradient.norm()).item()
        assert max(far, turned) < CLOSE, f"{name} differs from SDPA: {far:.2g} nats, gradient {turned:.1%}"
        told.append(f"{name} {far:.1g} nats, gradient {turned:.1g}")
    missing = "" if work.gpus else "; FlexAttention needs a GPU"
    return f"from SDPA: {', '.join(told)}; {len(row['input_ids']):,} tokens of {len(texts)} sequences{missing}"
