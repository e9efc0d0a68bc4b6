"""Search-R1: reasoning with searches in one transcript, as models learn it by reinforcement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import search_r1
from rag_train.formats.prompting import as_turn
from rag_train.llm.base import Sampling
from rag_train.llm.control import trusted
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy


@strategy("search-r1", Bound(calls=5, retrievals=4))
@dataclass(frozen=True)
class SearchR1(Strategy):
    """Think, and then search or answer, all in one transcript with tags.

    With rl.strategy=search-r1 it is what stage rl trains, also from a model without a Stage I.
    """

    paper: ClassVar = "Jin et al. 2025 (Search-R1, section 3.2)"
    needs: ClassVar = ("a checkpoint trained for it, or a large model",)
    roles: ClassVar = ()

    turns: int = 4
    """Maximum number of turns before the last one, in which no search is possible. A turn without an action counts.
    The released training script has 2."""
    max_tokens: int = 500
    """Maximum number of tokens of a turn."""

    async def solve(self, run: Run) -> Trajectory:
        given = self.kit.instructions
        head = f"{given['search_r1'].text} " if given else ""
        prompt = as_turn(self.kit.llm.tokenizer, f"{self._own(head)}Question: {run.question.question}\n")
        sampling = Sampling(max_tokens=self.max_tokens, stop=search_r1.STOPS, thoughts=True)
        text = ""
        for turn in range(self.turns + 1):
            completion = await run.complete("controller", prompt, sampling)
            written = completion.text + (completion.stop or "")
            prompt, text = prompt + self._own(written), text + written
            action = search_r1.action(written)
            if action and action.kind == "answer":
                return run.done(action.text, text)
            if turn == self.turns:
                break
            if action:
                passages = await run.search(action.text)
                run.retrieved(action.text, passages)
                prompt += search_r1.information(passages, self._own)
                text += search_r1.information(passages)
            else:
                run.cut(f"no action in turn {turn + 1}")
                prompt, text = prompt + self._own(search_r1.INVALID), text + search_r1.INVALID
        run.cut(f"no answer after turns={self.turns}")
        return run.done(None, text)

    def _own(self, text: str) -> str:
        """Mark the format's tags in what the model or the program has written."""
        return trusted(self.kit.llm.tokenizer, text, search_r1.TAGS)
