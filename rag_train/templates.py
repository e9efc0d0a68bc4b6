"""The Jinja environment for all pages and cards that the package writes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def template(path: str) -> Template:
    """Load a template by its path inside the package, such as ``eval/pages/results.html.jinja``.

    HTML templates escape the values that they insert. Rendering raises `jinja2.UndefinedError` for a missing value.
    """
    return _environment().get_template(path)
