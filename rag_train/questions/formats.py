"""The file formats of released question sets (`FORMATS`), each with a function from a row to a `Question`.

Paragraphs that the release marks as supporting become ``gold_passages``. Their id is the title in HotpotQA and
2WikiMultihopQA, the page in KILT, and ``<question id>/<position>`` in other formats, where titles are not unique.
Rows from the Hub, in which lists of records have become records of lists or texts, are supported, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from rag_train.questions.fields import (
    NoAnswers,
    accepted,
    at,
    choices,
    listed,
    multiple_choice,
    pairs,
    records,
    text_of,
    truth,
    unanswerable,
)
from rag_train.questions.hops import names_in, question_of, read_hop, subject_of
from rag_train.rows import Row, written_value
from rag_train.schema import GoldStep, Passage, Question


def _wikipedia(row: Row, metadata: dict[str, Any], **more: Any) -> Question:
    """Read the fields common to HotpotQA and 2WikiMultihopQA. Some rows of 2WikiMultihopQA have no context.

    ``answer_aliases`` are those of 2WikiMultihopQA's ``id_aliases.json``. ``metadata["supporting"]`` has the
    annotated sentences of the gold passages.
    """
    answers = accepted(row["answer"], row.get("answer_aliases"))
    facts, context = (pairs(row.get(field) or []) for field in ("supporting_facts", "context"))
    titles = dict.fromkeys(title for title, _ in facts)
    sentences = {title: [sentence.strip() for sentence in paragraph] for title, paragraph in context}
    paragraphs = {title: " ".join(paragraph) for title, paragraph in sentences.items()}
    supporting = [text for title, number in facts for text in sentences.get(title, [])[number : number + 1]]
    return Question(
        id=row["_id"] if "_id" in row else row["id"],
        question=row["question"],
        answers=answers,
        type=row["type"],
        gold_passages=[Passage(id=t, title=t, text=paragraphs[t]) for t in titles if t in paragraphs],
        metadata=metadata | ({"supporting": supporting} if supporting else {}),
        **more,
    )


def _hotpotqa(row: Row) -> Question:
    return _wikipedia(row, hops=2, metadata={"level": row["level"]})


def _2wikimultihopqa(row: Row) -> Question:
    evidences = pairs(row["evidences"])  # (subject, relation, object), one for each hop
    steps: list[GoldStep] = []
    for subject, relation, value in evidences:
        subject = subject_of(subject, [step.answer for step in steps])
        steps.append(GoldStep(subquery=question_of(subject, relation), answer=value, entity=subject))
    return _wikipedia(row, hops=len(evidences), metadata={"evidences": evidences}, decomposition=steps)


CONTRAST = "/unanswerable"
"""End of the id of a question of MuSiQue-Full without answer; the rest is the id of its answerable twin."""


def _musique(row: Row) -> Question:
    if not truth(row.get("answerable", True)):  # a second row with the id and the question of an answerable one
        return Question(**unanswerable(f"{row['id']}{CONTRAST}", row["question"]))
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
        answers=accepted(row["answer"], row["answer_aliases"]),
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
        id=row["id"],
        question=row["question"],
        answers=accepted(row["possible_answers"]),
        type=row["prop"],
        hops=1,
        gold_passages=[
            Passage(id=f"{row['id']}/{i}", title=paragraph["title"], text=paragraph["text"])
            for i, paragraph in enumerate(records(row.get("paragraphs")))
            if paragraph["is_supporting"]
        ],
        metadata={
            "subj": row["subj"],
            "obj": row["obj"],
            "s_pop": _views(row["s_pop"]),
            "o_pop": _views(row["o_pop"]),
        },
    )


def _views(value: Any) -> int | None:
    """Return the page views of a month, if known; pandas writes them with a decimal point if some are missing."""
    return int(float(value)) if text_of(value) else None


def _long_tail(question: Question) -> bool:
    """Whether the subject of PopQA's question has fewer than 100 page views per month (Self-RAG, section 4.1)."""
    views = _views(question.metadata["s_pop"])
    return views is not None and views < 100


def _strategyqa(row: Row) -> Question:
    # Some copies on the Hub lack the decomposition, and have the facts as one text.
    steps = listed(row["decomposition"]) if row.get("decomposition") else None
    return Question(
        id=row["qid"],
        question=row["question"],
        answers=accepted(truth(row["answer"])),
        hops=len(steps) if steps else None,
        metadata=({"decomposition": steps} if steps else {}) | {"facts": listed(row["facts"])},
    )


