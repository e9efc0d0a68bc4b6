"""The identity of models and of code: what changes it, and what does not."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.paths import ROOT

from rag_train import identity
from rag_train.errors import UserError, masked
from rag_train.formats.instructions import OURS, Instructions

COMMIT, OLD = "a" * 40, "b" * 40


def append(name: str, text: str = "\n") -> Callable[[Path], None]:
    def change(model: Path) -> None:
        path = model / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with what counts of a sharded model, of an adapter and of a sentence encoder."""
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "config.json")
    for name in (*files, "tokenizer.json", "chat_template.jinja", "1_Pooling/config.json"):
        append(f"model/{name}", f"{{}} {name}")(tmp_path)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "change",
    [
        *(append("model-00001-of-00002.safetensors"), append("model-00002-of-00002.safetensors")),
        *(append("config.json"), append("tokenizer.json"), append("chat_template.jinja")),
        *(append("1_Pooling/config.json"), append("2_Dense/model.safetensors"), remove("chat_template.jinja")),
        append("generation_config.json"),
    ],
)
def test_two_models_that_differ_in_one_file(model: Path, change: Callable[[Path], None]) -> None:
    before = identity.model(str(model))
    change(model)
    assert identity.model(str(model)) != before


def test_the_place_and_the_files_of_a_training_are_no_part_of_a_model(model: Path) -> None:
    before = identity.model(str(model))
    for name in ("training.json", "README.md", "trainer_state.json", "optimizer.bin", "checkpoints/x.safetensors"):
        append(name)(model)
    shutil.move(model, model.with_name("moved"))
    assert identity.model(str(model.with_name("moved"))) == before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-q4.gguf", "model.onnx"])
def test_weights_of_every_format_count(tmp_path: Path, name: str) -> None:
    append(name, "a")(tmp_path)
    before = identity.model(str(tmp_path)), identity.model(str(tmp_path / name))
    append(name, "b")(tmp_path)
    after = identity.model(str(tmp_path)), identity.model(str(tmp_path / name))
    assert all(was != now for was, now in zip(before, after, strict=True))


@pytest.mark.parametrize("change", [append("adapter_model.safetensors"), append("../model/config.json", " ")])
def test_an_adapter_comes_with_its_base(tmp_path: Path, model: Path, change: Callable[[Path], None]) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    append("adapter_model.safetensors", "a")(adapter)
    config = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": str(model)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    before = identity.model(str(adapter))
    change(adapter)
    assert identity.model(str(adapter)) != before
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 32}))
    assert identity.model(str(adapter))["text"] != before["text"], "the scale of the update is another one"


def test_a_model_of_the_hub_has_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for commit in (OLD, COMMIT):
        monkeypatch.setattr(identity, "commit_of", lambda name, commit=commit: commit)
        identity._commit.cache_clear()
        found.append(identity.model("org/model"))
    identity._commit.cache_clear()
    assert found == [{"hub": "org/model", "commit": OLD}, {"hub": "org/model", "commit": COMMIT}]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("a http://u:p@ss@h:1/x b https://h/y@z", "a http://***@h:1/x b https://h/y@z"),
        ("https://host/search?api_key=secret&index=a", "https://host/search?api_key=***&index=a"),
        ("https://host/s?index=a&subscription-key=secret", "https://host/s?index=a&subscription-key=***"),
        ("milvus:w.db/c?encoder=models/tokens&metric=ip", "milvus:w.db/c?encoder=models/tokens&metric=ip"),
    ],
)
def test_addresses_keep_no_secret(url: str, shown: str) -> None:
    assert masked(url) == shown == str(UserError(url))


@pytest.fixture
def grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Write the module ``own_grammar``, which the module ``own_maker`` imports, and load both again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_maker.py").write_text("from own_grammar import MARK\n\n\ndef make():\n    return MARK\n")

    def load(text: str) -> ModuleType:
        (tmp_path / "own_grammar.py").write_text(text)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        for name in ("own_grammar", "own_maker"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("own_maker")

    yield load
    for name in ("own_grammar", "own_maker"):
        sys.modules.pop(name, None)


def test_code_follows_what_it_imports(grammar: Callable[[str], ModuleType]) -> None:
    first = identity.code(grammar("MARK = 'a'\n").make)
    assert identity.code(grammar("# Only a comment.\nMARK   =   'a'\n").make) == first
    assert identity.code(grammar("MARK = 'b'\n").make) != first


def test_code_follows_the_prompts_that_it_names(grammar: Callable[[str], ModuleType], tmp_path: Path) -> None:
    named, other = grammar("MARK = 'deeprag'\n"), identity

    def keys(folder: str, text: str) -> tuple[str, str]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "deeprag.txt").write_text(text)
        given = Instructions(tmp_path / folder)
        return identity.code(named, instructions=given), identity.code(other, instructions=given)

    ours = identity.code(named), identity.code(other)
    first, second, moved = keys("a", "Answer."), keys("b", "Answer well."), keys("c", "# A note.\nAnswer.\n")
    assert first == moved and first[0] not in (ours[0], second[0])
    assert {ours[1], first[1], second[1]} == {ours[1]}, "code that does not name the prompt"
    assert keys("d", OURS["deeprag"].text) == ours


def test_every_prompt_is_named_as_a_whole_where_it_is_used() -> None:
    """A name that was put together from parts would not be found."""
    sources = [path.read_text() for folder in ("rag_train", "data_synth") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    prompts = {path.stem for path in (ROOT / "rag_train/prompts").glob("*.txt")}
    assert prompts <= constants


def test_code_without_a_file_is_refused() -> None:
    namespace = {"__name__": "typed_by_hand"}
    exec("def make():\n    pass\n", namespace)
    with pytest.raises(UserError, match="typed_by_hand: its code is not in a file"):
        identity.code(namespace["make"])
