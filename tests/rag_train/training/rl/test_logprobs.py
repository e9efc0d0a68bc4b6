"""Log-probabilities of rollouts in the tree layout: each token has one label, and training is as in TRL."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.training import SMALL
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from rag_train.training.masking import IGNORE
from rag_train.training.rl.logprobs import labelled_tree, tree_logprobs
from rag_train.training.tree import SLICED

tokens = st.lists(st.integers(0, 2), max_size=6)
rollouts = st.lists(st.tuples(tokens.map(lambda prompt: [3, *prompt]), tokens), min_size=1, max_size=8)


@given(rollouts)
def test_each_token_has_the_label_that_follows_in_its_row(made: list[tuple[list[int], list[int]]]):
    rows = [prompt + completion for prompt, completion in made]
    tree = labelled_tree(rows, [len(completion) for _, completion in made])
    known = set()
    for (prompt, completion), row, path in zip(made, rows, tree.paths, strict=True):
        labels = [IGNORE] * (len(prompt) - 1) + [*completion, IGNORE]
        found = [tree.ids[i] for i in path]
        assert found == list(zip(row, labels, strict=True))
        known |= {tuple(found[: n + 1]) for n in range(len(found))}
    assert len(tree.ids) == len(known)


torch.manual_seed(0)
MODEL: Any = LlamaForCausalLM(LlamaConfig(**SMALL)).eval()
MODEL.set_attn_implementation(SLICED)
add_fused_lm_head(MODEL, temperature=0.7, outputs=("log_probs", "entropy"))


def padded(made: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The batch as TRL pads it: prompts on the left, completions on the right."""
    left, right = (max(len(pair[side]) for pair in made) for side in (0, 1))
    rows = [[0] * (left - len(p)) + p + c + [0] * (right - len(c)) for p, c in made]
    mask = [[0] * (left - len(p)) + [1] * len(p + c) + [0] * (right - len(c)) for p, c in made]
    return torch.tensor(rows), torch.tensor(mask), right


@given(rollouts.filter(lambda made: any(completion for _, completion in made)))
def test_log_probabilities_and_entropies_are_those_of_the_row_alone(made: list[tuple[list[int], list[int]]]):
    ids, mask, columns = padded(made)
    with torch.no_grad():
        logprobs, entropies, _ = tree_logprobs(MODEL, ids, mask, columns)
        MODEL.set_attn_implementation("sdpa")
        alone = [MODEL(input_ids=torch.tensor([p + c])).logits[0] / 0.7 for p, c in made]
        MODEL.set_attn_implementation(SLICED)
    assert entropies is not None
    for n, ((prompt, completion), logits) in enumerate(zip(made, alone, strict=True)):
        expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
        size = len(completion)
        chosen = expected.gather(1, torch.tensor(completion, dtype=torch.long)[:, None])[:, 0]
        torch.testing.assert_close(logprobs[n, :size], chosen, rtol=1e-4, atol=1e-5)
        entropy = -(expected.exp() * expected).sum(-1)
        torch.testing.assert_close(entropies[n, :size], entropy, rtol=1e-4, atol=1e-5)
        assert not logprobs[n, size:].any() and not entropies[n, size:].any()
