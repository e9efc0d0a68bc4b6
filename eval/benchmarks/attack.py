"""Malformed teacher output, and attacks on the retrieval service (make bench NAME=attack).

Teachers: for any text, a parser must return a value of its type or None, a plan must be valid or rejected by a
PlanError with a reason, a factory's outcome must be writable as JSON, and no code may be executed, opened or
imported. Requests: nothing but refusals and harmless outcomes is expected, and an ordinary client must wait little.
Everything happens in a temporary directory and on the loopback interface. Exits with 1 if any code was executed.
Writes attack.json and attack.md.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import pkgutil
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from rag_train import formats
from rag_train.data_synth.methods import compound, hanrag
from rag_train.data_synth.registry import METHODS
from rag_train.eval.benchmarks.harness import benchmark_parser, free_port, save, wait_for
from rag_train.formats.planrag import PLAN, PlanError, parse_plan, problems, to_tuples
from rag_train.formats.tasks import Task
from rag_train.jobs.items import Outcome
from rag_train.llm.base import Completion, Sampling, Usage
from rag_train.progress import console, progress
from rag_train.schema import GoldStep, Passage, Question
from rag_train.strategies import baselines
from rag_train.strategies.base import Kit
from rag_train.table import Table

PASSAGES = 32_000
"""Passages of the retrieval service."""
PARTS = ("teachers", "requests")
"""Parts of the campaign."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="malformed texts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the texts")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="parts to measure (default: all)")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if "teachers" in options.parts:
        with progress("malformed answers", options.cases) as advance:
            seen = asyncio.run(fuzz(options.cases, options.seed, advance))
        rows += [row(f"malformed answers, {name}", outcomes) for name, outcomes in seen.items()]
    if "requests" in options.parts:
        with tempfile.TemporaryDirectory() as scratch:
            rows += retrieval_service(Path(scratch))
    table = Table(
        title="Attacks",
        caption=f"What happened; the retrieval service has {PASSAGES:,} passages.",
        columns=["Attack", "Cases", "What happened", "An ordinary client's longest wait, ms"],
        rows=[
            [
                each["attack"],
                f"{each['cases']:,}",
                "; ".join(f"{count:,} × {outcome}" for outcome, count in each["outcomes"].items()) or "nothing",
                str(each.get("longest_wait_ms", "")),
            ]
            for each in rows
        ],
    )
    save(options.output, "attack", {"seed": options.seed, "attacks": rows}, table)
    sys.exit(any(each["cases"] for each in rows if each["attack"].endswith("executed")))


# -- malformed teacher output ------------------------------------------------------------------------------------

EXECUTING = ("exec", "import", "open", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "subprocess.Popen")
"""Audit events (PEP 578) of executed code and of its typical first actions."""

WELL_FORMED = (
    '{"thought":"I need to know: Who directed it?","retrieve":true}',
    '[{"entity":"Moby Dick","queries":["Who directed Moby Dick?","director"]}]',
    '{"thought":"two things","decomposition":["Who directed Moby Dick?","When was Moby Dick made?"]}',
    '[{"id":"Q1.1","question":"Who directed Moby Dick?","parents":[]},'
    '{"id":"Q2.1","question":"Where was <A1.1> born?","parents":["Q1.1"]}]',
    '[("Q: Where?", "Q1.1: Who directed Moby Dick?"), ("Q1.1: Who?", "Q2.1: Where was <A1.1> born?")]',
    '{"Response":"John Huston"}',
    '{"Question":"Who directed Moby Dick?","Answer":"John Huston"}',
    " Moby Dick was directed by John Huston.",
    " true",
    " complex question",
    " no",
    "10",
)
PIECES = (
    '"', "'", "[", "]", "{", "}", "(", ")", ",", ":", "\\", "\n", "\r\n", "\t", "\x00", "\x1b[31m", "\u2028",
    "\ufeff", "null", "NaN", "-Infinity", "1e999", "9" * 5000, "0x1F", "True", "```json\n", "\n```", "<think>",
    "</s>", "\\ud800", "\\u0000", "\\x00", "\\N{BULLET}", "𝔸", "é", "e\u0301", "日本", "🎬", "<A1.1>", "<A9.9>",
    "< a 1 . 1 >", "Q1.1", "Q1.1:", "Q99999999999999999999.1", '"parents":["Q2.1"]', '"id":', "Context: a: b",
    "Question:",
    "__import__('os').system('true')", "exec('1')", "open('/etc/passwd').read()", "().__class__.__bases__",
    "lambda: 0", "*" * 50, "- " * 200, "[" * 300, "(" * 300, '{"a":' * 300, "'a'" * 50, "-" * 3000, " ",
)  # fmt: skip
VALUES = (
    None, True, 0, -1, 1e308, "", " ",
    "Q1.1", "Q1.2", "q 2 . 1", "Q3.1", "Q", "A1.1", "<A1.1>", "<A2.1> or <A9.9>?",
    "Where was the director of Moby Dick born?", "Who directed Moby Dick?", "who directed moby dick", "Moby Dick",
    "John Huston", "Nevada", "nothing", "no", "a\nb", "\u2028", [], ["Q1.1"], ["Q2.1"], ["Q1.1", "Q2.1"], [[]],
    {}, {"id": "Q1.2", "question": "When was it made?", "parents": []},
    {"entity": "moby dick.", "queries": ["Director"]},
    [{"id": f"Q1.{i}", "question": f"{i}?"} for i in range(20)], "x" * 10_000,
)  # fmt: skip

