"""Check a built site: each link leads to an existing file and anchor, and no page loads anything from a network.

Usage: ``python docs/check_site.py build/docs``. Links to other sites are not followed.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "srcset")}
"""Attributes that make a browser load a file."""


@dataclass
class Page(HTMLParser):
    """The anchors of an HTML page, its links, and the addresses that it loads from."""

    text: str
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)
            if (tag, name) in LOADS and value:
                self.loaded.append(value)


def problems(site: Path) -> list[str]:
    """One line for each broken link and each address of another host that a page or a style sheet loads."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        if path.name == "404.html" or "files" in path.parts:  # absolute links; pages of their own
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{where}: no file for the link {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{where}: no anchor for the link {link}")
    for path in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import)\s*['\"]?(https?://[^'\")\s]+)", path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: loads {address}" for address in addresses]
    return found


def main() -> int:
    found = problems(Path(sys.argv[1]).resolve())
    for line in found:
        print(line, file=sys.stderr)
    print(f"{sys.argv[1]}: {len(found)} problems")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
