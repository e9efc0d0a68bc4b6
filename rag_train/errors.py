"""The exceptions for mistakes that the user can correct, and for failures of services."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_SECRET = "key|token|secret|password|passwd|auth|sig|signature"
"""How the name of an address's parameter ends whose value is secret."""


def masked(text: str) -> str:
    """Return ``text`` without the secrets of the addresses in it.

    These are names and passwords (``http://user:password@host``) and keys among the parameters (``?api_key=...``).
    """
    text = re.sub(r"://[^/\s]*@", "://***@", text)
    return re.sub(rf"([?&][\w.-]*(?:{_SECRET})=)[^&\s,)\"']+", r"\1***", text, flags=re.IGNORECASE)


class UserError(Exception):
    """Invalid input. The message is one line: what is wrong, where, and what to do.

    The command line prints the message and exits with status 2. Passwords in addresses are masked.
    """

    def __str__(self) -> str:
        return masked(super().__str__())


class ServiceError(UserError):
    """A service failed: an engine, retriever, reranker or judge is down or too slow, or its answer is invalid.

    Nothing is known about the question for which the service was asked. Asking again may succeed; see
    `rag_train.jobs.retries`. ``wait`` is the number of seconds that the service asks to wait before.
    """

    wait = 0.0


class Refused(ValueError):
    """A service refuses one item for good, such as a prompt that a content filter blocks; others go on.

    ``reason`` is one of a few short texts, by which refused items are counted. The message has the details.
    """

    reason = "refused"


class PromptTooLong(Refused):
    """A prompt and the tokens to write do not fit the model's context."""

    reason = "too long"


class OneProcessError(UserError):
    """An error of a single process of a distributed launch, which no other process reports."""


def problem_in(error: ValidationError) -> str:
    """Return the first problem of a record that is not as expected, with the name of its field."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def install_command(extra: str = "") -> str:
    """Return the command that installs this package with an optional extra: from its source, where there is one."""
    source = Path(__file__).resolve().parents[1]
    extras = f"[{extra}]" if extra else ""
    if not (source / "pyproject.toml").exists():
        return f'pip install "rag-train{extras}"'
    return f'pip install -e "{"." if source == Path.cwd() else source}{extras}"'


def not_installed(error: ImportError, extra: str = "retrieval") -> UserError:
    """Return the error to raise if a package of the optional ``extra`` cannot be imported."""
    problem = f"{error.name} is not installed" if error.name else f"a package does not fit the others ({error})"
    return UserError(f"{problem}; run {install_command(extra)}")
