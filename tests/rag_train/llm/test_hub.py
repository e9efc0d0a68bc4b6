"""Models of the Hub at a fixed commit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from rag_train.errors import UserError
from rag_train.llm import hub
from rag_train.llm.hub import commit_of, is_hub_name, snapshot

COMMIT, OLD = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("model", "named"), [("owner/name", True), ("name", True), ("./name", False), ("/a", False), ("a/b/c", False)]
)
def test_names_are_told_from_paths(model: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(model) is named
    (tmp_path / "owner/name").mkdir(parents=True)
    assert not is_hub_name("owner/name")


def test_the_hub_names_the_commit(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def told(self: object, model: str, **settings: Any) -> SimpleNamespace:
        asked.append((model, settings["revision"]))
        return SimpleNamespace(sha=COMMIT)

    monkeypatch.setattr(HfApi, "model_info", told)
    assert commit_of("owner/name") == commit_of("owner/name", "v1") == COMMIT
    assert commit_of("owner/name", OLD) == OLD
    assert asked == [("owner/name", None), ("owner/name", "v1")]


def test_without_a_network_a_copy_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def gone(self: object, model: str, **settings: Any) -> None:
        raise OSError("no network\nat all")

    def copied(model: str, name: str, revision: str | None) -> str | None:
        return None if revision else str(tmp_path / COMMIT / name)

    monkeypatch.setattr(HfApi, "model_info", gone)
    monkeypatch.setattr(hub, "try_to_load_from_cache", copied)
    assert commit_of("owner/name") == COMMIT
    with pytest.raises(UserError, match=r"the Hub does not give it \(no network\)"):
        commit_of("owner/name", "v2")


def test_a_model_is_downloaded_at_its_commit_without_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = {}

    def download(model: str, **settings: Any) -> str:
        asked.update(settings, model=model)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert snapshot("owner/name", COMMIT) == str(tmp_path)
    assert (asked["model"], asked["revision"]) == ("owner/name", COMMIT)
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in asked["allow_patterns"])
