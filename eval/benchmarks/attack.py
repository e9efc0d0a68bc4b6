"""Loads on the retrieval service beside an ordinary client (make bench NAME=attack).

While an ordinary client sends one search after the other, the service gets large and unfinished requests. Nothing
but refusals and harmless outcomes is expected, and the ordinary client must wait little. Everything happens in a
temporary directory and on the loopback interface. Writes attack.json and attack.md.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rag_train.eval.benchmarks.harness import benchmark_parser, free_port, save, wait_for
from rag_train.progress import console
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.schema import Passage
from rag_train.table import Table

PASSAGES = 32_000
"""Passages of the retrieval service."""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = list(attacked(Path(scratch)))
    table = Table(
        title="Attacks",
        caption=f"What happened; the retrieval service has {PASSAGES:,} passages.",
        columns=["Attack", "Cases", "What happened", "An ordinary client's longest wait, ms"],
        rows=[
            [
                row["attack"],
                f"{row['cases']:,}",
                "; ".join(f"{count:,} × {outcome}" for outcome, count in row["outcomes"].items()),
                str(row["longest_wait_ms"]),
            ]
            for row in rows
        ],
    )
    save(options.output, "attack", {"attacks": rows}, table)


def attacked(scratch: Path) -> Iterator[dict[str, Any]]:
    """Load the retrieval service with each attack while an ordinary client searches, and yield a row for each."""
    passages, port = corpus(PASSAGES), free_port()
    build_bm25(passages, scratch / "index")
    command = [sys.executable, "-m", "rag_train.cli", "serve", "retriever", str(scratch / "index")]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(port, process)
        for name, attack in attacks(passages).items():
            with probing(url) as seconds:
                outcomes = attack(url)
            console.print(name, dict(outcomes))
            counts = {"cases": outcomes.total(), "outcomes": dict(outcomes.most_common())}
            yield {"attack": name} | counts | {"longest_wait_ms": round(1000 * max(seconds, default=0))}
    finally:
        process.kill()
        process.wait()


def corpus(size: int, seed: int = 0) -> list[Passage]:
    """Return passages of 60 words, whose frequencies follow Zipf's law."""
    rng = random.Random(seed)
    words = ["the", "film", "city", "born", "director", "of"]
    words += ["".join(rng.choices("abcdefgilmnorstu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts = (" ".join(rng.choices(words, weights, k=60)) for _ in range(size))
    return [Passage(id=str(i), title=rng.choice(words), text=text) for i, text in enumerate(texts)]


def attacks(passages: list[Passage]) -> dict[str, Callable[[str], Counter[str]]]:
    """Return loads on the service by what they do; each takes its address and returns what happened."""
    rng = random.Random(0)
    words = sorted({word for passage in passages[:3000] for word in passage.text.split()})
    long = {"queries": [" ".join(rng.choices(words, k=2000)) for _ in range(1000)], "k": 10}

    def requests(body: dict[str, Any], count: int = 1) -> Callable[[str], Counter[str]]:
        def run(url: str) -> Counter[str]:
            with ThreadPoolExecutor(count) as pool:
                return Counter(pool.map(lambda body: search(url, body), [body] * count))

        return run

    return {
        "2 queries of 4 MiB of one word": requests({"queries": ["film " * (2**22 // 5)], "k": 10}, 2),
        "1,000 queries of 10,000 characters in one request": requests(long),
        "8 such requests at once": requests(long, 8),
        "1,024 queries with k = 100": requests({"queries": ["film"] * 1024, "k": 100}),
        "500 connections with half a head": half_sent,
    }


def search(url: str, body: dict[str, Any]) -> str:
    """Send a search and return the status, or the name of the error."""
    try:
        return str(httpx.post(f"{url}/search", json=body, timeout=120).status_code)
    except httpx.HTTPError as error:
        return type(error).__name__


def half_sent(url: str) -> Counter[str]:
    """Open 500 connections that send no more, and count those that the service has closed after 35 seconds."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    sockets = [socket.create_connection(address, 60) for _ in range(500)]
    for sock in sockets:
        sock.sendall(b"POST /search HT")
    time.sleep(35)
    seen: Counter[str] = Counter()
    for sock in sockets:
        sock.setblocking(False)
        try:
            seen["closed" if sock.recv(1) == b"" else "answered"] += 1
        except BlockingIOError:
            seen["open"] += 1
        sock.close()
    return seen


@contextmanager
def probing(url: str) -> Iterator[list[float]]:
    """Send an ordinary search again and again; the list gets the seconds that each takes."""
    seconds: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.is_set():
            start = time.perf_counter()
            assert search(url, {"queries": ["Who directed the film?"], "k": 5}) == "200"
            seconds.append(time.perf_counter() - start)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield seconds
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    main()
