"""The address of the Hugging Face Hub, and whether a service answers, known within a few seconds."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

SECONDS = 3.0


def hub_address() -> str:
    """Return the address of the Hub, or of the mirror that ``HF_ENDPOINT`` names."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def begin_reaching_hub() -> Callable[[], str | None]:
    """Ask the Hub as `begin_reaching` does, unless ``HF_HUB_OFFLINE`` forbids it."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return lambda: "HF_HUB_OFFLINE is set"
    return begin_reaching(hub_address())


def begin_reaching(address: str, seconds: float = SECONDS) -> Callable[[], str | None]:
    """Send a request to ``address`` in the background.

    Returns a function that waits for the answer, for ``seconds`` at most: it returns None if the service answered,
    with any status, and otherwise the reason in a few words. A name that is looked up for longer counts as no
    answer; time-outs of sockets do not cover the look-up.
    """
    reason: list[str | None] = [f"no answer within {seconds:g} s"]
    thread = threading.Thread(target=_ask, args=(address, seconds, reason), daemon=True)
    thread.start()

    def wait() -> str | None:
        thread.join(seconds)
        return reason[0]

    return wait


def _ask(address: str, seconds: float, reason: list[str | None]) -> None:
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds).close()
        reason[0] = None
    except urllib.error.HTTPError:
        reason[0] = None
    except urllib.error.URLError as error:
        reason[0] = getattr(error.reason, "strerror", None) or str(error.reason)
    except (OSError, ValueError) as error:
        reason[0] = str(error)
