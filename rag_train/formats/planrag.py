"""PlanRAG's plans (section 4.1): as JSON, as the paper's list of tuples, and the rules for a valid plan.

    Query: <question>
    DAG:
    [{"id":"Q1.1","question":"Who wrote Rumble Fish?","parents":[]},
     {"id":"Q2.1","question":"When was <A1.1> born?","parents":["Q1.1"]}]

A question that needs no plan has an empty list. The paper's format is a Python list of (parent, child) tuples,
which the authors read with ``eval()``; `from_tuples` reads it with a parser instead.

The docstrings of the BaseModel classes are part of the JSON schemas that engines receive.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from rag_train.answers import normalize
from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import Fields, Task
from rag_train.schema import Passage, Plan, PlanNode

MOST_NODES = 12
"""Maximum number of nodes of a plan."""
ROOT = "Q"
"""Id of the question itself."""
TAG = re.compile(r"<\s*A\s*(\d{1,3})\s*\.\s*(\d{1,3})\s*>", re.IGNORECASE)
_ID = re.compile(r"Q\s*(\d{1,3})\s*\.\s*(\d{1,3})", re.IGNORECASE)
_NODE = re.compile(r"\s*Q\s*(?:(\d{1,3})\s*\.\s*(\d{1,3}))?\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)


class Draft(BaseModel):
    """A node as the model writes it."""

    id: str
    question: str
    parents: list[str] = []


class Response(BaseModel):
    Response: str


PLAN = Task("planrag_plan", "DAG:", list[Draft], max_tokens=1024)
FILL = Task("planrag_fill", "Output:")
ANSWER = Task("planrag_answer", "Generation:", Response)


class PlanError(ValueError):
    """A plan is invalid and cannot be repaired; ``reason`` is one of a few fixed texts."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def plan_fields(question: str) -> Fields:
    """Return the fields of `PLAN`."""
    return [("Query", question)]


def fill_fields(node: str, question: str, known: Sequence[tuple[str, str, str]]) -> Fields:
    """Return the fields of `FILL`; ``known`` has (id, subquery, answer) of each parent."""
    lines: list[tuple[str, str]] = [("Query", f"{node}: {question}")]
    for id, subquery, answer in known:
        lines += [(id, subquery), (id.replace("Q", "A"), answer)]
    return lines


def answer_fields(question: str, passages: Sequence[Passage], known: Sequence[tuple[str, str, str]]) -> Fields:
    """Return the fields of `ANSWER`, with the passages first as in all reader prompts.

    The paper puts the passages in the middle. ``known`` has (id, subquery, answer) of each parent.
    """
    pairs = [f"Q={subquery} A={answer}" for _, subquery, answer in known]
    return [("Retrievals", passages), ("Known answers", pairs), ("Query", question)]


def tags(text: str) -> list[str]:
    """Return the distinct ids of the nodes to whose answers the tags in ``text`` refer, in order."""
    return list(dict.fromkeys(f"Q{i}.{j}" for i, j in TAG.findall(text)))


def fill(text: str, answers: Mapping[str, str]) -> str:
    """Replace each tag in ``text`` by the answer of its node; a tag without an answer stays."""
    return TAG.sub(lambda m: answers.get(f"Q{m[1]}.{m[2]}") or m[0], text)


def parse_plan(text: str | None, question: str) -> Plan:
    """Parse a model's output, JSON or the paper's tuples, and repair the plan.

    Raises PlanError if the text was cut (None) or has neither format, or if the plan cannot be repaired.
    """
    return repair(read_drafts(text), question)


def read_drafts(text: str | None) -> list[Draft]:
    """Return the nodes as the model wrote them, in either format.

    Raises PlanError with ``cut`` for a text that was cut (None), or with ``not a plan``.
    """
    if text is None:
        raise PlanError("cut")
    drafts = PLAN.parse(text)
    return drafts if drafts is not None else from_tuples(text)


def drafts(plan: Plan) -> list[Draft]:
    """Return the nodes of ``plan`` in the format that a model writes."""
    return [Draft(id=node.id, question=node.question, parents=node.parents) for node in plan.nodes]


