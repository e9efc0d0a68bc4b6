"""Damaged indexes, recipes with hostile pieces and damaged checkpoints of strangers are refused or harmless."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.paths import MODEL

from rag_train.errors import UserError
from rag_train.jobs.files import sha256
from rag_train.llm.checkpoint import check_checkpoint
from rag_train.package_files import packaged
from rag_train.recipe import load_recipe
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.retrieval.index.dense import DenseConfig, build_dense
from rag_train.retrieval.index.lucene import build_lucene
from rag_train.retrieval.open import load_index
from rag_train.schema import Passage
from rag_train.training.recipe import TrainRecipe
from rag_train.worlds.mini.world import World, WorldConfig

BUILDS: dict[str, Callable[[list[Passage], Path], object]] = {
    "bm25": build_bm25,
    "lucene": build_lucene,
    "Flat": lambda passages, directory: build_dense(passages, directory, DenseConfig(kind="Flat")),
    "IVF2,Flat": lambda passages, directory: build_dense(passages, directory, DenseConfig(kind="IVF2,Flat")),
}
YAML_PIECES = (
    "&a ", "*a", "<<: *a", "!!binary ", "!!timestamp ", "!!python/object/apply:os.system ", "2024-02-30", "0b_",
    "0x_", "9" * 5000, "[" * 3000, "{" * 3000, "? ", "- ", ": ", "\n", "\t", "'", '"', '"\\ud800"', "%YAML 9.9",
    "---", "...", ".inf", ".nan", "1e999", "~", "\x00", "\u2028", "x" * 100_000, "null", "!", "|", ">",
)  # fmt: skip


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return bytes with a part overwritten, cut off or added."""
    data = bytearray(whole)
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 8))
    match rng.randrange(4):
        case 0:
            data[at : at + size] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * size
        case 1:
            data[at : at + size] = rng.randbytes(size)
        case 2:
            del data[at:]
        case 3:
            data[at:at] = rng.randbytes(size)
    return bytes(data)


def corrupt(directory: Path, rng: random.Random) -> None:
    """Damage one file of an index and write its new hash into the manifest, as a forger would."""
    manifest = json.loads((directory / "index.json").read_text())
    name = rng.choice([*manifest["files"], "index.json"])
    path = directory / name
    path.write_bytes(damaged(path.read_bytes(), rng))
    if name != "index.json":
        manifest["files"][name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        (directory / "index.json").write_text(json.dumps(manifest))


def outcome_of(error: UserError) -> str:
    return "refused in one line" if "\n" not in str(error) else f"refused in several lines: {error}"


def search_outcome(directory: Path) -> str:
    """Open and search an index, and return the outcome; the process ends itself after one minute."""
    signal.alarm(60)
    warnings.simplefilter("ignore")  # NumPy's, about damaged numbers
    try:
        load_index(directory).search(("Who directed the film?", 'title:"the" +film -x'), 50)
    except UserError as error:
        return outcome_of(error)
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {error}"[:300]
    finally:
        signal.alarm(0)
    return "harmless"


def new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILDS)
def test_damaged_indexes_do_no_harm(kind: str, tmp_path: Path) -> None:
    BUILDS[kind](World(WorldConfig()).corpus()[:50], tmp_path / "index")
    rng, seen = random.Random(0), Counter[str]()
    with ExitStack() as stack:
        pool = stack.enter_context(new_process())
        for number in range(20):
            copy = tmp_path / str(number)
            shutil.copytree(tmp_path / "index", copy)
            corrupt(copy, rng)
            try:
                seen[pool.submit(search_outcome, copy).result()] += 1
            except BrokenProcessPool:
                seen["process died"] += 1
                pool = stack.enter_context(new_process())
    # tantivy, which reads Lucene indexes, ends the process on some of them (see SECURITY.md).
    assert seen.keys() <= {"refused in one line", "harmless", *(["process died"] if kind == "lucene" else [])}
    assert seen["refused in one line"]


@pytest.mark.slow
def test_hostile_recipes_do_no_harm(tmp_path: Path) -> None:
    rng, seen = random.Random(0), Counter[str]()
    path, text = tmp_path / "recipe.yaml", packaged("recipes/deeprag_sft.yaml").read_text(encoding="utf-8")
    for _ in range(300):
        changed = text
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            changed = changed[:at] + rng.choice(YAML_PIECES) + changed[at + rng.randint(0, 9) :]
        path.write_text(changed, encoding="utf-8")
        try:
            load_recipe(TrainRecipe, path, [f"data={path}"])
            seen["read"] += 1
        except UserError as error:
            seen[outcome_of(error)] += 1
    assert seen.keys() <= {"refused in one line", "read"} and len(seen) == 2


def test_damaged_checkpoints_do_no_harm(tmp_path: Path) -> None:
    rng, seen = random.Random(0), Counter[str]()
    for number in range(20):
        copy = tmp_path / str(number)
        shutil.copytree(MODEL, copy)
        path = copy / rng.choice(("config.json", "tokenizer.json", "model.safetensors"))
        path.write_bytes(damaged(path.read_bytes(), rng))
        try:
            check_checkpoint(str(copy))
            seen["accepted"] += 1
        except UserError as error:
            seen[outcome_of(error)] += 1
    assert seen.keys() <= {"refused in one line", "accepted"} and seen["refused in one line"]
