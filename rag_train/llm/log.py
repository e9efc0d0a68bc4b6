"""The log file for the output of the engines' libraries, which would otherwise fill the terminal."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

from rag_train.errors import UserError
from rag_train.jobs.files import cache_directory, write_text
from rag_train.progress import console, say


@cache
def log_file() -> TextIO:
    """Create this process's log file in ``$RAG_TRAIN_LOG_DIR`` or, if that is not set, among the temporary files.

    Raises UserError if the file cannot be created.
    """
    directory = Path(os.environ.get("RAG_TRAIN_LOG_DIR") or tempfile.gettempdir())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(".log", "rag-train-", directory)
        os.close(descriptor)
        return Path(path).open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(
            f"cannot create a log file in {directory}: {error.strerror}; "
            "set RAG_TRAIN_LOG_DIR to a writable directory"
        ) from error


@contextmanager
def starting(engine: str, model: str) -> Iterator[None]:
    """Say that ``engine`` starts with ``model``, and write to the log file all other output of the start.

    The seconds of a start are kept in the cache directory, and told at the next start.

    Processes that are created meanwhile inherit standard output and standard error, and so write to the log file as
    long as they live. Only `rag_train.progress.console` still reaches the terminal.

    Raises UserError with the cause and the log file's name if the start fails.
    """
    log = log_file()
    key = hashlib.sha256(f"{engine} {model}".encode()).hexdigest()[:16]
    last = cache_directory() / "starts" / key
    said = f"starting {engine} with {model}"
    with suppress(OSError, ValueError):
        said += f" (took {float(last.read_text()):.0f} s last time)"
    say(said)
    begin, start = log.seek(0, os.SEEK_END), time.perf_counter()
    try:
        with _redirected(log):
            yield
    except UserError:
        raise
    except Exception as error:
        text = Path(log.name).read_bytes()[begin:].decode(errors="replace")
        traceback.print_exc(file=log)
        raise UserError(f"model {model}: {engine} did not start ({_cause(error, text)}); see {log.name}") from error
    with suppress(OSError):
        write_text(last, f"{time.perf_counter() - start:.1f}")


@contextmanager
def quiet() -> Iterator[None]:
    """Write what libraries print to the log file; only `rag_train.progress.console` reaches the terminal."""
    with _redirected(log_file()):
        yield


@contextmanager
def _redirected(log: TextIO) -> Iterator[None]:
    """Send standard output and standard error to ``log``, at the level of Python and of file descriptors."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with os.fdopen(os.dup(2), "w") as terminal, redirect_stdout(log), redirect_stderr(log):
        console.file = terminal
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
        try:
            yield
        finally:
            console._file = None
            for descriptor, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)


def _cause(error: Exception, log: str) -> str:
    """Return the error's message in one line. If a process of vLLM failed, return the message that it logged."""
    logged = re.findall(r"\b(\w+(?:Error|Exception): .+)", log) if "root cause above" in str(error) else []
    cause = logged[-1] if logged else ": ".join(filter(None, (type(error).__name__, str(error))))
    return " ".join(cause.split())[:300]
