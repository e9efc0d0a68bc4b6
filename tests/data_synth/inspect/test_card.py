"""Dataset cards and their upload to the Hugging Face Hub."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support.commands import call
from support.servers import Handler, serving


@pytest.mark.slow
def test_card_describes_the_file(made: Path, capsys):
    card = (made / "gold.jsonl.md").read_text()
    _, head, body = card.split("---\n", 2)
    head, meta = yaml.safe_load(head), json.loads((made / "gold.jsonl.meta.json").read_text())
    assert head["size_categories"] == ["n<1K"] and "license" not in head
    assert head["configs"] == [{"config_name": "default", "data_files": "gold.jsonl"}]
    assert f"{meta['records']} records of 30 questions" in body and meta["code_version"] in body
    recipe = yaml.safe_load(body.partition("```yaml\n")[2].partition("```")[0])
    assert recipe == meta["settings"] and recipe["retriever"]["corpus_sha256"] in body.partition("## Hashes")[2]
    for task, count in meta["counts"].items():
        sources = re.findall(rf"\| {task}, (?:gold|memory) \| (\d+) \|", body)
        assert sum(map(int, sources)) == count
    (made / "gold.jsonl.md").unlink()  # as after a kill before the card was written
    assert call("synth", "levelrag", str(made / "gold.yaml"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["items_done"] == 0
    assert (made / "gold.jsonl.md").read_text() == card


def test_push_without_token_fails_before_synthesis(made: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    output = made / "pushed.jsonl"
    arguments = ["synth", "levelrag", str(made / "gold.yaml"), f"output={output}", "--push-to-hub", "me/data"]
    assert call(*arguments) == 2
    assert "--push-to-hub: no Hugging Face token; log in with `hf auth login`" in capsys.readouterr().err
    assert not output.exists()


def test_push_commits_the_card_as_readme(made: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    committed: list[str] = []

    class Hub(Handler):
        def do_GET(self) -> None:
            self.send(404, b"")

        def do_POST(self) -> None:
            body, repo = self.body(), f"http://{self.headers['host']}/datasets/me/data"
            if self.headers["authorization"] != "Bearer hf_right":
                self.send(401, b'{"error": "no such token"}')
                return
            answer: dict = {"url": repo, "errors": [], "warnings": []}
            if self.path.endswith("/preupload/main"):
                names = [file["path"] for file in json.loads(body)["files"]]
                answer["files"] = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            elif self.path.endswith("/commit/main"):
                lines = [json.loads(line) for line in body.splitlines()]
                committed.extend(line["value"]["path"] for line in lines if line["key"] == "file")
                answer |= {"commitUrl": f"{repo}/commit/1", "commitOid": "1" * 40}
            self.send(200, json.dumps(answer).encode(), {"content-type": "application/json"})

    arguments = ["synth", "levelrag", str(made / "gold.yaml"), "--push-to-hub", "me/data"]
    with serving(Hub) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        assert call(*arguments) == 0
        assert f"pushed: {url}/datasets/me/data/commit/1" in capsys.readouterr().out
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        assert call(*arguments) == 2
    assert call(*arguments) == 2  # the Hub is gone
    assert committed == ["README.md", "gold.jsonl", "gold.jsonl.meta.json"]
    refused, unreached = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    for error in (refused, unreached):
        assert error.startswith("error: --push-to-hub me/data: ")
        assert "gold.jsonl is complete, run the same command again to push it" in error
