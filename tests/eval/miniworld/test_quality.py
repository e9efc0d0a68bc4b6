"""What the mini model can do by itself: wordings that are new to it, and a model that recalls and reads all."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fakes import Says

from rag_train.eval.miniworld import quality
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.quality import HELD_OUT, expected, meaning, measure
from rag_train.miniworld.text import ASKED, ASKS, TextSource
from rag_train.miniworld.world import CHAINS, RELATIONS, Fact, World, subquery


def test_held_out_wordings_are_new_but_have_only_known_words():
    wordings = [wording for wordings in CHAINS.values() for wording in wordings]
    wordings += [subquery(relation, "{x}") for relation in RELATIONS]
    words = {word for wording in wordings for word in re.findall(r"\w+", wording)}
    assert HELD_OUT.keys() == RELATIONS.keys()
    for wording in HELD_OUT.values():
        assert "{x}" in wording and wording not in wordings and set(re.findall(r"\w+", wording)) <= words


def test_kinds_of_facts(mini_world: World):
    kinds = expected(mini_world, "dev")
    facts: list[Fact] = [fact for kind in ("known", "outdated", "unknown") for fact in kinds[kind]]
    assert len(set(facts)) == len(facts)
    assert set(facts) == {fact for fact in mini_world.facts if mini_world.split.get(fact[0]) in ("dev", None)}
    assert all(value == mini_world.facts[fact] for fact, value in kinds["reading_changed"].items())
    assert all(value != mini_world.facts[fact] for fact, value in kinds["outdated"].items())
    for reading, kind in (("reading", "unknown"), ("reading_changed", "outdated")):
        assert set(kinds[reading]) == set(kinds[kind]) & mini_world.mentioned


def test_meaning_is_that_of_the_training_text(mini_world: World):
    asked = {f"{ASKED} {question.question} {ASKS}": meaning(question) for question in mini_world.questions("train")}
    source, taught = TextSource(mini_world, 0), 0
    for _ in range(300):
        *pairs, _ = source.meaning()
        for prompt, answer in zip(pairs[::2], pairs[1::2], strict=True):
            if prompt.text in asked:
                taught += 1
                assert answer.text == f" {asked[prompt.text]}.\n"
    assert taught > 50


class PerfectLab(Lab):
    """A lab whose model recalls what it was taught, reads what its passages state, and knows what is asked."""

    @asynccontextmanager
    async def serve(self, model: Path):
        facts = {
            wording.format(x=subject): (subject, relation)
            for subject, relation in self.world.facts
            for wording in (HELD_OUT[relation], *CHAINS[(relation,)])
        }

        asked = {question.question: meaning(question) for question in self.world.questions(self.settings.split)}

        def answer(prompt: str) -> str:
            if prompt.startswith(ASKED):
                return f"{asked[prompt.removeprefix(ASKED).removesuffix(ASKS).strip()]}."
            passages, _, question = prompt.rpartition("\n")
            value = self.world.facts[facts[question]]
            return value if f"is {value}." in passages else self.world.recalled(facts[question]) or "none"

        yield Says(lambda prompt: f" {answer(prompt)}\nWho")


def test_a_perfect_model_recalls_old_values_and_reads_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quality, "pretrained_model", lambda lab: tmp_path / "base")
    monkeypatch.setattr(quality, "MOST", 40)
    monkeypatch.setattr(quality, "familiarity", lambda *_: (0.9, 100))
    rows = asyncio.run(measure(PerfectLab(0, Settings(work=tmp_path, split="dev"))))
    assert [row["wording"] for row in rows] == ["trained", "new"]
    assert (rows[0]["familiarity"], rows[0]["n_familiarity"]) == (0.9, 100)
    assert (rows[0]["decomposition"], rows[0]["n_decomposition"]) == (1, 40)
    for row in rows:
        assert (row["known"], row["outdated"], row["unknown"]) == (1, 1, 0)
        assert row["n_known"] == row["n_unknown"] == row["n_reading"] == 40 and 20 < row["n_reading_changed"] < 40
        assert row["reading"] > 0.9 and row["reading_changed"] > 0.9  # BM25 finds most of the passages
