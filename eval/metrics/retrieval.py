"""Retrieval quality on questions with known supporting passages or answers.

Recall, precision, MRR and nDCG are those of trec_eval (through pytrec_eval); in addition, LevelRAG's success rate
and PlanRAG's match of gold sentences. All measures are fractions in [0, 1], averaged over the questions they apply
to, with Wilson's 95% intervals.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rag_train.errors import UserError, not_installed
from rag_train.eval.metrics.intervals import Interval, share
from rag_train.eval.metrics.measures import success, words
from rag_train.progress import progress
from rag_train.retrieval.base import Retriever
from rag_train.rows import parse_json
from rag_train.schema import Passage, Question, Record
from rag_train.table import NOTHING, Table

try:
    import pytrec_eval
except ImportError as error:
    raise not_installed(error) from error

CUTOFFS = (2, 5, 10)
CHUNK = 50
"""Characters of a chunk of a gold sentence (PlanRAG, appendix E.3: "chunks of size 50", without a unit)."""


class Gold(Record):
    """The gold passages of one question in a corpus."""

    found: list[list[str]]
    """For each distinct gold passage, the ids of the corpus passages with its text; any of them counts."""
    missing: int
    """Number of gold passages that the corpus lacks."""


class RetrievalEval(Record):
    """Results of one retriever on one question set."""

    retriever: str
    dataset: str
    questions: int
    judged: int
    """Number of questions whose gold passages are all in the corpus; recall, MRR etc. are over these."""
    seconds: float
    """Total time of all searches, made in batches."""
    measures: dict[str, Interval]
    """``recall@k``, ``precision@k``, ``ndcg@k``, ``mrr``, ``success@k`` and, if gold sentences are given,
    ``sentence_recall@k`` and ``sentence_precision@k``; a measure that applies to no question is absent."""

    @property
    def queries_per_second(self) -> float:
        return self.questions / self.seconds


def gold_passages(questions: Sequence[Question], corpus: Iterable[Passage]) -> list[Gold]:
    """Find the gold passages of each question in the corpus, in the order of the questions.

    Releases write the same passage differently: HotpotQA joins sentences with spaces, PopQA folds case. So two
    passages are the same if title and text have the same words after NFKC normalisation and case folding. A gold
    passage without text is a whole page, as in KILT: every passage with its title counts.
    """
    ids: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    pages = {words(p.title) for question in questions for p in question.gold_passages if not p.text}
    for passage in corpus:
        ids[_identity(passage)].append(passage.id)
        if passage.text and words(passage.title) in pages:
            ids[words(passage.title), ""].append(passage.id)
    golds: list[Gold] = []
    for question in questions:
        wanted = dict.fromkeys(map(_identity, question.gold_passages))
        found = [ids[key] for key in wanted if key in ids]
        golds.append(Gold(found=found, missing=len(wanted) - len(found)))
    return golds


def gold_sentences(path: str | Path) -> dict[str, list[str]]:
    """Read the supporting sentences of a HotpotQA or 2WikiMultihopQA file, by question id.

    `Question` keeps only the paragraphs. Supporting facts that name no sentence of the context are left out; both
    releases have a few. Raises UserError if the file has neither format.
    """
    try:
        sentences: dict[str, list[str]] = {}
        for row in parse_json(Path(path).read_text(encoding="utf-8-sig")):
            context = dict(row.get("context") or [])
            named = [(context.get(title, []), position) for title, position in row["supporting_facts"]]
            sentences[row["_id"]] = [texts[i] for texts, i in named if 0 <= i < len(texts) and words(texts[i])]
        return sentences
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: no supporting sentences ({error}); give a file in HotpotQA's format") from error


def evaluate_retriever(
    retriever: Retriever,
    questions: Sequence[Question],
    golds: Sequence[Gold],
    sentences: Mapping[str, Sequence[str]] | None = None,
    dataset: str = "",
    batch: int = 64,
) -> RetrievalEval:
    """Search with each question as the query and score the passages at `CUTOFFS`.

    Args:
        retriever: returns the best passages first.
        questions: at least one question.
        golds: gold passages of the same questions, from `gold_passages`.
        sentences: gold sentences by question id, from `gold_sentences`.
        dataset: name of the question set.
        batch: number of queries per search.

    Raises:
        UserError: if ``questions`` is empty. Errors of the retriever are passed on.
    """
    if not questions:
        raise UserError(f"no questions to evaluate the retriever {retriever.name}; give at least one")
    results: list[list[Passage]] = []
    seconds = 0.0
    with progress(f"{retriever.name} {dataset}".strip(), len(questions)) as advance:
        for start in range(0, len(questions), batch):
            queries = [question.question for question in questions[start : start + batch]]
            began = time.perf_counter()
            results += retriever.search(queries, max(CUTOFFS))
            seconds += time.perf_counter() - began
            advance(len(queries))
    values: defaultdict[str, list[float]] = defaultdict(list)
    for scores in question_scores(questions, golds, results, sentences or {}):
        for name, value in scores.items():
            values[name].append(value)
    return RetrievalEval(
        retriever=retriever.name,
        dataset=dataset,
        questions=len(questions),
        judged=sum(map(_judged, golds)),
        seconds=seconds,
        measures={name: share(scores) for name, scores in values.items()},
    )


def question_scores(
    questions: Sequence[Question],
    golds: Sequence[Gold],
    results: Sequence[Sequence[Passage]],
    sentences: Mapping[str, Sequence[str]],
) -> list[dict[str, float]]:
    """Return the measures of each question; measures that need gold data the question lacks are absent."""
    rows: list[dict[str, float]] = []
    trec = iter(_trec([(gold, passages) for gold, passages in zip(golds, results, strict=True) if _judged(gold)]))
    for question, gold, passages in zip(questions, golds, results, strict=True):
        row = dict(next(trec)) if _judged(gold) else {}
        for k in CUTOFFS:
            row[f"success@{k}"] = float(success(question, passages[:k]))
            if gold_texts := sentences.get(question.id):
                precision, recall = sentence_match(gold_texts, passages[:k])
                row |= {f"sentence_precision@{k}": precision, f"sentence_recall@{k}": recall}
        rows.append(row)
    return rows


def sentence_match(sentences: Sequence[str], passages: Sequence[Passage]) -> tuple[float, float]:
    """Return (precision, recall) of passages against gold sentences (PlanRAG, Table 4 and appendix E.3).

    A gold sentence is found if a passage contains any of its chunks of `CHUNK` characters. Precision is the share
    of passages that contain a chunk of any gold sentence, 0 without passages; recall is the share of gold sentences
    found. Texts are compared without case and punctuation. The remainder after the last whole chunk is ignored,
    because a few letters occur everywhere; a sentence shorter than one chunk is a single chunk.
    """
    chunked = [_chunks(words(sentence)) for sentence in sentences]
    texts = [words(passage.text) for passage in passages]
    hits = [[any(chunk in text for chunk in chunks) for chunks in chunked] for text in texts]
    precision = sum(map(any, hits)) / len(texts) if texts else 0.0
    recall = sum(map(any, zip(*hits, strict=True))) / len(chunked)
    return precision, recall


def retrieval_table(evals: Sequence[RetrievalEval]) -> Table:
    """Return a table with a row per retriever and question set: recall, MRR, nDCG, success and speed."""
    recalls = [f"R@{k}" for k in CUTOFFS]
    measures = [*(f"recall@{k}" for k in CUTOFFS), "mrr", "ndcg@10", "success@10"]
    return Table(
        title="Retrieval",
        caption="The queries are the questions. Recall, MRR, nDCG and success (the retrieved text contains a gold "
        "answer) in percent; judged: questions whose gold passages are all in the corpus, the base of recall, MRR "
        "and nDCG; queries per second in batches.",
        columns=["Retriever", "Dataset", "Judged", *recalls, "MRR", "nDCG@10", "Success@10", "Queries/s"],
        rows=[
            [
                run.retriever,
                run.dataset,
                f"{run.judged:,}",
                *(_percent(run.measures.get(name)) for name in measures),
                f"{run.queries_per_second:,.0f}",
            ]
            for run in evals
        ],
    )


def _percent(interval: Interval | None) -> str:
    return f"{100 * interval.mean:.1f}" if interval else NOTHING


def _identity(passage: Passage) -> tuple[str, str]:
    return words(passage.title), words(passage.text)


def _judged(gold: Gold) -> bool:
    return bool(gold.found) and not gold.missing


def _chunks(text: str) -> list[str]:
    return [text[i : i + CHUNK] for i in range(0, len(text) - CHUNK + 1, CHUNK)] or [text]


def _trec(judged: Sequence[tuple[Gold, Sequence[Passage]]]) -> list[dict[str, float]]:
    """Return the measures of trec_eval for each question.

    A passage that the corpus contains several times counts once, at its first rank: all copies get the id of the
    first copy. trec_eval sorts by score, then by id, so the scores passed to it are negative ranks.
    """
    names = {f"P_{k}": f"precision@{k}" for k in CUTOFFS} | {f"recall_{k}": f"recall@{k}" for k in CUTOFFS}
    names |= {f"ndcg_cut_{k}": f"ndcg@{k}" for k in CUTOFFS} | {"recip_rank": "mrr"}
    qrels: dict[str, dict[str, int]] = {}
    runs: dict[str, dict[str, float]] = {}
    for i, (gold, passages) in enumerate(judged):
        first = {id: ids[0] for ids in gold.found for id in ids}
        ranked = dict.fromkeys(first.get(passage.id, passage.id) for passage in passages)
        qrels[str(i)] = {ids[0]: 1 for ids in gold.found}
        runs[str(i)] = {id: -float(rank) for rank, id in enumerate(ranked)}
    cutoffs = ",".join(map(str, CUTOFFS))
    measures = {f"P.{cutoffs}", f"recall.{cutoffs}", f"ndcg_cut.{cutoffs}", "recip_rank"}
    scores = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(runs)
    # trec_eval omits questions without retrieved passages; they score 0.
    return [{ours: scores.get(i, {}).get(theirs, 0.0) for theirs, ours in names.items()} for i in runs]
