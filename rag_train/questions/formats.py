"""The file formats of released question sets (`FORMATS`), each with a function from a row to a `Question`.

Paragraphs that the release marks as supporting become ``gold_passages``. Their id is the title in HotpotQA and
2WikiMultihopQA, and ``<question id>/<position>`` in other formats, where titles are not unique. Rows from the Hub,
in which lists of records have become records of lists, are supported, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag_train.questions.hops import names_in, question_of, read_hop, subject_of
from rag_train.schema import GoldStep, Passage, Question

Row = dict[str, Any]


def accepted(values: Any) -> list[str]:
    """Return the distinct answers that are not blank, with booleans as yes and no.

    Raises ValueError if no answer is left, TypeError if ``values`` is not a list of texts, numbers and booleans.
    """
    if not isinstance(values, list):
        raise TypeError("the answers are not a list")
    if any(isinstance(value, dict | list | None) for value in values):
        raise TypeError("an answer is neither a text, a number nor a boolean")
    texts = [("no", "yes")[value] if isinstance(value, bool) else str(value) for value in values]
    answers = list(dict.fromkeys(text for text in texts if text.strip()))
    if not answers:
        raise ValueError("the question has no answer")
    return answers


def _wikipedia(row: Row, metadata: dict[str, Any], **more: Any) -> Question:
    """Read the fields common to HotpotQA and 2WikiMultihopQA. Some rows of 2WikiMultihopQA have no context.

    ``answer_aliases`` are those of 2WikiMultihopQA's ``id_aliases.json``. ``metadata["supporting"]`` has the
    annotated sentences of the gold passages.
    """
    facts, context = (_records(row.get(field) or []) for field in ("supporting_facts", "context"))
    titles = dict.fromkeys(title for title, _ in facts)
    sentences = {title: [sentence.strip() for sentence in paragraph] for title, paragraph in context}
    paragraphs = {title: " ".join(paragraph) for title, paragraph in sentences.items()}
    supporting = [text for title, number in facts for text in sentences.get(title, [])[number : number + 1]]
    return Question(
        id=row["_id"] if "_id" in row else row["id"],
        question=row["question"],
        answers=accepted([row["answer"], *(row.get("answer_aliases") or [])]),
        type=row["type"],
        gold_passages=[Passage(id=t, title=t, text=paragraphs[t]) for t in titles if t in paragraphs],
        metadata=metadata | ({"supporting": supporting} if supporting else {}),
        **more,
    )


def _records(value: Any) -> list[Any]:
    """Convert the Hub's record of lists to the release's list of records."""
    return list(zip(*value.values(), strict=True)) if isinstance(value, dict) else value


def _hotpotqa(row: Row) -> Question:
    return _wikipedia(row, hops=2, metadata={"level": row["level"]})


def _2wikimultihopqa(row: Row) -> Question:
    evidences = row["evidences"]  # (subject, relation, object), one for each hop
    steps: list[GoldStep] = []
    for subject, relation, value in evidences:
        subject = subject_of(subject, [step.answer for step in steps])
        steps.append(GoldStep(subquery=question_of(subject, relation), answer=value, entity=subject))
    return _wikipedia(row, hops=len(evidences), metadata={"evidences": evidences}, decomposition=steps)


def _musique(row: Row) -> Question:
    if not row.get("answerable", True):
        raise ValueError("the question has no answer ('answerable' is false)")
    gold = {
        paragraph["idx"]: Passage(
            id=f"{row['id']}/{paragraph['idx']}", title=paragraph["title"], text=paragraph["paragraph_text"]
        )
        for paragraph in row["paragraphs"]
        if paragraph["is_supporting"]
    }
    steps: list[GoldStep] = []
    for step in row["question_decomposition"]:
        support = gold.get(step["paragraph_support_idx"])
        answers = [earlier.answer for earlier in steps]
        named = [support.title if support else "", *reversed(answers), *names_in(row["question"])]
        subquery, entity = read_hop(_fill_in_answers(step["question"], answers), named, step["answer"])
        passage_ids = [support.id] if support else []
        steps.append(GoldStep(subquery=subquery, answer=step["answer"], passage_ids=passage_ids, entity=entity))
    return Question(
        id=row["id"],
        question=row["question"],
        answers=accepted([row["answer"], *row["answer_aliases"]]),
        hops=len(steps),
        gold_passages=list(gold.values()),
        decomposition=steps,
    )


def _fill_in_answers(subquery: str, answers: Sequence[str]) -> str:
    """Replace each reference ``#N`` by answer N, counted from 1; other references stay."""

    def answer(reference: re.Match[str]) -> str:
        position = int(reference[1]) - 1
        return answers[position] if 0 <= position < len(answers) else reference[0]

    return re.sub(r"#(\d{1,3})\b", answer, subquery)


