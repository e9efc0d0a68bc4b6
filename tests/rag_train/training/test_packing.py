"""Packed rows: distribution over rows, attention of each backend, and a loss equal to that of single examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.training import SMALL, TOKENIZER, recipe_in, sft_record, write
from torch.nn.attention.flex_attention import create_mask
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
)

from rag_train.errors import UserError
from rag_train.llm.transformers import TransformersEngine
from rag_train.schema import Segment
from rag_train.training.build import build_trainer
from rag_train.training.load import load_data
from rag_train.training.masking import IGNORE
from rag_train.training.packing import pack
from rag_train.training.recipe import SFTRecipe
from rag_train.training.tree import (
    SLICE,
    SLICED,
    attention_for_trees,
    attention_mask,
    block_mask,
    few_lengths,
    forward_arguments,
    labelled_row,
    lay_out,
    padded,
    path_logits,
    path_logprobs,
    slices,
    tensors,
)

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(st.lists(tokens, min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 5))
def test_each_sequence_is_in_one_row_within_budget(sequences: list[list[int]], budget: int, seed: int):
    rows = pack(sequences, budget, seed)
    assert sorted(i for row in rows for i in row) == list(range(len(sequences)))
    for row in rows:
        assert len(row) == 1 or len(lay_out([sequences[i] for i in row]).ids) <= budget
    assert rows == pack(sequences, budget, seed)


def test_rows_are_full_and_group_common_prefixes():
    """Packs ten tasks for each of 60 documents, all of which start with the same instruction."""
    generator = torch.Generator().manual_seed(0)

    def text(size: int) -> list[int]:
        return torch.randint(0, 1000, (size,), generator=generator).tolist()

    instruction = text(50)
    examples = [instruction + document + text(10) for document in map(text, [60] * 60) for _ in range(10)]
    order = torch.randperm(len(examples), generator=generator).tolist()
    examples = [examples[i] for i in order]
    rows = pack(examples, 2000, 0)
    used = [len(lay_out([examples[i] for i in row]).ids) for row in rows]
    assert sum(used) / len(lay_out(examples).ids) < 1.1
    assert sum(used) / len(rows) > 0.9 * 2000
    documents = [{order[i] // 10 for i in row} for row in rows]
    assert sum(map(len, documents)) == 60  # no document is in two rows
    assert rows != pack(examples, 2000, 1)
    assert any(max(row) - min(row) > 10 for row in documents)  # neither in lexicographic order nor in file order


def forest_sequences(seed: int, count: int = 12, alphabet: int = 2, length: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, alphabet, (length,), generator=generator).tolist() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 5, 200])
@pytest.mark.parametrize("alphabet", [1, 2, 50])
def test_backends_get_the_same_mask(alphabet: int, window: int | None):
    tree = lay_out(forest_sequences(0, alphabet=alphabet, length=SLICE + 30))
    last, positions, size = torch.tensor(tree.last), torch.tensor(tree.positions), len(tree.ids)
    dense = attention_mask(last, positions, window)
    blocks = block_mask(last, positions, window)
    assert torch.equal(create_mask(blocks.mask_mod, None, None, size, size, device="cpu"), dense)
    sliced = torch.zeros(size, size, dtype=torch.int)
    for n, part in enumerate(slices(last, positions)):
        sliced[n * SLICE : (n + 1) * SLICE].index_add_(1, part.keys, part.within(window).int())
    assert torch.equal(sliced, dense[0, 0].int())
    depth = max(tree.positions) + 1
    assert max(len(part.keys) for part in slices(last, positions)) < depth + 2 * SLICE


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 20},
    "qwen2": {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 8, "sliding_window": 20, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 8, "sliding_window": 20},
}
"""Models with grouped queries; all but two have layers with a window that is shorter than the sequences."""


def small_model(architecture: str, implementation: str) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[architecture](**(SMALL | SHAPES[architecture]))
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("implementation", ["sdpa", SLICED, "flex_attention"])
@pytest.mark.parametrize("architecture", SHAPES)
def test_attention_equals_that_of_separate_sequences(architecture: str, implementation: str, uncompiled: None):
    """Log-probabilities and gradients, for a row of several slices, with activations that are recomputed.

    FlexAttention has no backward pass on a CPU.
    """
    if (architecture, implementation) == ("gemma2", "sdpa"):
        pytest.skip("refused: PyTorch's kernel cannot cap scores")
    trains = implementation != "flex_attention"
    sequences = forest_sequences(1, 8, length=45)
    row = tensors([labelled_row((ids, ids) for ids in sequences)])
    assert SLICE < len(row["input_ids"]) < 8 * 44
    model = small_model(architecture, implementation).train()
    model.gradient_checkpointing_enable()
    with torch.set_grad_enabled(trains):
        ours = path_logprobs(model, row)
    alone = small_model(architecture, "eager")
    logits = torch.cat([alone(torch.tensor([ids])).logits[0, :-1] for ids in sequences])
    theirs = torch.log_softmax(logits.float(), -1).gather(1, row["labels"][:, None])[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    if trains:
        ours.mean().backward()
        theirs.mean().backward()
        for (name, weight), other in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(
                weight.grad, other.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("kind", "choice", "message"),
    [
        ("llama", "flex", "attention=flex: FlexAttention trains on GPUs only; set attention=auto, sliced or sdpa"),
        ("gemma2", "sdpa", "attention=sdpa: the model caps attention scores; set attention=auto, sliced or flex"),
        ("qwen3_next", "auto", "type qwen3_next: layers with linear_attention cannot be trained on trees; remove"),
        ("falcon", "sliced", "attention=sliced: models of type falcon do not have it"),
        ("codegen", "sdpa", "attention=sdpa: models of type codegen do not have it"),
    ],
)
def test_refuses_attention_that_would_be_wrong(kind: str, choice: str, message: str):
    with pytest.raises(UserError, match=message):
        attention_for_trees(CONFIG_MAPPING[kind](), choice)


@pytest.mark.usefixtures("no_gpu")
def test_automatic_attention_falls_back_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys):
    plain, capped = LlamaConfig(), Gemma2Config()
    assert attention_for_trees(plain) == SLICED and attention_for_trees(plain, "sdpa") == "sdpa"

    def fails(config) -> None:
        raise RuntimeError("no Triton\nand a long trace")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("rag_train.training.tree._try_flex_attention", lambda config: None)
    assert attention_for_trees(plain) == "flex_attention" and not capsys.readouterr().err
    monkeypatch.setattr("rag_train.training.tree._try_flex_attention", fails)
    assert (attention_for_trees(plain), attention_for_trees(capped)) == ("sdpa", SLICED)
    assert "attention: sdpa, because FlexAttention failed here: no Triton\n" in capsys.readouterr().err


@pytest.mark.usefixtures("no_gpu")
def test_capped_scores_stay_capped_where_rows_are_padded(work: Path, tmp_path: Path):
    """PyTorch's fused kernel, which transformers takes by default, leaves the cap out."""
    keys = SHAPES["gemma2"] | {"vocab_size": 320, "query_pre_attn_scalar": 1, "attn_logit_softcapping": 0.5}
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(**(SMALL | keys))).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    recipe = recipe_in(work, tmp_path / "out", model=str(tmp_path / "model"), precision="fp32")
    tokenizer, rows, _ = load_data(recipe)
    trained = build_trainer(recipe, rows, tokenizer, tmp_path / "checkpoints").model.eval()
    served = TransformersEngine.start(str(tmp_path / "model"), dtype="float32").model
    exact, fused = (
        Gemma2ForCausalLM.from_pretrained(tmp_path / "model", attn_implementation=name)
        for name in ("eager", "sdpa")
    )
    ids = torch.tensor([rows[0]["input_ids"]])
    with torch.no_grad():
        expected = exact(ids).logits
        assert (fused(ids).logits - expected).abs().max() > 0.1
        for model in (trained, served):
            torch.testing.assert_close(model(ids).logits, expected)


