"""The data sets of `rag-train data get`: where they are, under which licence, and which files they become."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rag_train.downloads.convert import articles, copied, from_parquet, unzipped
from rag_train.errors import UserError


@dataclass(frozen=True)
class File:
    """A file to write: its name, the files of the repository that it is made from, and how."""

    name: str
    parts: tuple[str, ...]
    convert: Callable[[list[Path], Path], None]


@dataclass(frozen=True)
class DataSet:
    """A data set in a repository of the Hub.

    Attributes:
        revision: commit of the repository, so that every download has the same bytes.
        licence: as the repository or the authors state it.
        size: bytes to download; None if not known here.
    """

    title: str
    repository: str
    revision: str
    licence: str
    size: int | None
    files: tuple[File, ...]


def _parquet(name: str, *parts: str) -> File:
    return File(name, parts, from_parquet)


def _copy(name: str, part: str) -> File:
    return File(name, (part,), copied)


_JSON_COLUMNS = partial(from_parquet, json_columns=("context", "supporting_facts", "evidences"))

CATALOGUE = {
    "hotpotqa": DataSet(
        "HotpotQA (distractor)",
        "hotpotqa/hotpot_qa",
        "1908d6afbbead072334abe2965f91bd2709910ab",
        "CC BY-SA 4.0",
        359_239_231,
        (
            _parquet(
                "train.jsonl",
                "distractor/train-00000-of-00002.parquet",
                "distractor/train-00001-of-00002.parquet",
            ),
            _parquet("dev.jsonl", "distractor/validation-00000-of-00001.parquet"),
        ),
    ),
    "2wikimultihopqa": DataSet(
        "2WikiMultihopQA",
        "xanhho/2WikiMultihopQA",
        "612bc5039a457880d9e7d84c3b0a4cf154b70e4f",
        "Apache-2.0",
        373_000_000,
        (
            File("train.jsonl", ("train.parquet",), _JSON_COLUMNS),
            File("dev.jsonl", ("dev.parquet",), _JSON_COLUMNS),
        ),
    ),
    "musique": DataSet(
        "MuSiQue (answerable)",
        "dgslibisey/MuSiQue",
        "c8f4f8c9465fb69d31a8eae894c3fd509c4ca321",
        "CC BY 4.0",
        271_000_000,
        (
            _copy("train.jsonl", "musique_ans_v1.0_train.jsonl"),
            _copy("dev.jsonl", "musique_ans_v1.0_dev.jsonl"),
        ),
    ),
    "popqa": DataSet(
        "PopQA",
        "akariasai/PopQA",
        "098765c79ea10a2cb19c828324e33281b8336ec0",
        "MIT",
        5_210_000,
        (_copy("test.tsv", "test.tsv"),),
    ),
    "nq": DataSet(
        "Natural Questions (open)",
        "google-research-datasets/nq_open",
        "5dd9790a83002ad084ddeb7c420dc716852c6f28",
        "CC BY-SA 3.0",
        None,
        (
            _parquet("train.jsonl", "nq_open/train-00000-of-00001.parquet"),
            _parquet("dev.jsonl", "nq_open/validation-00000-of-00001.parquet"),
        ),
    ),
    "triviaqa": DataSet(
        "TriviaQA (unfiltered, without documents)",
        "mandarjoshi/trivia_qa",
        "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
        "not stated",
        37_590_000,
        (
            _parquet("train.jsonl", "unfiltered.nocontext/train-00000-of-00001.parquet"),
            _parquet("dev.jsonl", "unfiltered.nocontext/validation-00000-of-00001.parquet"),
        ),
    ),
    "webquestions": DataSet(
        "WebQuestions",
        "stanfordnlp/web_questions",
        "0e473cbe21d1e91ec18da343644498be6a3f5454",
        "not stated",
        402_000,
        (
            _parquet("train.jsonl", "data/train-00000-of-00001.parquet"),
            _parquet("test.jsonl", "data/test-00000-of-00001.parquet"),
        ),
    ),
    "commonsenseqa": DataSet(
        "CommonsenseQA",
        "tau/commonsense_qa",
        "94630fe30dad47192a8546eb75f094926d47e155",
        "MIT",
        None,
        (
            _parquet("train.jsonl", "data/train-00000-of-00001.parquet"),
            _parquet("dev.jsonl", "data/validation-00000-of-00001.parquet"),
        ),
    ),
    "strategyqa": DataSet(
        "StrategyQA",
        "voidful/StrategyQA",
        "2279eaf9f2580aef77ed6fa0efd7846c381ab5a0",
        "MIT",
        4_280_000,
        (_copy("train.json", "strategyqa_train.json"),),
    ),
    "multihoprag": DataSet(
        "MultiHop-RAG, with its corpus",
        "yixuantt/MultiHopRAG",
        "71ac0d0bd1f951d2d6b70311f7d2ae404e1ffa82",
        "ODC-BY",
        11_960_000,
        (_copy("test.json", "MultiHopRAG.json"), File("corpus.jsonl", ("corpus.json",), articles)),
    ),
    "bamboogle": DataSet(
        "Bamboogle",
        "chiayewken/bamboogle",
        "5787baaae24a33baee4cf57a4cc743e8a02cd548",
        "not stated",
        8_380,
        (_parquet("test.jsonl", "data/test-00000-of-00001-fd9def31e0acf72c.parquet"),),
    ),
    "wikipedia": DataSet(
        "Wikipedia of December 2018 in passages of 100 words (DPR's, in FlashRAG's shape)",
        "RUC-NLPIR/FlashRAG_datasets",
        "f2de0bd8153a00c9e51566e572734d761075983d",
        "CC BY-SA 4.0",
        5_130_719_280,
        (File("corpus.jsonl", ("retrieval-corpus/wiki18_100w.zip",), unzipped),),
    ),
}


def find(name: str) -> DataSet:
    """Return the data set ``name``. Raises UserError, with names that are near, if there is none."""
    if known := CATALOGUE.get(name):
        return known
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"the data sets are {', '.join(CATALOGUE)}"
    raise UserError(f"unknown data set {name[:80]!r}; {remedy}")