def repair(drafts: Sequence[Draft | PlanNode], question: str) -> Plan:
    """Repair a plan: the result is acyclic, connected and minimal, has a single sink, and every tag names a parent.

    Repairs:

    - ids with other spellings are normalized
    - a parent that is the question itself, or does not exist, is removed
    - a tag without its edge gets the edge
    - a second node with the same id is removed
    - nodes with the same subquery are merged
    - a node whose answer is not used is removed
    - a single node that repeats the question is removed: the question needs no plan
    - if there are several sinks, the question itself becomes the only sink

    Raises PlanError with ``too many nodes``, ``empty subquery``, ``bad id``, ``unknown tag`` or ``cycle``.
    """
    nodes: dict[str, PlanNode] = {}
    for draft in drafts:
        if not (match := _ID.fullmatch(draft.id.strip())):
            raise PlanError("bad id", draft.id[:40])
        id, text = f"Q{match[1]}.{match[2]}", one_line(draft.question)
        if not text:
            raise PlanError("empty subquery", id)
        if id not in nodes:
            parents = [f"Q{m[1]}.{m[2]}" for p in draft.parents if (m := _ID.fullmatch(p.strip()))]
            nodes[id] = PlanNode(id=id, question=text, parents=list(dict.fromkeys([*parents, *tags(text)])))
    if len(nodes) > MOST_NODES:
        raise PlanError("too many nodes", str(len(nodes)))
    for id, node in nodes.items():
        if missing := [tag for tag in tags(node.question) if tag not in nodes]:
            raise PlanError("unknown tag", f"{id} asks for {missing[0]}")
        nodes[id] = node.model_copy(update={"parents": [p for p in node.parents if p in nodes]})
    ordered = _topological(nodes)
    while (fewer := _used(_each_once(ordered))) != ordered:  # without an unused parent, a node may equal another
        ordered = fewer
    if len(ordered) == 1 and normalize(ordered[0].question) == normalize(question):
        return Plan()
    sinks = _sinks(ordered)
    if len(sinks) > 1:
        depth = 1 + max(int(node.id.partition(".")[0][1:]) for node in ordered)
        ordered.append(PlanNode(id=f"Q{depth}.1", question=one_line(question), parents=sinks))
    return Plan(nodes=ordered)


def problems(plan: Plan) -> list[str]:
    """Return the violated rules as short texts; empty for every plan that `repair` returns."""
    ids = [node.id for node in plan.nodes]
    found = ["duplicate id"] if len(set(ids)) < len(ids) else []
    known: set[str] = set()
    for node in plan.nodes:
        if not set(node.parents) <= set(ids):
            found.append("unknown parent")
        elif not set(node.parents) <= known:
            found.append("cycle")
        if not set(tags(node.question)) <= set(node.parents):
            found.append("tag without parent")
        known.add(node.id)
    if plan.nodes and len(_sinks(plan.nodes)) != 1:
        found.append("several sinks")
    if not found and len(_each_once(plan.nodes)) < len(ids):
        found.append("repeated subquery")
    if not found and _used(plan.nodes) != plan.nodes:
        found.append("unused node")
    return list(dict.fromkeys(found))


def depths(plan: Plan) -> dict[str, int]:
    """Return the depth of each node: its longest distance from the question, which has depth 0 (Algorithm 1)."""
    depth: dict[str, int] = {}
    for node in plan.nodes:
        depth[node.id] = 1 + max((depth[parent] for parent in node.parents), default=0)
    return depth


def depth(plan: Plan) -> int:
    """Return the depth of the deepest node; 0 for a question that needs no plan (Table 1)."""
    return max(depths(plan).values(), default=0)


def _topological(nodes: Mapping[str, PlanNode]) -> list[PlanNode]:
    """Order the nodes with parents before children, otherwise as given. Raises PlanError with ``cycle``."""
    ordered: dict[str, PlanNode] = {}
    while len(ordered) < len(nodes):
        ready = [n for n in nodes.values() if n.id not in ordered and all(p in ordered for p in n.parents)]
        if not ready:
            raise PlanError("cycle", ", ".join(id for id in nodes if id not in ordered))
        ordered |= {node.id: node for node in ready}
    return list(ordered.values())


