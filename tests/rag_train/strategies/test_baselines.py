"""The baselines are as their papers define them: what they send to the model and to the retriever."""

import asyncio
import math
import re
from collections.abc import Sequence
from importlib.resources import files

import pytest
import torch
from support.fakes import CHAT, Found, Replay, Says, elapsed

from rag_train.eval.metrics.measures import depth
from rag_train.formats.instructions import OURS
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.transformers import Inspection
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.baselines import dragin, rq_rag
from rag_train.strategies.baselines.sentences import first_sentence
from rag_train.strategies.registry import build

PASSAGES = [Passage(id=str(i), title=f"T{i}", text=f"Text {i}.") for i in range(3)]
ASKED = Question(id="q", question="Who?", answers=["x"])
NOTHING = Found([])


def answer(spec: str, llm: Says | Replay, found: Found = NOTHING) -> Trajectory:
    kinds = dict.fromkeys(("sparse", "dense", "web"), found)
    return asyncio.run(build(spec, Kit(llm, found, instructions=False, retrievers=kinds)).answer(ASKED))


class Tokens(Says):
    """An engine that writes the given tokens, each with its log-probability."""

    def __init__(self, tokens: Sequence[tuple[str, float]]):
        self.tokens, self.prompts = tokens, []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        made = tuple((TokenLogprob(i, text, logprob),) for i, (text, logprob) in enumerate(self.tokens))
        text = "".join(text for text, _ in self.tokens)
        return Completion(text, tuple(range(len(made))), Usage(1, len(made)), logprobs=made)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" J. R. R. Tolkien wrote it. He was born", " J. R. R. Tolkien wrote it."),
        (" Dr. Who lives in St. Ives. Then", " Dr. Who lives in St. Ives."),
        (' He said "No." Then he left.', ' He said "No."'),
        (" It costs 3.5 pounds", " It costs 3.5 pounds"),
        ("", ""),
    ],
)
def test_a_sentence_ends_at_its_end(text: str, sentence: str):
    assert first_sentence(text) == sentence


def test_flare_judges_the_tokens_of_the_sentence_only():
    sure = [(" Ada", -0.1), (" wrote", -0.1), (" it.", -0.1), (" Then", -9.0), (" he", -9.0)]
    assert answer("flare,max_sentences=1", Tokens(sure), Found(PASSAGES)).retrievals == 0


def test_flare_looks_ahead_without_passages():
    llm, found = Tokens([(" Ada", -0.1), (" wrote", -9.0), (" it.", -0.1)]), Found(PASSAGES)
    got = answer("flare,max_sentences=2", llm, found)
    assert found.queries == ["Ada it."] and got.reasoning == "Ada wrote it."
    assert ["Context:" in prompt for prompt in llm.prompts] == [False, True, True]  # the last one is the answer's


def test_flare_is_uncertain_below_a_fifth_as_in_dualrags_release():
    for chance, queries in ((0.21, []), (0.19, ["Ada it."])):
        found = Found(PASSAGES)
        written = [(" Ada", -0.1), (" wrote", math.log(chance)), (" it.", -0.1)]
        answer("flare,max_sentences=1", Tokens(written), found)
        assert found.queries == queries
    assert STRATEGIES["flare"].bound == (1 + 2 * 5, 5)


@pytest.mark.parametrize("rule", ["least", "mean"])
def test_flare_has_two_rules_for_an_uncertain_sentence(rule: str):
    written = [(" Ada", -0.1), (" wrote", -1.0), (" it.", -0.1)]  # mean of 1 - p: 0.27
    for threshold, queries in ((0.2, 1), (0.3, 0)):
        found = Found(PASSAGES)
        answer(f"flare,rule={rule},theta=0.5,threshold={threshold},beta=0.5", Tokens(written), found)
        assert found.queries == (["Ada it."] if rule == "least" else ["Ada it."] * queries)


def inspection(
    text: str, start: int, entropy: Sequence[float], attention: torch.Tensor | None = None
) -> Inspection:
    """The inspection of a text with a token for each word, or for each piece before a bar."""
    spans, at = [], 0
    for piece in re.split(r"\||(?= )", text):
        spans.append((at, at + len(piece)))
        at += len(piece)
    tokens = tuple(text.replace("|", "")[slice(*span)] for span in spans)
    attention = torch.ones(len(tokens), len(tokens)) if attention is None else attention
    return Inspection(tokens, start, tuple(spans), tuple(entropy), attention)


def test_dragin_judges_whole_words_that_are_no_function_words():
    pieces = "Who? the ( Ada Love|lace wrote"
    text = pieces.replace("|", "")
    seen = inspection(pieces, 1, [9.0, 9.0, 2.0, 1.0, 3.0, 0.5])
    words = dragin.words_of(seen, text, 4, len(text))
    judged = {text[w.start : w.end]: value for w, value in dragin.importance(seen, text, words)}
    mean = (1 + 1 + 1 + 2 + 1) / 5  # attention of the, (, Ada, Lovelace, wrote
    assert judged == pytest.approx({"Ada": 2 / mean, "Lovelace": 2 * 2 / mean, "wrote": 0.5 / mean})


