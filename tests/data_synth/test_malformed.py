"""Malformed answers of teachers: each is read or refused, none stops a synthesis, and none is executed."""

import asyncio
import copy
import importlib
import json
import pkgutil
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.fakes import Found, Says
from support.two_hop import FILM, QUESTION

from rag_train import formats
from rag_train.data_synth.methods import compound, hanrag
from rag_train.data_synth.registry import METHODS
from rag_train.formats.planrag import PlanError, from_tuples, parse_plan, problems, to_tuples
from rag_train.formats.tasks import Task
from rag_train.jobs.items import Outcome
from rag_train.strategies import baselines
from rag_train.strategies.base import Kit

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
    *(" Moby Dick was directed by John Huston.", " true", " complex question", " no", "10"),
)
PIECES = (
    '"', "'", "[", "]", "{", "}", "(", ")", ",", ":", "\\", "\n", "\r\n", "\t", "\x00", "\x1b[31m", "\u2028",
    "\ufeff", "null", "NaN", "-Infinity", "1e999", "9" * 5000, "0x1F", "True", "```json\n", "\n```", "<think>",
    "</s>", "\\ud800", "\\u0000", "\\x00", "\\N{BULLET}", "𝔸", "é", "e\u0301", "日本", "🎬", "<A1.1>", "<A9.9>",
    "< a 1 . 1 >", "Q1.1", "Q1.1:", "Q99999999999999999999.1", '"parents":["Q2.1"]', '"id":', "Context: a: b",
    "__import__('os').system('true')", "exec('1')", "open('/etc/passwd').read()", "().__class__.__bases__",
    "lambda: 0", "*" * 50, "- " * 200, "[" * 300, "(" * 300, '{"a":' * 300, "'a'" * 50, "-" * 3000, "Question:",
)  # fmt: skip
VALUES = (
    None, True, 0, -1, 1e308, "", " ", "Q1.1", "Q1.2", "q 2 . 1", "Q3.1", "Q", "A1.1", "<A2.1> or <A9.9>?",
    "Where was the director of Moby Dick born?", "Who directed Moby Dick?", "Moby Dick", "Nevada", "nothing", "no",
    "a\nb", "\u2028", [], ["Q1.1"], ["Q1.1", "Q2.1"], [[]], {}, {"id": "Q1.2", "question": "When?", "parents": []},
    {"entity": "moby dick.", "queries": ["Director"]}, "x" * 10_000,
    [{"id": f"Q1.{i}", "question": f"{i}?"} for i in range(20)],
)  # fmt: skip


def malformed(rng: random.Random) -> str:
    """Return a well-formed answer with changes to its JSON values or to its text."""
    text = rng.choice(WELL_FORMED)
    if text.startswith(("{", "[{")) and rng.random() < 0.5:
        change(value := json.loads(text), rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for _ in range(rng.randint(0, 5)):
        at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        inserted = rng.choice((*PIECES, *WELL_FORMED, chr(rng.randrange(0xD800))))
        head, middle, tail = text[:at], text[at:to], text[to:]
        text = rng.choice((head + middle, head + tail, text[:to] + middle + tail, head + inserted + middle + tail))
    return text


def change(value: Any, rng: random.Random) -> None:
    """Replace or remove an item at a random depth of ``value``."""
    if not value:
        return
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], dict | list) and rng.random() < 0.7:
        change(value[key], rng)
    elif rng.random() < 0.3:
        del value[key]
    else:
        value[key] = copy.deepcopy(rng.choice(VALUES))


def tasks() -> list[Task]:
    """Return the tasks of all formats and baselines."""
    modules: list[Any] = [compound]
    for package in (formats, baselines):
        names = [name for _, name, _ in pkgutil.iter_modules(package.__path__)]
        modules += [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Task)]


def syntheses(rng: random.Random) -> dict[str, Callable[[], Awaitable[Outcome]]]:
    """Return what each method makes of one question with a teacher that writes malformed texts, by method."""
    kit = Kit(Says(lambda prompt: malformed(rng)), Found([FILM]), instructions=False)
    common: dict[str, Any] = {"index": "", "output": "", "model": "t", "instructions": False}
    marked = QUESTION.model_copy(update={"metadata": {hanrag.ROUTED: [""], hanrag.JUDGED: [0, 1]}})
    # Without a gold plan: comparing two plans makes networkx define a dataclass, which executes code.
    bare = QUESTION.model_copy(update={"decomposition": []})
    made: dict[str, Callable[[], Awaitable[Outcome]]] = {}
    for name, question in {"dualrag": QUESTION, "hanrag": marked, "planrag": bare}.items():
        method: Any = METHODS[name]
        data = method(method.recipe_type(questions=[], **common), [], kit.retriever, kit)
        made[name] = lambda data=data, question=question: data.outcome(question)
    entity = compound.Entity(id="e", name="Moby Dick", split="train")
    built = compound.CompoundData(compound.CompoundRecipe(**common), [], kit)
    return made | {"compound": lambda: built.outcome(entity)}


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


def test_executed_code_is_counted_inside_the_block_only():
    with count_executed() as events:
        eval("1 + 1")
    eval("1 + 1")
    assert events["exec"] == 1


@pytest.mark.slow
def test_malformed_answers_are_read_or_refused_and_never_executed():
    rng = random.Random(1)
    known, methods = tasks(), syntheses(rng)
    seen: Counter[str] = Counter()

    async def tried(text: str, name: str) -> None:
        for task in known:
            answer = task.parse(text)
            seen["not of the task's type" if answer is None else "read"] += 1
            if answer is not None:
                task.completion(answer).encode()
        try:
            plan = parse_plan(text, QUESTION.question)
            assert not problems(plan), text
            assert not plan.nodes or parse_plan(to_tuples(plan, QUESTION.question), QUESTION.question) == plan
            seen["a plan"] += 1
        except PlanError as error:
            seen[error.reason] += 1
        outcome = await methods[name]()
        for record in (*outcome.records, *outcome.rejected):
            json.dumps(record.model_dump(mode="json"), ensure_ascii=False).encode()
        seen.update(f"{name}: {rejected.reason}" for rejected in outcome.rejected)
        seen[f"{name}: records"] += len(outcome.records)

    async def run() -> Counter[str]:
        for name in methods:  # complete all late imports
            await tried(malformed(rng), name)
        with count_executed() as events:
            for case in range(2_000):
                await tried(malformed(rng), list(methods)[case % len(methods)])
        return events

    assert not asyncio.run(run())
    assert len(known) > 30 and seen["not of the task's type"] > 10_000 and seen["read"] > 1_000
    expected = {"a plan", "not a plan", "unknown tag", "dualrag: wrong answer", "planrag: not a plan"}
    assert seen.keys() >= expected | {"compound: did not parse, or empty"} and seen["hanrag: records"]


@pytest.mark.parametrize(
    "text",
    [
        '[("Q: a", "Q1.1: \\ud800")]',  # half of a surrogate pair, which UTF-8 cannot encode
        f'[("Q: a", "Q{"9" * 5000}.1: b")]',
        "[" * 100_000,
        "-" * 100_000 + "1",
        '[("Q: a", "Q1.1: b"\x00)]',
        "[" + "9" * 5000 + "]",
        '[("Q: a", "Q1.1: b", "Q1.2: c")]',
        '{"Q: a", "Q1.1: b"}',
        '[("Q: a", b"Q1.1: b")]',
    ],
)
def test_rejects_malformed_plans_with_plan_error(text: str):
    with pytest.raises(PlanError):
        from_tuples(text)
    with pytest.raises(PlanError):
        parse_plan(text, "a?")
