"""MkDocs hook: adds the reference pages, which are made from the code."""

from __future__ import annotations

from typing import Any

import reference
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files
