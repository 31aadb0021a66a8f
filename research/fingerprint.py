"""Which code a unit of a study can run: ``run_unit`` and all that it reaches, read from the sources without running.

Of the modules of `research` only the definitions count that are reached, so that a summary, a chart or a sentence may
be edited without voiding units that took hours; of other packages of this project whole modules count. Comments,
docstrings and layout never count. Followed are imports at any depth, those inside functions included, and modules that
are loaded by a name given as text: ``need("isolayer.policy")``. A name that a package merely passes on is followed to
the module that defines it. Left out are imports for type checkers and the list of `isolayer.errors.offered`, by which
every curve could reach every engine: a study that calls one of these methods names the module behind it,
``LOADS = ("isolayer.tables.histogram_query",)``. A module that reads what a study has chosen names that study,
``READS = ("debias-tuning",)``, and what was chosen counts too.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import isolayer

_HERE = Path(__file__).parent
STUDIES = "research"
OWN = {  # packages whose sources count
    STUDIES: _HERE,
    "benchmarks": _HERE.parent / "benchmarks",
    "isolayer": Path(isolayer.__file__).parent,
}
CHOSEN = _HERE.parent / "docs" / "reproduced"  # where the choices of studies are read from
LISTS = "isolayer.errors"  # the module whose texts are a list, not what it loads itself
START = "run_unit"
ALWAYS = ("LOADS", "READS")  # names that count whether they are used or not


class Piece(NamedTuple):
    """A top-level name of a module, or the whole module where there is no name."""

    module: str
    name: str = ""


@cache
def code_version(module: str) -> str:
    """Twelve hexadecimal digits of the code that a unit of a study's module can run.

    >>> len(code_version("research.expressiveness"))
    12
    """
    digest = hashlib.sha256()
    for piece in sorted(pieces(module)):
        digest.update(f"{piece.module}:{piece.name}\0{_plain(piece)}\0".encode())
    return digest.hexdigest()[:12]


def sources(module: str) -> frozenset[str]:
    """The modules that a unit of a study can run something of.

    >>> found = sources("research.ab_test")
    >>> [name in found for name in ("research.loop", "isolayer.debias.heads", "research.incremental")]
    [True, True, False]
    """
    return frozenset(piece.module for piece in pieces(module))


@cache
def pieces(module: str) -> frozenset[Piece]:
    """What ``run_unit`` of a study's module reaches, directly or not.

    >>> found = pieces("research.ab_test")
    >>> Piece("research.ab_test", "by_value") in found, Piece("research.ab_test", "summarise") in found
    (True, False)
    """
    found: set[Piece] = set()
    waiting = [Piece(module, START)]
    while waiting:
        piece = waiting.pop()
        if piece not in found:
            found.add(piece)
            waiting += _reached(piece)
    return frozenset(found)


@cache
def _reached(piece: Piece) -> frozenset[Piece]:
    """What one piece uses."""
    module, statements = piece.module, _statements(piece)
    found = {Piece(module, name) for name in ALWAYS if piece.name and name in _names(module)}
    for node in _nodes(statements):
        if isinstance(node, ast.Import):
            found |= {_whole(alias.name) for alias in node.names if _bound(alias) == piece.name or not piece.name}
        elif isinstance(node, ast.ImportFrom):
            package = _package(module, node)
            top = piece.name and node in statements  # of an import at the top only the name that is asked for
            aliases = [alias for alias in node.names if not top or _bound(alias) == piece.name]
            found |= {home for alias in aliases for home in _homes(package, alias.name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and module != LISTS:
            found.add(_whole(node.value))
        elif isinstance(node, ast.Name) and piece.name and node.id in _names(module):
            found.add(Piece(module, node.id))
    return frozenset(one for one in found if one.module and _file(one.module) is not None)


def _whole(module: str) -> Piece:
    return Piece(module)


def _bound(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


@cache
def _names(module: str) -> dict[str, list[ast.stmt]]:
    """The statements at the top of a module that bind each of its names; ``""`` has those that bind none."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(_text(module)).body:
        for name in set(_binds(statement)) or {""}:
            found.setdefault(name, []).append(statement)
    return found


def _binds(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from map(_bound, statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name):
                yield node.id


def _statements(piece: Piece) -> list[ast.stmt]:
    """The source of a piece; statements that bind no name, such as a condition, belong to every piece of a module."""
    if not piece.name:
        return ast.parse(_text(piece.module)).body
    names = _names(piece.module)
    return [*names.get("", []), *names.get(piece.name, [])]


@cache
def _plain(piece: Piece) -> str:
    """The code of a piece without comments, docstrings and layout, and what was chosen by studies that it reads."""
    statements = _statements(piece)
    for node in [node for statement in statements for node in ast.walk(statement)]:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    kept = [statement for statement in statements if not _is_text(statement)]
    chosen = ""
    if piece.name == "READS":
        studies = ast.literal_eval(next(one.value for one in kept if isinstance(one, ast.Assign)))
        chosen = "".join(map(_chosen, studies))
    return "\n".join(map(ast.unparse, kept)) + chosen


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _chosen(study: str) -> str:
    """What a study has chosen, as far as it was run."""
    path = CHOSEN / f"{study}.json"
    return json.dumps(json.loads(path.read_text())["series"], sort_keys=True) if path.is_file() else ""


def _nodes(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of statements, those for type checkers left out."""
    for node in statements:
        checking = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if not checking:
            yield node
            yield from _nodes(ast.iter_child_nodes(node))


def _package(module: str, node: ast.ImportFrom) -> str:
    """Where an import is from, in full."""
    if not node.level:
        return node.module or ""
    file, parts = _file(module), module.split(".")
    up = node.level - (file is not None and file.name == "__init__.py")
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def _homes(package: str, name: str) -> Iterator[Piece]:
    """What defines that which ``from package import name`` brings, or the package if it does not say."""
    file = _file(package)
    if _file(f"{package}.{name}") is not None:
        yield _whole(f"{package}.{name}")
    elif file is not None and file.name == "__init__.py":
        passed_on = [
            home
            for node in ast.walk(ast.parse(_text(package)))
            if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]
            for home in _homes(_package(package, node), name)
        ]
        yield from passed_on or [_whole(package)]
    else:
        yield Piece(package, name) if package.startswith(f"{STUDIES}.") else _whole(package)


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
