"""Each strategy makes the calls of its method, and one more only where an answer is missing."""

import asyncio
import json
from collections import Counter

import pytest
from support.fakes import Found, Says, completion
from support.hostile import HostileModel
from support.paths import ROOT

from rag_train.formats import deeprag, search_r1
from rag_train.llm.base import Abilities, Completion, Sampling
from rag_train.schema import AGAIN, GoldStep, Passage, Question, Trajectory
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.registry import build

ASKED = Question(
    id="q", question="Who was first?", answers=["x"], decomposition=[GoldStep(subquery="s?", answer="x")], hops=2
)
PLAN = [
    {"id": "Q1.1", "question": "a?", "parents": []},
    {"id": "Q1.2", "question": "b?", "parents": []},
    {"id": "Q2.1", "question": "<A1.1> or <A1.2>?", "parents": ["Q1.1", "Q1.2"]},
]
SAID = {
    "levelrag_decompose": '["a?", "b?"]',
    "levelrag_rewrite": '["a"]',
    "qd_rag": '["a?", "b?"]',
    "dualrag_identify": [
        f'[{{"entity": "a", "queries": ["a{i}", "a"]}}, {{"entity": "b", "queries": ["b{i}"]}}]' for i in (1, 2)
    ],
    "planrag_plan": json.dumps(PLAN),
    "hanrag_decompose": '{"thought": "", "decomposition": ["a?", "b?"]}',
    "ircot": [" First, a.", " Then b.", " So the answer is: x."],
    "dualrag_reason": [f'{{"thought": "t{i}", "retrieve": {str(i < 2).lower()}}}' for i in range(3)],
    "auto_rag": ["t Refined Query: a", "t Refined Query: b", "t Final Answer: x"],
    "genground_generate": ['{"question": "a?", "answer": "y"}', '{"question": "b?"}', '{"final": true}'],
    "resp_judge": [" no", " yes"],
    "iterdrag": [f" {deeprag.FOLLOW_UP} a?", " y", f" {deeprag.FINAL} x"],
    "react": [f" t\nAction {i}: Search[a{i}]" for i in (1, 2)] + [" t\nAction 3: Finish[x]"],
    "flare": [" It is a. So", " Then b.", " x"],
    "dragin": [" It is a. So", " Then b.", " x"],
    "subquery": [f" {deeprag.FOLLOW_UP} a?", f" {deeprag.FOLLOW_UP} b?", f" {deeprag.FINAL} x"],
    "controller": [
        f"{deeprag.FOLLOW_UP} a?\n{deeprag.SEARCH}",
        f" y\n{deeprag.FOLLOW_UP} b?\n{deeprag.INTERMEDIATE} z\n{deeprag.FINAL} x\n",
    ],
    "hanrag_route": " complex question",
    "hanrag_refine": [" a?", " b?"],
    "itrg": [" c", " d", " e"],
    "hanrag_ending": [" false", " true"],
    "adaptive_rag": " C",
    "levelrag_sufficient": " yes",
    "levelrag_verify": " yes",
    "metarag_query": " more",
}
"""What the modules say in turn, the last text again and again; the others say " x"."""
REASONED = [f" So it is {i}.\n{deeprag.FINAL} x\n" for i in range(3)]
OWN = {
    "deeprag": ({"controller": 2}, "a call up to each search, and one up to the answer"),
    "deeprag-parametric": ({"subquery": 3, "parametric": 2}, "two subqueries with their answers, and the answer"),
    "deeprag-retrieve": ({"subquery": 3, "retrieved": 2}, "the same"),
    "dualrag": (
        {"dualrag_reason": 3, "dualrag_identify": 2, "dualrag_summarize": 4, "dualrag_answer": 1},
        "two rounds, each with new passages of two entities",
    ),
    "hanrag": (
        {
            "hanrag_route": 1,
            "hanrag_refine": 2,
            "hanrag_relevant": 6,
            "hanrag_answer": 2,
            "hanrag_ending": 2,
            "hanrag_combine": 1,
        },
        "two rounds of a complex question, with three passages each",
    ),
    "planrag": ({"planrag_plan": 1, "planrag_fill": 1, "planrag_answer": 3}, "three nodes, one of them with tags"),
    "levelrag": (
        {
            "levelrag_decompose": 1,
            "levelrag_rewrite": 2,
            "levelrag_sufficient": 4,
            "levelrag_summarize": 2,
            "levelrag_verify": 1,
            "levelrag_answer": 1,
        },
        "two atomic queries; sparse and dense are sufficient at once",
    ),
    "levelrag-sparse": ({"levelrag_rewrite": 1, "levelrag_sufficient": 1, "reader": 1}, ""),
    "levelrag-dense": ({"levelrag_sufficient": 1, "reader": 1}, ""),
    "levelrag-web": ({"reader": 1}, ""),
    "levelrag-hybrid": ({"levelrag_rewrite": 1, "levelrag_sufficient": 2, "reader": 1}, ""),
    "ircot": ({"ircot": 3, "reader": 1}, "a call a sentence, and the reader"),
    "iter-retgen": ({"reader": 3}, "a call an iteration"),
    "itrg": ({"itrg": 3, "reader": 1}, "a document an iteration, and the reader"),
    "iterdrag": ({"iterdrag": 3}, "a subquery, its answer, and the answer"),
    "qd-rag": ({"qd_rag": 1, "qd_rag_answer": 3}, "the decomposition, two sub-queries and the question"),
    "react": ({"react": 3}, "a call an action"),
    "flare": ({"flare": 3}, "a call a sentence, of which the last states the answer"),
    "dragin": ({"dragin": 3}, "the same"),
    "taare": ({"taare": 1, "reader": 1}, ""),
    "uar": ({"uar_intent": 1, "uar_knowledge": 1, "uar_time": 1, "uar_self": 1, "reader": 1}, "four criteria"),
    "adaptive-rag": ({"adaptive_rag": 1, "ircot": 3, "reader": 1}, "the class, and IRCoT"),
    "auto-rag": ({"auto_rag": 3}, "a call a round"),
    "self-rag": ({"selfrag": 4}, "the decision, and a candidate a passage"),
    "rq-rag": ({"rq_rag": 25}, "at each of 1 + 3 + 9 nodes an answer, and the 12 queries"),
    "metarag": ({"reader": 2}, "the answer, and the monitor's, which agree"),
    "genground": ({"genground_generate": 3, "genground_ground": 2}, "two hops, with a batch of passages each"),
    "resp": (
        {"resp_global": 2, "resp_local": 2, "resp_judge": 2, "resp_next": 1, "resp_answer": 1},
        "two summaries and a verdict a round",
    ),
    "rankrag": ({"rankrag": 3, "reader": 1}, "a call a passage, and the reader"),
    "chatqa": ({"chatqa": 1}, ""),
    "search-r1": ({"controller": 3}, "a call a search, and one for the answer"),
} | dict.fromkeys(("direct", "rag", "cot", "cot-rag", "cot-retrieve", "oracle", "two-hop-rag"), ({"reader": 1}, ""))
OWN |= {
    "hanrag-oracle": (
        {module: calls for module, calls in OWN["hanrag"][0].items() if module != "hanrag_route"},
        "without the router",
    ),
    "planrag-question": OWN["planrag"],
    "plan-selfrag": ({"planrag_plan": 1, "planrag_fill": 1, "selfrag": 9}, "a candidate a node and passage"),
    "qd-rag-subq": OWN["qd-rag"],
    "fireact": OWN["react"],
    "adaptive-retrieval": ({"reader": 1}, ""),
}
"""The calls of each method, by module, on the texts above."""
TURNS = ["<search> a </search>", "<search> b </search>", "<answer> x </answer>"]


