"""Recipes: YAML files that are read into typed, frozen dataclasses.

A recipe is plain data: the loader builds no objects, expands no variables and runs no code. Every mistake in the
file is reported in one line, with its place, before any heavy library is imported.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from yaml.composer import ComposerError

from rag_train.errors import UserError
from rag_train.jobs.files import write_text

T = TypeVar("T")
Count = Annotated[int, Field(gt=0)]
"""A number of things, at least 1."""


class Key(NamedTuple):
    """A recipe key as ``--help`` lists it; ``default`` is YAML text, or "required"."""

    name: str
    type: str
    default: str
    help: str

    def __str__(self) -> str:
        about = "section" if self.type == "mapping" else f"{self.type}, {self.default}"
        return f"{self.name} ({about}): {self.help}"


class _Loader(yaml.SafeLoader):
    """A YAML loader for plain data: without aliases, which can grow a few lines to gigabytes, and without dates.

    It reads ``1e-5`` as a float, as YAML 1.2 does; in PyYAML's YAML 1.1 it is a string.
    """

    yaml_implicit_resolvers: ClassVar = {  # pyrefly: ignore[bad-override]
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "aliases such as *name are not read", mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "map", "null", "seq", "str")}
"""Types that JSON has too."""
_LARGEST = 2**20
"""Maximum size of a recipe in characters."""


def parse_yaml(text: str) -> Any:
    """Parse plain YAML: mappings with names as keys, lists, text, numbers, true, false and null.

    Raises yaml.YAMLError for anything else.
    """
    return _construct(_Loader(text))[1]


def _construct(loader: _Loader) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a document and its value. Raises yaml.YAMLError if it is not plain YAML."""
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        for node in _nodes(root):
            if node.tag not in _TAGS:
                raise yaml.MarkedYAMLError(problem=f"{node.tag} is not plain data", problem_mark=node.start_mark)
        value = loader.construct_document(root)
        json.dumps(value, ensure_ascii=False).encode()  # finds halves of surrogate pairs
        return root, value
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except ValueError as error:  # numbers such as 0b_, or of thousands of digits
        raise yaml.YAMLError(str(error)) from None


def _nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    left = [root]
    while left:
        node = left.pop()
        yield node
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="a key is not a name", problem_mark=key.start_mark)
                left += [key, value]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def load_recipe(cls: type[T], path: str | Path, overrides: Sequence[str] = ()) -> T:
    """Read the recipe at ``path`` into the dataclass ``cls``.

    ``overrides`` are ``dotted.key=value``, with the value in YAML. Types are strict ("3" is not accepted for 3),
    except that an integer is accepted for a float. A ``__post_init__`` of ``cls`` may raise UserError for keys that
    do not fit together; its message starts with one of the keys. A static method ``fill_in`` of ``cls``, which may
    raise it too, adds keys that file and ``overrides`` leave out.

    Raises UserError if the recipe is not valid: one line with the file, the line, the key and the remedy.
    """
    data, places = _read(Path(path))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UserError(f"override {override!r}: not of the form key=value; write, for example, lr=1e-5")
        try:
            value = parse_yaml(text)
        except yaml.YAMLError as error:
            raise UserError(f"override {_cut(override)!r}: the value is not plain YAML; quote it") from error
        assign(data, key.split("."), value, override)
        places[key] = f"override {override!r}"
        for parent in _parents(key):
            places.setdefault(parent, places[key])
    try:
        if fill_in := getattr(cls, "fill_in", None):
            fill_in(data)
        # JSON mode: strict about scalars, but a list may become a tuple and a string a path.
        return TypeAdapter(cls).validate_json(json.dumps(data, default=str), strict=True, extra="forbid")
    except ValidationError as error:
        raise UserError(_explain(cls, error, places)) from None
    except UserError as error:
        raise UserError(f"{_place(re.split('[:=]', str(error))[0], places)}: {error}") from None


