"""A local server that speaks what huggingface_hub needs to describe and download files of a dataset repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.servers import Handler, serving


class Hub(Handler):
    """Files of repositories by (repository, revision, path). Those in ``large`` are in LFS, behind a redirect."""

    files: dict[tuple[str, str, str], bytes]
    large: set[str]
    asked: list[tuple[str, str | None]]

    def do_HEAD(self):
        self.send(200, b"")

    def do_POST(self):
        _, _, _, owner, name, _, revision = urlsplit(self.path).path.split("/")
        paths = parse_qs(self.body().decode())["paths"]
        told = [self.described(f"{owner}/{name}", revision, path) for path in paths]
        self.send(200, json.dumps([file for file in told if file]).encode(), {"content-type": "application/json"})

    def described(self, repository: str, revision: str, path: str) -> dict[str, Any] | None:
        content = self.files.get((repository, revision, path))
        if content is None:
            return None
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        told: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": blob}
        if path in self.large:
            digest = hashlib.sha256(content).hexdigest()
            told |= {"oid": "0" * 40, "lfs": {"size": len(content), "oid": digest, "pointerSize": 134}}
        return told

    def do_GET(self):
        place = urlsplit(self.path).path.removeprefix("/cdn")
        _, _, owner, name, _, revision, path = place.split("/", 6)
        if path in self.large and not self.path.startswith("/cdn"):
            return self.send(302, b"", {"location": f"/cdn{self.path}"})
        content, range_ = self.files[(f"{owner}/{name}", revision, path)], self.headers.get("range")
        self.asked.append((path, range_))
        start = int(range_.removeprefix("bytes=").rstrip("-")) if range_ else 0
        headers = {"content-length": str(len(content) - start)}
        if range_:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send(206 if range_ else 200, content[start:], headers)


@contextmanager
def hub() -> Iterator[str]:
    """Serve an empty `Hub` and yield its address."""
    Hub.files, Hub.large, Hub.asked = {}, set(), []
    with serving(Hub) as url:
        yield url