def test_dragin_compares_attention_with_the_mean_of_its_sentence():
    """With plain attention, which sums to one over the prompt, no word ever exceeded the threshold."""
    text = "Who wrote it? Ada Byron lived"
    low = torch.full((6, 6), 1e-3)
    low[5, 4] = 3e-3
    seen = inspection(text, 3, [1.0, 1.0, 1.0], low)
    judged = dragin.importance(seen, text, dragin.words_of(seen, text, 13, len(text)))
    assert [round(value, 3) for _, value in judged] == [0.6, 1.8, 0.6]


def test_dragin_asks_with_words_of_the_question_and_not_of_the_chat_template():
    llm = Replay({"Thought:": " It was Bob.", "answer is:": " Bob"})

    async def inspect(prompt: str, text: str) -> Inspection:
        before = len(re.split(r"(?= )", prompt))
        words = len([word for word in re.split(r"(?= )", text) if word])
        return inspection(prompt + text, before, [0.0] * (words - 1) + [9.0])

    llm.inspect, llm.abilities, llm.tokenizer = inspect, Abilities(attention=True), CHAT
    found = Found([])
    question = ASKED.model_copy(update={"question": "Where was Ada born?"})
    asyncio.run(build("dragin", Kit(llm, found)).answer(question))
    assert found.queries == ["Ada born"]


@pytest.mark.parametrize(("rewrite", "reasoning"), [("sentence", "So Ada."), ("rest", "It was Ada.")])
def test_dragin_writes_again_what_is_doubtful(rewrite: str, reasoning: str):
    said = iter([" It was Bob.", " So Ada." if rewrite == "sentence" else " Ada."])
    llm = Says(lambda prompt: " Ada" if prompt.endswith("answer is:") else next(said))

    async def inspect(prompt: str, text: str) -> Inspection:
        before = len(re.split(r"(?= )", prompt))
        entropy = [9.0 if word == " Bob." else 0.0 for word in re.split(r"(?= )", text) if word]
        return inspection(prompt + text, before, entropy)

    llm.inspect, llm.abilities = inspect, Abilities(attention=True)
    found = Found(PASSAGES)
    got = answer(f"dragin,rewrite={rewrite}", llm, found)
    assert got.reasoning == reasoning and got.answer == "Ada" and len(got.calls) == 3
    assert found.queries == ["Who?"]  # no other word has content


def test_two_hop_rag_searches_with_each_passage():
    found = Found(PASSAGES)
    got = answer("two-hop-rag", Says(" Ada"), found)
    assert found.queries == ["Who?", "T0 Text 0.", "T1 Text 1.", "T2 Text 2."]
    assert (got.retrievals, got.rounds, len(got.calls)) == (4, 2, 1)


def test_rq_rag_writes_the_format_of_the_checkpoint():
    seen: list[str] = []

    def say(prompt: str) -> str:
        seen.append(prompt)
        return " Ada" if prompt.endswith(rq_rag.RESPONSE) else " a query"

    got = answer("rq-rag,depth=1", Says(say), Found(PASSAGES[:1]))
    head = "<|user|>\nWho?\n<|assistant|>\n"
    below = f"{head}[S_Rewritten_Query] a query[EOS][R_Evidences]Title: T0\nText: Text 0.[/R_Evidences][A_Response]"
    assert below in seen and head + "[A_Response]" in seen and got.answer == "Ada"
    assert "multi-hop reasoning" in rq_rag.turns("Who?", "</s>", OURS)


def test_rq_rag_text_ends_at_a_control_token_that_the_engine_left_out():
    tokens = [(" a", -0.1), (" query", -0.2), ("[EOS]", -0.3), ("Title", -0.4)]
    made = tuple((TokenLogprob(i, text, logprob),) for i, (text, logprob) in enumerate(tokens))
    completion = Completion(" a queryTitle", tuple(range(4)), Usage(1, 4), logprobs=made)
    assert rq_rag.written(completion) == ("a query", (-0.1, -0.2))


@pytest.mark.parametrize(
    ("line", "argument"),
    [
        ("Finish[Richard Nixon] Done", "Richard Nixon"),
        ("Finish[Richard Nixon", "Richard Nixon"),
        ("Finish[Sonata [No. 2]] and more]", "Sonata [No. 2]"),
    ],
)
def test_react_takes_what_is_in_the_brackets(line: str, argument: str):
    assert answer("react", Says(f" so\nAction 1: {line}")).answer == argument


def test_fireact_has_no_example():
    kit = Kit(llm := Replay({"Thought 1:": " so\nAction 1: Finish[Ada]"}), NOTHING)
    assert asyncio.run(build("fireact", kit).answer(ASKED)).answer == "Ada"
    assert llm.asked == ["Question: Who?\nThought 1:"]


