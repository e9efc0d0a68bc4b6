"""Models of the Hugging Face Hub at a fixed commit."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

from rag_train.errors import UserError

PATIENCE = 10.0
"""Seconds for the Hub to say whether it has a model."""
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""What is downloaded of a model: no weights in other formats, and no code."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_name(model: str) -> bool:
    """Return whether ``model`` is no directory and does not look like a path."""
    path = Path(model)
    return not (path.exists() or path.is_absolute() or model.startswith(".") or model.count("/") > 1)


def commit_of(model: str, revision: str | None = None) -> str:
    """Return the commit that ``revision`` of a Hub model names: a branch, a tag, or a commit; None: the newest.

    Without a network, a copy on this machine answers. Raises UserError if there is none.
    """
    if revision and _COMMIT.fullmatch(revision):
        return revision
    try:
        found = HfApi().model_info(model, revision=revision, timeout=PATIENCE).sha
        assert found is not None
        return found
    except Exception as error:  # errors of the hub, of its client and of the network
        copy = copy_of(model, revision)
        if copy is None:
            raise _refusal(model, error) from error
        return Path(copy).parent.name


def snapshot(model: str, commit: str) -> str:
    """Return the directory of a Hub model at ``commit``, downloaded unless it is on this machine.

    Processes of a machine that call this at the same time download each file once. Raises UserError if the Hub does
    not give it.
    """
    try:
        return snapshot_download(model, revision=commit, allow_patterns=FILES)
    except Exception as error:
        raise _refusal(model, error) from error


def _refusal(model: str, error: Exception) -> UserError:
    """Return the error to tell a user whose model the Hub does not give."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return UserError(
        f"model {model}: not a directory, and the Hub does not give it ({reason}); "
        "correct the name, log in, or give a checkpoint directory"
    )


def copy_of(model: str, revision: str | None = None) -> str | None:
    """Return the config of a Hub model's copy on this machine, None if there is none."""
    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except ValueError:  # not a valid name
        return None
    return found if isinstance(found, str) else None