def _multihoprag(row: Row) -> Question:
    evidences = records(row["evidence_list"])
    return Question(
        id=str(row["id"]),
        question=row["question"] if "question" in row else row["query"],
        answers=accepted(row["answer"]),
        type=row["question_type"],
        hops=len(evidences) or None,
        gold_passages=[
            Passage(id=f"{row['id']}/{i}", title=evidence["title"], text=evidence["fact"])
            for i, evidence in enumerate(evidences)
        ],
    )


def _cag(row: Row) -> Question:
    """Read CAG's EvoTempQA. The answers of a nested list are alternatives, like those of a flat list."""
    answers = [a for answer in listed(row["answers"]) for a in (answer if isinstance(answer, list) else [answer])]
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
    """Read FlashRAG's rows, and Search-R1's, whose ids are unique only within their ``data_source``."""
    source = f"{row['data_source']}:" if row.get("data_source") else ""
    id, metadata = f"{source}{row['id']}", row.get("metadata") or {}
    if offered := row.get("choices") or metadata.get("choices"):
        asked = multiple_choice(row["question"], choices(offered), listed(row["golden_answers"]))
        return Question(id=id, **asked | {"metadata": metadata | asked["metadata"]})
    return Question(id=id, question=row["question"], answers=accepted(row["golden_answers"]), metadata=metadata)


def _kilt(row: Row) -> Question:
    """Read a row of KILT's tasks. The passages of its provenance name pages, and have no text."""
    outputs = records(row["output"])
    pages = [page for output in outputs for page in records(output.get("provenance"))]
    titles = {str(page.get("wikipedia_id") or page["title"]): page["title"] for page in pages if page.get("title")}
    answers = [output["answer"] for output in outputs if output.get("answer")]
    if not answers:
        raise NoAnswers("no output has an answer: this split has no answers")
    return Question(
        id=row["id"],
        question=row["input"],
        answers=accepted(answers),
        gold_passages=[Passage(id=id, title=title, text="") for id, title in titles.items()],
    )


def _squad(row: Row) -> Question:
    given = written_value(row["answers"]) if isinstance(row["answers"], str) else row["answers"]
    given = listed(given["text"] if isinstance(given, dict) else given)
    texts = [answer["text"] if isinstance(answer, dict) else answer for answer in given]
    if truth(row.get("is_impossible")) or not texts:
        return Question(**unanswerable(row["id"], row["question"], hops=1))
    paragraph = Passage(id=f"{row['id']}/0", title=row.get("title") or "", text=row["context"])
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
        answers=accepted(get("value"), get("normalizedaliases"), get("humananswers")),
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
            Passage(
                id=text_of(context.get("passage_id", context.get("psg_id"))),
                title=context["title"],
                text=context["text"],
            )
            for context in records(row["positive_ctxs"])[:1]  # sorted by score; DPR trains on the first
        ],
    )


def _fid(row: Row) -> Question:
    """Read the output of DPR's retriever, which is FiD's input. Nobody has judged its passages."""
    answers = accepted(row.get("target"), row["answers"])
    return Question(id=row["id"], question=row["question"], answers=answers, hops=1)


def _beir(row: Row) -> Question:
    """Read a query of BEIR's; only those of HotpotQA have answers, in their metadata."""
    answer = (row.get("metadata") or {}).get("answer")
    if answer is None:
        raise NoAnswers("BEIR's queries have judgements of passages, and no answers")
    return Question(id=row["_id"], question=row["text"], answers=accepted(answer))


def _commonsenseqa(row: Row) -> Question:
    """Read CommonsenseQA, ARC and OpenBookQA."""
    stem = row["question"] if "question" in row else row["question_stem"]
    stem, offered = (stem["stem"], stem["choices"]) if isinstance(stem, dict) else (stem, row["choices"])
    return Question(id=row["id"], **multiple_choice(stem, choices(offered), [row["answerKey"]]))


def _mmlu(row: Row) -> Question:
    """Read MMLU, MMLU-Pro and MedQA."""
    key = row[next(name for name in ("answer_idx", "answer_index", "answer") if name in row or name == "answer")]
    offered = row["choices"] if "choices" in row else row["options"]
    id = row["question_id"] if "question_id" in row else row["id"]
    return Question(
        id=id, type=row.get("subject") or "", **multiple_choice(row["question"], choices(offered), [key])
    )


