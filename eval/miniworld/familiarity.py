"""Whether the mini model's state tells facts that it knows from facts that it does not know, before it answers.

Language models have such a state for the names of what they know (Ferrando et al. 2024, "Do I know this entity or
not?"). Without it, no training can teach a model to decide whether to retrieve.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.stats import mannwhitneyu
from transformers import AutoModelForCausalLM

from rag_train.llm.checkpoint import load_tokenizer
from rag_train.miniworld.world import Fact, World, subquery

PENALTY = 0.01
"""Weight of the squared coefficients."""


def familiarity(model: Path, world: World, split: str) -> tuple[float, int]:
    """Return how well the state after a name tells whether a fact is known, and the number of the split's facts.

    A logistic regression on the input of the middle layer, at the last word of the name in the subquery, is fitted
    on the films and people of the other splits. The measure is the area under its ROC curve on those of ``split``:
    0.5 is chance. Outdated facts are left out.
    """
    facts = [fact for fact in world.facts if fact[0] in world.split and fact not in world.outdated]
    states = _states(model, facts)
    known = torch.tensor([fact in world.known for fact in facts])
    held_out = torch.tensor([world.split[subject] == split for subject, _ in facts])
    scores = _regression(states[~held_out], known[~held_out].float(), states[held_out])
    known = known[held_out]
    area = mannwhitneyu(scores[known], scores[~known]).statistic / (known.sum() * (~known).sum())
    return area.item(), len(scores)


@torch.no_grad()
def _states(model: Path, facts: list[Fact]) -> torch.Tensor:
    """Return the state at the last word of each fact's subject, shape (facts, hidden size)."""
    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), load_tokenizer(str(model))
    layer = network.config.num_hidden_layers // 2
    texts = [subquery(relation, subject).removesuffix("?") for subject, relation in facts]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    states = network.model(batch["input_ids"], output_hidden_states=True).hidden_states[layer]
    return states[torch.arange(len(facts)), batch["attention_mask"].sum(1) - 1]


def _regression(states: torch.Tensor, labels: torch.Tensor, held_out: torch.Tensor) -> torch.Tensor:
    """Fit a logistic regression and return its scores on ``held_out``."""
    mean, deviation = states.mean(0), states.std(0)
    states, held_out = (states - mean) / deviation, (held_out - mean) / deviation
    weights = torch.zeros(states.shape[1] + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = states @ weights[1:] + weights[0]
        value = F.binary_cross_entropy_with_logits(scores, labels) + PENALTY * weights[1:].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return (held_out @ weights[1:] + weights[0]).detach()
