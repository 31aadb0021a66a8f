"""Which code a study can run: its module and all that it imports, read from the sources without running them.

Followed are imports of this project's own packages at any depth, those inside functions included, and modules that are
loaded by a name given as text: ``need("isolayer.policy")``. A name that a package merely passes on is followed to the
module that defines it, so that a study that uses one class of a package does not depend on the rest of it. Left out are
imports for type checkers and the list of `isolayer.errors.offered`, by which every curve could reach every engine: a
study that calls one of these methods names the module behind it, ``LOADS = ("isolayer.tables.histogram_query",)``.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import isolayer

_HERE = Path(__file__).parent
OWN = {  # packages whose sources count
    "research": _HERE,
    "benchmarks": _HERE.parent / "benchmarks",
    "isolayer": Path(isolayer.__file__).parent,
}
LISTS = "isolayer.errors"  # the module whose texts are a list, not what it loads itself


@cache
def code_version(module: str) -> str:
    """Twelve hexadecimal digits of the sources that a unit of a study's module can run.

    >>> len(code_version("research.expressiveness"))
    12
    """
    digest = hashlib.sha256()
    for name in sorted(sources(module)):
        digest.update(name.encode() + b"\0" + _text(name).encode())
    return digest.hexdigest()[:12]


def sources(module: str) -> frozenset[str]:
    """The module and everything of ours that it imports, directly or not.

    >>> found = sources("research.ab_test")
    >>> [name in found for name in ("research.charts", "isolayer.debias.heads", "research.incremental")]
    [True, True, False]
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports(name)
    return frozenset(found)


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that one module imports or loads by name."""
    found: set[str] = set()
    for node in _nodes(ast.parse(_text(module))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {home for alias in node.names for home in _homes(_package(module, node), alias.name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and module != LISTS:
            found.add(node.value)
    return frozenset(name for name in found if _file(name) is not None)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, those for type checkers left out."""
    yield node
    checking = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in () if checking else ast.iter_child_nodes(node):
        yield from _nodes(child)


def _package(module: str, node: ast.ImportFrom) -> str:
    """Where an import is from, in full."""
    if not node.level:
        return node.module or ""
    file, parts = _file(module), module.split(".")
    up = node.level - (file is not None and file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def _homes(package: str, name: str) -> Iterator[str]:
    """The module that defines what ``from package import name`` brings, or the package if it does not say."""
    file = _file(package)
    if _file(f"{package}.{name}") is not None:
        yield f"{package}.{name}"
    elif file is not None and file.name == "__init__.py":
        passed_on = [
            home
            for node in ast.walk(ast.parse(_text(package)))
            if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]
            for home in _homes(_package(package, node), name)
        ]
        yield from passed_on or [package]
    else:
        yield package


@cache
def _file(name: str) -> Path | None:
    """The file of a module of ours."""
    first, *rest = name.split(".") if name.isascii() else [""]
    if first not in OWN or not all(part.isidentifier() for part in rest):
        return None
    path = OWN[first].joinpath(*rest)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _text(name: str) -> str:
    file = _file(name)
    return "" if file is None else file.read_text()