FILM = Passage(id="f", title="Moby Dick", text="Moby Dick is a 1956 film. It was directed by John Huston.")
QUESTION = Question(
    id="q",
    question="Where was the director of Moby Dick born?",
    answers=["Nevada", "no", "true", "10", "John Huston"],
    decomposition=[
        GoldStep(subquery="Who directed Moby Dick?", answer="John Huston", entity="Moby Dick"),
        GoldStep(subquery="Where was John Huston born?", answer="Nevada", entity="John Huston"),
    ],
    metadata={hanrag.ROUTED: [""], hanrag.JUDGED: [0, 1]},
)


def malformed(rng: random.Random) -> str:
    """Return a well-formed answer with up to six changes to its JSON values or to its text."""
    text = rng.choice(WELL_FORMED)
    try:
        value = json.loads(text) if rng.random() < 0.5 else None
    except ValueError:
        value = None
    if isinstance(value, dict | list):
        for _ in range(rng.randint(1, 4)):
            _change(value, rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for _ in range(rng.randint(0, 2) if value else rng.randint(1, 6)):
        at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        match rng.randrange(7):
            case 0:
                text = text[:to]
            case 1:
                text = text[:at] + text[to:]
            case 2:
                text = text[:to] + text[at:]
            case 3 | 4:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            case 5:
                text = text[:at] + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xD800)))) + text[at + 1 :]
            case 6:
                text = text[:at] + rng.choice(WELL_FORMED) + text[to:]
    return text


def _change(value: Any, rng: random.Random) -> None:
    """Replace, remove or repeat an item at a random depth of ``value``."""
    items = value.values() if isinstance(value, dict) else value
    inner = [item for item in items if isinstance(item, dict | list)]
    if inner and rng.random() < 0.8:
        return _change(rng.choice(inner), rng)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return None
    key = rng.choice(keys)
    match rng.randrange(4):
        case 0 | 1:
            value[key] = copy.deepcopy(rng.choice(VALUES))
        case 2:
            del value[key]
        case 3 if isinstance(value, list):
            value.append(copy.deepcopy(value[0]))
    return None


def tasks() -> dict[str, Task]:
    """Return all tasks of the formats and baselines by name."""
    modules: list[Any] = [compound]
    for package in (formats, baselines):
        names = [name for _, name, _ in pkgutil.iter_modules(package.__path__)]
        modules += [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Task)]
    return {task.name: task for task in found}


class Teacher:
    """An engine that writes malformed answers."""

    name, tokenizer = "teacher", SimpleNamespace(chat_template=None)

    def __init__(self, rng: random.Random):
        self.rng = rng

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return Completion(malformed(self.rng), (), Usage(1, 1))

    async def aclose(self) -> None: ...


