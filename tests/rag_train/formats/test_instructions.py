"""A user's files in place of the package's instructions: what they may hold, and what becomes of the prompts."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from support.commands import call, small_files
from support.fakes import CHAT, PLAIN, Found, Says
from support.hostile import ASKED, HostileModel, HostileRetriever
from support.two_hop import FILM, MAN, QUESTION

from rag_train.data_synth.methods.dualrag import DualRAGData, DualRAGRecipe
from rag_train.data_synth.modules import baselines
from rag_train.data_synth.modules.method import ModuleMethod
from rag_train.data_synth.registry import METHODS
from rag_train.errors import UserError
from rag_train.formats import dualrag, levelrag, tasks
from rag_train.formats.instructions import OURS, Instructions, given
from rag_train.formats.tasks import user_turn
from rag_train.llm_judge import GAIN, JUDGE, SHORT
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.registry import build

SYNTHESIS = {"compound_ask", "compound_combine", "hop_question", JUDGE.name, SHORT.name, GAIN.name}
"""Prompts that no strategy and no example has."""


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def whole(folder: Path) -> Instructions:
    """A whole prompt for all that have fields: each field on a line with its name."""
    fields = {name: "\n".join(f"{field} = {{{field}}}" for field in each.fields) for name, each in OURS.items()}
    return Instructions(write(folder, **{name: text for name, text in fields.items() if text}))


def shown(name: str) -> str:
    return " ".join(f"{{{field}}}" for field in OURS[name].fields)


def test_ours_have_no_fields_in_their_texts_and_cite_a_source():
    for path in (Path(tasks.__file__).parents[1] / "prompts").iterdir():
        assert path.read_text().startswith("# ") and not re.search(r"\{[a-z_]+\}", OURS[path.stem].text)
        assert not OURS[path.stem].text.startswith("#") and OURS[path.stem].text


FIELDS = [("Question", "Who {query}?"), ("Knowledge", ["a: b", "{thought}"]), ("Thought", [])]


def test_a_text_without_fields_is_followed_by_the_labelled_lines(tmp_path: Path):
    own = Instructions(write(tmp_path, dualrag_reason='# Mine.\n## Task\nWrite {"thought": ...} { question }.\n'))
    head = '## Task\nWrite {"thought": ...} { question }.'
    lines = "Question: Who {query}?\nKnowledge: a: b\nKnowledge: {thought}\n"
    assert user_turn(own, "dualrag_reason", FIELDS) == f"{head}\n\n{lines}"
    assert user_turn(own, "dualrag_answer", FIELDS) == user_turn(OURS, "dualrag_answer", FIELDS)
    assert user_turn(False, "dualrag_reason", FIELDS) == lines


def test_values_take_the_places_of_fields_and_are_not_looked_at(tmp_path: Path):
    text = "Q: {question} {question.__class__} {0}\n{knowledge}\nSo far: {thought}."
    own = Instructions(write(tmp_path, dualrag_reason=text))
    expected = "Q: Who {query}? {question.__class__} {0}\na: b\n{thought}\nSo far: ."
    assert user_turn(own, "dualrag_reason", FIELDS) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dualrag_reasons.txt", b"x", "no prompt has this file's name; did you mean dualrag_reason.txt?"),
        ("README.md", b"x", "no prompt has this file's name; remove it; `rag-train prompts` lists the names"),
        ("rag.txt", b"# Only a note.\n", "no text below the lines that begin with '# '; write one or remove"),
        ("rag.txt", b"", "no text below the lines"),
        ("rag.txt", b"caf\xe9", r"rag.txt: not UTF-8 \(byte 3\); save it as UTF-8"),
        ("rag.txt", b"{questions} {context}", r"{questions} is no field .* \(it has {context}, {question}\)"),
        ("rag.txt", b"{xyz}", r"{xyz} is no field .*; for braces that are text, put spaces in them"),
        ("deeprag.txt", b"{question}", r"{question} is no field of this prompt \(its text has no fields\)"),
        ("rag.txt", b"{question}", "without {context}; a text with fields is the whole prompt: add them"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    (tmp_path / ".DS_Store").write_bytes(b"\xff")
    with pytest.raises(UserError, match=message) as refused:
        Instructions(tmp_path)
    assert str(tmp_path / name) in str(refused.value) and "\n" not in str(refused.value)


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such directory of prompts; `rag-train prompts --copy"):
        Instructions(tmp_path / "gone")
    (tmp_path / "rag.txt").mkdir()
    with pytest.raises(UserError, match="Is a directory; make it a file that can be read, or remove it"):
        Instructions(tmp_path)
    with pytest.raises(UserError, match="not used without instructions"):
        given("prompts:", False, tmp_path)


def test_every_field_gets_a_value_and_no_value_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All strategies run, and all examples are made, with whole prompts that have all fields."""
    own, seen = whole(tmp_path / "own"), defaultdict(set)
    values = tasks._values

    def noted(instruction, fields):
        got = values(instruction, fields)  # fails for a label that no field takes
        seen[instruction.name] |= got.keys()
        return got

    monkeypatch.setattr(tasks, "_values", noted)
    for name in (*STRATEGIES, "metarag,agreement=1", "dualrag,trigger=false"):
        for seed in range(8):
            found = HostileRetriever("everything")
            kinds = dict.fromkeys(("sparse", "dense", "web"), found)
            kit = Kit(HostileModel("obedient", seed), found, instructions=own, retrievers=kinds)
            asyncio.run(build(name, kit).answer(ASKED))
    passages = {query: [FILM, MAN] for query in (QUESTION.question, *(s.subquery for s in QUESTION.decomposition))}
    passages |= {step.entity: [FILM, MAN] for step in QUESTION.decomposition}
    systems = [each for each in METHODS.values() if issubclass(each, ModuleMethod)]
    records = [record for each in systems for record in each.gold_records(QUESTION, passages, instructions=own)]
    assert records and all(record.whole_prompt for record in records)
    baselines.gold_records(QUESTION, passages, instructions=own)
    missing = {name: set(each.fields) - seen[name] for name, each in own.items() if name not in SYNTHESIS}
    assert {name: fields for name, fields in missing.items() if fields} == {}


