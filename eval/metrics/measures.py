"""Measures of a single trajectory beyond EM, F1 and accuracy.

The question decides which measures apply: ``metadata["long_form"]`` asks for ROUGE; ``metadata["answer_groups"]``
or the type "compound" for compound accuracy; gold passages for precision and recall of retrieval.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from rag_train.answers import composed, contains, rules_of
from rag_train.errors import not_installed
from rag_train.formats.planrag import depths
from rag_train.schema import Decision, Passage, Question, Trajectory

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer  # needs the extra "eval"


def optional_measures(question: Question, trajectory: Trajectory) -> dict[str, float]:
    """Return the applicable measures by name, as fractions in [0, 1]."""
    measures: dict[str, float] = {}
    passages = retrieved(trajectory)
    if any(step.decision is Decision.RETRIEVE for step in trajectory.steps):
        measures["success"] = float(success(question, passages))
        if question.gold_passages:
            measures["gold_precision"], measures["gold_recall"] = gold_overlap(question, passages)
    if question.type == "compound" or "answer_groups" in question.metadata:
        measures["compound"] = compound(question, trajectory.answer)
    if question.metadata.get("long_form"):
        measures["rouge2"], measures["rouge_l"] = rouge(question, trajectory.answer)
    return measures


def retrieved(trajectory: Trajectory) -> list[Passage]:
    """Return the distinct passages of all steps."""
    return list({passage.id: passage for step in trajectory.steps for passage in step.passages}.values())


def success(question: Question, passages: Sequence[Passage]) -> bool:
    """Return whether a title or text contains an answer as whole words (LevelRAG, Experimental Settings).

    The measure is meaningless for yes/no questions.
    """
    rules = rules_of(question)
    return any(contains(f"{passage.title} {passage.text}", question.answers, rules) for passage in passages)


def gold_overlap(question: Question, passages: list[Passage]) -> tuple[float, float]:
    """Return (precision, recall) of the retrieved passages against the gold passages.

    Two passages are the same if their titles and texts have the same `words`. If the corpus is split into other
    passages than the dataset's, recall is 0. KILT's gold passages are whole pages: a passage with
    the title counts.
    """
    pages = {words(passage.title) for passage in question.gold_passages if not passage.text}
    gold = {words(f"{passage.title} {passage.text}") for passage in question.gold_passages}
    found = {words(p.title if words(p.title) in pages else f"{p.title} {p.text}") for p in passages}
    return len(gold & found) / len(found) if found else 0.0, len(gold & found) / len(gold)


@lru_cache(maxsize=100_000)
def words(text: str) -> str:
    """Return the words of a text, NFKC-normalised and case-folded, with single spaces."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def compound(question: Question, answer: str | None) -> float:
    """Return the share of the requested facts that the answer contains (HANRAG, section 5.2; ASQA's STR-EM).

    The requested facts are the question's ``answer_groups``, a list of alternatives for each, or the parts of its
    answer between "&&".
    """
    groups = question.metadata.get("answer_groups") or [[part] for part in question.answers[0].split("&&")]
    return sum(contains(answer, group, rules_of(question)) for group in groups) / len(groups)


def rouge(question: Question, answer: str | None) -> tuple[float, float]:
    """Return the F-measures of ROUGE-2 and ROUGE-L with stemming, against the best reference (Lin 2004)."""
    scores = _rouge_scorer().score_multi(list(map(composed, question.answers)), composed(answer or ""))
    return scores["rouge2"].fmeasure, scores["rougeL"].fmeasure


@cache
def _rouge_scorer() -> RougeScorer:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise not_installed(error, "eval") from error
    return RougeScorer(["rouge2", "rougeL"], use_stemmer=True)


def depth(trajectory: Trajectory) -> int:
    """Return the length of the plan's longest path (PlanRAG, Figure 4b), or the number of rounds without a plan."""
    if trajectory.plan is None:
        return trajectory.rounds
    return max(depths(trajectory.plan).values(), default=0)


WH_WORDS = frozenset(("what", "when", "where", "which", "who", "whom", "whose", "why", "how"))
_PRONOUNS = """
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself we us
our ours ourselves they them their theirs themselves
"""
PRONOUNS = frozenset(_PRONOUNS.split())
CONJUNCTIONS = frozenset(("and", "or"))


def wording(trajectory: Trajectory) -> tuple[int, int, int, int]:
    """Count the subqueries, and the WH-words, pronouns and conjunctions in them (DeepRAG, Figure 4).

    These word classes are closed, so lists suffice; the figure names the conjunctions "and" and "or". Its "nouns"
    must be pronouns, of which its text speaks, because a subquery has more than 0.04 nouns. The figure also counts
    verbs, which need a tagger and are left out here.
    """
    texts = [words(step.subquery).split() for step in trajectory.steps]
    classes = (WH_WORDS, PRONOUNS, CONJUNCTIONS)
    wh, pronouns, conjunctions = (sum(word in kind for text in texts for word in text) for kind in classes)
    return len(texts), wh, pronouns, conjunctions