def _popqa(row: Row) -> Question:
    return Question(
        id=str(row["id"]),
        question=row["question"],
        answers=accepted(json.loads(row["possible_answers"])),
        type=row["prop"],
        hops=1,
        gold_passages=[
            Passage(id=f"{row['id']}/{i}", title=paragraph["title"], text=paragraph["text"])
            for i, paragraph in enumerate(row.get("paragraphs", []))
            if paragraph["is_supporting"]
        ],
        metadata={"subj": row["subj"], "obj": row["obj"], "s_pop": int(row["s_pop"]), "o_pop": int(row["o_pop"])},
    )


def _strategyqa(row: Row) -> Question:
    return Question(
        id=row["qid"],
        question=row["question"],
        answers=accepted([row["answer"]]),
        hops=len(row["decomposition"]),
        metadata={"decomposition": row["decomposition"], "facts": row["facts"]},
    )


def _multihoprag(row: Row) -> Question:
    return Question(
        id=str(row["id"]),
        question=row["question"] if "question" in row else row["query"],
        answers=accepted([row["answer"]]),
        type=row["question_type"],
        hops=len(row["evidence_list"]) or None,
        gold_passages=[
            Passage(id=f"{row['id']}/{i}", title=evidence["title"], text=evidence["fact"])
            for i, evidence in enumerate(row["evidence_list"])
        ],
    )


def _cag(row: Row) -> Question:
    """Read CAG's EvoTempQA. The answers of a nested list are alternatives, like those of a flat list."""
    answers = [a for answer in row["answers"] for a in (answer if isinstance(answer, list) else [answer])]
    return Question(
        id=str(row["id"]),
        question=row["question"],
        answers=accepted(answers),
        metadata={"q_date": row.get("q_date"), "docs": row["docs"]},
    )


def _webquestions(row: Row) -> Question:
    if "qText" in row:
        return Question(id=row["qId"], question=row["qText"], answers=accepted(row["answers"]))
    return Question(id=row["id"], question=row["question"], answers=accepted(row["answers"]))


def _flashrag(row: Row) -> Question:
    return Question(
        id=str(row["id"]),
        question=row["question"],
        answers=accepted(row["golden_answers"]),
        metadata=row.get("metadata") or {},
    )


def _long_tail(row: Row) -> Question | None:
    """Read PopQA's long tail: subjects with fewer than 100 page views per month (Self-RAG, section 4.1: 1,399)."""
    return _popqa(row) if int(row["s_pop"]) < 100 else None


def _flashrag_long_tail(row: Row) -> Question | None:
    return _flashrag(row) if int(row["metadata"]["s_pop"]) < 100 else None


def _squad(row: Row) -> Question:
    given = row["answers"]
    texts = given["text"] if isinstance(given, dict) else [answer["text"] for answer in given]
    paragraph = Passage(id=f"{row['id']}/0", title=row.get("title", ""), text=row["context"])
    return Question(
        id=row["id"], question=row["question"], answers=accepted(texts), hops=1, gold_passages=[paragraph]
    )


