"""Files that come with the package: where they lie, and how recipes and launch files get into a directory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rag_train.errors import UserError

_PACKAGE = Path(__file__).parent
FOLDERS = ("recipes", "launch")


def packaged(path: str) -> Path:
    """Return the place of a file or folder of the package, such as ``recipes/demo.yaml``.

    An installation has everything inside the package. A checkout has data_synth/, eval/, launch/ and recipes/
    beside the package.
    """
    inside = _PACKAGE / path
    return inside if inside.exists() else _PACKAGE.parent / path


def write_working_files(directory: Path) -> list[Path]:
    """Copy recipes/ and launch/ into ``directory`` and return the paths of the copies.

    Raises UserError, before anything is written, if a file would be replaced or the directory cannot be written.
    """
    folders = [packaged(folder) for folder in FOLDERS]
    sources = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    copies = [directory / source.relative_to(folders[0].parent) for source in sources]
    copy_files(sources, copies)
    return copies


def copy_files(sources: Sequence[Path], copies: Sequence[Path]) -> None:
    """Copy each file to the place beside it in ``copies``.

    Raises UserError, before anything is written, if a file would be replaced, and if a file cannot be written.
    """
    if existing := next((copy for copy in copies if copy.exists()), None):
        raise UserError(f"{existing}: already exists; move it away or choose another directory")
    try:
        for source, copy in zip(sources, copies, strict=True):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; choose another directory") from error
