"""The parts of the self-test, in the order in which they are tested."""

from rag_train.selftest.parts import devices, retrieval, engine, search  # noqa: F401, I001
from rag_train.selftest.parts import training, attention, measured, rl, serving  # noqa: F401
