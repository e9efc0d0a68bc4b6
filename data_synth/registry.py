"""The methods of synthesis by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from rag_train.data_synth import methods
from rag_train.data_synth.method import METHODS, Method
from rag_train.errors import UserError

for _module in iter_modules(methods.__path__, f"{methods.__name__}."):  # importing a method's module registers it
    import_module(_module.name)


def find_method(name: str) -> type[Method[Any, Any]]:
    """Return the method of this name. Raises UserError, with the nearest names, if there is none."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"the methods are {', '.join(sorted(METHODS))}"
    raise UserError(f"synth {name}: unknown method {name!r}; {remedy}")
