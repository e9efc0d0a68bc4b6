"""Names and settings of strategies: a strategy is one file, and what is misspelt is refused."""

import asyncio
from importlib import reload
from pathlib import Path

import pytest
from support.fakes import Found, Says

from rag_train.errors import UserError
from rag_train.llm.base import Abilities
from rag_train.schema import Question
from rag_train.strategies import baselines, registry
from rag_train.strategies.base import STRATEGIES, Kit

TOY = '''
"""A toy."""

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy


@strategy("toy-loud", Bound(calls=1, retrievals=1), loud=True)
@strategy("toy", Bound(calls=1, retrievals=1))
@dataclass(frozen=True)
class Toy(Strategy):
    """Retrieve, and answer."""

    paper: ClassVar = "none"
    needs: ClassVar = ("a voice",)
    abilities: ClassVar = (Need("logprobs", lambda settings: settings.loud, "loud=false"),)

    loud: bool = False

    async def solve(self, run: Run) -> Trajectory:
        found = await run.search(run.question.question)
        run.retrieved(run.question.question, found)
        return run.done((await run.read(run.question.question, found))[1])
'''


def test_a_strategy_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    reload(registry)
    try:
        listed = {each["name"]: each for each in registry.listing()}
        assert {key: listed["toy-loud"][key] for key in ("summary", "needs", "roles", "settings", "bound")} == {
            "summary": "Retrieve, and answer.",
            "needs": ["a voice", "log-probabilities"],
            "roles": ["reader"],
            "settings": {"loud": True},
            "bound": {"calls": 1, "retrievals": 1},
        }
        llm = Says(" Ada")
        llm.abilities = Abilities(logprobs=False)
        asked = Question(id="q", question="Who?", answers=["x"])
        toy = registry.build("toy", Kit(llm, Found([]), instructions=False))
        assert asyncio.run(toy.answer(asked)).answer == "Ada"
        with pytest.raises(UserError, match=r"toy,loud=true: needs log-probabilities.*, or loud=false"):
            registry.build("toy,loud=true", Kit(llm, Found([])))
    finally:
        del STRATEGIES["toy"], STRATEGIES["toy-loud"]


def test_settings_are_parsed():
    assert registry.parse_strategy("dualrag,outline=flat,trigger=false")[1] == {"outline": "flat", "trigger": False}
    assert registry.parse_strategy("rag,max_calls=1,max_retrievals=0")[1] == {"max_calls": 1, "max_retrievals": 0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dualrga", "did you mean dualrag"),
        ("dualrag,outlin=flat", "no setting 'outlin'; dualrag has max_iterations"),
        ("dualrag,outline=round", r"outline=round is not entities\|flat\|none"),
        ("rag,max_calls=0", "give 1 or more"),
        ("rag,max_retrievals=-1", "give 0 or more"),
        ("levelrag", "needs a sparse"),
        ("levelrag,directs=web", "needs a web retriever"),
        ("dragin", "use --engine transformers"),
    ],
)
def test_what_cannot_be_is_refused(spec: str, message: str):
    with pytest.raises(UserError, match=message):
        registry.build(spec, Kit(Says(""), Found([])))
