"""ReAct: alternating thoughts and actions, which are to search or to finish."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.llm.base import Sampling
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy

ACTION = re.compile(r"(search|finish)\s*\[(.*)\]?", re.IGNORECASE)


@dataclass(frozen=True)
class ReAct(Strategy):
    """Alternate between a thought, an action (Search[...] or Finish[...]) and an observation."""

    paper: ClassVar = "Yao et al. 2023; PlanRAG, appendix C; LevelRAG, appendix B"

    k: int = 1
    """Number of passages per search; more passages make the context too long (PlanRAG, appendix C)."""
    max_steps: int = 6
    """Maximum number of actions."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        text = ""
        for step in range(1, self.max_steps + 1):
            lead = f"Thought {step}:"
            prompt = run.prompt("react", f"Question: {one_line(question.question)}\n", text + lead)
            sampling = Sampling(max_tokens=128, stop=("\nObservation", "\nQuestion:", f"\nThought {step + 1}"))
            thought, _, tail = (await run.complete("react", prompt, sampling)).text.partition(f"\nAction {step}:")
            if not (action := ACTION.match(one_line(tail))):  # no action after the thought: ask for it
                text += f"{lead} {one_line(thought)}\nAction {step}:"
                prompt = run.prompt("react", f"Question: {one_line(question.question)}\n", text)
                line = (await run.complete("react", prompt, Sampling(max_tokens=64, stop=("\n",)))).text
                if not (action := ACTION.match(one_line(line))):
                    break
                text += f" {one_line(line)}\n"
            else:
                text += f"{lead} {one_line(thought)}\nAction {step}: {one_line(tail)}\n"
            argument = action[2].removesuffix("]").strip()
            if action[1].lower() == "finish":
                return run.done(argument, text)
            passages = await run.search(argument, self.k)
            run.retrieved(argument, passages)
            text += f"Observation {step}: [{' '.join(one_line(p.text) for p in passages)}]\n"
        return run.done((await run.read(question.question, [p for s in run.steps for p in s.passages]))[1], text)
