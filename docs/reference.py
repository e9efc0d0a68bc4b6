"""Reference pages, made from the code: commands, recipes, strategies and file formats."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from rag_train.cli.app import app
from rag_train.data_synth.registry import METHODS
from rag_train.eval.demo.recipe import DemoRecipe
from rag_train.eval.matrix.cell import Cell
from rag_train.eval.metrics.scores import Score
from rag_train.jobs.items import Rejected
from rag_train.questions.formats import FORMATS
from rag_train.recipe import Key, attribute_docstrings, describe, type_name
from rag_train.retrieval.index.directory import Manifest
from rag_train.schema import (
    GoldStep,
    LLMCall,
    Passage,
    Plan,
    PlanNode,
    PreferencePair,
    Question,
    Segment,
    SFTRecord,
    Step,
    Trajectory,
)
from rag_train.strategies.registry import STRATEGIES, listing
from rag_train.sweeps.file import SweepFile
from rag_train.training.recipe import TrainRecipe

NOTE = "<!-- Generated from the code by docs/reference.py. -->\n"

COMMANDS = (
    "Each command prints its options with `--help`. A mistake in the input ends a command with exit code 2 and "
    "one line that says what is wrong, where, and what to do. `--json` prints a summary for scripts."
)

RECIPES: list[tuple[str, str, type]] = [
    ("Training", "rag-train train RECIPE`, `python -m rag_train.train RECIPE", TrainRecipe),
    *(
        (f"Synthesis: {name}", f"rag-train synth {name} RECIPE", method.recipe_type)
        for name, method in sorted(METHODS.items())
    ),
    ("Sweep", "rag-train sweep FILE", SweepFile),
    ("Demo", "rag-train demo", DemoRecipe),
]
"""Title, command and dataclass of each recipe."""

RECORDS: list[tuple[str, list[type]]] = [
    ("Questions and passages", [Question, GoldStep, Passage]),
    ("Training examples", [SFTRecord, Segment, PreferencePair]),
    ("Trajectories", [Trajectory, Step, Plan, PlanNode, LLMCall]),
    ("Rejected items", [Rejected]),
    ("Indexes", [Manifest]),
    ("Evaluation", [Cell, Score]),
]


def pages() -> dict[str, str]:
    """Return the text of each reference page by its path in the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/recipes.md": recipes_page(),
        "reference/strategies.md": strategies_page(),
        "reference/formats.md": formats_page(),
    }


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Return a Markdown table. ``align`` has an ``l`` or ``r`` for each column."""
    rules = ["---:" if letter == "r" else ":---" for letter in align]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in (columns, rules, *rows))


def cell(text: str) -> str:
    """Escape ``text`` for one cell of a table."""
    return re.sub(r"[ \t\n]+", " ", str(text)).strip().replace("|", "\\|")


def commands_page() -> str:
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=Context(command), name="rag-train", title="Commands")
    return NOTE + text.replace("# Commands\n", f"# Commands\n\n{COMMANDS}\n", 1)


def paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def recipes_page() -> str:
    parts = [
        NOTE,
        "# Recipes",
        "A recipe is a YAML file with the keys below. A dot marks a key inside a section: `search.max_steps` is "
        "`max_steps` under `search:`. On the command line, `key=value` replaces a key of the file, for example "
        "`lr=2e-5` or `lora.r=16`. An unknown key, a wrong type or a missing file stops the run before anything "
        "is loaded. The resolved recipe, with every default, is saved next to the output.",
        "The recipes that come with the package are in `recipes/`; `rag-train init DIR` copies them to a directory "
        "of yours.",
    ]
    for title, command, cls in RECIPES:
        parts += [f"## {title}", f"`{command}`", paragraphs(cls.__doc__ or "")]
        rows = [
            [f"`{key.name}`", "section" if key.type == "mapping" else breakable(key.type), default(key), key.help]
            for key in describe(cls)
        ]
        parts.append(table(["key", "type", "default", "meaning"], rows, "llll"))
    return "\n\n".join(parts) + "\n"


def breakable(type: str) -> str:
    """Allow a line break between the choices of a type."""
    return type.replace("|", " | ")


def default(key: Key) -> str:
    if key.default == "required":
        return "**required**"
    return "" if key.type == "mapping" else code(key.default)


def code(text: str) -> str:
    return f"`{text}`" if len(text) <= 40 else f"`{text[:37]}…`"


def strategies_page() -> str:
    parts = [
        NOTE,
        "# Strategies",
        "A strategy answers a question with a model and, where it needs one, a retriever. Name one with "
        "`--strategy NAME`, with settings after commas: `--strategy dualrag,outline=flat,max_iterations=3`. "
        "Several names share one class and differ in their preset settings.",
        "All strategies have a budget for each question: `max_calls`, `max_retrievals` and `max_question_tokens`. "
        "When it is spent, one call answers from what was found, and the trajectory has a note.",
    ]
    rows = [[f"[`{one['name']}`](#{one['name']})", one["summary"], one["paper"]] for one in listing()]
    parts.append(table(["name", "what it does", "source"], rows, "lll"))
    for one in listing():
        cls = STRATEGIES[one["name"]].cls
        parts += [f"## {one['name']} {{: #{one['name']} }}", one["summary"], f"*{one['paper']}*"]
        page = "baselines" if ".baselines." in cls.__module__ else "systems"
        parts.append(f"[The paper's steps and ours](../explanation/methods/{page}.md#{one['name']})")
        if one["needs"]:
            parts.append(f"Needs: {'; '.join(one['needs'])}.")
        if one["roles"]:
            parts.append(f"Roles: {', '.join(one['roles'])}.")
        if bound := one["bound"]:
            most = f"{bound['calls']:,} calls and {bound['retrievals']:,} retrievals"
            parts.append(f"At most, with default settings and three passages for a query: {most}.")
        if one["settings"]:
            texts = meanings(cls)
            rows = [
                [f"`{key}`", code(json.dumps(value)), texts.get(key, "")] for key, value in one["settings"].items()
            ]
            parts.append(table(["setting", "default", "meaning"], rows, "lll"))
    return "\n\n".join(parts) + "\n"


def formats_page() -> str:
    parts = [
        NOTE,
        "# File formats",
        "Records are JSON Lines in UTF-8: one JSON object a line. Training sets load with "
        '`datasets.load_dataset("json", data_files=FILE)` and have the shapes that TRL documents '
        "(`prompt` and `completion`; `prompt`, `chosen` and `rejected`), with further columns.",
        "## Sidecar files",
        table(
            ["file", "contents"],
            [
                ["`FILE.meta.json`", "versions, settings with the hashes of model and corpus, counts"],
                ["`FILE.rejected.jsonl`", "the items that were left out, each with its reason"],
                ["`FILE.md`", "a dataset card"],
                ["`FILE.partial`", "finished and open items of an unfinished run; the same command continues"],
            ],
            "ll",
        ),
        "A run that was killed continues when the same command is given again, and ends with the same bytes as a "
        "run that was never killed.",
        "## Question files",
        "`--questions` and the `questions:` key read released files as they are: a JSON list, JSON objects one "
        "after the other (JSON Lines), CSV and TSV with a header, and Parquet, also compressed: gzip, Zstandard "
        "or bzip2, whatever the file's name. The kind is recognised from the fields of the first row; `KIND:FILE` "
        "names it. `hub:NAME,SPLIT` reads a dataset of the Hugging Face Hub. Several datasets share the shapes of "
        "FlashRAG and Search-R1 (`golden_answers`), KILT, DPR, FiD and of plain files: their answers are compared "
        "as in the dataset that the kind, the row (`data_source`, `dataset`), the file or its folder names. In a "
        "cell, a list is written as JSON or as Python prints it. Files of any other shape need `--columns`, see "
        "[Use your own data](../howto/own-data.md).",
        table(["kind", "recognised by the fields"], kinds(), "ll"),
        "## Corpus files",
        paragraphs(corpus_help()),
    ]  # fmt: skip
    for title, classes in RECORDS:
        parts.append(f"## {title}")
        for cls in classes:
            parts += [f"### {cls.__name__}", paragraphs((cls.__doc__ or "").partition("Attributes:")[0])]
            parts.append(table(["field", "type", "default", "meaning"], record_rows(cls), "llll"))
    return "\n\n".join(parts) + "\n"


def corpus_help() -> str:
    from rag_train.retrieval.corpus import read_corpus

    return (inspect.getdoc(read_corpus) or "").partition("\n\n")[2].partition("Raises")[0].replace("``", "`")


def kinds() -> Iterable[list[str]]:
    for name, kind in FORMATS.items():
        signs = " or ".join(", ".join(f"`{field}`" for field in sorted(fields)) for fields in kind.signs)
        yield [f"`{name}`", signs or "only by name"]


def record_rows(cls: Any) -> Iterable[list[str]]:
    texts = meanings(cls)
    for name, field in cls.model_fields.items():
        if field.is_required():
            default = "**required**"
        else:
            default = code(json.dumps(field.get_default(call_default_factory=True), default=str))
        yield [f"`{name}`", hint_name(field.annotation), default, texts.get(name, "")]


def hint_name(hint: Any) -> str:
    if str(hint).startswith("dict"):
        return re.sub(r"[a-z_.]+\.(?=\w)", "", str(hint))
    return type_name(hint)


def meanings(cls: type) -> dict[str, str]:
    """Return the meaning of each attribute of ``cls`` and its bases, by docstrings and Google's ``Attributes:``."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        listed = re.findall(r"(?m)^    (\w+): (.*(?:\n      .*)*)", inspect.cleandoc(base.__doc__ or ""))
        texts |= {name: " ".join(text.split()) for name, text in listed}
    return texts | attribute_docstrings(cls)
