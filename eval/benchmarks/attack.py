"""Attacks on killed builds, strangers' files and services (make bench NAME=attack).

Everything happens in a temporary directory and on the loopback interface. Nothing but refusals and harmless
outcomes is expected. Writes attack.json and attack.md.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rag_train.errors import UserError
from rag_train.eval.benchmarks.harness import benchmark_parser, save
from rag_train.jobs.files import sha256
from rag_train.progress import console
from rag_train.schema import Passage
from rag_train.table import Table

PASSAGES = 32_000
"""Passages of the retrieval service."""

# -- kills -------------------------------------------------------------------------------------------------------

KILL_POINTS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
"""Functions of `os` that change or secure files; a build is killed before and after each call of them."""


class _Killed(BaseException):
    """Ends a build like a kill: the code under attack does not catch it."""


def killed(work: Callable[[], object], point: int) -> bool:
    """Kill ``work`` at a point: 2n is before, 2n + 1 after the n-th call of `KILL_POINTS`.

    From then on every call fails, as a dead process does nothing. Returns whether there was such a point.
    """
    calls = 0

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if point <= 2 * (calls - 1):
                raise _Killed
            done = real(*arguments, **options)
            if point < 2 * calls:
                raise _Killed
            return done

        return call

    try:
        with ExitStack() as patches:
            for name in KILL_POINTS:
                patches.enter_context(patch.object(os, name, deadly(name)))
            work()
    except _Killed:
        return True
    return False


def killed_builds(kind: str, scratch: Path) -> Counter[str]:
    """Kill the replacement of an index at every point, build again, and count what was found."""
    old, new = corpus(20, seed=0), corpus(30, seed=1)
    build(kind, old, scratch / "old")
    seen: Counter[str] = Counter()
    for point in count():
        root = scratch / str(point)
        shutil.copytree(scratch / "old", root / "index")
        if not killed(lambda to=root / "index": build(kind, new, to), point):
            return seen
        left = "an index in place" if (root / "index").exists() else "the index put back by the next build"
        try:
            build(kind, new, root / "index")
            found = sorted(path.name for path in root.iterdir())
            right = found == ["index"] and open_and_search(root / "index") == HARMLESS
            seen[f"{left}; built again" if right else f"built again wrongly: {found}"] += 1
        except Exception as error:
            seen[f"not built again: {type(error).__name__}: {error}"[:200]] += 1
        shutil.rmtree(root)
    raise AssertionError("count() does not end")


def build(kind: str, passages: list[Passage], directory: Path) -> None:
    from rag_train.retrieval.index import bm25, dense, lucene

    match kind:
        case "bm25":
            bm25.build_bm25(passages, directory)
        case "lucene":
            lucene.build_lucene(passages, directory)
        case _:
            dense.build_dense(passages, directory, dense.DenseConfig(kind=kind))


def corpus(size: int, seed: int) -> list[Passage]:
    """Return passages of 60 words, whose frequencies follow Zipf's law."""
    rng = random.Random(seed)
    words = ["the", "film", "city", "born", "director", "of"]
    words += ["".join(rng.choices("abcdefgilmnorstu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts = (" ".join(rng.choices(words, weights, k=60)) for _ in range(size))
    return [Passage(id=str(i), title=rng.choice(words), text=text) for i, text in enumerate(texts)]


# -- strangers' files --------------------------------------------------------------------------------------------

HARMLESS = "opened, harmless"
QUERIES = ("Who directed the film?", "born in the capital", 'title:"the" +film -x')
EXTREMES = (b"\x00", b"\xff", b"\x7f", b"\x80")


def corrupt(directory: Path, rng: random.Random) -> None:
    """Damage one file of an index and write its new hash into the manifest, as a forger would."""
    manifest = json.loads((directory / "index.json").read_text())
    name = rng.choice([*manifest["files"], "index.json"])
    path = directory / name
    path.write_bytes(damaged(path.read_bytes(), rng))
    if name != "index.json":
        manifest["files"][name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        (directory / "index.json").write_text(json.dumps(manifest))


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return bytes with a part overwritten, cut off or added."""
    data = bytearray(whole)
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 8))
    match rng.randrange(4):
        case 0:
            data[at : at + size] = rng.choice(EXTREMES) * size
        case 1:
            data[at : at + size] = rng.randbytes(size)
        case 2:
            del data[at:]
        case 3:
            data[at:at] = rng.randbytes(size)
    return bytes(data)


def open_and_search(directory: Path) -> str:
    """Open and search an index, and return the outcome; the process ends itself after one minute."""
    from rag_train.retrieval.index.open import load_index

    signal.alarm(60)
    warnings.simplefilter("ignore")  # NumPy's, about damaged numbers
    try:
        load_index(directory).search(QUERIES, 50)
    except UserError as error:
        return "refused in one line" if "\n" not in str(error) else "refused in several lines"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    return HARMLESS


def corrupted_indexes(source: Path, cases: int, scratch: Path) -> Counter[str]:
    """Open corrupted copies of an index in another process, which may crash, and count the outcomes."""
    rng, seen = random.Random(0), Counter[str]()
    with ExitStack() as stack:
        pool = stack.enter_context(_process())
        for _ in range(cases):
            shutil.copytree(source, scratch / "copy")
            corrupt(scratch / "copy", rng)
            try:
                seen[pool.submit(open_and_search, scratch / "copy").result()] += 1
            except BrokenProcessPool:
                seen["process died"] += 1
                pool = stack.enter_context(_process())
            shutil.rmtree(scratch / "copy")
    return seen


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


YAML_PIECES = (
    "&a ", "*a", "<<: *a", "!!binary ", "!!timestamp ", "!!python/object/apply:os.system ", "2024-02-30", "0b_",
    "0x_", "9" * 5000, "[" * 3000, "{" * 3000, "? ", "- ", ": ", "\n", "\t", "'", '"', '"\\ud800"', "%YAML 9.9",
    "---", "...", ".inf", ".nan", "1e999", "~", "\x00", "\u2028", "x" * 100_000, "null", "!", "|", ">",
)  # fmt: skip


def hostile_recipes(cases: int, scratch: Path) -> Counter[str]:
    """Read shipped recipes with up to four hostile pieces in them, and count the outcomes."""
    from rag_train.package_files import packaged
    from rag_train.training.recipe import TrainRecipe

    rng, seen = random.Random(0), Counter[str]()
    text = packaged("recipes/deeprag_sft.yaml").read_text(encoding="utf-8")
    for _ in range(cases):
        changed = text
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            changed = changed[:at] + rng.choice(YAML_PIECES) + changed[at + rng.randint(0, 9) :]
        (scratch / "recipe.yaml").write_text(changed, encoding="utf-8")
        seen[_read_recipe(TrainRecipe, scratch / "recipe.yaml")] += 1
    return seen


def _read_recipe(cls: type, path: Path) -> str:
    from rag_train.recipe import load_recipe

    try:
        load_recipe(cls, path, [f"data={path}"])
    except UserError as error:
        return "refused in one line" if "\n" not in str(error) else "refused in several lines"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"[:200]
    return "read, harmless"


def corrupted_checkpoints(cases: int, scratch: Path) -> Counter[str]:
    """Count what the check before an engine's start says of checkpoints of which one file is corrupted."""
    from rag_train.llm.checkpoint import check_checkpoint
    from rag_train.worlds.mini.pretrain import PretrainConfig, pretrained
    from rag_train.worlds.mini.world import World, WorldConfig

    rng, seen = random.Random(0), Counter[str]()
    model, _ = pretrained(World(WorldConfig()), PretrainConfig(), Path("runs/demo/base"))
    for _ in range(cases):
        shutil.copytree(model, scratch / "model")
        path = scratch / "model" / rng.choice(("config.json", "tokenizer.json", "model.safetensors"))
        path.write_bytes(damaged(path.read_bytes(), rng))
        try:
            check_checkpoint(str(scratch / "model"))
            seen["accepted: weights or settings changed, none of them code"] += 1
        except UserError as error:
            seen["refused in one line" if "\n" not in str(error) else "refused in several lines"] += 1
        except BaseException as error:
            seen[f"traceback: {type(error).__name__}: {error}"[:200]] += 1
        shutil.rmtree(scratch / "model")
    return seen


# -- services ----------------------------------------------------------------------------------------------------


@contextmanager
def service(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `rag-train serve ...` on a free port; yield the process and the address."""
    command = [sys.executable, "-m", "rag_train.cli", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"})
    try:
        assert process.stderr
        yield process, next(found[0] for line in process.stderr if (found := re.search(r"127\.0\.0\.1:\d+", line)))
    finally:
        process.kill()
        process.communicate()


def post(address: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> str:
    """Send a request and return the status, or the name of the error."""
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"} | (headers or {}))
        response = connection.getresponse()
        response.read()
        return str(response.status)
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


def search(queries: list[str], k: int) -> bytes:
    return json.dumps({"queries": queries, "k": k}).encode()


def open_socket(address: str, sent: bytes) -> socket.socket:
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.sendall(sent)
    return sock


def half_sent(address: str, sent: bytes, connections: int, seconds: float) -> Counter[str]:
    """Open connections that send no more, and count how many the service has closed after ``seconds``."""
    sockets = [open_socket(address, sent) for _ in range(connections)]
    time.sleep(seconds)
    seen: Counter[str] = Counter()
    for sock in sockets:
        sock.setblocking(False)
        try:
            seen["closed" if sock.recv(1) == b"" else "answered"] += 1
        except BlockingIOError:
            seen["open"] += 1
        sock.close()
    return seen


def leavers(address: str, body: bytes, connections: int) -> Counter[str]:
    """Send large searches and leave without waiting for an answer."""
    head = f"POST /search HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    for _ in range(connections):
        open_socket(address, whole).close()
    return Counter({"left": connections})


Attack = Callable[[str], Counter[str]]


def searches_attacks(passages: list[Passage]) -> dict[str, Attack]:
    """Attacks on the retrieval service, by what they do."""
    rng = random.Random(0)
    words = sorted({word for passage in passages[:3000] for word in passage.text.split()})

    def long() -> str:
        return " ".join(rng.choices(words, k=2000))

    def requests(path: str, bodies: list[bytes], headers: dict[str, str] | None = None) -> Attack:
        def run(address: str) -> Counter[str]:
            with ThreadPoolExecutor(50) as pool:
                return Counter(pool.map(lambda body: post(address, path, body, headers), bodies))

        return run

    many = search([long() for _ in range(1000)], 10)
    bad = [search(["film"], 5)[: rng.randrange(1, 30)] + rng.randbytes(rng.randrange(20)) for _ in range(1000)]
    plain = [search(["film"], 5)]
    return {
        "2 queries of 4 MiB of one word": requests("/search", [search(["film " * (2**22 // 5)], 10)] * 2),
        "1,000 queries of 10,000 characters in one request": requests("/search", [many]),
        "8 such requests at once": requests("/search", [many] * 8),
        "50 such requests whose clients leave": lambda address: leavers(address, many, 50),
        "1,024 queries with k = 100": requests("/search", [search(["film"] * 1024, 100)]),
        "k = 1,000,000,000": requests("/search", [search(["film"], 10**9)]),
        "a body of 64 MiB": requests("/search", [b" " * 2**26]),
        "1,000 bodies that are no request": requests("/search", bad),
        "another site's Origin": requests("/search", plain, {"Origin": "http://page.example"}),
        "another site's Host": requests("/search", plain, {"Host": "page.example"}),
        "a form's Content-Type": requests("/search", plain, {"Content-Type": "text/plain"}),
        "500 connections with half a head": lambda address: half_sent(address, b"POST /search HT", 500, 35),
    }


@contextmanager
def probing(send: Callable[[], str]) -> Iterator[list[float]]:
    """Send an ordinary request again and again; the list gets the seconds that each takes."""
    seconds: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.is_set():
            start = time.perf_counter()
            assert send() == "200"
            seconds.append(time.perf_counter() - start)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield seconds
    finally:
        done.set()
        thread.join()


def attacked(address: str, attacks: dict[str, Attack], send: Callable[[], str]) -> Iterator[dict[str, Any]]:
    """Make each attack while an ordinary client sends queries; yield the outcomes and its longest wait."""
    for name, attack in attacks.items():
        with probing(send) as seconds:
            outcomes = attack(address)
        yield row(name, outcomes) | {
            "longest_wait_ms": round(1000 * max(seconds, default=0)),
            "ordinary": len(seconds),
        }


def stopped(process: subprocess.Popen[str], address: str, path: str) -> Counter[str]:
    """Stop a service that has half a request, and return the outcome with the seconds rounded up."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    )
    with open_socket(address, head.encode()):
        start = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
            return Counter([f"ended after {time.perf_counter() - start:.0f} s"])
    return Counter(["still running after 60 s"])


def retrieval_service(scratch: Path) -> Iterator[dict[str, Any]]:
    passages = corpus(PASSAGES, seed=0)
    build("bm25", passages, scratch / "large")
    with service("retriever", str(scratch / "large")) as (process, address):
        body = search(["Who directed the film?"], 5)
        yield from attacked(address, searches_attacks(passages), lambda: post(address, "/search", body))
        yield row("SIGTERM during half a request", stopped(process, address, "/search"))


def row(attack: str, outcomes: Counter[str]) -> dict[str, Any]:
    console.print(attack, dict(outcomes))
    return {"attack": attack, "cases": outcomes.total(), "outcomes": dict(outcomes.most_common())}


def killed_indexes(scratch: Path) -> list[dict[str, Any]]:
    rows = []
    for kind in KINDS[:2]:
        (scratch / kind).mkdir()
        rows.append(row(f"replacing an index, {kind}", killed_builds(kind, scratch / kind)))
    return rows


def strangers_files(cases: int, scratch: Path) -> list[dict[str, Any]]:
    rows = [
        row("recipe with hostile pieces", hostile_recipes(10 * cases, scratch)),
        row("checkpoint", corrupted_checkpoints(cases, scratch)),
    ]
    for kind in KINDS:
        build(kind, corpus(200, seed=0), scratch / kind)
        rows.append(row(f"index, {kind}", corrupted_indexes(scratch / kind, cases, scratch)))
    return rows


KINDS = ("bm25", "lucene", "Flat", "HNSW16", "IVF2,Flat")
PARTS = ("kills", "files", "requests")
"""Parts of the campaign."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--cases", type=int, default=300, help="corrupted files of each kind")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="parts to measure (default: all)")
    options = parser.parse_args()
    measures: dict[str, Callable[[Path], Iterable[dict[str, Any]]]] = {
        "kills": killed_indexes,
        "files": partial(strangers_files, options.cases),
        "requests": retrieval_service,
    }
    result: dict[str, list[dict[str, Any]]] = {}
    for part in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            result[part] = list(measures[part](Path(scratch)))
    table = Table(
        title="Attacks",
        caption=f"What happened; the retrieval service has {PASSAGES:,} passages.",
        columns=["Attack", "Cases", "What happened", "An ordinary client's longest wait, ms"],
        rows=[
            [
                each["attack"],
                f"{each['cases']:,}",
                "; ".join(f"{count:,} × {outcome}" for outcome, count in each["outcomes"].items()),
                str(each.get("longest_wait_ms", "")),
            ]
            for rows in result.values()
            for each in rows
        ],
    )
    save(options.output, "attack", result, table)


if __name__ == "__main__":
    main()