def _ambigqa(row: Row) -> Question:
    """Read AmbigQA. The answers of all annotators, to all readings of the question, are accepted.

    If one annotator has listed several readings, ``answer_groups`` has the answers to each.
    """
    annotations = records(row["annotations"])
    readings = [
        [accepted(pair["answer"]) for pair in records(each["qaPairs"])]
        if each["type"] == "multipleQAs"
        else [accepted(each["answer"])]
        for each in annotations
    ]
    several = len(readings) == 1 and len(readings[0]) > 1
    return Question(
        id=row["id"],
        question=row["question"],
        answers=accepted([answer for groups in readings for group in groups for answer in group]),
        metadata={"answer_groups": readings[0]} if several else {},
    )


def _asqa(row: Row) -> Question:
    """Read ASQA, with the long answers as accepted answers.

    ``answer_groups`` has the short answers; a good long answer contains one of each group.
    """
    groups = [accepted(pair["short_answers"]) for pair in records(row["qa_pairs"])]
    return Question(
        id=row["sample_id"],
        question=row["ambiguous_question"] if "ambiguous_question" in row else row["question"],
        answers=accepted([annotation["long_answer"] for annotation in records(row["annotations"])]),
        metadata={"answer_groups": groups},
    )


def _eli5(row: Row) -> Question:
    question = " ".join(text for text in (row["title"], row["selftext"]) if text.strip())
    return Question(id=row["q_id"], question=question, answers=accepted(row["answers"]["text"]))


def _bamboogle(row: Row) -> Question:
    return Question(id=row["id"], question=row["Question"], answers=accepted(row["Answer"]), hops=2)


def _plain(row: Row) -> Question:
    """Read the files that people write themselves, and our own: cells of tables may be empty."""
    names = ("id", "_id", "qid", "question_id", "answers", "answer")
    fields = {name: value for name, value in row.items() if name not in names and value not in ("", None)}
    id = next((row[name] for name in ("_id", "qid", "question_id") if row.get(name)), row["id"])
    return Question(**fields, id=id, answers=accepted(row["answers"] if "answers" in row else row["answer"]))


@dataclass(frozen=True)
class Format:
    """The format of a question file.

    Attributes:
        read: converts a row to a question. Raises KeyError, IndexError, TypeError, AttributeError or ValueError
            for a malformed row.
        signs: sets of field names. A row has this format if it has all fields of one of these sets, and ``fits``.
        fits: what else a row of this format has.
        ids: whether the release has ids. If ids are missing or duplicated, the row's number, counted from 0, is
            passed to ``read`` as the id.
        scoring: key of `rag_train.answers.RULES`.
        long_form: whether answers are long texts, which ROUGE compares, too.
        shared: whether several datasets are released in this shape. Answers are then compared as in the dataset
            that the kind, the row or the file names, and by ``scoring`` if none does.
        names: names of the dataset in files and rows; the format's own, unless it is shared, is one, too.
        keep: whether a question belongs to the set.
    """

    read: Callable[[Row], Question]
    signs: Sequence[set[str]] = ()
    ids: Literal["given", "missing", "duplicated"] = "given"
    scoring: str = "hotpotqa"
    long_form: bool = False
    shared: bool = False
    names: Sequence[str] = ()
    fits: Callable[[Row], bool] = lambda row: True
    keep: Callable[[Question], bool] = lambda question: True

    def recognizes(self, row: Row) -> bool:
        """Whether ``row`` has this format."""
        return any(fields <= row.keys() for fields in self.signs) and self.fits(row)


def _record_of_answers(row: Row) -> bool:
    return isinstance(row.get("Answer", row.get("answer")), dict)


def _list_of_answers(row: Row) -> bool:
    return isinstance(row["answer"], list)


