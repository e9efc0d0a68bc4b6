"""Gold examples of the baselines' formats."""

import pytest
from support.questions import compounds
from support.synthesis import search_hops

from rag_train.data_synth.modules import baselines
from rag_train.formats import reader
from rag_train.formats.tasks import Task
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.strategies.baselines import (
    adaptive_rag,
    auto_rag,
    genground,
    ircot,
    iter_retgen,
    metarag,
    qd_rag,
    rankrag,
    resp,
    taare,
    uar,
)
from rag_train.worlds.mini.world import World


@pytest.mark.slow
def test_examples_cover_and_parse_as_every_baseline_task(world: World, index: BM25Index):
    modules = (adaptive_rag, auto_rag, genground, ircot, iter_retgen, metarag, qd_rag, rankrag, resp, taare)
    modules += (uar,)
    tasks = {task.name: task for module in modules for task in vars(module).values() if isinstance(task, Task)}
    seen = set()
    for question in [*world.questions("dev")[:80], *compounds(world, "dev", 10)]:
        for record in baselines.gold_records(question, search_hops(question, index), instructions=False):
            seen.add(record.task)
            if record.task == "reader":
                _, answer = reader.parse(record.prompt.rpartition("\n")[2] + record.completion)
                assert answer == question.answers[0]
                unknown = [step for step in question.decomposition if not step.known]
                assert all(step.short in record.prompt for step in unknown)
            elif record.task in tasks:
                assert tasks[record.task].parse(record.segments[-1].text) is not None
    assert seen == {*tasks, "reader", "auto_rag", "chatqa", "iterdrag", "react", "rq_rag", "selfrag"}