def test_qd_rag_asks_an_undecomposed_question_once():
    said = {"Subqueries:\n": '["who"]', "Generation:\n": '{"Response": "Ada"}'}
    for spec in ("qd-rag", "qd-rag-subq"):
        found = Found(PASSAGES)
        got = answer(spec, Replay(said), found)
        assert (got.answer, len(got.calls), found.queries, got.retrievals) == ("Ada", 2, ["Who?"], 1)


def test_qd_rags_depth_is_the_number_of_its_sub_queries():
    """PlanRAG, figure 4b: with one retrieval for all of them, its depth was always 1."""
    for spec in ("qd-rag", "qd-rag-subq"):
        said = {"Subqueries:\n": '["a?", "b?", "c?"]', "Generation:\n": '{"Response": "Ada"}'}
        got = answer(spec, Replay(said), Found(PASSAGES))
        assert got.plan and [node.question for node in got.plan.nodes] == ["a?", "b?", "c?"]
        assert depth(got) == 3 and [step.node for step in got.steps if step.node] == ["Q1.1", "Q2.1", "Q3.1"]
        said["Subqueries:\n"] = "[]"
        assert depth(answer(spec, Replay(said), Found(PASSAGES))) == 0


def test_qd_rag_answers_with_its_own_instruction():
    llm = Replay({"Subqueries:\n": '["Where?"]', "Generation:\n": '{"Response": "Ada"}'})
    got = asyncio.run(build("qd-rag", Kit(llm, Found(PASSAGES))).answer(ASKED))
    assert [call.module for call in got.calls] == ["qd_rag", "qd_rag_answer", "qd_rag_answer"]
    assert not any("your own knowledge" in prompt for prompt in llm.asked)  # as PlanRAG's generator may use


def test_the_high_level_searcher_directs_the_searcher_that_is_asked_for():
    """LevelRAG, tables 2 and 4: the sparse one."""
    kit = Kit(Says(" yes"), Found(PASSAGES), retrievers={"sparse": Found(PASSAGES), "dense": Found(PASSAGES)})
    for spec, kinds in (("levelrag", {"sparse", "dense"}), ("levelrag,directs=sparse", {"sparse"})):
        got = asyncio.run(build(spec, kit).answer(ASKED))
        assert {step.node for step in got.steps} - {"summary"} == kinds


def test_hybrid_searcher_has_no_high_level_searcher():
    found = Found(PASSAGES)
    got = answer("levelrag-hybrid", Says(" yes"), found)
    assert {step.node for step in got.steps} == {"sparse", "dense", "web"}
    assert {call.module for call in got.calls} == {"levelrag_rewrite", "levelrag_sufficient", "reader"}


class Slow(Says):
    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        await asyncio.sleep(1.0)
        return await super().complete(prompt, sampling)


def test_independent_work_runs_at_the_same_time():
    kit = Kit(Slow(" no"), Found(PASSAGES, 1.0), instructions=False)
    assert elapsed(build("uar", kit).answer(ASKED)) == 2.0  # four probes at once, and the answer
    kit = Kit(Slow("[]"), Found(PASSAGES, 1.0), instructions=False)
    assert elapsed(build("planrag-question", kit).answer(ASKED)) == 2.0  # the search during the planning


def test_prompts_have_no_test_question_of_the_papers():
    prompts = "".join(p.read_text(encoding="utf-8") for p in (files("rag_train") / "prompts").iterdir())
    assert not re.search("Extraño Viaje|Love In Pawn", prompts, re.IGNORECASE)


# -- the readers and the limits of other baselines -------------------------------------------------------------


def test_genground_retrieves_for_the_sub_question_alone():
    hop = '{"question":"Who wrote it?","answer":"Ada","final":false}'
    llm, found = Replay({"Next:\n": hop, "Answer:": " Grace"}), Found(PASSAGES)
    got = answer("genground,max_steps=1", llm, found)
    assert found.queries == ["Who wrote it?"] and got.answer == "Grace"


def test_cot_retrieve_shows_the_eight_examples_of_cot_and_the_passages():
    llm = Replay({"Thought:": " t\nSo the final answer is: x\n"})
    got = asyncio.run(build("cot-retrieve", Kit(llm, Found(PASSAGES))).answer(ASKED))
    [prompt] = llm.asked
    examples, _, rest = prompt.partition("Context: ")
    assert examples.count("\nQuestion: ") == 8 and "Context:" in rest
    assert prompt.endswith("Question: Who?\nThought:") and got.answer == "x"


def test_chatqa_reads_five_passages_in_its_turns():
    passages = [Passage(id=str(i), title=f"T{i}", text=f"Text {i}.") for i in range(9)]
    llm = Replay({"Assistant:": " x\nUser: more"})
    got = asyncio.run(build("chatqa", Kit(llm, Found(passages))).answer(ASKED))
    [prompt] = llm.asked
    system, *context, user, assistant = prompt.split("\n\n")
    assert system.startswith("System: ") and (user, assistant) == ("User: Who?", "Assistant:")
    assert context == [f"T{i} Text {i}." for i in range(5)] and got.answer == "x"
