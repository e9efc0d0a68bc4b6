"""The cache on disk: threads, processes, forks and damaged files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.jobs.cache import Cache

KEYS = [Cache.key(["echo", number]) for number in range(2000)]


def cache(path: Path) -> Cache:
    return Cache(path, "TEST", "cache")


def test_works_in_threads_and_after_a_fork(tmp_path: Path) -> None:
    cached = cache(tmp_path / "new" / "cache")
    cached.write({KEYS[0]: b"parent"})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cached.write({KEYS[0]: b"again", KEYS[1]: b"child"})
            status = len(cached.read(KEYS)) - 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: cached.write({KEYS[i]: b"%d" % i}), range(1, 20)))
    assert cached.read([KEYS[2], KEYS[0], KEYS[1], KEYS[0], KEYS[99]]) == {
        KEYS[0]: b"parent",
        KEYS[1]: b"child",
        KEYS[2]: b"2",
    }


WRITER = """
import sys
from pathlib import Path
from rag_train.jobs.cache import Cache

sys.stdin.readline()
for start in range(0, 400, 20):
    cache = Cache(Path(sys.argv[1]), "TEST", "cache")
    values = {Cache.key(["echo", i]): b"%d" % i for i in range(start, start + 40)}
    cache.write(values)
    assert cache.read(values) == values
"""


@pytest.mark.slow
def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for writer in writers:  # released together, so that they also compete for creating the file
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(cache(path).read(KEYS)) == 420
    assert [each for each in tmp_path.iterdir() if not each.name.startswith("cache")] == []


def _of_another_application(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA application_id = 7")


DAMAGES = {
    "not a database": lambda path: path.write_bytes(b"\x00garbage" * 1000),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:6000]),
    "empty": lambda path: path.write_bytes(b""),
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "overwritten": lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096)),
    "another application's": _of_another_application,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_refuses_a_damaged_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cache"
    writer = cache(path)
    writer.write(dict.fromkeys(KEYS, b"x" * 99))
    writer.close()
    DAMAGES[kind](path)
    with pytest.raises(UserError, match=r"cache .*; .*choose (another|a writable) file") as caught:
        cache(path).read(KEYS)
    assert "\n" not in str(caught.value)
