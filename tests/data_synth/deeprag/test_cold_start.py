"""Cold-start examples: the model's own answers from memory, and no supervision beyond what the gold steps say."""

import asyncio

import pytest
from support.fakes import Found, Says
from support.two_hop import FILM, MAN, QUESTION

from rag_train.data_synth.deeprag.cold_start import ColdStart, ColdStartConfig
from rag_train.schema import Decision, Passage, Question, SFTRecord

PROMPT = "Question: Where was the director of Moby Dick born?\n"
NOTHING = Passage(id="n", title="Nothing", text="No answer here.")


def example(answer: str, retrieve_share: float, *passages: Passage, question: Question = QUESTION):
    """The transcript of ``question`` from a model that answers every prompt with ``answer``, and its prompts.

    The prompt of the direct answer is left out.
    """
    prompts: list[str] = []
    model = Says(lambda prompt: prompts.append(prompt) or answer)
    config = ColdStartConfig(retrieve_share=retrieve_share)
    maker = ColdStart(model, Found(passages), config, [question], 2, 0)
    records, _ = asyncio.run(maker.examples(question, PROMPT))
    steps = [prompt for prompt in prompts if not prompt.endswith(f"{question.question}\nAnswer:")]
    return next((record for record in records if not record.task), None), steps


def masked(record: SFTRecord) -> str:
    return "".join(segment.text for segment in record.segments if not segment.trained)


def test_retrieved_steps_have_gold_answers_and_the_retrieved_passages():
    record, prompts = example("unused", 1.0, FILM, MAN)
    assert record and not prompts and record.complete
    assert [step.answer for step in record.steps] == ["John Huston", "Nevada"]
    assert all(step.decision is Decision.RETRIEVE and step.passages == [FILM, MAN] for step in record.steps)
    assert record.completion.endswith("So the final answer is: Nevada\n")
    assert FILM.text in masked(record) and "Follow up" not in masked(record)


def test_wrong_answer_from_memory_replaces_the_gold_answer_and_ends_the_example():
    record, prompts = example("Ann Lee\nBob", 0.0)
    assert record and not record.complete and len(prompts) == 1
    assert record.completion == (
        "Follow up: Who directed Moby Dick?\nIntermediate answer: Ann Lee\nFollow up: Where was Ann Lee born?\n"
    )
    assert prompts[0].endswith("Question: Who directed Moby Dick?\nAnswer:")
    assert "Answer: Nevada\n" in prompts[0]  # a worked example is another gold step


def test_right_answers_from_memory_are_written_in_the_gold_form():
    record, _ = example("It was John Huston, of Nevada.", 0.0)
    assert record and record.complete
    assert [step.answer for step in record.steps] == ["John Huston", "Nevada"] and record.retrievals == 0


def test_answers_from_memory_are_right_by_the_rules_of_the_questions_dataset():
    for scoring, right in (("triviaqa", True), ("squad", False)):
        question = QUESTION.model_copy(update={"metadata": {"scoring": scoring}})
        record, _ = example("John-Huston", 0.0, question=question)
        assert record and record.steps[0].answer == ("John Huston" if right else "John-Huston")


def test_independent_steps_continue_after_a_wrong_answer_but_no_final_answer_follows():
    steps = [QUESTION.decomposition[0], QUESTION.decomposition[0].model_copy(update={"subquery": "Who else?"})]
    record, _ = example("Ann", 0.0, question=QUESTION.model_copy(update={"decomposition": steps}))
    assert record and [step.answer for step in record.steps] == ["Ann", "Ann"]
    assert not record.complete and record.completion.endswith("Intermediate answer: Ann\n")


def test_step_without_the_answer_in_its_passages_is_answered_from_memory():
    record, _ = example("John Huston", 1.0, NOTHING)
    assert record and record.steps[0].decision is Decision.PARAMETRIC and record.steps[0].passages == []


def test_baselines_learn_from_the_own_direct_answer_and_from_passages_with_the_answer():
    maker = ColdStart(Says("Utah"), Found([FILM, MAN]), ColdStartConfig(), [QUESTION], 2, 0)
    records, _ = asyncio.run(maker.examples(QUESTION, PROMPT))
    direct, rag = (record for record in records if record.task == "reader")
    assert direct.completion == rag.completion.replace("Nevada", "Utah") == "So the final answer is: Utah\n"
    assert MAN.text in rag.prompt and MAN.text not in direct.prompt
    assert direct.segments[0].text == "So the final answer is:" and not direct.segments[0].trained


@pytest.mark.parametrize("answer", ["", "\n", " \nAnn"])
def test_question_without_a_usable_step_gives_no_example(answer: str):
    assert example(answer, 0.0)[0] is None
    assert example("Ann", 0.0, question=QUESTION.model_copy(update={"decomposition": []}))[0] is None
