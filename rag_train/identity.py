"""The identity of models and of code: what a stored result depends on, as JSON values from which its key is made.

Two things have the same identity only if they give the same results. An identity contains no secrets, and no paths:
a model that is moved stays the same model. An engine's identity is that of its model with its settings
(`rag_train.llm.engines.identity`); a retriever and a reranker state theirs (`rag_train.retrieval.base.identity`).
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rag_train.errors import UserError, masked
from rag_train.formats.instructions import OURS, Instructions
from rag_train.jobs.files import sha256
from rag_train.llm.hub import commit_of, is_hub_name
from rag_train.package_files import packaged
from rag_train.provenance import weights_sha256

_TEXT = re.compile(
    r"(config|generation_config|adapter_config|special_tokens_map|added_tokens|modules|.*sentence.*)\.json"
    r"|merges\.txt|.*\.model|(tokenizer|vocab|chat_template).*"
)
"""Files of a model, besides its weights, that decide what it reads and writes."""
_MODULE = re.compile(r"\d+_\w+")
"""Folders of the modules of a sentence-transformers model, such as ``1_Pooling``."""
_PACKAGE = "rag_train"
_APART = {
    f"{_PACKAGE}.{name}"
    for name in (
        *("errors", "identity", "jobs", "progress", "provenance", "recipe", "table"),
        *("questions.load", "llm.engines", "llm.hub"),
        *("retrieval.open", "retrieval.kinds"),
        *("strategies.kit", "data_synth.inputs"),
    )
}
"""Modules and packages that do not belong to the code of those who import them: what they read or open has an
identity of its own, or they only write messages and files."""


def model(place: str) -> dict[str, Any]:
    """Return the identity of the model or LoRA adapter at ``place``.

    Of a directory or a GGUF file, it is a hash of the weights, and one of the files that decide what the model
    reads and writes, such as its chat template. The identity of an adapter includes its base model's. Of a model on
    the Hub, it is the name and the commit. Any other name stands for itself.
    """
    path = Path(place)
    if not path.exists():
        return {"hub": place, "commit": _commit(place)} if is_hub_name(place) else {"name": place}
    weights = weights_sha256(place) or _contents(path, (file for file in path.iterdir() if file.is_file()))
    found: dict[str, Any] = {"weights": weights}
    if path.is_dir():
        found["text"] = _contents(path, _files_of_text(path))
        if base := _base(path):
            found["base"] = base
    return found


def model_or_service(place: str) -> dict[str, Any]:
    """Return the identity of the model at ``place``, or of the service at this address."""
    return {"service": masked(place)} if "://" in place else model(place)


def tokenizer(place: str) -> dict[str, Any]:
    """Return the identity of the tokenizer in the directory ``place``, or on the Hub, apart from any weights."""
    path = Path(place)
    return {"text": _contents(path, _files_of_text(path))} if path.is_dir() else model(place)


def files(paths: Iterable[Path]) -> list[str]:
    """Return the identity of data files: the SHA-256 of each. Raises UserError if one cannot be read."""
    try:
        return [sha256(path) for path in paths]
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; give the path of an existing file") from error


@cache
def _commit(name: str) -> str | None:
    try:
        return commit_of(name)
    except UserError:  # the engine that opens the model says so
        return None


def _files_of_text(path: Path) -> Iterator[Path]:
    for file in path.iterdir():
        if file.is_dir() and _MODULE.fullmatch(file.name):
            yield from (part for part in file.rglob("*") if part.is_file())
        elif file.is_file() and _TEXT.fullmatch(file.name):
            yield file


def _contents(folder: Path, files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of ``files``."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(folder)} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _base(adapter: Path) -> dict[str, Any] | None:
    """Return the identity of the model that an adapter was trained on; None if it names none or is no adapter."""
    try:
        config = json.loads((adapter / "adapter_config.json").read_bytes())
        base, commit = config.get("base_model_name_or_path"), config.get("revision")
    except (OSError, ValueError, AttributeError):
        return None
    if not base:
        return None
    return {"hub": base, "commit": commit} if commit and is_hub_name(base) else model(base)


class _Source(NamedTuple):
    """What is read of a module.

    Attributes:
        text: its code, without comments and in one layout.
        imports: names of the modules that it may import, and of what it imports from them.
        constants: the words among its texts, some of which are names of prompts.
    """

    text: str
    imports: list[str]
    constants: set[str]


_read: dict[Path, tuple[Any, _Source]] = {}
"""What was read of each module, and the specification that the module was loaded by: another one after a reload."""


def code(*makers: Any, instructions: Instructions = OURS) -> str:
    """Return a hash of the code by which ``makers`` work: classes, functions or modules.

    It covers their modules, all modules of this package that these import, directly or not, and those of the
    ``instructions`` that the modules name. Makers of other packages bring the modules that lie beside them.
    Comments and layout do not count.

    Raises UserError if a maker is not in a file.
    """
    waiting, read, named = [], dict[str, str](), set[str]()
    roots = dict[str, Path]()
    for maker in makers:
        name, file = _module(maker)
        if file is None:
            raise UserError(f"{name}: its code is not in a file, by which results could be stored; save it in one")
        top = name.partition(".")[0]
        if top != _PACKAGE:
            roots.setdefault(top, file.parents[name.count(".") + (file.name == "__init__.py")])
        waiting.append((name, file))
    while waiting:
        name, file = waiting.pop()
        if name in read or name in _APART or name.rpartition(".")[0] in _APART:
            continue
        source = _source(name, file)
        read[name] = source.text
        named |= source.constants
        waiting += ((each, path) for each in source.imports if (path := _found(each, roots)))
    texts = [(each.name, each.text, each.own) for name, each in sorted(instructions.items()) if name in named]
    return hashlib.sha256(json.dumps([sorted(read.items()), texts]).encode()).hexdigest()


def _module(maker: Any) -> tuple[str, Path | None]:
    """Return the name of the module of ``maker``, and its file."""
    while isinstance(maker, partial):
        maker = maker.func
    name = maker.__name__ if isinstance(maker, ModuleType) else maker.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name, Path(file) if file else None


def _source(name: str, file: Path) -> _Source:
    loaded_by = getattr(sys.modules.get(name), "__spec__", None)
    known = _read.get(file)
    if known is None or known[0] is not loaded_by:
        tree = ast.parse(file.read_bytes())
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        words = {text for text in texts if isinstance(text, str) and text.isidentifier()}
        _read[file] = known = loaded_by, _Source(ast.unparse(tree), list(_imports(tree, package)), words)
    return known[1]


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the names that a module of ``package`` imports, except for type checkers only."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            children = node.orelse
        case ast.Import():
            yield from (alias.name for alias in node.names)
            return
        case ast.ImportFrom():
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
            return
        case _:
            children = ast.iter_child_nodes(node)
    for child in children:
        yield from _imports(child, package)


def _found(name: str, roots: dict[str, Path]) -> Path | None:
    """Return the file of a module of this package, or of one that lies beside a maker; None for all others."""
    top, _, rest = name.partition(".")
    if top == _PACKAGE:
        place = Path(rest.replace(".", "/"))
        files = (packaged(f"{place}.py"), packaged(f"{place}/__init__.py"))
        return next((file for file in files if file.is_file()), None)
    for root in roots.values():
        place = root.joinpath(*name.split("."))
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file() and "site-packages" not in file.relative_to(root).parts:
                return file
    return None