def save_recipe(recipe: Any, path: str | Path) -> None:
    """Write ``recipe`` to ``path`` with all defaults filled in; `load_recipe` reads an equal recipe from it."""
    plain = TypeAdapter(type(recipe)).dump_python(recipe, mode="json")
    write_text(Path(path), yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def describe(cls: type) -> list[Key]:
    """Return all keys of the recipe dataclass ``cls``, nested keys dotted; the help is the field's docstring."""
    return list(_describe(cls, ""))


def _describe(cls: type, prefix: str) -> Iterator[Key]:
    hints, help_texts = get_type_hints(cls), attribute_docstrings(cls)
    for field in fields(cls):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        text = "required" if default is MISSING else json.dumps(default, default=str)
        yield Key(prefix + field.name, type_name(hints[field.name]), text, help_texts.get(field.name, ""))
        for nested in (hints[field.name], *get_args(hints[field.name])):
            if is_dataclass(nested) and isinstance(nested, type):
                yield from _describe(nested, f"{prefix}{field.name}.")


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring below each attribute of ``cls`` and its bases."""
    docstrings = {}
    for base in reversed(cls.__mro__[:-1]):  # without object
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                docstrings[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return docstrings


def type_name(hint: Any) -> str:
    """Return a type as it is written for users: "yes|no", "int or null"."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return "|".join(a if isinstance(a, str) else json.dumps(a) for a in arguments)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(type_name(a) for a in arguments)
    if get_origin(hint) is dict:
        return "mapping"
    if get_origin(hint) in (list, tuple):
        return f"list of {type_name(arguments[0])}"
    if hint is types.NoneType:
        return "null"
    if hint is Path:
        return "file"
    return "mapping" if is_dataclass(hint) else hint.__name__


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the file's data, and the place ("file, line n") of each dotted key; the empty key is the file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(f"recipe {path}: {reason}; give the path of a YAML file") from error
    if len(text) > _LARGEST:
        raise UserError(f"recipe {path}: larger than {_LARGEST:,} characters; give the path of a recipe")
    places = {"": f"{path}, line 1"}
    try:
        root, data = _construct(_Loader(text))
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{path}, line 1: not a mapping; write `key: value` lines")
        _locate(root, "", path, places)
        return data, places
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}, line {line}: not valid YAML ({problem}); fix the syntax on that line") from error


def _locate(node: yaml.Node, prefix: str, path: Path, places: dict[str, str]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key = f"{prefix}{key_node.value}"
            place = f"{path}, line {key_node.start_mark.line + 1}"
            if key in places:
                raise UserError(f"{place}: key {key!r} is given twice; remove one")
            places[key] = place
            _locate(value_node, f"{key}.", path, places)


def assign(data: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    """Set a nested key of ``data``. Raises UserError, with the ``override``, if a key in it has no nested keys."""
    for key in keys[:-1]:
        if data.get(key) is None:
            data[key] = {}
        data = data[key]
        if not isinstance(data, dict):
            raise UserError(f"override {override!r}: {key!r} has no nested keys; give {key}=value")
    data[keys[-1]] = value


def _parents(key: str) -> Iterator[str]:
    """Yield the sections that a dotted key is in, the innermost first, and the empty key last."""
    while key:
        key = key.rpartition(".")[0]
        yield key


def _place(key: str, places: dict[str, str]) -> str:
    """Return the place of ``key``, or of the innermost section that is in the file."""
    return next(places[name] for name in (key, *_parents(key)) if name in places)


def _explain(cls: type, error: ValidationError, places: dict[str, str]) -> str:
    """Describe the first problem in one line; unknown keys come first, as they often cause a missing key."""
    problem = min(error.errors(), key=lambda e: e["type"] != "unexpected_keyword_argument")
    key = ".".join(str(part) for part in problem["loc"])
    known = {entry.name: entry for entry in describe(cls)}
    place, message = _place(key, places), problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] == "unexpected_keyword_argument":
        moved = [name for name in known if name.rpartition(".")[2] == key]  # a key of a section, given without it
        near = next(iter(moved or difflib.get_close_matches(key, known, n=1)), None)
        siblings = [name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]]
        remedy = f"did you mean {near!r}?" if near else f"the keys are {', '.join(siblings)}"
        return f"{place}: unknown key {key!r}; {remedy}"
    if problem["type"] == "missing":
        entry = known[key]
        return f"{place}: missing key {key!r}; add `{key}: <{entry.type}>` ({entry.help})"
    if problem["type"] == "path_not_file":
        return f"{place}: {key}: no file {problem['input']!r}; give the path of an existing file"
    expected = f"; give {known[key].type}" if key in known else ""
    return f"{place}: {key}: {message}, not {_cut(json.dumps(problem['input'], default=str))}{expected}"


def _cut(text: str) -> str:
    """Return at most the first 200 characters of what was given."""
    return text if len(text) <= 200 else f"{text[:200]}..."