LLAMA = small_model("llama", SLICED).eval()


@pytest.mark.slow
@given(st.lists(tokens, min_size=1, max_size=12))
def test_padded_rows_give_the_same_logits(sequences: list[list[int]]):
    row = tensors([labelled_row(([1, *ids], [1, *ids]) for ids in sequences)])
    filled = padded(row)
    assert {len(values) % SLICE for values in filled.values()} == {0}
    with torch.no_grad():
        bare = LLAMA(**forward_arguments(LLAMA, row), logits_to_keep=row["at"]).logits[0]
        torch.testing.assert_close(path_logits(LLAMA, row), bare, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 2**20))
def test_rows_have_few_lengths(size: int):
    assert size <= few_lengths(size) < max(size * 1.25, size + SLICE)
    assert len({few_lengths(n) for n in range(2**12, 2**13)}) <= 5


@pytest.mark.parametrize("weight", ["example", "token"])
@pytest.mark.parametrize("pack_tokens", [None, 100])
def test_loss_and_gradients_equal_those_of_single_examples(
    work: Path, tmp_path: Path, pack_tokens: int | None, weight: Any
):
    """The mean over examples, each of which is the mean over its tokens, or the mean over all tokens."""
    texts = ["no" * (2 * n + 1) for n in range(7)]
    records = [
        sft_record(n).model_copy(update={"completion": text, "segments": [Segment(text=text, trained=True)]})
        for n, text in enumerate(texts)
    ]
    keys = {"sft": SFTRecipe(weight=weight, pack_tokens=pack_tokens), "batch_size": 1 if pack_tokens else 3}
    data = write(tmp_path / "sft.jsonl", records)
    recipe = recipe_in(work, tmp_path / "out", precision="fp32", data=data, **keys)
    tokenizer, rows, _ = load_data(recipe)
    trainer = build_trainer(recipe, rows, tokenizer, tmp_path / "checkpoints")
    batches = [trainer._prepare_inputs(batch) for batch in trainer.get_train_dataloader()]
    count = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
    loss = torch.stack([trainer.compute_loss(trainer.model, b, num_items_in_batch=count) for b in batches]).sum()
    loss.backward()
    assert len(batches) > 1

    alone = AutoModelForCausalLM.from_pretrained(recipe.model)
    losses = []
    for row in rows:
        labels, logits = torch.tensor(row["labels"]), alone(torch.tensor([row["input_ids"]])).logits[0]
        losses.append(F.cross_entropy(logits[:-1], labels[1:], ignore_index=IGNORE, reduction="none"))
    trained = [(each > 0).sum() for each in losses]
    sums = torch.stack([each.sum() for each in losses])
    means = {"token": sums.sum() / sum(trained), "example": (sums / torch.stack(trained)).mean()}
    assert abs(means["token"] - means["example"]) > 1e-3
    torch.testing.assert_close(loss, means[weight], rtol=0, atol=1e-6)
    means[weight].backward()
    for (name, ours), theirs in zip(trainer.model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
