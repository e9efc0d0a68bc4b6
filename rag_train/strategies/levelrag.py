"""LevelRAG (Zhang et al. 2025): a high-level searcher plans; low-level searchers adapt the queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.errors import UserError
from rag_train.formats import levelrag
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, joined, strategy, together

Searcher = Literal["sparse", "dense", "web"]
SEARCHERS: tuple[Searcher, ...] = ("sparse", "web", "dense")
"""The low-level searchers, in the order in which their passages are read (the release's)."""


@strategy("levelrag-hybrid", Bound(calls=85, retrievals=44), searcher="hybrid")
@strategy("levelrag-web", Bound(calls=1, retrievals=1), searcher="web")
@strategy("levelrag-dense", Bound(calls=5, retrievals=3), searcher="dense")
@strategy("levelrag-sparse", Bound(calls=81, retrievals=40), searcher="sparse")
@strategy("levelrag", Bound(calls=51_200, retrievals=26_400))
@dataclass(frozen=True)
class LevelRAG(Strategy):
    """Decompose the question, search with every low-level searcher, summarize, verify and supplement.

    The passages of several queries or searchers are read one after another, as in the release; ours: without
    duplicates. While the summaries do not suffice, there are up to ``max_rounds`` rounds, each with up to 85 calls
    for an atomic query; ``max_calls`` limits them.
    """

    paper: ClassVar = "LevelRAG (Zhang et al. 2025), section 3, Algorithm 1; ablations: tables 2 and 3"
    needs: ClassVar = ("a Lucene index (sparse), a dense index (dense) or web search (web)",)

    searcher: Searcher | Literal["hybrid"] | None = None
    """sparse, dense, web: use this low-level searcher, with the question as the query; hybrid: use all available
    ones in this way (table 7); null: let the high-level searcher direct them."""
    directs: Searcher | None = None
    """Low-level searcher that the high-level searcher directs (tables 2 and 4: the sparse one); null: all available
    ones."""
    supplement: bool = True
    """Verify the summaries, and add atomic queries until they are sufficient."""
    summarize: bool = True
    """Summarize by answering the atomic queries; false: read the passages themselves."""
    rewrite: bool = True
    """Sparse: rewrite the query as keywords."""
    raw_first: bool = False
    """Sparse: search with the query as it is first, and rewrite it only if that is insufficient. A script of the
    release does so (``rewrite_query=adaptive``); Algorithm 1 and table 3 of the paper rewrite at once."""
    feedback: bool = True
    """Sparse and dense: refine the query until the retrieved passages are sufficient."""
    max_rounds: int = 100
    """Maximum number of rounds of atomic queries (the release's). The paper has no maximum: it stops when the
    summaries suffice."""
    max_queries: int = 6
    """Maximum number of atomic queries in a round. Ours: the model decides in the paper and in the release."""
    depth: int = 3
    """Sparse: depth of the breadth-first search below the first query. An insufficient query is refined in three
    ways: at depth 3 there are 1 + 3 + 9 + 27 = 40 queries. The paper's 27 refinements are those of depth 3."""
    max_rewrites: int = 2
    """Dense: maximum number of pseudo-documents. The release's limit of 3 counts the first search; the paper
    states 3 rewrites."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in (self.searcher, self.directs):
            if kind not in (None, "hybrid", *self.kit.retrievers):
                raise UserError(f"--strategy {self.name}: needs a {kind} retriever; give --index {kind}=DIR")
        if not any(kind in self.kit.retrievers for kind in SEARCHERS):
            raise UserError(
                f"--strategy {self.name}: needs a sparse (Lucene), dense or web retriever; "
                "for example, give --index sparse=DIR"
            )

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        if self.searcher:
            passages = await self._low_level(run, question.question, 1)
            _, answer = await run.read(question.question, passages)
            return run.done(answer)
        summaries: list[tuple[str, str]] = []
        found: list[Passage] = []
        queries = await self._atomic(run, levelrag.DECOMPOSE, summaries) or [question.question]
        for round in range(1, self.max_rounds + 1):
            results = await together(self._query(run, query, round) for query in queries)
            for query, (passages, summary) in zip(queries, results, strict=True):
                found = joined([found, passages])
                if summary:
                    summaries.append((query, summary))
            if not self.supplement:
                break
            if round == self.max_rounds:
                run.cut(f"ended after max_rounds={self.max_rounds}")
                break
            fields = levelrag.question_fields(question.question, summaries)
            if await run.ask(levelrag.VERIFY, fields) == "yes":
                break
            asked = {query for query, _ in summaries} | set(queries)
            more = await self._atomic(run, levelrag.SUPPLEMENT, summaries)
            queries = [query for query in more if query not in asked]
            if not queries:
                break
        if not self.summarize:
            _, answer = await run.read(question.question, found)
        else:
            answer = await run.ask(levelrag.ANSWER, levelrag.question_fields(question.question, summaries))
        return run.done(answer)

    async def _atomic(self, run: Run, task: levelrag.Task, summaries: Sequence[tuple[str, str]]) -> list[str]:
        queries = await run.ask(task, levelrag.question_fields(run.question.question, summaries)) or ()
        distinct = list(dict.fromkeys(query.strip() for query in queries if query.strip()))
        return run.first(distinct, self.max_queries, "atomic queries")

    async def _query(self, run: Run, query: str, round: int) -> tuple[list[Passage], str]:
        """Search for an atomic query with all low-level searchers; return the passages and the answer (summary)."""
        passages = await self._low_level(run, query, round)
        if not self.summarize:
            return passages, ""
        summary = await run.ask(levelrag.SUMMARIZE, levelrag.reading_fields(query, passages)) or ""
        run.known(query, summary, round=round, node="summary")
        return passages, summary

    async def _low_level(self, run: Run, query: str, round: int) -> list[Passage]:
        """Search with the low-level searchers; return their passages one after another."""
        only = self.searcher or self.directs
        kinds = [kind for kind in SEARCHERS if kind in run.kit.retrievers and only in (None, "hybrid", kind)]
        return joined(await together(self._search(run, kind, query, round) for kind in kinds))

    async def _search(self, run: Run, kind: Searcher, query: str, round: int) -> list[Passage]:
        search = {"sparse": self._sparse, "dense": self._dense, "web": self._web}[kind]
        passages, queries = await search(run, query)
        run.retrieved(query, passages, queries=queries, node=kind, round=round)
        return passages

    async def _sparse(self, run: Run, query: str) -> tuple[list[Passage], list[str]]:
        """Search breadth-first over queries in Lucene's syntax (Algorithm 1).

        The queries of a level run at the same time.

        Returns the passages of the first sufficient query, or of the last query if none is sufficient (the
        release's way; the paper does not say), and the queries.
        """
        tried: dict[str, list[Passage]] = {}
        if self.rewrite and self.raw_first:
            tried[query] = await run.search(query, kind="sparse")
            if await self._suffices(run, query, tried[query]):
                return tried[query], [query]
        words = await run.ask(levelrag.REWRITE, levelrag.reading_fields(query, [])) if self.rewrite else None
        level = [levelrag.keywords(words or []) or query]
        for depth in range(self.depth + 1):
            found = await together(run.search(q, kind="sparse") for q in level)
            tried |= dict(zip(level, found, strict=True))
            if not self.feedback:
                break
            for keywords, verdict in zip(
                level, await together(self._suffices(run, query, passages) for passages in found), strict=True
            ):
                if verdict:
                    return tried[keywords], list(tried)
            if depth == self.depth:
                break
            refined = await together(self._refine(run, query, q, tried[q]) for q in level)
            new = [q for q in dict.fromkeys(q for queries in refined for q in queries) if q and q not in tried]
            if not new:
                break
            level = new
        return tried[level[-1]], list(tried)

    async def _refine(self, run: Run, query: str, keywords: str, passages: list[Passage]) -> list[str]:
        """Apply the three feedback operations to a query."""
        fields = levelrag.feedback_fields(query, keywords, passages)
        more, less, most = await together(
            run.ask(task, fields) for task in (levelrag.EXTEND, levelrag.FILTER, levelrag.EMPHASIZE)
        )
        return [
            levelrag.extend(keywords, more or ""),
            levelrag.exclude(keywords, less or ""),
            levelrag.emphasize(keywords, most or ""),
        ]

    async def _dense(self, run: Run, query: str) -> tuple[list[Passage], list[str]]:
        """Search, and search again with a generated pseudo-document until the passages are sufficient.

        The first pseudo-document is written without passages (the release's way): those of the query itself failed.
        """
        queries = [query]
        passages = await run.search(query, kind="dense")
        for rewrite in range(self.max_rewrites if self.feedback else 0):
            if await self._suffices(run, query, passages):
                break
            pseudo = await run.ask(levelrag.PSEUDO, levelrag.reading_fields(query, passages if rewrite else []))
            queries.append(f"{query} {pseudo or ''}".strip())
            if queries[-1] in queries[:-1]:
                break
            passages = await run.search(queries[-1], kind="dense")
        return passages, list(dict.fromkeys(queries))

    async def _web(self, run: Run, query: str) -> tuple[list[Passage], list[str]]:
        return await run.search(query, kind="web"), [query]

    async def _suffices(self, run: Run, query: str, passages: list[Passage]) -> bool:
        return await run.ask(levelrag.SUFFICIENT, levelrag.reading_fields(query, passages)) == "yes"
