"""The exception for mistakes that the user can correct."""


class UserError(Exception):
    """Invalid input. The message is one line: what is wrong, where, and what to do.

    The command line prints the message and exits with status 2.
    """


class OneProcessError(UserError):
    """An error of a single process of a distributed launch, which no other process reports."""


def not_installed(error: ImportError, extra: str = "retrieval") -> UserError:
    """Return the error to raise if a package of the optional ``extra`` cannot be imported."""
    return UserError(f'{error.name} is not installed; run pip install "rag-train[{extra}]"')
