"""ReAct: alternating thoughts and actions, which are to search or to finish."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.llm.base import Sampling
from rag_train.schema import AGAIN, Trajectory
from rag_train.strategies.base import ANSWER_LINE, Bound, Run, Strategy, strategy

ACTION = re.compile(r"(search|finish)\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)", re.IGNORECASE)
"""An action with its argument, up to the bracket that closes it; the argument may have brackets of its own."""


@strategy("fireact", Bound(calls=13, retrievals=6), examples=False)
@strategy("react", Bound(calls=13, retrievals=6))
@dataclass(frozen=True)
class ReAct(Strategy):
    """Alternate between a thought, an action (Search[...] or Finish[...]) and an observation.

    Ours: without an answer after the last action, the question is answered from the passages found.
    """

    paper: ClassVar = "Yao et al. 2023; PlanRAG, appendix C; LevelRAG, appendix B"

    examples: bool = True
    """Show the instruction with its worked example; false (FireAct, Chen et al. 2023): the model was fine-tuned on
    such transcripts."""
    k: int = 1
    """Number of passages per search; more passages make the context too long (PlanRAG, appendix C)."""
    max_steps: int = 6
    """Maximum number of actions. Ours: PlanRAG and LevelRAG do not state theirs."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        name = "react" if self.examples else ""
        fields = [("Question", question.question)]
        text = ""
        for step in range(1, self.max_steps + 1):
            lead = f"Thought {step}:"
            prompt = run.prompt(name, fields, begun=text + lead)
            sampling = Sampling(max_tokens=512, stop=("\nObservation", "\nQuestion:", f"\nThought {step + 1}"))
            written = await run.complete("react", prompt, sampling)
            thought, _, tail = written.text.partition(f"\nAction {step}:")
            action = None if written.truncated else ACTION.match(one_line(tail))
            if not action:  # no whole action after the thought: ask for it
                text += f"{lead} {one_line(thought)}\nAction {step}:"
                prompt = run.prompt(name, fields, begun=text)
                line = (await run.complete("react", prompt, ANSWER_LINE)).whole or ""
                if not (action := ACTION.match(one_line(line))):
                    run.cut(f"no action in step {step}: {one_line(line)[:80]!r}")
                    break
                text += f" {one_line(line)}\n"
            else:
                text += f"{lead} {one_line(thought)}\nAction {step}: {one_line(tail)}\n"
            argument = action[2].strip()
            if action[1].lower() == "finish":
                return run.done(argument, text)
            passages = await run.search(argument, self.k)
            run.retrieved(argument, passages)
            text += f"Observation {step}: [{' '.join(one_line(p.text) for p in passages)}]\n"
        else:
            run.cut(f"ended after max_steps={self.max_steps}")
        found = [passage for step in run.steps for passage in step.passages]
        return run.done((await run.read(question.question, found, module=AGAIN))[1], text)
