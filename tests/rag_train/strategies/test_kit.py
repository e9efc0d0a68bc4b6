"""Opening the retrievers and the models of a kit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.fakes import Found, OnePassage, Says
from support.hostile import ASKED, HostileModel, HostileRetriever

from rag_train.cli.options import kit_config
from rag_train.errors import UserError
from rag_train.llm.base import Sampling
from rag_train.llm.engines import EngineConfig
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.schema import Passage
from rag_train.strategies import kit
from rag_train.strategies.base import Kit, Strategy
from rag_train.strategies.kit import RETRIEVER_KINDS, open_kit, open_retrievers
from rag_train.strategies.registry import STRATEGIES, build


@pytest.fixture
def index(tmp_path: Path) -> str:
    build_bm25([Passage(id="1", text="red fox")], tmp_path / "index")
    return str(tmp_path / "index")


def test_opens_retrievers_by_kind_the_main_one_first(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BING_API_KEY", "key")
    opened = open_retrievers([f"sparse={index}", f"rrf({index},{index})", "web=bing"])
    assert {kind: retriever.name for kind, retriever in opened.items()} == {
        "sparse": "bm25",
        "": "rrf(bm25, bm25)",
        "web": "bing",
    }
    assert next(iter(opened)) == "sparse"


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["lexical="], "unknown kind 'lexical'; the kinds are sparse, dense, web"),
        (["", ""], "second retriever of this kind; write KIND=PLACE for all except one"),
    ],
)
def test_rejects_unknown_and_repeated_kinds(index: str, kinds: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_retrievers([f"{kind}{index}" for kind in kinds])


def test_rejects_an_empty_place() -> None:
    with pytest.raises(UserError, match="nothing after the equals sign"):
        open_retrievers(["web="])


class Started:
    """Replaces `open_engine`: engines that write the name of their model, and a list of those that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engines: list[tuple[str, EngineConfig]] = []
        monkeypatch.setattr(kit, "open_engine", self._open)

    @asynccontextmanager
    async def _open(self, model: str, config: EngineConfig) -> AsyncIterator[Says]:
        self.engines.append((model, config))
        yield Says(f"by {Path(model).name}")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def written(*options: str, engine: str = "transformers", url: list[str] | None = None) -> dict[str, str]:
    """Open the models of ``--model main`` with these ``--role`` options; return what each writes, by role."""
    config = kit_config("main", [], None, list(options), None, engine, url, 3, True, ["hanrag", "uar", "planrag"])

    async def go() -> dict[str, str]:
        async with open_kit(config, {"": OnePassage()}) as opened:
            models = {"": opened.llm, **opened.models}
            return {role: (await llm.complete("", Sampling())).text for role, llm in models.items()}

    return asyncio.run(go())


def test_a_merged_model_takes_a_role_and_the_generator_stays(started: Started) -> None:
    roles = ["revelator=runs/hanrag/revelator", "classifier=other/small,dtype=float32"]
    assert written(*roles) == {"": "by main", "revelator": "by revelator", "classifier": "by small"}
    assert [config.dtype for _, config in started.engines] == ["auto", "auto", "float32"]


def test_roles_begin_with_the_main_engines_settings_if_the_kind_is_the_same(started: Started) -> None:
    roles = [
        "planner=gpt-4o,kind=chat,urls=https://a/v1,urls=https://b/v1,key=K",
        "classifier=lora1",
        "revelator=x",
    ]
    written(*roles, engine="openai,timeout=5,tokenizer=t", url=["http://h:1"])
    (_, main), (_, planner), (_, classifier), _ = started.engines
    assert (planner.urls, planner.key, planner.timeout) == (["https://a/v1", "https://b/v1"], "K", 600.0)
    assert classifier == main and main.urls == ["http://h:1"] and main.timeout == 5


def test_a_model_of_several_roles_is_started_once(started: Started) -> None:
    assert written("revelator=r", "planner=r", "classifier=main")["classifier"] == "by main"
    assert [place for place, _ in started.engines] == ["main", "r"]


