"""How much of the knowledge boundary can be read from a model: a limit for the training of its decisions.

A state is a question's transcript up to a subquery, with the gold steps before it. At the states of a world's
facts, known facts are told from all others by three scores: the probability with which the model retrieves, the
probability of the answer that it gives from memory, and a linear probe of its hidden states, which is fitted to the
facts of training questions. Each has an area under the ROC curve (AUROC), over facts about films and people that no
training question mentions.

The probe shows what a linear decision could learn from the training facts with these hidden states. It has the
layer and the penalty that are best on the facts it is judged by, which favours it. Writes bench_boundary.json
(bench_boundary_dev.json with --split dev).

First: rag-train demo --seeds 0
Then:  python -m rag_train.eval.benchmarks.boundary --seeds 0
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_train.eval.benchmarks.common import exit_on_user_error
from rag_train.eval.benchmarks.frontier import EARLIER
from rag_train.eval.benchmarks.stage3 import PROTOCOL, demo_parser, models_of, world_of

if TYPE_CHECKING:
    from rag_train.schema import Question

FITTED, OTHERS, BOTH = "searched facts", "other facts", "both"
"""What a probe is fitted to: facts that Stage I has searched, other facts of training questions, or both."""
PENALTIES = (0.01, 0.1, 1.0)
"""Weights of the squared norm of a probe."""
BATCH = 64
"""States of a forward pass."""


@dataclass(frozen=True)
class State:
    """A transcript before a decision, and whether the fact that its subquery asks for is known."""

    text: str
    known: bool


def main() -> None:
    options = demo_parser(__doc__).parse_args()

    from rag_train.eval.benchmarks.reporting import recorded
    from rag_train.eval.demo.recipe import demo_recipe
    from rag_train.progress import console

    with exit_on_user_error():
        models = models_of(options.demo, options.seeds, options.split)
        results = recorded(
            "Stage III, boundary",
            PROTOCOL,
            options,
            {"demo": asdict(demo_recipe()), "penalties": PENALTIES},
            lambda seed: measured(models[seed], seed, options.split),
            lambda results: f"measured; seeds {', '.join(map(str, sorted(results)))}",
        )
    for seed, result in results.items():
        for stage, found in result["auroc"].items():
            console.print(f"seed {seed}, {stage}: {found}")


def measured(models: Path, seed: int, split: str) -> dict[str, Any]:
    """Return the numbers of facts of a seed, and the AUROC of each score by stage."""
    from rag_train.eval.demo.recipe import demo_recipe
    from rag_train.eval.miniworld.lab import multi_hop, training_questions

    world = world_of(seed)
    searched = states(training_questions(world, demo_recipe()).stage1)
    others = states(multi_hop(world.questions("lessons")))
    asked = states(multi_hop(world.questions(split)))
    others = {fact: state for fact, state in others.items() if fact not in searched}
    asked = {fact: state for fact, state in asked.items() if fact not in searched and fact not in others}
    sets = [list(each.values()) for each in (searched, others, asked)]
    return {
        "facts": dict(zip((FITTED, OTHERS, "asked"), map(len, sets), strict=True)),
        "auroc": {stage: scores(models / folder, *sets) for folder, stage in EARLIER.items()},
    }


def states(questions: Iterable[Question]) -> dict[str, State]:
    """Return the state of each fact in the first question that needs it, by subquery."""
    from rag_train.formats import deeprag
    from rag_train.schema import Decision, Step

    found: dict[str, State] = {}
    for question in questions:
        steps: list[Step] = []
        for gold in question.decomposition:
            if gold.subquery not in found:
                text = deeprag.question_prompt(question.question) + deeprag.text_of(steps)
                assert gold.known is not None
                found[gold.subquery] = State(text + deeprag.subquery_line(gold.subquery), gold.known)
            steps.append(Step(subquery=gold.subquery, decision=Decision.PARAMETRIC, answer=gold.short))
    return found


def scores(
    model: Path, searched: Sequence[State], others: Sequence[State], asked: Sequence[State]
) -> dict[str, float]:
    """Return the AUROC over ``asked`` of a model's decision, of its answer, and of the probes, by name."""
    every = [*searched, *others, *asked]
    odds, features = read(model, every)
    labels, first = np.array([not state.known for state in every]), len(searched) + len(others)
    unknown, hidden = labels[first:], features[first:]
    found = {
        "decision": auroc(odds[first:], unknown),
        "answer": auroc(-np.array(asyncio.run(confidence(model, asked))), unknown),
    }
    fitted = {FITTED: slice(len(searched)), OTHERS: slice(len(searched), first), BOTH: slice(first)}
    for name, part in fitted.items():
        found[name] = max(
            auroc(probe(features[part, layer], labels[part], hidden[:, layer], penalty), unknown)
            for layer in range(hidden.shape[1])
            for penalty in PENALTIES
        )
    return found


