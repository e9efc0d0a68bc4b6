"""Parsing of NAME=PLACE."""

from __future__ import annotations

import pytest

from rag_train.errors import UserError
from rag_train.named_places import named


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("sparse=indexes/bm25", "sparse", "indexes/bm25"),
        ("a b.1=x=y", "a b.1", "x=y"),
        ("indexes/bm25", "", "indexes/bm25"),
        ("runs/lr=1/index", "", "runs/lr=1/index"),
        ("milvus:x.db/c?encoder=m", "", "milvus:x.db/c?encoder=m"),
        ('rrf("a=b",c)', "", 'rrf("a=b",c)'),
        ("=x", "", "x"),
        ("", "", ""),
    ],
)
def test_splits_at_the_first_equals_sign_before_any_path(text: str, name: str, place: str) -> None:
    assert named("--index", text) == (name, place)


def test_rejects_an_empty_place() -> None:
    with pytest.raises(UserError, match="--index web=: nothing after the equals sign; write NAME=PLACE"):
        named("--index", "web=")
