"""Opening retrievers for a kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25_build import build_bm25
from rag_train.schema import Passage
from rag_train.strategies.kit import open_retrievers


@pytest.fixture
def index(tmp_path: Path) -> str:
    build_bm25([Passage(id="1", text="red fox")], tmp_path / "index")
    return str(tmp_path / "index")


def test_opens_retrievers_by_kind_the_main_one_first(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BING_API_KEY", "key")
    opened = open_retrievers([f"sparse={index}", f"rrf({index},{index})", "web=bing"])
    assert {kind: retriever.name for kind, retriever in opened.items()} == {
        "sparse": "bm25",
        "": "rrf(bm25, bm25)",
        "web": "bing",
    }
    assert next(iter(opened)) == "sparse"


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["lexical="], "unknown kind 'lexical'; the kinds are sparse, dense, web"),
        (["", ""], "second retriever of this kind; write KIND=PLACE for all except one"),
    ],
)
def test_rejects_unknown_and_repeated_kinds(index: str, kinds: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_retrievers([f"{kind}{index}" for kind in kinds])


def test_rejects_an_empty_place() -> None:
    with pytest.raises(UserError, match="nothing after the equals sign"):
        open_retrievers(["web="])
