"""The proof that a loaded model computes rows of several sequences, by architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import SMALL, TOKENIZER, recipe_in
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.training import tree
from rag_train.training.probe import proven_logits, require_trees
from rag_train.training.recipe import DPORecipe, SFTRecipe
from rag_train.training.run import train
from rag_train.training.tree import attention_for_trees, labelled_row, path_logits, path_logprobs, tensors

GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512}
ROTARY = GPT | {"rotary_dim": 4}
IN_ROWS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 20},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 8},
    "phi3": {},
    "olmo2": {},
    "smollm3": {},
    "granite": {},
    "gpt2": GPT,
    "gpt_neox": {},
    "mixtral": {"num_local_experts": 4},
    "stablelm": {},
    "nemotron": {},
    "falcon": {},
    "codegen": ROTARY | {"n_ctx": 512},
    "gptj": ROTARY,
    "gpt_neo": {
        "num_layers": 2,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 256,
    },
    "xglm": {"d_model": 32, "ffn_dim": 64, "num_layers": 3, "attention_heads": 4},
    "gpt_neox_japanese": {},
}
"""Models that compute rows, some of them with an attention that the first choice is replaced by."""
ALONE: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 3, "n_head": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 512},
    "openai-gpt": GPT,
    "rwkv": {"attention_hidden_size": 32, "context_length": 512},
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 64, "num_key_value_heads": 1, "head_dim": 8},
}
"""Models that compute sequences only one by one."""
LEAKS = ("codegen", "xglm", "gpt_neox_japanese", "bloom", "openai-gpt", "rwkv", "recurrent_gemma")
"""Models that ignore the mask of the sliced attention, without an error."""


def tiny(kind: str, attention: str | None = None) -> Any:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = CONFIG_MAPPING[kind](**(SMALL | tokens | {"initializer_range": 0.02} | (IN_ROWS | ALONE)[kind]))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention or attention_for_trees(config))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [*IN_ROWS, *ALONE])
def test_a_row_gives_each_sequence_its_own_log_probabilities(kind: str, half: bool, capsys):
    model = tiny(kind).train()
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = proven_logits(model, half, automatic=True)
    assert torch.equal(torch.get_rng_state(), before) and model.training
    assert (logits is path_logits) == (kind in IN_ROWS)
    said = capsys.readouterr().err.replace("\n", " ")
    assert (f"model of type {kind}: rows of several" in said) == (kind in ALONE)

    sequences = [torch.randint(3, 64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (30, 9)]
    sequences.append(sequences[0][:20] + sequences[1])
    row = tensors([labelled_row((ids, ids) for ids in sequences)])
    model.eval()
    ours = path_logprobs(model, row, logits)
    model.set_attn_implementation("eager")
    plain = torch.cat([model(torch.tensor([ids])).logits[0, :-1] for ids in sequences]).log_softmax(-1)
    torch.testing.assert_close(ours, plain.gather(1, row["labels"][:, None])[:, 0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", LEAKS)
def test_a_sequence_that_sees_another_one_is_found(kind: str, half: bool):
    model = tiny(kind, tree.SLICED)
    problem = pytest.raises(UserError, match=f"type {kind}: rollouts cannot share rows .*; set rl.layout=rollouts")
    with torch.autocast("cpu", torch.bfloat16, enabled=half), problem:
        require_trees(model, half)


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_a_training_falls_back_to_padded_rows_with_the_same_losses(work: Path, tmp_path: Path, stage: str, capsys):
    config = CONFIG_MAPPING["bloom"](**(SMALL | ALONE["bloom"] | {"vocab_size": 320}), pad_token_id=0)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    keys: dict[str, Any] = {"stage": stage, "model": str(tmp_path / "model"), "precision": "fp32", "epochs": 1}
    rows: dict[str, Any] = {"batch_size": 1, "sft": SFTRecipe(pack_tokens=4000)}
    if stage == "dpo":
        rows = {"batch_size": 8, "dpo": DPORecipe(layout="tree")}
    ours = train(recipe_in(work, tmp_path / "rows", **keys, **rows))
    assert "rows of several sequences are not possible" in capsys.readouterr().err.replace("\n", " ")
    theirs = train(recipe_in(work, tmp_path / "alone", **keys, batch_size=8))
    losses = [[entry["loss"] for entry in result.losses] for result in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
