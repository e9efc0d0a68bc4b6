"""The recipes and launch files that come with the package, and how they get into a working directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from rag_train.errors import UserError

PACKAGE = Path(__file__).parent
FOLDERS = ("recipes", "launch")


def write_working_files(directory: Path) -> list[Path]:
    """Copy recipes/ and launch/ into ``directory`` and return the paths of the copies.

    Raises UserError, before anything is written, if a file would be replaced or the directory cannot be written.
    """
    sources = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*")) if path.is_file()]
    copies = [directory / source.relative_to(PACKAGE) for source in sources]
    if existing := next((copy for copy in copies if copy.exists()), None):
        raise UserError(f"{existing}: already exists; move it away or choose another directory")
    try:
        for source, copy in zip(sources, copies, strict=True):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; choose another directory") from error
    return copies
