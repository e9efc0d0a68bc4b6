"""The protocol of retrievers: a batch of queries in, ranked passages out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from threading import BoundedSemaphore
from typing import Any, Protocol

from rag_train.errors import UserError
from rag_train.schema import Passage


class Retriever(Protocol):
    """A source of passages.

    Attributes:
        name: short name for tables. Retrievers with different settings may share it.
        identity: all that its passages depend on, as JSON values without secrets: what it searches, the settings
            with which it searches, and the identity of its models and of its parts. Whatever is stored is stored by
            it; see the function `identity`.

    An index also has ``corpus_sha256``: see the function `corpus_sha256`. A retriever whose searches can run at the
    same time has ``threads``: see the function `threads`. One that asks a service has ``service``: see the function
    `service`.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Any: ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the ``k`` best passages for each query, best first, with scores; fewer if there are no more.

        Raises ValueError if ``k`` is less than 1, ServiceError if a service fails that it depends on, and UserError
        if the user can correct the cause, such as a damaged file.
        """
        ...


def check_number(k: int) -> None:
    """Raise ValueError if ``k``, the number of passages asked for, is less than 1."""
    if k < 1:
        raise ValueError(f"k is {k}; ask for at least one passage")


def identity(part: Any) -> Any:
    """Return the identity of a retriever or reranker. Raises UserError if it states none that is JSON."""
    try:
        return json.loads(json.dumps(part.identity))
    except (AttributeError, TypeError, ValueError):
        kind = type(part).__name__
        raise UserError(
            f"{kind}: no identity by which its results could be stored; give the class an attribute `identity`, "
            "with all settings that its results depend on as JSON values"
        ) from None


def key(part: Any) -> str:
    """Return a hash of the identity of a retriever or reranker."""
    return hashlib.sha256(json.dumps(identity(part), sort_keys=True).encode()).hexdigest()


def threads(part: Any) -> int:
    """Return the number of calls of a retriever or reranker that should run at the same time; 1 if it does not
    say."""
    return getattr(part, "threads", 1)


def service(*parts: Any) -> str:
    """Return the names of the services that do the work of retrievers and rerankers, for messages.

    Empty if a part works in this process: how long it takes says nothing about a service.
    """
    names = [getattr(part, "service", "") for part in parts]
    return " and ".join(dict.fromkeys(names)) if all(names) else ""


def threads_of_parts(*parts: Any) -> int:
    """Return the number of searches at the same time through several parts, each of which is called `in_turn`.

    One more than the part with the fewest takes, so that no part waits for another; not many more, so that the
    batches of that part stay large.
    """
    return min(map(threads, parts)) + 1


def in_turn(part: Any, call: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return ``call``, a method of a retriever or reranker, with at most as many calls at a time as it wants."""
    turns = BoundedSemaphore(threads(part))

    def wait_and_call(*arguments: Any) -> list[Any]:
        with turns:
            return call(*arguments)

    return wait_and_call


def corpus_sha256(retriever: Retriever) -> str:
    """Return the SHA-256 of a retriever's corpus, or "" if it is unknown, as for a web search or a service."""
    return getattr(retriever, "corpus_sha256", "")


def common_corpus(retrievers: Iterable[Retriever]) -> str:
    """Return the SHA-256 of the corpus of retrievers whose passages are merged by id; "" if one is unknown.

    Raises UserError if two corpora are known to differ: an id could stand for a different passage in each.
    """
    corpora = {corpus_sha256(retriever): retriever.name for retriever in retrievers}
    known = [name for corpus, name in corpora.items() if corpus]
    if len(known) > 1:
        raise UserError(
            f"{' and '.join(known)} search different corpora, in which one id can stand for different passages; "
            "index the same corpus file for each"
        )
    return min(corpora, default="")
