"""The shape of the package: who imports whom, what is public, what an import costs, what is documented."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import isolayer

SOURCE = Path(isolayer.__file__).parent

# A module imports only from lines above its own; a name stands for its whole folder.
ORDER = [
    "errors",
    "grid",
    "functional",
    "layer",
    "context",
    "lattice",
    "metrics",
    "keys",
    "frames",
    "histogram",
    "banded",
    "cells",
    "solver",
    "shrinkage",
    "hierarchy",
    "curves",
    "artefact",
    "sources",
    "table_sums",
    "tables",
    "export_sql",
    "export_onnx",
    "export_torch",
    "calibrator",
    "alternating",
    "baselines",
    "monitor",
    "simulate",
    "debias",
    "policy",
    "stream",
    "training",
    "datasets",
    "experiments",
    "report",
    "demo",
    "cli",
    "__main__",
]


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def home(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports when it is imported itself: at the top level, types aside."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("isolayer"):
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("isolayer.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_upwards_only(path):
    own = home(path)
    assert own in ORDER, f"{own} has no line in the table"
    for name in imported(path) - {own, "__version__"}:
        assert ORDER.index(name) < ORDER.index(own), f"{own} imports {name}, which stands below it"


def test_the_table_names_only_what_exists():
    assert set(ORDER) == {home(path) for path in modules()}


def test_all_is_sorted_and_is_what_can_be_imported():
    assert isolayer.__all__ == sorted(isolayer.__all__)
    assert set(isolayer.__all__) == set(isolayer._HOME)
    for name in isolayer.__all__:
        assert getattr(isolayer, name).__name__ == name
        assert name in dir(isolayer)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        isolayer.nothing  # noqa: B018


def test_importing_the_package_imports_no_extra():
    heavy = ["ibis", "lightning", "altair", "sklearn", "onnx", "pandas", "polars", "duckdb", "pyspark", "typer"]
    code = f"import isolayer, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", isolayer.__all__)
def test_every_public_name_is_documented_with_an_example_that_runs(name):
    thing = getattr(isolayer, name)
    assert inspect.getdoc(thing)
    assert any(test.examples for test in doctest.DocTestFinder(recurse=False).find(thing, name)), f"{name}: no doctest"


def test_no_module_is_a_drawer_for_odds_and_ends():
    for module in pkgutil.walk_packages(isolayer.__path__, "isolayer."):
        assert module.name.rsplit(".", 1)[1] not in {"utils", "util", "helpers", "common", "config", "misc"}


def test_every_module_says_what_belongs_in_it():
    for path in modules():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path.name} has no docstring"


def test_every_command_is_documented():
    reference = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    for command in importlib.import_module("isolayer.cli.app").COMMANDS:
        name = command.__name__
        assert f"## isolayer {name}" in reference, f"docs/cli.md has no section for {name}"
        assert inspect.getdoc(command), f"{name} has no help"


@pytest.mark.parametrize(
    "module", ["isolayer", "isolayer.debias", "isolayer.metrics", "isolayer.report", "isolayer.simulate"]
)
def test_the_reference_names_everything_public(module):
    pages = "".join(page.read_text() for page in (SOURCE.parents[1] / "docs").glob("api*.md"))
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert f"::: {value.__module__}.{name}\n" in pages, f"{module}.{name} is in no page of the reference"
