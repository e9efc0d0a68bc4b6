"""Recipes: accepted values, and the exact error messages for invalid recipes."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT

from rag_train.errors import UserError
from rag_train.recipe import describe, load_recipe, parse_yaml, save_recipe
from rag_train.train import main
from rag_train.training.recipe import DPORecipe, LoraRecipe, TrainRecipe

TRAINING_RECIPES = [
    path for path in sorted((ROOT / "recipes").glob("*.yaml")) if "\noutput_dir:" in path.read_text()
]
GOOD = """\
stage: sft
model: some/model
data: {data}
output_dir: out
lr: 1e-5
epochs: 1
lora:
  r: 8
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    (tmp_path / "sft.jsonl").write_text("")
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD.format(data=tmp_path / "sft.jsonl"))
    return path


def test_values_and_overrides(recipe_file: Path):
    recipe = load_recipe(TrainRecipe, recipe_file, ["lora.alpha=4", "chat=true", "epochs=2", "sft.pack_tokens=9"])
    assert recipe.lr == 1e-5 and isinstance(recipe.epochs, float)
    assert recipe.lora == LoraRecipe(r=8, alpha=4)
    assert (recipe.chat, recipe.epochs, recipe.pack_tokens, recipe.stage) == (True, 2.0, 9, "sft")
    recipe = load_recipe(TrainRecipe, recipe_file, ["stage=dpo", "dpo.beta=.5"])
    assert (recipe.dpo, recipe.sft) == (DPORecipe(beta=0.5), None)
    assert load_recipe(TrainRecipe, recipe_file, ["lora=null"]).lora is None
    assert [LoraRecipe(r=r).alpha for r in (8, 16, 64)] == [16, 32, 128]


def refusal(recipe: TrainRecipe, processes: int) -> str | None:
    try:
        recipe.on(processes)
    except UserError as error:
        return str(error)


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 32))
def test_global_batch_holds_or_the_error_names_one_that_does(total: int, size: int, processes: int):
    keys = {"stage": "sft", "model": "m", "data": Path(__file__), "output_dir": "o", "lr": 1.0, "epochs": 1.0}
    recipe = TrainRecipe(**keys, global_batch=total, batch_size=size)
    while (message := refusal(recipe, processes)) is not None:
        key, _, value = message.rpartition("set ")[2].partition("=")
        recipe = replace(recipe, **{key: int(value)})
    settled = recipe.on(processes)
    assert recipe.global_batch == settled.batch_size * settled.gradient_accumulation * processes
    assert settled.batch_size <= size
    if total % processes == 0:
        assert recipe.global_batch == total


def test_gradient_accumulation_follows_from_global_batch(recipe_file: Path):
    with pytest.raises(UserError, match=r"gradient_accumulation=2: follows from global_batch=8; remove it, or set"):
        load_recipe(TrainRecipe, recipe_file, ["global_batch=8", "gradient_accumulation=2"])


