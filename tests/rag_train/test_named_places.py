"""Parsing of NAME=PLACE."""

from __future__ import annotations

import pytest

from rag_train.errors import UserError
from rag_train.named_places import named, named_places


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


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["web="], "--index web=: nothing after the equals sign; write NAME=PLACE"),
        (["runs/a"], "--index runs/a: the name is missing; write NAME=PLACE"),
        (["a=x", "a=y"], "--index: the name 'a' is given twice; write NAME=PLACE with different names"),
    ],
)
def test_rejects_what_is_no_name_and_place(texts: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        named_places("--index", texts)
