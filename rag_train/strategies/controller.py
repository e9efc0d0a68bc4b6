"""The moves of a DeepRAG controller, with one engine call each, used by the search and by forced inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_train.formats import deeprag
from rag_train.formats.tasks import LINE_TOKENS
from rag_train.llm.base import Sampling
from rag_train.llm.call_log import CallLog
from rag_train.schema import Passage, Step


@dataclass(frozen=True)
class Move:
    """The controller's next move: a subquery, the final answer, or neither if the text is malformed or cut."""

    subquery: str | None = None
    answer: str | None = None
    text: str | None = ""
    """The line that the model wrote; None if it was cut."""


@dataclass(frozen=True)
class Controller:
    """A controller working on one question.

    Attributes:
        log: the engine.
        prompt: the prompt with the question, before the transcript.
        max_tokens: maximum number of tokens of a line.
        guided: whether decoding is restricted to the format's lines, for models that do not write them by
            themselves.
    """

    log: CallLog
    prompt: str
    max_tokens: int = LINE_TOKENS
    guided: bool = False

    async def next_move(self, steps: Sequence[Step]) -> Move:
        """Generate the next line, "Follow up:" or "So the final answer is:" (section 3.1, termination decision)."""
        text = await self._line("subquery", deeprag.text_of(steps), deeprag.MOVE)
        parsed = deeprag.parse(text or "")
        return Move(subquery=parsed.open_subquery, answer=parsed.answer, text=text)

    async def parametric(self, steps: Sequence[Step], subquery: str, sample: Sampling | None = None) -> str:
        """Answer the subquery from parametric knowledge; return "" if the answer was cut."""
        text = deeprag.text_of(steps) + deeprag.parametric_prompt(subquery)
        return deeprag.one_line(await self._line("parametric", text, deeprag.ANSWER, sample) or "")

    async def retrieved(
        self, steps: Sequence[Step], subquery: str, passages: Sequence[Passage], sample: Sampling | None = None
    ) -> str:
        """Answer the subquery from the passages; return "" if the answer was cut."""
        text = deeprag.text_of(steps) + deeprag.retrieved_prompt(subquery, passages)
        return deeprag.one_line(await self._line("retrieved", text, deeprag.ANSWER, sample) or "")

    async def final(self, steps: Sequence[Step], module: str = "final") -> str | None:
        """Force the final answer; None if the model writes an empty line, or one that was cut."""
        text = deeprag.text_of(steps) + deeprag.FINAL
        return deeprag.one_line(await self._line(module, text, deeprag.ANSWER) or "") or None

    async def _line(self, module: str, text: str, pattern: str, sample: Sampling | None = None) -> str | None:
        """Write a line; None if it was cut."""
        sampling = sample or Sampling(max_tokens=self.max_tokens, stop=tuple(deeprag.STOP_LINE))
        if self.guided:
            sampling = replace(sampling, regex=pattern)
        return (await self.log.complete(module, self.prompt + text, sampling)).whole