FORMATS: dict[str, Format] = {
    "2wikimultihopqa": Format(_2wikimultihopqa, [{"supporting_facts", "evidences"}], names=["2wiki"]),
    "hotpotqa": Format(_hotpotqa, [{"supporting_facts", "context"}], names=["hotpot"]),
    "musique": Format(_musique, [{"question_decomposition", "paragraphs"}], scoring="musique"),
    "popqa": Format(_popqa, [{"possible_answers"}], scoring="popqa"),
    "popqa-longtail": Format(_popqa, scoring="popqa", keep=_long_tail),
    "strategyqa": Format(_strategyqa, [{"qid", "facts"}]),
    "multihoprag": Format(_multihoprag, [{"question_type", "evidence_list"}], ids="missing"),
    "cag": Format(_cag, [{"docs", "answers"}], ids="duplicated"),
    "webquestions": Format(
        _webquestions, [{"qText"}, {"url", "question", "answers"}], ids="missing", names=["webq"]
    ),
    "flashrag": Format(_flashrag, [{"golden_answers"}], ids="missing", shared=True),
    "asqa": Format(_asqa, [{"qa_pairs", "annotations"}], long_form=True),
    "ambigqa": Format(_ambigqa, [{"question", "annotations"}], names=["ambignq"]),
    "commonsenseqa": Format(_commonsenseqa, [{"answerKey"}], ids="missing", scoring="choice"),
    "mmlu": Format(
        _mmlu,
        [{"question", choices, key} for choices in ("choices", "options") for key in ("answer", "answer_idx")],
        ids="missing",
        scoring="choice",
    ),
    "squad": Format(
        _squad, [{"context", "question", "answers"}], "missing", "squad", names=["squad1", "squad2", "squadv2"]
    ),
    "triviaqa": Format(
        _triviaqa,
        [{"QuestionId", "Answer"}, {"question_id", "answer"}],
        scoring="triviaqa",
        names=["trivia"],
        fits=_record_of_answers,
    ),
    "eli5": Format(_eli5, [{"q_id", "selftext"}], long_form=True),
    "kilt": Format(_kilt, [{"input", "output"}], scoring="squad", shared=True),
    "wow": Format(_kilt, scoring="squad", long_form=True),
    "dpr": Format(_dpr, [{"question", "answers", "positive_ctxs"}], "missing", "squad", shared=True),
    "fid": Format(_fid, [{"question", "answers", "ctxs"}], "missing", "squad", shared=True),
    "nq": Format(
        _nq,
        [{"question", "answer"}],
        "missing",
        "squad",
        shared=True,
        names=["nq", "nqopen", "naturalquestions"],
        fits=_list_of_answers,
    ),
    "curatedtrec": Format(_plain, ids="missing", scoring="curatedtrec", names=["trec"]),
    "beir": Format(_beir, [{"_id", "text"}], shared=True),
    "bamboogle": Format(_bamboogle, [{"Question", "Answer"}], ids="missing"),
    "rag-train": Format(_plain, [{"id", "question", "answers", "metadata"}]),
    "plain": Format(_plain, [{"question", "answers"}, {"question", "answer"}], ids="missing", shared=True),
}
"""Formats by name. A row that several formats recognize is read with the first of these."""

_DATASETS = {re.sub(r"\W", "", kind): format for kind, format in FORMATS.items() if not format.shared} | {
    name: format for format in FORMATS.values() for name in format.names
}
del _DATASETS["ragtrain"], _DATASETS["popqalongtail"]  # no names of datasets


@lru_cache
def dataset_named(text: str) -> Format | None:
    """Return the format of the dataset that ``text`` names, such as a file with its folder, or None."""
    words = re.findall(r"[a-z0-9]+", "/".join(Path(text).parts[-2:]).lower())
    runs = ("".join(words[i : i + length]) for length in (3, 2, 1) for i in range(len(words) - length + 1))
    return next((_DATASETS[run] for run in runs if run in _DATASETS), None)


def unfold(row: Row) -> Iterator[Row]:
    """Yield the rows inside a single object (SQuAD, TriviaQA, ASQA, lists of one's own), or ``row`` itself."""
    if any(format.recognizes(row) for format in FORMATS.values()):
        yield row
    elif lists := [
        row[name] for name in ("data", "Data", "questions", "examples") if isinstance(row.get(name), list)
    ]:
        for item in lists[0]:
            if "paragraphs" not in item:
                yield item
            for paragraph in item.get("paragraphs", []):
                for question in paragraph["qas"]:
                    yield {"title": item.get("title", ""), "context": paragraph["context"]} | question
    elif splits := [row[name] for name in ("dev", "train") if isinstance(row.get(name), dict)]:
        yield from ({"sample_id": id} | question for id, question in splits[0].items())
    else:
        yield row


COLUMNS = ("id", "question", "answers", "type", "hops")


def by_columns(columns: Mapping[str, str]) -> Format:
    """Return the format of any other JSON or CSV file.

    ``columns`` maps fields of `COLUMNS` to field names of the row; a dot separates the names of nested records, and
    applies to each record of a list. Without an id, rows are numbered from 0.
    """

    def read(row: Row) -> Question:
        fields = {"id": row.get("id")} | {field: at(row, path) for field, path in columns.items()}
        return Question.model_validate(fields | {"answers": accepted(fields["answers"])})

    return Format(read, ids="given" if "id" in columns else "duplicated", shared=True)
