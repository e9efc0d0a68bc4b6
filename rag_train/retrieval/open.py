"""Opening a retriever by its specification, and indexing a corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.directory import REMEDY, index_format
from rag_train.retrieval.kinds import combinations, find_place, indexes, listing, refused
from rag_train.retrieval.specification import Place, Specification, parse


def open_retriever(specification: str) -> Retriever:
    """Open the retriever of a specification; see `rag_train.retrieval.specification` for the grammar.

    Raises:
        UserError: if the specification is malformed, or if a part of it cannot be opened.
    """
    return _open(parse(specification))


def load_index(directory: str | Path) -> Any:
    """Open an index directory of any kind.

    Raises:
        UserError: if the directory is missing, not an index, or damaged.
    """
    format = index_format(Path(directory))
    for kind in indexes().values():
        if kind.format == format:
            return kind.load(Path(directory))
    raise UserError(f"index {directory}: not an index of rag-train; {REMEDY}")


def build_index(
    kind: str, corpus: Path, output: str | Path, progress: Callable[[int], None], **options: Any
) -> int:
    """Index a corpus file into a directory, or into another place that takes passages, and return their number.

    Args:
        kind: kind of an index directory.
        output: a directory, or the specification of a place.
        progress: called with the number of passages processed so far.
        options: options of any kind; those of others must have their default values.

    Raises:
        UserError: if the kind is unknown, if an option does not apply, if the corpus cannot be read, or if the
            index cannot be written.
    """
    kinds = indexes()
    if kind not in kinds:
        raise UserError(f"--kind {kind}: unknown; the kinds are {', '.join(kinds)}")
    place = find_place(str(output))
    own = {} if place else kinds[kind].options
    for name, value in options.items():
        owners = {other.name: other.options[name] for other in kinds.values() if name in other.options}
        if name not in own and value not in owners.values():
            remedy = "leave it out" if place else f"leave it out, or add --kind {next(iter(owners))}"
            raise UserError(f"--{name} is for {' and '.join(owners)} indexes; {remedy}")
    if place is None:
        given = {name: value for name, value in options.items() if name in own}
        return kinds[kind].build(read_corpus(corpus), Path(output), progress, **given)
    if kind != "bm25":
        raise UserError(f"index {output}: --kind is for directories; leave it out")
    retriever: Any = place.open(str(output))
    if not hasattr(retriever, "index_passages"):
        raise refused(str(output), "nothing can be indexed there", "give a directory")
    return retriever.index_passages(read_corpus(corpus), progress)


def _open(specification: Specification) -> Retriever:
    if isinstance(specification, Place):
        return _open_place(specification.text)
    kind = combinations()[specification.name]
    if kind.most_places is not None:
        first, *others = specification.arguments
        return kind.open(_open(first), *(other.text for other in others if isinstance(other, Place)))
    retrievers = [_open(argument) for argument in specification.arguments]
    try:
        return kind.open(retrievers, specification.weights)
    except UserError as error:
        raise UserError(f"retriever {str(specification)!r}: {error}") from error


def _open_place(text: str) -> Retriever:
    if kind := find_place(text):
        return kind.open(text)
    if not Path(text).exists():
        _, *others = (grammar for grammar, _ in listing())
        raise refused(text, "no such directory", f"give an index directory, or one of {', '.join(others)}")
    return load_index(text)