def _triviaqa(row: Row) -> Question:
    answer = row["Answer"] if "Answer" in row else row["answer"]
    get = {key.replace("_", "").lower(): value for key, value in answer.items()}.get
    return Question(
        id=row["QuestionId"] if "QuestionId" in row else row["question_id"],
        question=row["Question"] if "Question" in row else row["question"],
        # The displayed answer, followed by the answers with which the official script compares.
        answers=accepted([get("value"), *(get("normalizedaliases") or []), *(get("humananswers") or [])]),
        hops=1,
    )


def _nq(row: Row) -> Question:
    return Question(id=row["id"], question=row["question"], answers=accepted(row["answer"]), hops=1)


def _dpr(row: Row) -> Question:
    return Question(
        id=row["id"],
        question=row["question"],
        answers=accepted(row["answers"]),
        hops=1,
        gold_passages=[
            Passage(id=str(context["passage_id"]), title=context["title"], text=context["text"])
            for context in row["positive_ctxs"][:1]  # sorted by score; DPR trains on the first
        ],
    )


def _commonsenseqa(row: Row) -> Question:
    """Read CommonsenseQA. The choices become part of the question; the accepted answers are text and letter."""
    stem = row["question"]
    if isinstance(stem, dict):
        stem, listed = stem["stem"], [(choice["label"], choice["text"]) for choice in stem["choices"]]
    else:
        listed = list(zip(row["choices"]["label"], row["choices"]["text"], strict=True))
    if not row["answerKey"]:
        raise ValueError("the question has no answer ('answerKey' is empty, as in the test split)")
    choices = dict(listed)
    return Question(
        id=row["id"],
        question=" ".join([stem, *(f"({label}) {text}" for label, text in choices.items())]),
        answers=accepted([choices[row["answerKey"]], row["answerKey"]]),
    )


def _asqa(row: Row) -> Question:
    """Read ASQA, with the long answers as accepted answers.

    ``answer_groups`` has the short answers; a good long answer contains one of each group.
    """
    groups = [accepted(pair["short_answers"]) for pair in row["qa_pairs"]]
    return Question(
        id=str(row["sample_id"]),
        question=row["ambiguous_question"],
        answers=accepted([annotation["long_answer"] for annotation in row["annotations"]]),
        metadata={"long_form": True, "answer_groups": groups},
    )


def _eli5(row: Row) -> Question:
    question = " ".join(text for text in (row["title"], row["selftext"]) if text.strip())
    return Question(
        id=row["q_id"], question=question, answers=accepted(row["answers"]["text"]), metadata={"long_form": True}
    )


def _eli5_kilt(row: Row) -> Question:
    texts = [output["answer"] for output in row["output"] if "answer" in output]
    return Question(id=str(row["id"]), question=row["input"], answers=accepted(texts), metadata={"long_form": True})


def _bamboogle(row: Row) -> Question:
    return Question(id=row["id"], question=row["Question"], answers=accepted([row["Answer"]]), hops=2)


@dataclass(frozen=True)
class Format:
    """The format of a question file.

    Attributes:
        read: converts a row to a question. Raises KeyError, IndexError, TypeError, AttributeError or ValueError
            for a malformed row, and returns None for a row that is not part of the question set.
        signs: sets of field names. A row has this format if it has all fields of one of these sets.
        ids: whether the release has ids. If ids are missing or duplicated, the row's number, counted from 0, is
            passed to ``read`` as the id.
        scoring: key of `rag_train.answers.RULES`.
    """

    read: Callable[[Row], Question | None]
    signs: Sequence[set[str]] = ()
    ids: Literal["given", "missing", "duplicated"] = "given"
    scoring: str = "hotpotqa"


