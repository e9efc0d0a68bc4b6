"""`rag-train data get`: every data set becomes files that rag-train reads; downloads continue and are checked."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from support.commands import call
from support.hub import Hub, hub
from support.paths import ROOT

from rag_train.downloads.catalogue import CATALOGUE
from rag_train.downloads.fetch import get
from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus

ROWS = yaml.safe_load((ROOT / "tests/cases/downloads.yaml").read_text(encoding="utf-8"))
"""A row of each data set as its repository has it."""
ARTICLE = {"title": "A", "body": "word " * 150, "url": "http://a"}


def released(name: str, part: str) -> bytes:
    """A file of the repository with one row."""
    if part.endswith(".zip"):
        return archive({"wiki18_100w.jsonl": '{"id": "0", "contents": "\\"A\\"\\nOne."}\n'})
    if part == "corpus.json":
        return json.dumps([ARTICLE]).encode()
    row = ROWS[name]
    if part.endswith(".parquet"):
        kept = ("context", "supporting_facts", "evidences") if name == "2wikimultihopqa" else ()
        buffer = io.BytesIO()
        plain = {key: json.dumps(value) if key in kept else value for key, value in row.items()}
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([plain]), buffer)
        return buffer.getvalue()
    if part.endswith(".tsv"):
        quoted = (f'"{text}"' for text in (str(value).replace('"', '""') for value in row.values()))
        return ("\t".join(row) + "\n" + "\t".join(quoted) + "\n").encode()
    return json.dumps([row] if part.endswith(".json") else row).encode()


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as written:
        for name, text in files.items():
            written.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def repositories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub with every file of the catalogue, Parquet files and archives in LFS."""
    with hub() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        for name, data in CATALOGUE.items():
            for part in (part for file in data.files for part in file.parts):
                Hub.files[(data.repository, data.revision, part)] = released(name, part)
                Hub.large |= {part} if part.endswith((".parquet", ".zip")) else set()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_files_are_read_by_rag_train(name: str, tmp_path: Path):
    done = get(name, CATALOGUE[name], tmp_path / name)
    assert done.new
    assert {path.name for path in (tmp_path / name).iterdir()} == {*done.source["files"], "source.json"}
    for path in done.files:
        if path.name == "corpus.jsonl":
            assert next(read_corpus(path)).title == "A"
        elif name == "hotpotqa" and path.name == "train.jsonl":  # two parts with the same row
            assert path.read_text().count("\n") == 2
        else:
            [question] = load_questions(path)
            assert question.question.startswith("Who directed A?")  # CommonsenseQA's choices follow


def test_articles_become_passages_of_100_words(tmp_path: Path):
    get("multihoprag", CATALOGUE["multihoprag"], tmp_path)
    passages = list(read_corpus(tmp_path / "corpus.jsonl"))
    assert [(p.id, len(p.text.split())) for p in passages] == [("0/0", 100), ("0/1", 50)]


def test_complete_download_asks_nothing_and_a_changed_file_is_written_anew(tmp_path: Path):
    data = CATALOGUE["popqa"]
    first = get("popqa", data, tmp_path)
    asked = len(Hub.asked)
    again = get("popqa", data, tmp_path)
    assert not again.new and again.source == first.source and len(Hub.asked) == asked
    assert first.source["revision"] == data.revision and first.source["licence"] == "MIT"
    (tmp_path / "test.tsv").write_text("changed")
    assert get("popqa", data, tmp_path).new and load_questions(tmp_path / "test.tsv")


def test_interrupted_download_continues_where_it_stopped(tmp_path: Path):
    data = CATALOGUE["wikipedia"]
    part = data.files[0].parts[0]
    (tmp_path / ".download").mkdir()
    (tmp_path / ".download" / part.replace("/", "_")).write_bytes(released("wikipedia", part)[:20])
    get("wikipedia", data, tmp_path)
    assert Hub.asked == [(part, "bytes=20-")]
    assert [passage.text for passage in read_corpus(tmp_path / "corpus.jsonl")] == ["One."]


@pytest.mark.parametrize("name", ["wikipedia", "popqa"])
def test_damaged_part_is_not_used(name: str, tmp_path: Path):
    """One in LFS, with a SHA-256, and one in git, with git's hash."""
    data = CATALOGUE[name]
    part = data.files[0].parts[0]
    (tmp_path / ".download").mkdir()
    (tmp_path / ".download" / part.replace("/", "_")).write_bytes(b"x" * 20)
    with pytest.raises(UserError, match="is not the file that the Hub describes; give the same command again"):
        get(name, data, tmp_path)
    assert not (tmp_path / "source.json").exists()
    assert get(name, data, tmp_path).new


def test_failures_are_one_line(tmp_path: Path):
    data = CATALOGUE["bamboogle"]
    key = (data.repository, data.revision, data.files[0].parts[0])
    Hub.files[key] = b"not Parquet"
    with pytest.raises(UserError, match=r"^bamboogle: the download failed \(Parquet") as caught:
        get("bamboogle", data, tmp_path)
    assert "\n" not in str(caught.value)
    del Hub.files[key]
    with pytest.raises(UserError, match="chiayewken/bamboogle at 5787baa: no file data/test"):
        get("bamboogle", data, tmp_path)


def test_archive_has_one_file_and_its_names_are_no_paths(tmp_path: Path):
    data = CATALOGUE["wikipedia"]
    key = (data.repository, data.revision, data.files[0].parts[0])
    Hub.files[key] = archive({"../../out.jsonl": "{}\n"})
    get("wikipedia", data, tmp_path / "in" / "wikipedia")
    assert {path.name for path in tmp_path.rglob("*.jsonl")} == {"corpus.jsonl"}
    Hub.files[key] = archive({"a.jsonl": "{}\n", "b.jsonl": "{}\n"})
    with pytest.raises(UserError, match="2 JSON Lines files in the archive, not one"):
        get("wikipedia", data, tmp_path / "two")


def test_full_disk_is_told_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rag_train.downloads.fetch.ROOM", 2**60)
    with pytest.raises(UserError, match=r"downloading and unpacking need about .* GB; choose another directory"):
        get("popqa", CATALOGUE["popqa"], tmp_path)
    assert Hub.asked == []


@pytest.mark.slow
def test_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert call("data", "list") == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == list(CATALOGUE)
    assert call("data", "get", "popqa", tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path}/popqa/test.tsv\n"
    assert call("data", "get", "popqa", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["new"] is False


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("popqa", "error: popqa: http://127.0.0.1:9 does not answer (Connection refused); check the network"),
        ("hotpot", "error: unknown data set 'hotpot'; did you mean hotpotqa?"),
        ("x/../y", "error: unknown data set 'x/../y'; the data sets are hotpotqa, "),
    ],
)
def test_no_network_and_unknown_names(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert call("data", "get", name, tmp_path) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(message) and list(tmp_path.iterdir()) == []