def test_several_vllm_engines_share_the_memory(started: Started) -> None:
    written("revelator=r", "planner=p,gpu_memory=0.2", engine="vllm")
    assert [config.gpu_memory for _, config in started.engines] == [0.3, 0.3, 0.2]
    started.engines.clear()
    written(engine="vllm")
    assert [config.gpu_memory for _, config in started.engines] == [None]


def test_adapters_are_the_main_models(started: Started, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    assert written(f"revelator={tmp_path}", engine="vllm")["revelator"] == "by main"
    assert [(place, config.max_lora_rank) for place, config in started.engines] == [("main", 4)]
    with pytest.raises(UserError, match="an adapter has no engine of its own"):
        written(f"revelator={tmp_path},dtype=float32")


def test_an_adapter_of_another_model_has_its_own_engine(started: Started, tmp_path: Path) -> None:
    """On the main model it would be another model, without a word."""
    (tmp_path / "adapter_config.json").write_text('{"r": 4, "base_model_name_or_path": "some/model"}')
    written(f"revelator={tmp_path}", engine="vllm")
    assert [place for place, _ in started.engines] == ["main", str(tmp_path)]


@pytest.mark.parametrize(
    ("role", "message"),
    [
        (
            "writer=x",
            "--role writer=x: unknown role 'writer'; the roles are revelator, classifier, reader, planner",
        ),
        ("identifier=x", "unknown role 'identifier'; the roles are revelator"),
        ("runs/x", r"--role runs/x: unknown role ''"),
        ("planner=", "nothing after the equals sign"),
        ("planner=x,dtyp=float32", "no setting 'dtyp'; an engine has kind, dtype"),
        ("planner=x,dtype=int3", "dtype=int3 is not auto|float32"),
        ("planner=x,tensor_parallel=2", "engine.tensor_parallel: only for the engine vllm, not transformers"),
        ("planner=x,kind=vllm,tensor_parallel=0", "tensor_parallel=0 is not int"),
        ("planner=x,kind=vllm,gpu_memory=2", "gpu_memory=2 is not float or null"),
        ("planner=x,thinking=true", "engine.thinking: true only with the engine chat"),
    ],
)
def test_rejects_roles_that_cannot_be(role: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(role)


def test_rejects_engines_that_cannot_be() -> None:
    with pytest.raises(UserError, match="--role planner=y: second model for planner; give each role once"):
        written("planner=x", "planner=y")
    with pytest.raises(UserError, match="--role reader=x: unknown role 'reader'; there are no roles here, remove"):
        kit_config("main", [], None, ["reader=x"], None, "vllm", None, 3, True, ["deeprag"])
    with pytest.raises(UserError, match="--engine vlm: kind=vlm is not vllm"):
        written(engine="vlm")
    for engine, url in (("chat", None), ("vllm", ["http://h:1"])):
        with pytest.raises(UserError, match="--url belongs to --engine openai and --engine chat"):
            written(engine=engine, url=url)


class Roles(dict[str, Any]):
    """Models by role, none of them, with the roles that were looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, role: object) -> bool:
        self.asked.add(str(role))
        return False


@pytest.mark.slow
@pytest.mark.parametrize("cls", {named.cls: None for named in STRATEGIES.values()}, ids=lambda cls: cls.__name__)
def test_every_strategy_gives_work_to_all_of_its_roles_and_to_no_other(cls: type[Strategy]) -> None:
    roles = Roles()
    retriever = HostileRetriever("everything")
    for spec, seed in product((spec for spec, named in STRATEGIES.items() if named.cls is cls), range(4)):
        llm = HostileModel("obedient", seed)
        kinds = dict.fromkeys(RETRIEVER_KINDS, retriever)
        opened = Kit(llm, retriever, instructions=False, models=roles, retrievers=kinds)
        trajectory = asyncio.run(build(spec, opened).answer(ASKED))
        assert "budget" not in trajectory.notes
    assert roles.asked - {""} == set(cls.roles)


def test_the_reader_answers_and_the_main_model_does_the_rest() -> None:
    main, reader = Says("yes"), Says("Nevada")
    opened = Kit(main, Found([]), instructions=False, models={"reader": reader})
    trajectory = asyncio.run(build("rag", opened).answer(ASKED))
    assert trajectory.answer == "Nevada"