def read(model: Path, asked: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of retrieving at each of N states, shape (N,), and the hidden states of all layers there,
    shape (N, layers, size)."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM

    from rag_train.formats import deeprag
    from rag_train.llm.checkpoint import encode, load_tokenizer
    from rag_train.schema import Decision

    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(str(model))
    first = {each: encode(tokenizer, deeprag.decision_snippet(each))[0] for each in Decision}
    rows = [torch.tensor(encode(tokenizer, state.text)) for state in asked]
    odds, hidden = [], []
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            ids = pad_sequence(batch, batch_first=True)  # no mask: no token attends to later ones
            output = loaded(ids, output_hidden_states=True, use_cache=False)
            at = torch.arange(len(batch)), torch.tensor([len(row) - 1 for row in batch])
            last = output.logits[at]
            odds.append(last[:, first[Decision.RETRIEVE]] - last[:, first[Decision.PARAMETRIC]])
            hidden.append(torch.stack([layer[at] for layer in output.hidden_states[1:]], 1))
    return torch.cat(odds).numpy(), torch.cat(hidden).numpy()


async def confidence(model: Path, asked: Sequence[State]) -> list[float]:
    """Return the log-probability of the answer that the model gives from memory at each state."""
    from rag_train.formats import deeprag
    from rag_train.llm.base import Sampling
    from rag_train.llm.transformers import TransformersEngine

    engine = TransformersEngine.start(str(model), dtype="float32")
    sampling = Sampling(max_tokens=24, stop=tuple(deeprag.STOP_LINE), logprobs=1)
    try:
        prompts = [state.text + deeprag.INTERMEDIATE for state in asked]
        answers = await asyncio.gather(*(engine.complete(prompt, sampling) for prompt in prompts))
    finally:
        await engine.aclose()
    return [sum(token.logprob for token in answer.chosen) for answer in answers]


def probe(fitted: np.ndarray, labels: np.ndarray, asked: np.ndarray, penalty: float) -> np.ndarray:
    """Fit a logistic regression to features of shape (N, size) and labels of shape (N,); return its log-odds for
    ``asked``, of shape (M, size). Features are scaled to unit variance, and ``penalty`` weighs the squared norm."""
    from scipy.optimize import minimize
    from scipy.special import expit

    mean, scale = fitted.mean(0), fitted.std(0) + 1e-6
    features = np.column_stack([(fitted - mean) / scale, np.ones(len(fitted))]).astype(float)
    signs = np.where(labels, 1.0, -1.0)
    penalties = np.full(features.shape[1], penalty)
    penalties[-1] = 0

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (features @ weights)
        gradient = -(signs * expit(-margins)) @ features / len(signs) + 2 * penalties * weights
        return np.logaddexp(0, -margins).mean() + float(penalties @ weights**2), gradient

    weights = minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B").x
    return (asked - mean) / scale @ weights[:-1] + weights[-1]


def auroc(values: np.ndarray, positive: np.ndarray) -> float:
    """Return the area under the ROC curve of values, shape (N,), whose ``positive`` ones should be higher."""
    from scipy.stats import mannwhitneyu

    pairs = positive.sum() * (~positive).sum()
    return float(mannwhitneyu(values[positive], values[~positive]).statistic / pairs)


if __name__ == "__main__":
    main()
