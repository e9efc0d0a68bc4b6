"""The command line. Heavy imports are inside the commands, so that help and errors appear at once."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from rag_train.cli.data import indexing, records
from rag_train.cli.eval import evaluation
from rag_train.cli.options import DATA, SERVING, first_process
from rag_train.cli.selftest import testing
from rag_train.cli.serve import serving, watching
from rag_train.cli.start import starting
from rag_train.cli.synth import synthesis
from rag_train.cli.train import training
from rag_train.errors import OneProcessError, UserError

app = typer.Typer(
    name="rag-train",
    help="Train the controller of a retrieval-augmented language model: synthesise data, train, evaluate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(starting)
app.add_typer(testing)
app.add_typer(indexing)
app.add_typer(synthesis)
app.add_typer(records, name="data", rich_help_panel=DATA)
app.add_typer(training)
app.add_typer(evaluation)
app.add_typer(serving, name="serve", rich_help_panel=SERVING)
app.add_typer(watching)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rag-train {version('rag-train')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a UserError is printed as one line on standard error, with exit code 2.

    So is the failure of a file or directory: a full disk, a place that cannot be written, a name that is too long.
    What a run had finished before is kept. Under a launcher, the first process reports for all, except for errors
    that only one process met.
    """
    try:
        app(arguments, prog_name="rag-train")
    except UserError as error:
        if not (first_process() or isinstance(error, OneProcessError)):
            sys.exit(2)
        _fail(str(error))
    except OSError as error:
        if error.errno not in _FILE_ERRORS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        remedy = "choose a place that can be written and has free space, and give the command again"
        if error.errno == errno.EFBIG:
            remedy = "raise the limit on the size of files (ulimit -f), and give the command again"
        _fail(f"{place}{error.strerror}; {remedy}")


_FILE_ERRORS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO),
}


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