FORMATS: dict[str, Format] = {
    "2wikimultihopqa": Format(_2wikimultihopqa, [{"supporting_facts", "evidences"}]),
    "hotpotqa": Format(_hotpotqa, [{"supporting_facts", "context"}]),
    "musique": Format(_musique, [{"question_decomposition", "paragraphs"}], scoring="musique"),
    "popqa": Format(_popqa, [{"possible_answers"}], scoring="popqa"),
    "popqa-longtail": Format(_long_tail, scoring="popqa"),
    "strategyqa": Format(_strategyqa, [{"qid", "facts"}]),
    "multihoprag": Format(_multihoprag, [{"question_type", "evidence_list"}], ids="missing"),
    "cag": Format(_cag, [{"docs", "answers"}], ids="duplicated"),
    "webquestions": Format(_webquestions, [{"qText"}, {"url", "question", "answers"}], ids="missing"),
    "flashrag": Format(_flashrag, [{"golden_answers"}]),
    "squad": Format(_squad, [{"context", "question", "answers"}], scoring="squad"),
    "triviaqa": Format(_triviaqa, [{"QuestionId", "Answer"}, {"question_id", "answer"}], scoring="triviaqa"),
    "commonsenseqa": Format(_commonsenseqa, [{"answerKey"}]),
    "asqa": Format(_asqa, [{"ambiguous_question", "qa_pairs"}]),
    "eli5": Format(_eli5, [{"q_id", "selftext"}]),
    "eli5-kilt": Format(_eli5_kilt, [{"input", "output"}]),
    "dpr": Format(_dpr, [{"question", "answers", "positive_ctxs"}], ids="missing", scoring="squad"),
    "nq": Format(_nq, [{"question", "answer"}], ids="missing", scoring="squad"),
    "bamboogle": Format(_bamboogle, [{"Question", "Answer"}], ids="missing"),
    "rag-train": Format(Question.model_validate, [{"id", "question", "answers"}]),
}
"""Formats by name. A row that has the signs of several formats is read with the first of these."""


def in_flashrags_shape(kind: str, place: str) -> Format:
    """Return the format of rows in FlashRAG's shape, whose answers are compared as by the dataset's own script.

    These rows do not name their dataset: it is ``kind`` or, if that is "flashrag", the one that the file, its
    folder or the configuration on the Hub is named after.
    """
    if kind == "flashrag":
        words = re.findall(r"[a-z0-9]+", "/".join(Path(place).parts[-2:]).lower())
        kind = next((word for word in words if word in FORMATS and word != kind), kind)
    read = _flashrag_long_tail if kind == "popqa-longtail" else _flashrag
    return Format(read, scoring=FORMATS[kind].scoring)


def unfold(row: Row) -> Iterator[Row]:
    """Yield the rows inside a release's single object (SQuAD, TriviaQA, ASQA's dev split), or ``row`` itself."""
    if isinstance(row.get("data"), list):
        for article in row["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {"title": article.get("title", ""), "context": paragraph["context"]} | question
    elif isinstance(row.get("Data"), list):
        yield from row["Data"]
    elif isinstance(row.get("dev"), dict):
        yield from ({"sample_id": id} | question for id, question in row["dev"].items())
    else:
        yield row


COLUMNS = ("id", "question", "answers", "type", "hops")


def by_columns(columns: Mapping[str, str]) -> Format:
    """Return the format of any other JSON or CSV file.

    ``columns`` maps fields of `COLUMNS` to field names of the row; a dot separates the names of nested records, and
    applies to each record of a list. Without an id, rows are numbered from 0.
    """

    def read(row: Row) -> Question:
        fields = {"id": row.get("id")} | {field: _at(row, path) for field, path in columns.items()}
        answers = fields["answers"]
        listed = answers if isinstance(answers, list) else [answers]
        return Question.model_validate(fields | {"id": str(fields["id"]), "answers": accepted(listed)})

    return Format(read, ids="given" if "id" in columns else "duplicated")


def _at(value: Any, path: str) -> Any:
    """Return the value at a dotted path."""
    if isinstance(value, list):
        return [_at(item, path) for item in value]
    name, _, rest = path.partition(".")
    return _at(value[name], rest) if rest else value[name]
