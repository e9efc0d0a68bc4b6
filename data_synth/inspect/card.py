"""The dataset card of synthesised data, in the Hugging Face Hub's format, and the upload of data and card.

The card, ``<output>.md``, is made from the data and its sidecar only, so it does not depend on interruptions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rag_train.data_synth.inspect.records import read_record_file
from rag_train.data_synth.inspect.statistics import statistics_of
from rag_train.errors import UserError
from rag_train.jobs.files import sha256, write_text
from rag_train.templates import template

SIZES = {"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6, "1M<n<10M": 10**7}
"""The Hub's size categories and their exclusive upper bounds, in records."""


def write_card(output: Path) -> Path:
    """Write ``<output>.md`` from the finished ``output`` and its ``.meta.json``."""
    meta = json.loads(Path(f"{output}.meta.json").read_text(encoding="utf-8"))
    file = read_record_file(output) if meta["records"] else None
    head = {
        "pretty_name": output.stem,
        "task_categories": ["text-generation"],
        "tags": ["rag-train", "retrieval-augmented-generation"],
        "size_categories": [next((name for name, below in SIZES.items() if meta["records"] < below), "n>10M")],
        "configs": [{"config_name": "default", "data_files": output.name}],
    }
    card = Path(f"{output}.md")
    text = template("data_synth/inspect/card.md.jinja").render(
        head=_yaml(head),
        name=output.name,
        meta={"rejected": {}} | meta,
        kind=file and file.record_type.__name__,
        found=file and statistics_of(list(file.records.values())),
        recipe=_yaml(meta["settings"]),
        hashes=_hashes(output, meta["settings"]),
    )
    write_text(card, text)
    return card


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _hashes(output: Path, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the hashes of the data, of the question files that still exist, and those in the sidecar, by name."""
    sources = settings.get("questions", [])
    paths = [output, *map(Path, [sources] if isinstance(sources, str) else sources)]
    of_files = [(path.name, sha256(path)) for path in paths if path.is_file()]
    return of_files + [(name, value) for name, value in _recorded(settings) if value]


def _recorded(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of the hashes in ``settings``, at any depth."""
    for name, value in settings.items():
        if name.endswith("_sha256"):
            yield name.removesuffix("_sha256"), value
        elif isinstance(value, Mapping):
            yield from _recorded(value)


def check_token() -> None:
    """Raise UserError if no token of the Hugging Face Hub is configured."""
    from huggingface_hub import get_token

    if not get_token():
        raise UserError("--push-to-hub: no Hugging Face token; log in with `hf auth login`, or set HF_TOKEN")


def push(output: Path, repo: str) -> str:
    """Upload data, sidecar, rejections and card to the dataset repository ``repo``; return the commit's URL.

    Creates the repository, private, if it does not exist. Raises UserError if the Hub refuses or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    files = [CommitOperationAdd("README.md", f"{output}.md")]
    paths = [Path(f"{output}{end}") for end in ("", ".meta.json", ".rejected.jsonl")]
    files += [CommitOperationAdd(path.name, path) for path in paths if path.exists()]
    try:
        api = HfApi()
        api.create_repo(repo, repo_type="dataset", private=True, exist_ok=True)
        return api.create_commit(repo, files, commit_message=f"Add {output.name}", repo_type="dataset").commit_url
    except Exception as error:  # errors of the Hub, of its client and of the network
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        remedy = f"{output} is complete, run the same command again to push it"
        raise UserError(f"--push-to-hub {repo}: {reason}; {remedy}") from error
