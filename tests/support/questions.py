"""Rows of each released question file, and the questions that are read from them (``cases/questions.yaml``)."""

from __future__ import annotations

import json
from typing import Any

import yaml
from support.paths import ROOT

from rag_train.schema import Question

_CASES = yaml.safe_load((ROOT / "tests/cases/questions.yaml").read_text(encoding="utf-8"))
SHAPES: dict[str, tuple[dict[str, Any], Question]] = {
    kind: (case["row"], Question.model_validate(case["question"])) for kind, case in _CASES.items()
}
ROW = json.dumps(SHAPES["flashrag"][0])
