"""The self-test: every part of the stack is used once, each in a process of its own (``rag-train selftest``).

`registry` has the parts by name, `runner` starts their processes and ends them, `process` is what runs in each of
them, and `parts` holds the parts themselves. A new part is a function with the decorator `registry.part`.
"""
