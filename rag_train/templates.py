"""The Jinja environment for all pages and cards that the package writes."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from rag_train.package_files import packaged


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(lambda path: packaged(path).read_text(encoding="utf-8")),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def template(path: str) -> Template:
    """Load a template by its path inside the package, such as ``eval/demo/page.html.jinja``.

    HTML templates escape the values that they insert. Rendering raises `jinja2.UndefinedError` for a missing value.
    """
    return _environment().get_template(path)


def inline(*paths: str) -> tuple[Markup, str]:
    """Join scripts or style sheets of the package into one inline element's text.

    Returns the text, and its source for a content security policy that allows only this text.
    """
    text = "\n".join(packaged(path).read_text(encoding="utf-8") for path in paths)
    return Markup(text), source_of(text)


def source_of(text: str) -> str:
    """Return the source of an inline element's text for a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
