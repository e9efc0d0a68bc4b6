"""The factories by method."""

from __future__ import annotations

from rag_train.data_synth.modules import dualrag, hanrag, levelrag, planrag
from rag_train.data_synth.modules.factory import Factory

FACTORIES: dict[str, Factory] = {
    factory.method: factory for factory in (dualrag.FACTORY, hanrag.FACTORY, levelrag.FACTORY, planrag.FACTORY)
}
