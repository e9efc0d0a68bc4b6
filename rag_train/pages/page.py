"""Pages of services: one HTML document each, with its styles and scripts inside."""

from __future__ import annotations

from collections.abc import Sequence

from rag_train.templates import inline, template

ASKING_STYLES = ("pages/base.css", "pages/plan.css", "pages/answer.css")
"""Styles of a page that asks questions."""
ASKING_SCRIPTS = ("pages/elements.js", "pages/plan.js", "pages/answer.js")
"""Scripts of a page that asks questions."""


def page(path: str, styles: Sequence[str], scripts: Sequence[str], **values: object) -> tuple[str, str]:
    """Return the page of the template ``path``, and a content security policy for it.

    The policy allows the page's own styles and scripts, and requests to its own service.
    """
    style, style_source = inline(*styles)
    script, script_source = inline(*scripts)
    return template(path).render(style=style, script=script, **values), (
        f"default-src 'none'; style-src '{style_source}'; script-src '{script_source}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