REASON = '{{"thought": "t{}", "need_retrieve": {}}}'
SAID = {
    "reason": [REASON.format(1, "true"), REASON.format(2, "true"), REASON.format(3, "false")],
    "identify": ['{"entities": [{"entity": "Moby Dick", "keywords": ["Moby Dick", "its director"]}]}'],
    "summarize": ["None", "Moby Dick is a film.\n\nJohn Huston directed it."],
    "answer": ["### Answer\n\nHe was born in Nevada."],
}


@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT])
def test_dualrag_asks_the_prompts_of_its_authors_and_reads_their_format(tmp_path: Path, tokenizer):
    prompts: list[str] = []
    said = {name: list(texts) for name, texts in SAID.items()}

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        texts = said[re.findall(r"## (\w+) ", prompt)[0]]
        return texts.pop(0) if len(texts) > 1 else texts[0]

    texts = {
        "dualrag_reason": "## reason {knowledge}|{question}|{thought}\n\n### Output",
        "dualrag_identify": "## identify {knowledge}|{question}|{thought}|{known_entities}",
        "dualrag_answer": "## answer {knowledge}|{question}|{thought}",
        "dualrag_summarize": f"## summarize {shown('dualrag_summarize')}",
    }
    llm = Says(answer)
    llm.tokenizer = tokenizer
    kit = Kit(llm, Found([FILM]), instructions=Instructions(write(tmp_path, **texts)))
    got = asyncio.run(build("dualrag", kit).answer(QUESTION))
    assert got.outline == {"Moby Dick": ["Moby Dick is a film. John Huston directed it."]} and got.rounds == 2
    assert got.answer == "### Answer He was born in Nevada." and not got.notes
    begin, end = ("<user>", "<assistant>") if tokenizer is CHAT else ("", "")
    assert prompts[0] == f"{begin}## reason nothing|{QUESTION.question}|\n\n### Output{end}"
    assert prompts[4].startswith(f"{begin}## identify nothing|{QUESTION.question}|t1\nt2|")


