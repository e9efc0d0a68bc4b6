"""Recipes of module examples."""

import re
from pathlib import Path

from support.paths import ROOT

from rag_train.data_synth.methods.dualrag import DualRAGRecipe
from rag_train.data_synth.registry import METHODS
from rag_train.recipe import describe, load_recipe


def test_shipped_recipes_load_and_document_their_keys(tmp_path: Path):
    keys = {key.name: key.help for key in describe(DualRAGRecipe)}
    assert all(keys.values()) and {"questions", "model", "similarity", "engine.kind"} <= keys.keys()
    for name in ("dualrag_teacher", "hanrag_teacher", "planrag_teacher", "compound"):
        text = (ROOT / f"recipes/{name}.yaml").read_text()
        for path in set(re.findall(r"data/[\w./-]+", text)):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
            text = text.replace(path, str(tmp_path / path))
        (tmp_path / "recipe.yaml").write_text(text)
        assert load_recipe(METHODS[name.removesuffix("_teacher")].recipe_type, tmp_path / "recipe.yaml").model
