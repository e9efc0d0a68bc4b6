"""A headless Chromium for tests, controlled with the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell") or shutil.which("google-chrome")
KEYS = {"Enter": 13, "Escape": 27, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
KEYS |= {"ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """A browser with one tab. ``events`` records requests, console messages and exceptions."""

    def __init__(self, profile: Path):
        reads, self.requests = os.pipe()
        self.replies, writes = os.pipe()
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        launch = f"import os; os.dup2({reads}, 3); os.dup2({writes}, 4); os.execv({CHROMIUM!r}, {command!r})"
        python = [sys.executable, "-c", launch]
        self.process = subprocess.Popen(python, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
        os.close(reads)
        os.close(writes)
        self.calls = 0
        self.unread = b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that arrive first are recorded."""
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self.calls:
                assert "error" not in reply, reply
                return reply["result"]
            self.events.append(reply)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            more = os.read(self.replies, 1 << 16)
            assert more, "the browser has exited"
            self.unread += more
        text, _, self.unread = self.unread.partition(b"\0")
        return json.loads(text)

    def open(self, url: str) -> None:
        """Open a page, or another fragment of the same page."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression, await it and return its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; the test's own timeout ends a wait for a false one."""
        check = f"try {{ ({condition}) ? resolve() : setTimeout(check, 10) }} catch (error) {{ reject(error) }}"
        self.run(f"new Promise((resolve, reject) => {{ const check = () => {{ {check} }}; check(); }})")

    def press(self, key: str, shift: bool = False) -> None:
        """Press and release a key."""
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        shared = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def resize(self, width: int, height: int = 800) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def scheme(self, name: str) -> None:
        """Set the preferred colour scheme: ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def complaints(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the recorded events of these kinds: by default exceptions, and all that is logged."""
        self.run("1")  # receives all pending events
        kinds = kinds or ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def requested(self) -> set[str]:
        """Return the addresses of all requests, without their fragments."""
        sent = (event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent")
        return {params["request"]["url"].partition("#")[0] for params in sent}

    def picture(self, path: Path, whole: bool = False) -> None:
        """Save a screenshot of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.requests)
        os.close(self.replies)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Yield a browser, or skip the test if Chromium is not installed."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