def test_levelrag_reads_the_format_of_its_authors(tmp_path: Path):
    own = Instructions(write(tmp_path, levelrag_decompose="List.", levelrag_rewrite="Rewrite."))
    numbered, rewrite = own["levelrag_decompose"], own["levelrag_rewrite"]
    for text, queries in (
        ("[1] Who wrote A?\n[2] Who wrote B?", ["Who wrote A?", "Who wrote B?"]),
        ("No additional information is required.", []),
        ('["a?", "b?"]', ["a?", "b?"]),
        ("I do not know.", None),
    ):
        assert levelrag.DECOMPOSE.parse(text, numbered) == queries
    assert levelrag.REWRITE.parse('"John Mayne" occupation job', rewrite) == ["John Mayne", "occupation", "job"]
    assert levelrag.REWRITE.parse('["John Mayne"]', rewrite) == ["John Mayne"]
    assert levelrag.REWRITE.parse('"John Mayne" occupation') is None, "not asked for by our prompt"
    assert levelrag.DECOMPOSE.sampling(numbered).json_schema is None
    reason = Instructions(write(tmp_path, dualrag_reason="Reason."))["dualrag_reason"]
    schema = json.loads(dualrag.REASON.sampling(reason).json_schema or "")
    assert [each["$ref"] for each in schema["anyOf"]] == ["#/$defs/Reasoning", "#/$defs/ReleasedReasoning"]


def test_data_follow_the_prompts_and_not_their_place(tmp_path: Path):
    def settings(folder: Path | None, **more) -> dict:
        recipe = DualRAGRecipe(questions=[], index="", output="", prompts=folder, **more)
        return DualRAGData(recipe, [], Found([])).settings()

    first = write(tmp_path / "a", dualrag_reason="One.", dualrag_answer="Two.")
    second = write(tmp_path / "b", dualrag_reason="One.", dualrag_answer="Another.")
    moved = write(tmp_path / "c", dualrag_reason="One.", dualrag_answer="Two.", react="In no example.")
    assert settings(first) == settings(moved)
    assert len({settings(folder)["code"] for folder in (None, first, second)}) == 3


def test_examples_have_the_users_prompts(tmp_path: Path):
    reason = "{knowledge}\n\n{question}\n\n{thought}\n\n### Output"
    folder = write(tmp_path, dualrag_reason=reason, dualrag_answer="A!")
    recipe = DualRAGRecipe(questions=[], index="", output="", prompts=folder)
    outcome = asyncio.run(DualRAGData(recipe, [QUESTION], Found([FILM, MAN])).outcome(QUESTION))
    records = {record.task: record for record in reversed(outcome.records)}
    reason, answer = records["dualrag_reason"], records["dualrag_answer"]
    assert reason.prompt == f"nothing\n\n{QUESTION.question}\n\n\n\n### Output"
    assert reason.completion.startswith('{"thought"') and reason.completion == reason.segments[0].text
    assert answer.prompt.startswith("A!\n\nQuestion: ") and answer.completion == "Answer: Nevada\n"
    assert not outcome.rejected, "what a whole prompt says is known"


def test_prompts_are_listed_and_copied(tmp_path: Path, capsys):
    assert call("prompts", "dualrag_s", "search_r1") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"dualrag_summarize  {shown('dualrag_summarize')}",
        "search_r1",
    ]
    assert call("prompts", "dualrag", "--copy", str(tmp_path / "own")) == 0
    copies = Instructions(tmp_path / "own")
    assert len(list((tmp_path / "own").iterdir())) == 5 and dict(copies) == dict(OURS)
    assert call("prompts", "dualrag_reason", "--copy", str(tmp_path / "own")) == 2
    assert call("prompts", "dulrag") == 2
    err = capsys.readouterr().err
    assert "dualrag_reason.txt: already exists; move it away" in err and "no prompt's name begins so" in err


def test_mistakes_show_before_a_model_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def start(*arguments: object) -> None:
        raise AssertionError("an engine")

    monkeypatch.setattr("rag_train.strategies.kit.open_engine", start)
    folder = str(write(tmp_path / "own", rags="x"))
    small_files(tmp_path, 1)
    places = ["--model", "m", "--index", str(tmp_path / "index"), "--prompts", folder]
    questions = ["--questions", str(tmp_path / "q.jsonl"), "--output", str(tmp_path / "out")]
    judging = ["judge", str(tmp_path), "--model", "m", "--prompts", folder]
    for command in (["eval", *places, *questions], ["serve", "strategy", "rag", *places], judging):
        assert call(*command) == 2
        assert f"error: --prompts {folder}/rags.txt: no prompt has this file's name" in capsys.readouterr().err
    recipe = ["synth", "levelrag", str(Path(tasks.__file__).parents[2] / "recipes/gold.yaml")]
    keys = [f"questions=[{tmp_path}/q.jsonl]", f"index={tmp_path}/index", "held_out=[]", f"prompts={folder}"]
    assert call(*recipe, *keys, f"output={tmp_path}/o.jsonl") == 2
    assert f"prompts: {folder}/rags.txt: no prompt has this file's name" in capsys.readouterr().err
