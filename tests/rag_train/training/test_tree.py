"""The tree layout: its attention, and the same losses as with separate sequences and as in TRL's trainer."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from support.training import MODELS, SMALL, TOKENIZER, recipe_in

from rag_train.training.dpo import dpo_trainer
from rag_train.training.recipe import DPORecipe
from rag_train.training.tree import attention_mask, lay_out
from rag_train.training.tree_dpo import _snippet_logprobs, tree_row, tree_trainer

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


def separate_logprob(model, pair: dict[str, list[int]], side: str) -> torch.Tensor:
    ids = torch.tensor([pair["prompt_ids"] + pair[side]])
    logits = torch.log_softmax(model(ids).logits[0].float(), -1)
    start = len(pair["prompt_ids"])
    return logits[torch.arange(start - 1, ids.shape[1] - 1), ids[0, start:]].sum()


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("kind", ["optimal", "all_nodes", "sentence_wise"])
@pytest.mark.parametrize("architecture", MODELS)
def test_loss_and_gradients_equal_those_of_separate_pairs(architecture: str, kind: str, adapters: bool):
    config, cls = MODELS[architecture]
    torch.manual_seed(0)
    model = cls(config(**SMALL))
    if adapters:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.2)
    for nodes in (1, 2, 5, 10):
        pairs = chain(nodes, kind, torch.Generator().manual_seed(nodes))
        row = {name: torch.tensor(value) for name, value in tree_row(pairs).items()}
        whole = [p["prompt_ids"] + p[side] for p in pairs for side in SIDES]
        assert len(row["input_ids"]) == len({tuple(s[:n]) for s in whole for n in range(1, len(s) + 1)})

        def loss(sums: torch.Tensor) -> torch.Tensor:
            return -torch.nn.functional.logsigmoid(0.4 * (sums.view(-1, 2)[:, 0] - sums.view(-1, 2)[:, 1])).mean()

        pieces = [separate_logprob(model, pair, side) for pair in pairs for side in SIDES]
        in_row = torch.zeros(2 * len(pairs)).index_add(0, row["owner"], _snippet_logprobs(model, row))
        torch.testing.assert_close(in_row, torch.stack(pieces), rtol=1e-5, atol=1e-5)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        ours, theirs = (torch.autograd.grad(loss(sums), trained) for sums in (in_row, torch.stack(pieces)))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


LOSSES = [{}, {"label_smoothing": 0.1}, {"loss": "ipo"}, {"loss": "sigmoid_norm"}]
LOSSES += [{"sft_weight": 0.5, "label_smoothing": 0.2}]


@pytest.mark.slow
@pytest.mark.parametrize("keys", LOSSES, ids=str)
def test_each_loss_equals_trl(work: Path, tmp_path: Path, keys: dict):
    """Compares one batch. TRL has no conservative DPO; the pairs layout combines it from two of TRL's losses."""
    recipe = recipe_in(work, tmp_path, stage="dpo", batch_size=12, precision="fp32", dpo=DPORecipe(**keys))
    pairs = Dataset.from_list(chain(5, "sentence_wise", torch.Generator().manual_seed(1)))
    results = []
    for build in (dpo_trainer, tree_trainer):
        trainer = build(recipe, pairs, TOKENIZER, tmp_path / build.__name__)
        if build is tree_trainer:
            trainer.prepare_reference()
        generator = torch.Generator().manual_seed(2)
        for parameter in trainer.model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in trainer.model.named_parameters()}))
    (theirs, gradients), (ours, same) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == same.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(same[name], gradient, rtol=1e-4, atol=1e-5)