def _sinks(nodes: Sequence[PlanNode]) -> list[str]:
    """Return the ids of the nodes without children."""
    used = {parent for node in nodes for parent in node.parents}
    return [node.id for node in nodes if node.id not in used]


def _each_once(ordered: Sequence[PlanNode]) -> list[PlanNode]:
    """Remove nodes that repeat an earlier node; their children become children of the earlier node."""
    same: dict[str, str] = {}
    first: dict[tuple[str, frozenset[str]], str] = {}
    kept: list[PlanNode] = []
    for node in ordered:
        text = TAG.sub(lambda m: f"<{same[f'Q{m[1]}.{m[2]}'].replace('Q', 'A')}>", node.question)
        parents = list(dict.fromkeys(same[parent] for parent in node.parents))
        same[node.id] = first.setdefault((text.lower(), frozenset(parents)), node.id)
        if same[node.id] == node.id:
            kept.append(node.model_copy(update={"question": text, "parents": parents}))
    return kept


def _used(ordered: Sequence[PlanNode]) -> list[PlanNode]:
    """Remove nodes whose answers are not used (minimality, section 4.1).

    A child with tags uses the parents to which the tags refer; a child without tags uses all its parents.
    """
    kept = list(ordered)
    wanted = {id for node in kept for id in tags(node.question) or node.parents}
    parents = {id for node in kept for id in node.parents}
    while idle := parents - wanted:
        kept = [
            node.model_copy(update={"parents": [parent for parent in node.parents if parent not in idle]})
            for node in kept
            if node.id not in idle
        ]
        wanted = {id for node in kept for id in tags(node.question) or node.parents}
        parents = {id for node in ordered for id in node.parents} & {node.id for node in kept}
    return kept


def to_tuples(plan: Plan, question: str) -> str:
    """Return the plan in the paper's format (appendix D.1)."""
    texts = {ROOT: f"Q: {one_line(question)}"} | {n.id: f"{n.id}: {n.question}" for n in plan.nodes}
    edges = [(texts[parent], texts[node.id]) for node in plan.nodes for parent in node.parents or [ROOT]]
    if not edges:
        return json.dumps(texts[ROOT], ensure_ascii=False)
    # JSON's escapes of quotation marks and control characters are valid in Python.
    quoted = ((json.dumps(a, ensure_ascii=False), json.dumps(b, ensure_ascii=False)) for a, b in edges)
    lines = ",\n".join(f"({a}, {b})" for a, b in quoted)
    return f"[\n{lines}\n]"


def from_tuples(text: str) -> list[Draft]:
    """Parse a plan in the paper's format. The text is not evaluated: only literals are accepted.

    Raises PlanError with ``not a plan``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of doubtful literals
            edges = ast.literal_eval(text.strip())
        json.dumps(edges, ensure_ascii=False).encode()  # bytes and lone surrogates cannot be written to a file
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise PlanError("not a plan", one_line(text)[:60]) from error
    if isinstance(edges, str) and (root := _NODE.fullmatch(edges)) and not root[1]:
        return []
    nodes: dict[str, Draft] = {}
    if not isinstance(edges, list):
        raise PlanError("not a plan", one_line(text)[:60])
    for edge in edges:
        if not (isinstance(edge, tuple) and len(edge) == 2 and all(isinstance(end, str) for end in edge)):
            raise PlanError("not a plan", one_line(text)[:60])
        ends = []
        for end in edge:
            if not (match := _NODE.fullmatch(end)):
                raise PlanError("not a plan", one_line(end)[:60])
            ends.append((f"Q{match[1]}.{match[2]}" if match[1] else ROOT, match[3]))
        for id, subquery in ends:
            if id != ROOT:
                nodes.setdefault(id, Draft(id=id, question=subquery))
        (parent, _), (child, _) = ends
        if ROOT not in (parent, child):
            nodes[child].parents.append(parent)
    return list(nodes.values())