class Distinct(Found):
    """A retriever that finds other passages for every query: equal prompts would be one call."""

    def __init__(self, kind: str):
        super().__init__([])
        self.kind = kind

    async def search(self, query: str, k: int) -> list[Passage]:
        return [Passage(id=f"{self.kind} {query} {i}", text=f"{self.kind} {query} {i}.") for i in range(3)]


class Scripted(Says):
    """An engine whose modules say what `SAID` has. The module is told by `CallLog`'s caller, see ``module``."""

    abilities = Abilities(attention=True)
    inspect = HostileModel.inspect

    def __init__(self, reasoned: list[str]):
        super().__init__("")
        self.reasoned, self.made = reasoned, Counter[str]()
        self.module = ""

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        text = self._text(self.module, prompt, sampling)
        stop = next((s for s in sampling.stop if s in text), None)
        got = completion(text, sampling)
        return Completion(got.text, got.token_ids, got.usage, stop, False, got.logprobs)

    def _text(self, module: str, prompt: str, sampling: Sampling) -> str:
        number = self.made[module]
        self.made[module] += 1
        said = SAID.get(module, " x")
        if search_r1.STOPS[0] in sampling.stop:
            said = TURNS
        elif prompt.endswith("Thought:") and module == "reader":
            said = self.reasoned
        elif sampling.json_schema and '"Response"' in sampling.json_schema:
            said = '{"Response": "x"}'
        elif sampling.choice and module not in SAID:
            said = " true" if " true" in sampling.choice else " yes"
        return said if isinstance(said, str) else said[min(number, len(said) - 1)]


def answer(spec: str, monkeypatch: pytest.MonkeyPatch, reasoned: list[str] = REASONED) -> Trajectory:
    from rag_train.llm import call_log

    llm = Scripted(reasoned)
    complete = call_log.CallLog._complete

    async def told(self, module: str, prompt: str, sampling: Sampling, order: int) -> Completion:
        llm.module = module
        return await complete(self, module, prompt, sampling, order)

    monkeypatch.setattr(call_log.CallLog, "_complete", told)
    retrievers = {kind: Distinct(kind) for kind in ("sparse", "dense", *(["web"] if "web" in spec else []))}
    kit = Kit(llm, Distinct(""), instructions=False, retrievers=retrievers)
    return asyncio.run(build(spec, kit).answer(ASKED))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_makes_the_calls_of_its_method(name: str, monkeypatch: pytest.MonkeyPatch):
    spec = f"{name},threshold=99" if name == "dragin" else name
    got = answer(spec, monkeypatch)
    assert Counter(call.module for call in got.calls) == Counter(OWN[name][0]), OWN[name][1]
    assert got.answer and not got.asked_again
    page = (ROOT / "docs/site/explanation/methods/baselines.md").read_text(encoding="utf-8")
    stated = f"\n| `{name}` | {got.retrievals} | {len(got.calls)} | " in page
    assert stated == (f"{{: #{name} }}" in page)


@pytest.mark.parametrize(
    ("spec", "calls"),
    [
        ("cot", 1),
        ("iter-retgen", 3),
        ("react,max_steps=1", 1),
        ("auto-rag,retrievals=1,recalls=0", 2),
        ("deeprag-retrieve,max_steps=1", 2),
    ],
)
def test_a_missing_answer_is_asked_for_once(spec: str, calls: int, monkeypatch: pytest.MonkeyPatch):
    got = answer(spec, monkeypatch, reasoned=[" So it is.", " So, it is.", " It is."])
    assert [call.module for call in got.calls][calls:] == [AGAIN] and got.asked_again and got.answer == "x"
