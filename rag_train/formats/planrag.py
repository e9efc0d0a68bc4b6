"""PlanRAG's plans (section 4.1): as JSON, as the paper's list of tuples, and what makes them valid.

    Query: <question>
    DAG:
    [{"id":"Q1.1","question":"Who wrote Rumble Fish?","parents":[]},
     {"id":"Q2.1","question":"When was <A1.1> born?","parents":["Q1.1"]}]

A question that needs no plan has an empty list. The paper's own format is a Python list of (parent, child) tuples,
meant for ``eval()``: `from_tuples` reads it with a parser instead.
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
ROOT = "Q"
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


PLAN = Task("planrag_plan", "DAG:", list[Draft], max_tokens=512)
FILL = Task("planrag_fill", "Output:", max_tokens=96)
ANSWER = Task("planrag_answer", "Generation:", Response, max_tokens=96)


class PlanError(ValueError):
    """A plan that cannot be followed; ``reason`` is a short name to count by."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def plan_fields(question: str) -> Fields:
    return [("Query", question)]


def fill_fields(node: str, question: str, known: Sequence[tuple[str, str, str]]) -> Fields:
    """``known``: (id, question, answer) of each parent."""
    lines: list[tuple[str, str]] = [("Query", f"{node}: {question}")]
    for id, subquery, answer in known:
        lines += [(id, subquery), (id.replace("Q", "A"), answer)]
    return lines


def answer_fields(question: str, passages: Sequence[Passage], known: Sequence[tuple[str, str, str]]) -> Fields:
    """Passages first, as in every reader's prompt here, where the paper has them in the middle."""
    pairs = [f"Q={subquery} A={answer}" for _, subquery, answer in known]
    return [("Retrievals", passages), ("Known answers", pairs), ("Query", question)]


def tags(text: str) -> list[str]:
    """Ids of the nodes whose answers ``text`` asks for, in order, each once."""
    return list(dict.fromkeys(f"Q{i}.{j}" for i, j in TAG.findall(text)))


def fill(text: str, answers: Mapping[str, str]) -> str:
    """``text`` with each tag replaced by the answer of its node, where there is one."""
    return TAG.sub(lambda m: answers.get(f"Q{m[1]}.{m[2]}") or m[0], text)


def parse_plan(text: str, question: str) -> Plan:
    """A valid plan from a model's text: JSON as above, or the paper's tuples.

    Raises PlanError for what is neither, or cannot be mended.
    """
    return repair(read_drafts(text), question)


def read_drafts(text: str) -> list[Draft]:
    """The nodes as they are written, in either format. Raises PlanError: ``not a plan``."""
    drafts = PLAN.parse(text)
    return drafts if drafts is not None else from_tuples(text)


def drafts(plan: Plan) -> list[Draft]:
    """The nodes as a model is to write them."""
    return [Draft(id=node.id, question=node.question, parents=node.parents) for node in plan.nodes]


def repair(drafts: Sequence[Draft | PlanNode], question: str) -> Plan:
    """The valid plan that is meant: rooted, acyclic, connected, with a single sink, minimal, every tag a parent's.

    Mended: ids in other spellings, a parent that is the question itself or does not exist, a tag without its
    edge, a second node of the same id (dropped), a subquery asked twice (asked once), a node whose answer is not
    used (dropped), a single node that repeats the question (the question needs no plan), several sinks (the
    question itself becomes the one sink).

    Raises PlanError: ``too many nodes``, ``empty subquery``, ``bad id``, ``unknown tag``, ``cycle``.
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
    while (fewer := _used(_each_once(ordered))) != ordered:  # without an idle parent, a node may repeat another
        ordered = fewer
    if len(ordered) == 1 and normalize(ordered[0].question) == normalize(question):
        return Plan()
    sinks = _sinks(ordered)
    if len(sinks) > 1:
        depth = 1 + max(int(node.id.partition(".")[0][1:]) for node in ordered)
        ordered.append(PlanNode(id=f"Q{depth}.1", question=one_line(question), parents=sinks))
    return Plan(nodes=ordered)


def problems(plan: Plan) -> list[str]:
    """What keeps a plan from being valid, by short names; nothing for a plan that `repair` returned."""
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
    """Longest distance of each node from the question (Algorithm 1); the question itself has depth 0."""
    depth: dict[str, int] = {}
    for node in plan.nodes:
        depth[node.id] = 1 + max((depth[parent] for parent in node.parents), default=0)
    return depth


def depth(plan: Plan) -> int:
    """Of the deepest node; 0 for a question that needs no plan (Table 1)."""
    return max(depths(plan).values(), default=0)


def _topological(nodes: Mapping[str, PlanNode]) -> list[PlanNode]:
    """Parents before children, otherwise in the order given. Raises PlanError for a cycle."""
    ordered: dict[str, PlanNode] = {}
    while len(ordered) < len(nodes):
        ready = [n for n in nodes.values() if n.id not in ordered and all(p in ordered for p in n.parents)]
        if not ready:
            raise PlanError("cycle", ", ".join(id for id in nodes if id not in ordered))
        ordered |= {node.id: node for node in ready}
    return list(ordered.values())


def _sinks(nodes: Sequence[PlanNode]) -> list[str]:
    used = {parent for node in nodes for parent in node.parents}
    return [node.id for node in nodes if node.id not in used]


def _each_once(ordered: Sequence[PlanNode]) -> list[PlanNode]:
    """Without the nodes that ask what an earlier one asks; who wanted their answers gets that one's."""
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
    """Without the nodes whose answers go nowhere (minimality, section 4.1): a child with tags uses the parents it
    has tags for, one without uses all."""
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
    """The plan in the paper's format (appendix D.1)."""
    texts = {ROOT: f"Q: {one_line(question)}"} | {n.id: f"{n.id}: {n.question}" for n in plan.nodes}
    edges = [(texts[parent], texts[node.id]) for node in plan.nodes for parent in node.parents or [ROOT]]
    if not edges:
        return json.dumps(texts[ROOT], ensure_ascii=False)
    # Python reads JSON's escapes of quotation marks and control characters too.
    quoted = ((json.dumps(a, ensure_ascii=False), json.dumps(b, ensure_ascii=False)) for a, b in edges)
    lines = ",\n".join(f"({a}, {b})" for a, b in quoted)
    return f"[\n{lines}\n]"


def from_tuples(text: str) -> list[Draft]:
    """Nodes of a plan in the paper's format. Nothing is evaluated: only string and tuple literals are read.

    Raises PlanError: ``not a plan``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of doubtful literals, on standard error
            edges = ast.literal_eval(text.strip())
        json.dumps(edges, ensure_ascii=False).encode()  # not bytes, nor half of a surrogate pair: no file holds it
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise PlanError("not a plan", one_line(text)[:60]) from error
    if isinstance(edges, str):
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
