"""Auto-RAG drives the released checkpoint: its turns, what is read of them, and how a conversation ends."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes import CHAT, PLAIN, Found, completion
from support.tokenizers import tokenizer_of

from rag_train.formats.instructions import OURS
from rag_train.formats.prompting import conversation
from rag_train.llm.base import Abilities, Completion, Sampling
from rag_train.llm.control import MARK
from rag_train.schema import AGAIN, Decision, Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.baselines.auto_rag import Move, move_of
from rag_train.strategies.registry import build

QUESTION = Question(id="q", question="Where was the maker of A born?", answers=["Rome"])
SYSTEM = OURS["auto_rag"].text


class Turns:
    """An engine that writes the given texts in turn, the last again and again, and keeps what it was asked."""

    name, abilities = "turns", Abilities()

    def __init__(self, texts: list[str], tokenizer):
        self.texts, self.tokenizer = texts, tokenizer
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        return completion(self.texts[min(len(self.prompts), len(self.texts)) - 1], sampling)

    async def aclose(self) -> None: ...


class Ranked(Found):
    """A retriever that returns the first of twelve passages for every query."""

    def __init__(self):
        super().__init__([Passage(id=str(i), title="T", text=f"Text {i}.") for i in range(12)])
        self.most: list[int] = []

    async def search_all(self, queries, k):
        self.most.append(k)
        return await super().search_all(queries, k)


def answer(*texts: str, tokenizer=CHAT, spec: str = "auto-rag", **more) -> tuple[Trajectory, Turns, Ranked]:
    llm, found = Turns(list(texts), tokenizer), Ranked()
    return asyncio.run(build(spec, Kit(llm, found, **more)).answer(QUESTION)), llm, found


FIRST = "I have to find the maker. Refined Query: [Dense] maker of A"
SECOND = "It was B.\nRefined Query: B birthplace"
LAST = "B was born in Rome. Final Answer: Rome"


def test_the_turns_are_those_of_the_released_code():
    got, llm, found = answer(FIRST, SECOND, LAST)
    start = f"<system>{SYSTEM}<user>Question: {QUESTION.question}"
    first = f"{start}<assistant>{FIRST}<user>Retrieved Document_1: Text 0. Text 1."
    second = f"{first}<assistant>{SECOND}<user>Retrieved Document_2: Text 2. Text 3."
    assert llm.prompts == [f"{text}<assistant>" for text in (start, first, second)]
    assert all(sampling == Sampling(max_tokens=200) for sampling in llm.samplings)
    assert found.queries == ["maker of A", "B birthplace"] and found.most == [10, 10]
    assert [[passage.id for passage in step.passages] for step in got.steps] == [["0", "1"], ["2", "3"]]
    assert (got.answer, got.notes) == ("Rome", {}) and got.reasoning == "\n".join((FIRST, SECOND, LAST))


def test_the_turns_in_the_template_of_the_checkpoints_model():
    _, llm, _ = answer(FIRST, LAST, tokenizer=tokenizer_of("llama3_1"))
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    turns = llm.prompts[1].replace(MARK, "").partition(f"{SYSTEM}<|eot_id|>")[2]
    document = "Retrieved Document_1: Text 0. Text 1."
    said = (("user", f"Question: {QUESTION.question}"), ("assistant", FIRST), ("user", document))
    expected = "".join(f"{head.format(role)}{text}<|eot_id|>" for role, text in said)
    assert turns == expected + head.format("assistant")


def test_without_instructions_each_turn_is_a_line():
    for tokenizer in (PLAIN, CHAT):
        got, llm, _ = answer(FIRST, LAST, tokenizer=tokenizer, instructions=False)
        lines = f"Question: {QUESTION.question}\n{FIRST}\nRetrieved Document_1: Text 0. Text 1.\n"
        assert llm.prompts[1] == lines and llm.samplings[1].stop == ("\n",) and got.answer == "Rome"
    assert answer(LAST, tokenizer=PLAIN)[1].prompts == [f"{SYSTEM}\n\nQuestion: {QUESTION.question}\n"]


@pytest.mark.parametrize(
    ("text", "move"),
    [
        (FIRST, Move(query="maker of A")),
        ("query: x", Move(query="x")),
        ("Refined Query: one. No: Refined Query: two", Move(query="two")),
        ("Refined Query: x Final Answer: y", Move(query="x Final Answer: y")),
        (LAST, Move(answer="Rome")),
        ("The final answer is Rome", Move(answer="is Rome")),
        ("I do not know.", Move()),
        ("", Move()),
    ],
)
def test_what_a_turn_asks_for(text: str, move: Move):
    assert move_of(text) == move


def test_after_a_turn_without_a_format_the_last_query_finds_further_passages():
    cut = "so " * 300
    got, llm, found = answer("Hm.", FIRST, cut, LAST)
    assert found.queries == [QUESTION.question, "maker of A", "maker of A"]
    assert [text.rpartition("<user>")[2] for text in llm.prompts[1:]] == [
        "Retrieved Document_0: Text 0. Text 1.<assistant>",
        "Retrieved Document_1: Text 2. Text 3.<assistant>",
        "Retrieved Document_1: Text 4. Text 5.<assistant>",
    ]
    assert got.answer == "Rome" and "auto_rag: 1 of its texts at the limit of tokens" in got.notes["cut"]


def test_documents_that_the_model_writes_follow_when_retrieval_was_in_vain():
    texts = [f"No. Refined Query: q{i}" for i in range(11)]
    got, llm, found = answer(*texts, "A text\nmore", "No. Refined Query: q11", "Another text", LAST)
    assert len(found.queries) == 10 and got.retrievals == 10 and got.answer == "Rome"
    written = OURS["auto_rag_document"].text + f"\n\nQuestion: {QUESTION.question}\nQuery: q{{}}\nDocument:"
    assert [llm.prompts[11], llm.prompts[13]] == [written.format(10), written.format(11)], "in no turn"
    assert llm.samplings[11] == Sampling(max_tokens=200, stop=("\n",))
    document, again = (llm.prompts[i].rpartition("<user>")[2] for i in (12, 14))
    assert document == "Retrieved Document_11: A text<assistant>"
    assert again == "Retrieved Document_12: Another text<assistant>"
    assert [sampling.max_tokens for sampling in llm.samplings] == [200] * 10 + [150, 200, 150, 200, 150]
    assert [step.decision for step in got.steps[-2:]] == [Decision.PARAMETRIC] * 2
    assert llm.prompts[10].count("Text ") == 10, "passages that were in a turn before are left out"


@pytest.mark.parametrize(("text", "calls"), [("No. Refined Query: {}", 10 + 1 + 2 * 5), ("Hm.", 10 + 1)])
def test_a_conversation_without_an_answer_ends(text: str, calls: int):
    got, llm, found = answer(*(text.format(i) for i in range(30)))
    assert len(found.queries) == 10 and len(llm.prompts) == calls + 1 == len(got.calls)
    assert got.calls[-1].module == AGAIN and "no answer after retrievals=10 and recalls=5" in got.notes["cut"]


def test_a_template_without_a_systems_turn_has_its_text_in_the_first_turn():
    tokenizer = tokenizer_of("gemma")
    text = conversation(tokenizer, "Be brief.", ["Who?", "He.", "Sure?"]).replace(MARK, "")
    turns = (("user", "Be brief.\n\nWho?"), ("model", "He."), ("user", "Sure?"))
    expected = "".join(f"<start_of_turn>{role}\n{said}<end_of_turn>\n" for role, said in turns)
    assert text == f"<bos>{expected}<start_of_turn>model\n"