def test_saved_recipe_reads_back_equal(recipe_file: Path, tmp_path: Path):
    recipe = load_recipe(TrainRecipe, recipe_file)
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(TrainRecipe, tmp_path / "saved.yaml") == recipe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr: 1e-5", "lrr: 1e-5", "{file}, line 5: unknown key 'lrr'; did you mean 'lr'?"),
        ("  r: 8", "  rank: 8", "{file}, line 8: unknown key 'lora.rank'; did you mean 'lora.r'?"),
        ("  r: 8", "  size_of_it: 8", "{file}, line 8: unknown key 'lora.size_of_it'; the keys are lora.r, "
         "lora.alpha, lora.dropout, lora.target_modules, lora.merge"),
        ("  r: 8", "  r: '8'", '{file}, line 8: lora.r: input should be a valid integer, not "8"; give int'),
        ("lr: 1e-5", "lr: 0", "{file}, line 5: lr: input should be greater than 0, not 0; give float"),
        ("stage: sft", "stage: ppo",
         "{file}, line 1: stage: input should be 'sft', 'dpo' or 'rl', not \"ppo\"; give sft|dpo|rl"),
        ("lr: 1e-5\n", "", "{file}, line 1: missing key 'lr'; add `lr: <float>` "
         "(Peak learning rate (the authors use 1e-5 for sft, 5e-7 for dpo; 1e-6 is usual for rl).)"),
        ("epochs: 1\n", "", "{file}, line 1: epochs: missing; give epochs (passes over the data) or steps, not "
         "both"),
        ("epochs: 1\n", "epochs: 1\nsteps: 5\n", "{file}, line 6: epochs: steps=5 is given as well; give epochs "
         "(passes over the data) or steps, not both"),
        ("sft.jsonl", "gone.jsonl",
         "{file}, line 3: data: no file '{dir}/gone.jsonl'; give the path of an existing file"),
        ("epochs: 1", "epochs: 1\npack_tokens: 9", "{file}, line 7: unknown key 'pack_tokens'; did you mean "
         "'sft.pack_tokens'?"),
        ("epochs: 1", "epochs: 1\ndpo: {}", "{file}, line 7: dpo: stage is sft; remove the section dpo or set "
         "stage: dpo"),
        ("epochs: 1", "lr: 2", "{file}, line 6: key 'lr' is given twice; remove one"),
        ("stage: sft", "stage: [sft", "{file}, line 2: not valid YAML (expected ',' or ']', but got ':'); "
         "fix the syntax on that line"),
        ("model: some/model", "model: !!python/object/apply:os.getcwd []", "{file}, line 2: not valid YAML "
         "(tag:yaml.org,2002:python/object/apply:os.getcwd is not plain data); fix the syntax on that line"),
        ("model: some/model", "model: &m some/model\nresume: *m", "{file}, line 3: not valid YAML (aliases such as "
         "*name are not read); fix the syntax on that line"),
        ("epochs: 1", "epochs: 2024-02-30", "{file}, line 6: epochs: input should be a valid number, not "
         "\"2024-02-30\"; give float or null"),
        ("epochs: 1", "epochs: 0b_", "{file}, line 1: not valid YAML (invalid literal for int() with base 2: ''); "
         "fix the syntax on that line"),
        ("epochs: 1", "? [a, b]\n: 1", "{file}, line 6: not valid YAML (a key is not a name); "
         "fix the syntax on that line"),
    ],
)  # fmt: skip
def test_rejects_mistake_in_file(recipe_file: Path, old: str, new: str, message: str):
    recipe_file.write_text(recipe_file.read_text().replace(old, new))
    with pytest.raises(UserError) as caught:
        load_recipe(TrainRecipe, recipe_file)
    assert str(caught.value) == message.replace("{file}", str(recipe_file)).replace(
        "{dir}", str(recipe_file.parent)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr", "override 'lr': not of the form key=value; write, for example, lr=1e-5"),
        ("lora.alfa=3", "override 'lora.alfa=3': unknown key 'lora.alfa'; did you mean 'lora.alpha'?"),
        ("lr=fast", "override 'lr=fast': lr: input should be a valid number, not \"fast\"; give float"),
        ("model.name=x", "override 'model.name=x': 'model' has no nested keys; give model=value"),
        ("beta=0.2", "override 'beta=0.2': unknown key 'beta'; did you mean 'dpo.beta'?"),
        ("dpo.beta=0.2", "override 'dpo.beta=0.2': dpo: stage is sft; remove the section dpo or set stage: dpo"),
        ("lr=[1", "override 'lr=[1': the value is not plain YAML; quote it"),
        (
            "lr=2024-02-30",
            "override 'lr=2024-02-30': lr: input should be a valid number, not \"2024-02-30\"; give float",
        ),
        ("lr=0b_", "override 'lr=0b_': the value is not plain YAML; quote it"),
    ],
)
def test_rejects_mistake_in_override(recipe_file: Path, override: str, message: str):
    with pytest.raises(UserError) as caught:
        load_recipe(TrainRecipe, recipe_file, [override])
    assert str(caught.value) == message


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
HOSTILE = {
    "aliases that grow": BOMB,
    "a reference to itself": "lora: &a {r: *a}",
    "a merge of aliases": "a: &a {r: 1}\nlora: {<<: *a}",
    "depth": "lora: " + "[" * 10_000,
    "depth that ends": "lora: " + "[" * 5000 + "]" * 5000,
    "many digits": f"epochs: {'9' * 5000}",
    "half a surrogate pair": r'model: "\ud800"',
    "a date with a tag": "epochs: !!timestamp 2024-02-30",
    "bytes": "model: !!binary aGk=",
    "a set": "model: !!set {a, b}",
    "a date as key": "!!timestamp 2024-02-03: 1",
    "control characters": "model: \x00",
    "only a comment": "# nothing",
    "size": "# " + "x" * 2**21,
    "a long value": f"epochs: {'x' * 100_000}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_in_one_line(recipe_file: Path, name: str):
    recipe_file.write_text(HOSTILE[name])
    with pytest.raises(UserError) as caught:
        load_recipe(TrainRecipe, recipe_file)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@given(st.text(max_size=60) | st.text("&*!<>|?:-[]{},'\"#%@` \na01", max_size=60))
@settings(max_examples=200)
def test_any_text_is_plain_yaml_or_refused(text: str):
    with suppress(yaml.YAMLError):
        json.dumps(parse_yaml(text), ensure_ascii=False).encode()


@dataclass(frozen=True)
class Small:
    steps: int
    """Number of steps."""
    names: tuple[str, ...] = ()
    deep: LoraRecipe | None = None
    """Nested."""


def test_describe_lists_nested_keys():
    rows = [tuple(key) for key in describe(Small)]
    assert rows[:4] == [
        ("steps", "int", "required", "Number of steps."),
        ("names", "list of str", "[]", ""),
        ("deep", "mapping or null", "null", "Nested."),
        ("deep.r", "int", "16", "Rank of the adapters."),
    ]


@pytest.mark.slow
def test_reports_missing_file_before_importing_heavy_libraries():
    code = (
        "import sys; from rag_train.train import main; code = main(['gone.yaml'])\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets'} & set(sys.modules); sys.exit(9 if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: recipe gone.yaml: No such file or directory; give the path of a YAML file\n"


def test_only_the_recipe_is_required_and_help_lists_its_keys(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2 and "Missing argument" in capsys.readouterr().err
    assert main(["--help"]) == 0 and "  dpo.beta (float, 0.4): Strength of" in capsys.readouterr().out


@pytest.mark.parametrize("path", TRAINING_RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path, tmp_path: Path):
    (tmp_path / "data.jsonl").write_text("")
    recipe = load_recipe(TrainRecipe, path, [f"data={tmp_path / 'data.jsonl'}"])
    stages = {"dpo": path.stem.endswith("_dpo"), "rl": path.stem.startswith("rl")}
    assert recipe.stage == next((stage for stage, named in stages.items() if named), "sft")


@pytest.mark.parametrize("path", TRAINING_RECIPES, ids=lambda path: path.stem)
def test_the_table_of_steps_is_that_of_the_recipes(path: Path):
    page = (ROOT / "docs/site/howto/train.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"(?m)^\| `{path.stem}` \| (.*)", page)
    examples, tokens, each, epochs, steps = (
        float(cell.replace(",", "").replace("–", "0")) for cell in line.split(" | ")[:5]
    )
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    batch, rl = recipe["global_batch"], recipe.get("rl")
    packed = recipe.get("sft", {}).get("pack_tokens")
    of_a_row = packed / tokens if packed else 1 / rl["group"] if rl else 1
    assert (round(batch * of_a_row), epochs) == (each, recipe.get("epochs", 0))
    if rl:
        updates = rl.get("updates", 1)
        made = examples / of_a_row // (batch * updates) * updates * epochs  # whole generations
    else:
        made = math.ceil(math.ceil(examples / of_a_row) / batch) * epochs
    assert recipe.get("steps", math.ceil(made)) == steps
