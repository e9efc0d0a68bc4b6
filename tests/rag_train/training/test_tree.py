"""The tree layout: its attention, and the same losses as with separate sequences and as in TRL's trainer."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from support.training import TOKENIZER, recipe_in

from rag_train.training.build import build_trainer
from rag_train.training.recipe import DPORecipe, LoraRecipe
from rag_train.training.tree import attention_mask, lay_out
from rag_train.training.tree_dpo import tree_row

SIDES = ("chosen_ids", "rejected_ids")
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(st.lists(tokens, min_size=1, max_size=8))
def test_token_attends_only_to_its_own_prefix(sequences: list[list[int]]):
    tree = lay_out(sequences)
    prefixes = {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}
    assert len(tree.ids) == len(prefixes)  # every distinct prefix once
    mask = attention_mask(torch.tensor(tree.last), torch.tensor(tree.positions))[0, 0]
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert [tree.ids[i] for i in path] == sequence
        assert [tree.positions[i] for i in path] == list(range(len(sequence)))
        for depth, i in enumerate(path):
            assert mask[i].nonzero()[:, 0].tolist() == path[: depth + 1]


def chain(nodes: int, kind: str, generator: torch.Generator) -> list[dict[str, list[int]]]:
    """Return pairs like those of the search: along a path (optimal), over a whole tree, or with whole sentences."""

    def text(length: int) -> list[int]:
        return torch.randint(4, 64, (length,), generator=generator).tolist()

    pairs, prompt = [], text(20)
    for node in range(nodes):
        chosen, rejected = ([1, 2], [3]) if node % 2 else ([3], [1, 2])
        if kind == "sentence_wise":
            chosen, rejected = chosen + text(3), rejected + text(4)
        pairs.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
        if kind == "all_nodes" and node:
            other = pairs[node // 2]
            branch = other["prompt_ids"] + other["rejected_ids"] + text(5)
            pairs.append({"prompt_ids": branch, "chosen_ids": [3], "rejected_ids": [1, 2]})
        prompt = prompt + chosen + text(9)
    return pairs


LOSSES: list[tuple[str, int, dict[str, Any]]] = [
    ("optimal", 1, {}),
    ("all_nodes", 6, {}),
    ("sentence_wise", 5, {"label_smoothing": 0.1}),
    ("sentence_wise", 5, {"loss": "ipo"}),
    ("all_nodes", 5, {"loss": "sigmoid_norm"}),
    ("optimal", 10, {"sft_weight": 0.5, "label_smoothing": 0.2}),
]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraRecipe(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize(("kind", "nodes", "keys"), LOSSES, ids=str)
def test_each_loss_and_its_gradients_equal_trls(
    work: Path, tmp_path: Path, kind: str, nodes: int, keys: dict, lora: LoraRecipe | None
):
    """Compares one batch. TRL has no conservative DPO; the pairs layout combines it from two of TRL's losses."""
    settings: dict[str, Any] = {"stage": "dpo", "batch_size": 12, "precision": "fp32", "lora": lora}
    recipe = recipe_in(work, tmp_path, **settings)
    pairs = Dataset.from_list(chain(nodes, kind, torch.Generator().manual_seed(1)))
    whole = [pair["prompt_ids"] + pair[side] for pair in pairs for side in SIDES]
    prefixes = {tuple(ids[:n]) for ids in whole for n in range(1, len(ids) + 1)}
    assert len(tree_row(list(pairs))["input_ids"]) == len(prefixes)
    results = []
    layouts: tuple[Literal["pairs", "tree"], ...] = ("pairs", "tree")
    for layout in layouts:
        recipe = replace(recipe, dpo=DPORecipe(layout=layout, **keys))
        trainer = build_trainer(recipe, pairs, TOKENIZER, tmp_path / layout)
        if layout == "tree":
            trainer.prepare_reference()
        generator = torch.Generator().manual_seed(2)
        for parameter in trainer.model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
        loss.backward()
        gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.requires_grad}
        results.append((loss.detach(), gradients))
    (theirs, gradients), (ours, same) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == same.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=1e-4, atol=1e-5)