class OnePassage:
    """A retriever that always returns the same passage."""

    identity = "one passage"

    async def search(self, query: str, k: int) -> list[Passage]:
        return [FILM]

    async def search_all(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [[FILM] for _ in queries]


def factories(rng: random.Random) -> dict[str, Callable[[], Awaitable[Outcome]]]:
    """Return all factories by name, each run on one question with a `Teacher`."""
    parts: dict[str, Any] = {"llm": Teacher(rng), "retriever": OnePassage()}
    kit = Kit(**parts, instructions=False)
    common: dict[str, Any] = {"questions": [], "index": "", "output": "", "model": "t", "instructions": False}

    def module(name: str, question: Question) -> Callable[[], Awaitable[Outcome]]:
        method: Any = METHODS[name]
        return lambda: method(method.recipe_type(**common), [], kit.retriever, kit).outcome(question)

    entity = compound.Entity(id="e", name="Moby Dick", split="train")
    # Without a gold plan: comparing two plans makes networkx define a dataclass, which executes code.
    bare = QUESTION.model_copy(update={"decomposition": []})
    benchmark = compound.CompoundRecipe(index="", output="", model="t", instructions=False)
    return {
        "dualrag": module("dualrag", QUESTION),
        "hanrag": module("hanrag", QUESTION),
        "planrag": module("planrag", bare),
        "compound": lambda: compound.CompoundData(benchmark, [], kit).outcome(entity),
    }


@contextmanager
def count_executed() -> Iterator[Counter[str]]:
    """Count the audit events of executed code. PEP 578 cannot remove the hook, so it stays without effect."""
    events: Counter[str] = Counter()
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in EXECUTING:
            events[event] += 1

    sys.addaudithook(hook)
    try:
        yield events
    finally:
        watching = False


async def fuzz(
    cases: int, seed: int, advance: Callable[[int], None] = lambda done: None
) -> dict[str, Counter[str]]:
    """Count what parsers and factories make of ``cases`` malformed texts, by parser and reason.

    Errors that are not documented are raised.
    """
    rng = random.Random(seed)
    known, runners = tasks(), factories(rng)
    seen: dict[str, Counter[str]] = {"parsers": Counter(), "plans": Counter()} | {
        name: Counter() for name in runners
    }
    for run in runners.values():  # complete all late imports
        await run()
    with count_executed() as events:
        for case in range(cases):
            text = malformed(rng)
            for task in known.values():
                answer = task.parse(text)
                seen["parsers"]["not of the task's type" if answer is None else "read"] += 1
                if answer is not None:
                    task.completion(answer).encode()
            seen["plans"][_plan(text)] += 1
            name = list(runners)[case % len(runners)]
            outcome = await runners[name]()
            for record in (*outcome.records, *outcome.rejected):
                json.dumps(record.model_dump(mode="json"), ensure_ascii=False).encode()
            seen[name].update(rejected.reason for rejected in outcome.rejected)
            seen[name]["records kept"] += len(outcome.records)
            advance(1)
    seen["executed"] = events
    return seen


def _plan(text: str) -> str:
    try:
        plan = parse_plan(text, QUESTION.question)
    except PlanError as error:
        return error.reason
    assert not problems(plan), (text, problems(plan))
    assert not plan.nodes or parse_plan(to_tuples(plan, QUESTION.question), QUESTION.question) == plan, text
    return "a plan" if PLAN.parse(text) is not None else "a plan of tuples"


# -- requests ----------------------------------------------------------------------------------------------------


def corpus(size: int, seed: int) -> list[Passage]:
    """Return passages of 60 words, whose frequencies follow Zipf's law."""
    rng = random.Random(seed)
    words = ["the", "film", "city", "born", "director", "of"]
    words += ["".join(rng.choices("abcdefgilmnorstu", k=rng.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts = (" ".join(rng.choices(words, weights, k=60)) for _ in range(size))
    return [Passage(id=str(i), title=rng.choice(words), text=text) for i, text in enumerate(texts)]


def retrieval_service(scratch: Path) -> Iterator[dict[str, Any]]:
    """Load the retrieval service with each attack while an ordinary client searches, and yield a row for each."""
    from rag_train.retrieval.index.bm25 import build_bm25

    passages, port = corpus(PASSAGES, seed=0), free_port()
    build_bm25(passages, scratch / "index")
    command = [
        sys.executable,
        "-m",
        "rag_train.cli",
        "serve",
        "retriever",
        str(scratch / "index"),
        "--port",
        str(port),
    ]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(port, process)
        for name, attack in attacks(passages).items():
            with probing(url) as seconds:
                outcomes = attack(url)
            yield row(name, outcomes) | {"longest_wait_ms": round(1000 * max(seconds, default=0))}
    finally:
        process.kill()
        process.wait()


def attacks(passages: list[Passage]) -> dict[str, Callable[[str], Counter[str]]]:
    """Return loads on the service by what they do; each takes its address and returns what happened."""
    rng = random.Random(0)
    words = sorted({word for passage in passages[:3000] for word in passage.text.split()})
    long = {"queries": [" ".join(rng.choices(words, k=2000)) for _ in range(1000)], "k": 10}

    def requests(*bodies: dict[str, Any]) -> Callable[[str], Counter[str]]:
        def run(url: str) -> Counter[str]:
            with ThreadPoolExecutor(50) as pool:
                return Counter(pool.map(lambda body: search(url, body), bodies))

        return run

    return {
        "2 queries of 4 MiB of one word": requests(*[{"queries": ["film " * (2**22 // 5)], "k": 10}] * 2),
        "1,000 queries of 10,000 characters in one request": requests(long),
        "8 such requests at once": requests(*[long] * 8),
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


def row(attack: str, outcomes: Counter[str]) -> dict[str, Any]:
    console.print(attack, dict(outcomes))
    return {"attack": attack, "cases": outcomes.total(), "outcomes": dict(outcomes.most_common())}


if __name__ == "__main__":
    main()
